"""Leasehold hosts and Azure's clients in one group: stores over both, and the hub they share.

``MixedStore`` is a ``Store`` over two others. A Leasehold store (``ours``) has the leases, epochs,
members and fenced checkpoints. A ``CheckpointStore`` of Azure (``theirs``) has the records, which
decide who may read: a host owns a partition only if it holds the key and the record names it.
``reconciler`` has what is done in each cycle, ``release_protocol`` the order of releases.

Guarantees of ``MixedStore``:

1. A partition is claimed first in its record, by compare-and-set, and then in the store: at that
   time it had no other owner.
2. What a client has taken ends for the host as stolen, at its next cycle. The host's writes are
   fenced from when any host has seen it.
3. What is above the hosts' share, or left at the end, is drained, checkpointed and then given to
   clients; none of it is delivered twice. It is not released before its checkpoint is in the
   records, unless that takes longer than a lease; even then the record names the host until it is
   there. If a client was faster, the term ends as stolen: then its last events may come twice.
4. Checkpoints are written to the store first, where they are fenced, then to the records. Reads
   return the one that is ahead, and the owner of a partition brings the records up to date.
5. While the records cannot be read or written, hosts continue with what they have, until clients
   might take it for abandoned; then they stop.

``RecordsStore`` needs no shared store: each host keeps the same in its own memory, and hosts meet
in the records only, as stock clients do. It guarantees the compare-and-set (1), the graceful
release, to a host or a client, and that a host stops before others can take it for dead. A newcomer
takes one partition forcibly, to be seen. **It has no fence**: a host that was paused during a
checkpoint, and resumes after another owner took over, moves the checkpoint back, as a stock client
does. ``MixedStore`` refuses that.

``SharedSource`` is the hub that the hosts read beside the clients, on equal terms. The receivers of
Azure's clients all have the owner level 0, and the last to attach wins. A receiver with the epoch
of its lease would keep them out of a partition that they have claimed, and they would give it back.
So in a mixed group the hosts use level 0 too. It guarantees that a host that has lost a partition
to a later receiver does not take it back under the same epoch before ``grace`` is over; by then it
knows from the records whose it is. What was lost is still fenced by the epoch, in the store. If the
records know nothing of the loss, that is logged as a warning: then the clients use other records.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import anyio

from leasehold.azure.interop.reconciler import MAX_WRITES_PER_CALL, Reconciler
from leasehold.azure.interop.record_layout import BEGINNING, ConsumerGroup
from leasehold.azure.interop.records import (
    OwnershipRecords,
    has_offset,
    host_owner_id,
    is_host_owner,
    is_refusal,
    is_stand_in,
)
from leasehold.azure.interop.release_protocol import (
    PendingCheckpoints,
    ReleaseProtocol,
    raise_if_waiting,
)
from leasehold.clock import SystemClock, system_random
from leasehold.core.lease_timing import MAX_LEASE_S
from leasehold.errors import (
    InvalidOptions,
    ReaderDisplaced,
    StoreUnavailable,
    StoreUnusable,
    UsageError,
)
from leasehold.events.source import identity_of
from leasehold.model import Checkpoint, CheckpointWrite
from leasehold.names import check_name, group_of, last_part, seconds_of
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from leasehold.azure.interop.records import AzureCheckpointStore
    from leasehold.clock import Clock
    from leasehold.events.event import EventBatch
    from leasehold.events.source import EventSource, PartitionEnds, Receiver
    from leasehold.events.start import Start
    from leasehold.model import (
        Changes,
        HandOver,
        KeyClaim,
        Lease,
        MemberInfo,
        MemberRecord,
        Note,
        Ownership,
        Position,
        Refusal,
        Resource,
        Term,
    )
    from leasehold.ports import Store


class PassThrough:
    """A ``Store`` that passes every call on. It belongs to the event loop that uses it first."""

    def __init__(self, store: str | Store, *, clock: Clock) -> None:
        self._given = store
        self._clock = clock
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._store: Store | None = None if isinstance(store, str) else store

    @property
    def url(self) -> str:
        if self._store is not None:
            return self._store.url
        return f"{urlsplit(str(self._given)).scheme}://…"  # the rest may hold a secret

    async def inner(self) -> Store:
        """Return the inner store; open it on first use."""
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    opened = open_store(str(self._given), clock=self._clock)
                    self._store = await self._opened.enter_async_context(opened)
        return self._store

    async def declare(self, keys: Sequence[str]) -> int:
        return await (await self.inner()).declare(keys)

    async def forget(self, keys: Sequence[str]) -> int:
        return await (await self.inner()).forget(keys)

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        store = await self.inner()
        return await store.grant(
            holder=holder, token=token, group=group, duration=duration, info=info
        )

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        return await (await self.inner()).renew(lease, since=since, info=info)

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        await (await self.inner()).revoke(lease, lapsed=lapsed)

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        return await (await self.inner()).claim(lease, wanted, force=force)

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        return await (await self.inner()).ask(lease, wanted)

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        return await (await self.inner()).hand_over(hand_overs, limit=limit)

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        return await (await self.inner()).release(ownerships, notes=notes)

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        return await (await self.inner()).break_(key, epoch=epoch, after=after)

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        return await (await self.inner()).checkpoint(marks)

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        return await (await self.inner()).annotate(notes)

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        return await (await self.inner()).request_hand_over(key, epoch=epoch, to=to)

    async def request_leave(self, holder: str) -> bool:
        return await (await self.inner()).request_leave(holder)

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        return await (await self.inner()).reset(positions)

    async def groups(self) -> Sequence[str]:
        return await (await self.inner()).groups()

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        return await (await self.inner()).checkpoints(group)

    async def resources(self, group: str) -> Mapping[str, Resource]:
        return await (await self.inner()).resources(group)

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        return await (await self.inner()).members(group)

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        return await (await self.inner()).history(key, limit=limit)

    async def fenced_writes(self, group: str) -> int:
        return await (await self.inner()).fenced_writes(group)

    async def close(self) -> None:
        """Close what was opened here. Leases are left as they are."""
        await self._opened.aclose()


log = logging.getLogger("leasehold.azure")

T = TypeVar("T")

_MIN_EXPIRY_S = 1.0
# Six in each cycle of Azure's clients, at the usual six cycles per expiry.
_READS_PER_EXPIRY = 36
# The part of a lease that Azure's store may take within one call. Two such waits and the answer of
# Leasehold's store fit into the 0.3 of a lease that a member gives to a call.
_SHARE_OF_LEASE = 0.12


class MixedStore(PassThrough):
    """Give it to ``EventProcessor`` as its store, one for each processor.

    For the event loop that uses it first; the processor uses it in that of its leases.
    """

    _private_store = False

    def __init__(
        self,
        ours: str | Store,
        theirs: AzureCheckpointStore,
        *,
        namespace: str,
        hub: str,
        expiry: timedelta = timedelta(seconds=180),
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Connect to nothing yet.

        ``ours``: a Leasehold store or its URL; all hosts of the group use the same one. ``theirs``:
        blocking or asynchronous; ``BlobRecords`` is the one that no malformed record stops.
        ``namespace`` and ``hub`` are as Azure's clients name them (the host of the connection
        string, with its port if it has one); the consumer group is that of the processor.
        ``expiry``: the ``partition_ownership_expiration_interval`` of the clients, the shortest of
        all of them.

        Raises:
            InvalidName, InvalidDuration: with what is wrong.
            UsageError: ``ours`` is the URL of a store that no other process can use.
        """
        if isinstance(ours, str) and ours.startswith("memory:"):
            raise UsageError(
                f"{ours} is of this process alone, and would take hosts of ours in others for "
                "dead: name a store of all of them, or use RecordsStore, which needs none"
            )
        super().__init__(ours, clock=clock or SystemClock())
        check_name(namespace, what="namespace")
        check_name(hub, what="hub")
        self._azure_store = theirs
        self._namespace = namespace
        self._hub = hub
        self._expiry_s = seconds_of(expiry, what="expiry", min_s=_MIN_EXPIRY_S, max_s=MAX_LEASE_S)
        self._rng = rng or system_random()
        self._records: dict[str, OwnershipRecords] = {}
        self._reconcilers: dict[str, Reconciler] = {}
        self._timeout_s = self._expiry_s / _READS_PER_EXPIRY
        self._pending = PendingCheckpoints(
            self._write_checkpoint, allowed=self._is_latest, clock=self._clock
        )
        self._release_protocol = ReleaseProtocol(
            self._pending, self._reconcilers, bounded=self._bounded, clock=self._clock
        )
        self._own_ids: set[str] = set()  # all owner ids that were ever used here

    # -------------------------------------------------------------- leases

    async def declare(self, keys: Sequence[str]) -> int:
        """See ``Store``. Azure's records are read before the first keys.

        Raises:
            StoreUnusable: Azure's container does not exist, or the credential is refused.
        """
        for records in {self._records_of(group_of(each)) for each in keys}:
            if records.read_s is None:
                try:
                    await self._bounded(records.refresh())
                except StoreUnavailable as error:
                    if is_refusal(error):  # otherwise it may pass, and is tolerated for a while
                        raise StoreUnusable(str(error)) from error.__cause__
        return await super().declare(keys)

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """See ``Store``.

        Raises:
            InvalidOptions: the lease is longer than half of the expiry.
        """
        if duration.total_seconds() * 2 > self._expiry_s:
            raise InvalidOptions(
                f"lease <= expiry / 2 does not hold ({duration.total_seconds():g} s is more than "
                f"{self._expiry_s / 2:g} s): Azure's clients would take what a host of ours still "
                "works on; shorten the lease"
            )
        self._timeout_s = min(self._timeout_s, duration.total_seconds() * _SHARE_OF_LEASE)
        return await super().grant(
            holder=holder, token=token, group=group, duration=duration, info=info
        )

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """See ``Store``. At times this also reads Azure's records, and writes them if needed."""
        changes = await super().renew(lease, since=since, info=info)
        reconciler = await self._reconciler(lease)
        reconciler.apply(changes)
        changed = False
        try:
            if waiting := reconciler.to_extend():
                await self._bounded(reconciler.extend(waiting))
            if (
                self._is_due(reconciler.records)
                or self._pending.failed
                or reconciler.expires_soon()
            ):
                changed = await self._bounded(self._reconcile(reconciler))
        except StoreUnavailable as error:
            self._tolerate(reconciler, lease, error)
            return changes
        if reconciler.expires_soon():
            raise StoreUnavailable(
                "the records of Azure's clients: those of what is held here could not be written "
                "for so long that they will look dead"
            )
        if changed:
            changes = await super().renew(lease, since=since)
            reconciler.apply(changes)
        return changes

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        """See ``Store``. The records that name this host are freed."""
        reconciler = self._reconcilers.get(lease.holder)
        left = list(reconciler.records.by_partition) if reconciler is not None else []
        if reconciler is not None:
            await self._release_protocol.secure(reconciler, left, timeout_s=self._timeout_s / 2)
        await super().revoke(lease, lapsed=lapsed)
        self._reconcilers.pop(lease.holder, None)
        if reconciler is not None:
            await self._release_protocol.free_records(
                reconciler.records, lease.group, left, reconciler.owner_id
            )

    async def close(self) -> None:
        await self._pending.close()
        await super().close()

    async def _reconcile(self, reconciler: Reconciler) -> bool:
        await reconciler.records.refresh()
        # Not the whole timeout: one hanging checkpoint must not keep this host from the records.
        await self._release_protocol.retry_pending(timeout_s=self._timeout_s / 2)
        return await reconciler.reconcile()

    async def _bounded(self, answer: Awaitable[T]) -> T:
        """Await a call to Azure's store, but not for so long that a lease would end."""
        try:
            return await self._clock.bounded(answer, seconds=self._timeout_s)
        except TimeoutError as late:
            raise StoreUnavailable(
                f"the records of Azure's clients: no answer within {self._timeout_s:.3g} s"
            ) from late

    def _is_due(self, records: OwnershipRecords) -> bool:
        since_s = self._clock.boottime_s() - (records.read_s or 0.0)
        return records.read_s is None or since_s >= self._expiry_s / _READS_PER_EXPIRY

    def _tolerate(self, reconciler: Reconciler, lease: Lease, error: StoreUnavailable) -> None:
        """Continue without the records while no client can take this host for dead, or raise."""
        now_s, read_s = self._clock.boottime_s(), reconciler.records.read_s
        # A host's record is refreshed after half of the expiry, and its lease still runs.
        allowed_s = self._expiry_s / 2 - lease.duration_s
        if read_s is None or now_s - read_s > allowed_s or reconciler.expires_soon():
            raise error
        log.warning("%s: going on without the records of Azure's clients: %s", lease.holder, error)

    # ---------------------------------------------------------- ownerships

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """See ``Store``. At most 64 in one call: each is a separate request to Azure's store."""
        reconciler = await self._reconciler(lease)
        records, owner_id = reconciler.records, reconciler.owner_id
        if records.read_s is None:
            await records.refresh()
        asked = {last_part(each.key): each for each in wanted[:MAX_WRITES_PER_CALL]}
        # Also where the record names this host: it may have been taken since. And a host that was
        # given one by a host with another store confirms that by writing it again.
        to_write = [each for each in asked if force or not records.live_client(each)]
        mine = await records.write(dict.fromkeys(to_write, owner_id))
        if not mine:
            return ()
        to_claim = [each for partition, each in asked.items() if partition in mine]
        won = await super().claim(lease, to_claim, force=force)
        reconciler.add_claimed(won)
        had = {last_part(each.key) for each in won}
        await self._release_protocol.free_records(records, lease.group, mine - had, owner_id)
        return won

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """See ``Store``. Clients do not answer, so they are not asked."""
        reconciler = await self._reconciler(lease)
        if reconciler.records.live_client(last_part(wanted.key)):
            return False
        return await super().ask(lease, wanted)

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """See ``Store``. To a client: released in the store, and given in its record.

        Raises:
            StoreUnavailable: for some the last checkpoint is not in the records, or it is not
                certain
                whether a client has claimed them; the others are handed over.
        """
        ownerships = [each.ownership for each in hand_overs]
        waiting = await self._release_protocol.secure_all(ownerships, timeout_s=self._timeout_s / 2)
        ready = [each for each in hand_overs if each.ownership.key not in waiting]
        to_clients = [each for each in ready if is_stand_in(each.to)]
        to_hosts = [each for each in ready if each not in to_clients]
        passed = list(await super().hand_over(to_hosts, limit=limit)) if to_hosts else []
        by_client: dict[tuple[str, str], list[HandOver]] = {}
        for each in to_clients:
            by_client.setdefault((group_of(each.ownership.key), each.to), []).append(each)
        for (group, to), found in by_client.items():
            notes = {each.ownership.key: each.note for each in found if each.note is not None}
            client = self._records_of(group).client_of_stand_in(to)
            passed += await self._release_to(
                [each.ownership for each in found], to=client, notes=notes
            )
        raise_if_waiting(waiting)
        return passed

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """See ``Store``. The records are freed too, after the last checkpoint was written.

        Raises:
            StoreUnavailable: for some it is not in the records, or it is not certain whether a
                client
                has claimed them; the others are released.
        """
        waiting = await self._release_protocol.secure_all(ownerships, timeout_s=self._timeout_s / 2)
        ready = [each for each in ownerships if each.key not in waiting]
        noted = {key: note for key, note in (notes or {}).items() if key not in waiting}
        done = await self._release_to(ready, to="", notes=noted) if ready else ()
        raise_if_waiting(waiting)
        return done

    async def _release_to(
        self, ownerships: Sequence[Ownership], *, to: str, notes: Mapping[str, str] | None
    ) -> Sequence[str]:
        done = await super().release(ownerships, notes=notes)
        over = [each for each in ownerships if each.key in done]
        await self._release_protocol.free_all_records(over, self._records_of, to=to)
        return done

    # --------------------------------------------------------- checkpoints

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """See ``Store``. What is accepted is written to the records too, and retried on failure."""
        refused = await super().checkpoint(marks)
        self._pending.add(
            write
            for write in marks
            if write.ownership.key not in refused and has_offset(write.position)
        )
        keys = {write.ownership.key for write in marks}
        await self._pending.write(timeout_s=self._timeout_s, keys=keys)
        return refused

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """See ``Store``. Of each partition the checkpoint that is ahead, here or in the records."""
        found = dict(await super().checkpoints(group))
        azure_positions = await self._records_of(group).positions()
        self._pending.add_missing(self._missing_in_azure(found.values(), azure_positions))
        for partition, position in azure_positions.items():
            key = f"{group}/{partition}"
            known = found.get(key)
            if known is None or known.position < position:
                found[key] = Checkpoint(
                    key=key,
                    epoch=known.epoch if known is not None else 0,
                    position=position,
                    updated_at=self._clock.utc_now(),
                )
        return found

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """See ``Store``. The records get the same positions; without one, the beginning."""
        held = await super().reset(positions)
        if not held:
            for key, position in positions.items():
                self._pending.forget(key)
                records = self._records_of(group_of(key))
                await records.write_checkpoint(last_part(key), position or BEGINNING)
        return held

    def _missing_in_azure(
        self, stored: Iterable[Checkpoint], azure_positions: Mapping[str, Position]
    ) -> Iterable[CheckpointWrite]:
        """Yield checkpoints of owned keys that a previous owner could not write to the records."""
        for known in stored:
            there = azure_positions.get(last_part(known.key))
            if has_offset(known.position) and (there is None or there < known.position):
                owned = (
                    reconciler.ownership_of(known.key) for reconciler in self._reconcilers.values()
                )
                for ownership in filter(None, owned):
                    yield CheckpointWrite(ownership=ownership, position=known.position)

    def _is_latest(self, write: CheckpointWrite) -> bool:
        reconciler = self._reconcilers.get(write.ownership.holder)
        return reconciler is not None and reconciler.is_latest(write.ownership)

    async def _write_checkpoint(self, key: str, position: Position) -> None:
        await self._records_of(group_of(key)).write_checkpoint(last_part(key), position)

    # --------------------------------------------------------------- parts

    async def _reconciler(self, lease: Lease) -> Reconciler:
        reconciler = self._reconcilers.get(lease.holder)
        if reconciler is None:
            self._own_ids.add(host_owner_id(lease.holder))
            reconciler = self._reconcilers[lease.holder] = Reconciler(
                await self.inner(),
                self._records_of(lease.group),
                lease=lease,
                is_pending=self._pending.is_pending,
                private_store=self._private_store,
                expiry_s=self._expiry_s,
                clock=self._clock,
                rng=self._rng,
            )
        return reconciler

    def _records_of(self, group: str) -> OwnershipRecords:
        records = self._records.get(group)
        if records is None:
            consumer_group = ConsumerGroup(
                namespace=self._namespace, hub=self._hub, group=last_part(group)
            )
            records = self._records[group] = OwnershipRecords(
                self._azure_store,
                consumer_group,
                expiry_s=self._expiry_s,
                clock=self._clock,
                is_host=self._own_ids.__contains__ if self._private_store else is_host_owner,
            )
        return records


class RecordsStore(MixedStore):
    """Give it to ``EventProcessor`` as its store, one for each processor."""

    _private_store = True

    def __init__(
        self,
        theirs: AzureCheckpointStore,
        *,
        namespace: str,
        hub: str,
        expiry: timedelta = timedelta(seconds=180),
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Connect to nothing yet. The arguments are those of ``MixedStore``.

        Raises:
            InvalidName, InvalidDuration: with what is wrong.
        """
        clock = clock or SystemClock()
        super().__init__(
            MemoryStore(clock),
            theirs,
            namespace=namespace,
            hub=hub,
            expiry=expiry,
            clock=clock,
            rng=rng,
        )

    @property
    def url(self) -> str:
        """See ``Store``: for display only, nothing can be opened by it."""
        return f"azure-records://{self._namespace}/{self._hub}"


# ------------------------------------------------------------- the shared source

_LEVEL = 0


class SharedSource:
    """An ``EventSource`` over another one, with the owner level of Azure's clients."""

    def __init__(
        self,
        source: EventSource,
        *,
        grace: timedelta = timedelta(seconds=15),
        clock: Clock | None = None,
    ) -> None:
        """Wrap ``source``, which is closed with this.

        ``grace``: longer than a host takes to see a steal in the records of ``MixedStore``, which
        is the 36th part of the expiry and a cycle.

        Raises:
            InvalidDuration: the grace is out of range.
        """
        self._source = source
        self._grace_s = seconds_of(grace, what="grace", min_s=0.0, max_s=MAX_LEASE_S)
        self._clock = clock or SystemClock()
        self._lost: dict[tuple[str, str], tuple[int, float]] = {}

    @property
    def name(self) -> str:
        return self._source.name

    async def stream_identity(self) -> str:
        return await identity_of(self._source)

    async def partitions(self) -> Sequence[str]:
        return await self._source.partitions()

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        return await self._source.ends(partitions)

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> Receiver:
        """See ``EventSource``.

        Raises:
            ReaderDisplaced: a later receiver has the partition, and the grace is not over.
        """
        lost_epoch, until_s = self._lost.get((group, partition), (-1, 0.0))
        if epoch <= lost_epoch and self._clock.boottime_s() >= until_s:
            log.warning(
                "partition %s: another receiver has displaced ours, and the records still say that "
                "it is ours: see that all clients of the group have the same namespace, hub, "
                "consumer group and container; else each side handles every event",
                partition,
            )
        elif epoch <= lost_epoch:
            raise ReaderDisplaced(
                f"partition {partition} was taken by a later receiver: whose it is stands in the "
                "records of Azure's clients",
                key=partition,
                epoch=epoch,
                reason="stolen",
            )

        def stolen() -> None:
            self._lost[group, partition] = (epoch, self._clock.boottime_s() + self._grace_s)

        try:
            opened = await self._source.receiver(
                partition, group=group, epoch=_LEVEL, start=start, name=name
            )
        except ReaderDisplaced:
            stolen()
            raise
        return _SharedReceiver(opened, stolen)

    async def close(self) -> None:
        await self._source.close()


class _SharedReceiver:
    """A receiver that reports when it was displaced."""

    def __init__(self, receiver: Receiver, stolen: Callable[[], None]) -> None:
        self._receiver = receiver
        self._stolen = stolen

    @property
    def position(self) -> int:
        return self._receiver.position

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        try:
            return await self._receiver.receive(max_events=max_events, max_bytes=max_bytes)
        except ReaderDisplaced:
            self._stolen()
            raise

    async def close(self) -> None:
        await self._receiver.close()
