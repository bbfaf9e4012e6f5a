"""``MixedStore``: our hosts and Azure's own clients in one consumer group.

A ``Store`` over two others. *Ours* has the leases, the epochs, the members and the fenced
checkpoints, as ever. *Theirs* is any ``CheckpointStore`` of Azure, and its records say who may
read: a host of ours owns a partition only if it holds the key in ours and stands in the record of
theirs. ``border`` has what is done in each cycle.

Guarantees:

1. A partition is claimed first in their record, by compare-and-set, and then in our store; so what
   a host of ours holds was never anybody else's at that moment.
2. What a client of theirs has taken ends for our host as stolen, at its next cycle, and its writes
   are fenced from the moment any host of ours has seen it.
3. What is over our share, or left at the end, is drained, checkpointed and then given to their
   clients; nothing of it is delivered twice. It is not given up before the checkpoint is in theirs,
   unless that takes longer than a lease; even then their record keeps our name until it is there.
   If one of theirs was faster and has claimed it before that, the term ends as stolen, not as
   released: then its last events may come twice.
4. Checkpoints are written to ours first, where they are fenced, then to theirs. Reading gives the
   one that is ahead; and whoever owns a partition of which theirs is behind brings it up.
5. While their records can not be read or written, or do not answer, our hosts go on with what they
   have, until their clients might take it for abandoned; then they stop.

A store that passes every call on to another one: the ground for those that change a few.

``RecordsStore``: our hosts on a ``CheckpointStore`` of Azure's clients, and on nothing else.

What ``MixedStore`` keeps in a store of ours each host keeps for itself here, in memory. So hosts of
ours, each in its own process, meet in the records of theirs only, as stock clients do, beside
which they may run.

Guarantees:

1. A partition is claimed by compare-and-set; what a host works on was nobody else's at that moment.
   What another one takes ends here as stolen, at the next look.
2. What is over the even share, or left at the end, is drained, checkpointed and then given away:
   to one of ours, or to a client of theirs. A newcomer takes one partition by force, to be seen.
3. A host that its storage does not answer stops before anybody can take it for dead.

Not guaranteed, for their records have no room for it: a fence. A host that was paused in the very
moment of a checkpoint, and comes back after somebody else has taken over, moves the checkpoint
back, as a client of theirs does. With a store of ours, in ``MixedStore``, it is refused.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import anyio

from leasehold.azure.interop.reconciler import MAX_AT_ONCE, Reconciler
from leasehold.azure.interop.record_layout import BEGINNING, ConsumerGroup
from leasehold.azure.interop.records import (
    OwnershipRecords,
    can_be_told,
    is_of_ours,
    is_refusal,
    is_stand_in,
    owner_of_ours,
)
from leasehold.azure.interop.release_protocol import PendingReleases, ReleaseProtocol, must_be_ready
from leasehold.clock import SystemClock, system_random
from leasehold.core.lease_timing import MAX_LEASE_S
from leasehold.errors import InvalidOptions, StoreUnavailable, StoreUnusable, UsageError
from leasehold.model import Checkpoint, CheckpointWrite
from leasehold.names import check_name, group_of, last_part, seconds_of
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Iterable, Mapping, Sequence

    from leasehold.azure.interop.records import AzureCheckpointStore
    from leasehold.clock import Clock
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
    """A ``Store``. Opened by its URL, it belongs to the event loop that uses it first."""

    def __init__(self, store: str | Store, *, clock: Clock) -> None:
        """Connects to nothing yet; a store that is handed in is not closed."""
        self._given = store
        self._clock = clock
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._store: Store | None = None if isinstance(store, str) else store

    @property
    def url(self) -> str:
        """See ``Store``."""
        if self._store is not None:
            return self._store.url
        return f"{urlsplit(str(self._given)).scheme}://…"  # the rest may hold a secret

    async def inner(self) -> Store:
        """The store that is asked."""
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    opened = open_store(str(self._given), clock=self._clock)
                    self._store = await self._opened.enter_async_context(opened)
        return self._store

    async def declare(self, keys: Sequence[str]) -> int:
        """See ``Store``."""
        return await (await self.inner()).declare(keys)

    async def forget(self, keys: Sequence[str]) -> int:
        """See ``Store``."""
        return await (await self.inner()).forget(keys)

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """See ``Store``."""
        store = await self.inner()
        return await store.grant(
            holder=holder, token=token, group=group, duration=duration, info=info
        )

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """See ``Store``."""
        return await (await self.inner()).renew(lease, since=since, info=info)

    async def revoke(self, lease: Lease) -> None:
        """See ``Store``."""
        await (await self.inner()).revoke(lease)

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """See ``Store``."""
        return await (await self.inner()).claim(lease, wanted, force=force)

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """See ``Store``."""
        return await (await self.inner()).ask(lease, wanted)

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).hand_over(hand_overs, limit=limit)

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).release(ownerships, notes=notes)

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """See ``Store``."""
        return await (await self.inner()).break_(key, epoch=epoch, after=after)

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """See ``Store``."""
        return await (await self.inner()).checkpoint(marks)

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).annotate(notes)

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        """See ``Store``."""
        return await (await self.inner()).request_hand_over(key, epoch=epoch, to=to)

    async def request_leave(self, holder: str) -> bool:
        """See ``Store``."""
        return await (await self.inner()).request_leave(holder)

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """See ``Store``."""
        return await (await self.inner()).reset(positions)

    async def groups(self) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).groups()

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """See ``Store``."""
        return await (await self.inner()).checkpoints(group)

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """See ``Store``."""
        return await (await self.inner()).resources(group)

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """See ``Store``."""
        return await (await self.inner()).members(group)

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """See ``Store``."""
        return await (await self.inner()).history(key, limit=limit)

    async def fenced_writes(self, group: str) -> int:
        """See ``Store``."""
        return await (await self.inner()).fenced_writes(group)

    async def close(self) -> None:
        """Close what was opened here. Leases are left as they are."""
        await self._opened.aclose()


log = logging.getLogger("leasehold.azure")

T = TypeVar("T")

_MIN_EXPIRY_S = 1.0
# Six in each cycle of their clients, at the usual six cycles per expiry.
_LOOKS_PER_EXPIRY = 36
# Of a lease: how long theirs may take within one call. Two such waits and our own store's answer
# fit into the 0.3 of a lease that a member gives to a call.
_SHARE_OF_LEASE = 0.12


class MixedStore(PassThrough):
    """Give it to ``EventProcessor`` as its store, one for each processor.

    For the event loop that uses it first; the processor uses it in that of its leases.
    """

    _alone = False

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
        """Connects to nothing yet.

        ``ours``: a store of ours or its URL; all of our hosts of the group use the same one.
        ``theirs``: blocking or asynchronous; ``aio.BlobRecords`` is the one that no odd record
        stops. ``namespace`` and ``hub`` are as their clients name them (the host of the connection
        string, with its port if it has one); the consumer group is that of the processor.
        ``expiry``: the ``partition_ownership_expiration_interval`` of their clients, the shortest
        of all of them.

        Raises:
            InvalidName, InvalidDuration: with what is wrong.
            UsageError: ``ours`` is the URL of a store that nobody else could use.
        """
        if isinstance(ours, str) and ours.startswith("memory:"):
            raise UsageError(
                f"{ours} is of this process alone, and would take hosts of ours in others for "
                "dead: name a store of all of them, or use RecordsStore, which needs none"
            )
        super().__init__(ours, clock=clock or SystemClock())
        check_name(namespace, what="namespace")
        check_name(hub, what="hub")
        self._theirs = theirs
        self._namespace = namespace
        self._hub = hub
        self._expiry_s = seconds_of(expiry, what="expiry", min_s=_MIN_EXPIRY_S, max_s=MAX_LEASE_S)
        self._rng = rng or system_random()
        self._records: dict[str, OwnershipRecords] = {}
        self._borders: dict[str, Reconciler] = {}
        self._limit_s = self._expiry_s / _LOOKS_PER_EXPIRY
        self._arrears = PendingReleases(self._put, allowed=self._is_still_ours, clock=self._clock)
        self._parting = ReleaseProtocol(
            self._arrears, self._borders, in_time=self._in_time, clock=self._clock
        )
        self._own: set[str] = set()  # all owner ids that were ever used here

    # -------------------------------------------------------------- leases

    async def declare(self, keys: Sequence[str]) -> int:
        """See ``Store``. Before the first ones their records are looked at.

        Raises:
            StoreUnusable: their container is not there, or the key is wrong.
        """
        for records in {self._records_of(group_of(each)) for each in keys}:
            if records.looked_s is None:
                try:
                    await self._in_time(records.look())
                except StoreUnavailable as trouble:
                    if is_refusal(trouble):  # else it may pass, and is borne for a while
                        raise StoreUnusable(str(trouble)) from trouble.__cause__
        return await super().declare(keys)

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """See ``Store``.

        Raises:
            InvalidOptions: the lease is not shorter than half of the expiry.
        """
        if duration.total_seconds() * 2 > self._expiry_s:
            raise InvalidOptions(
                f"lease <= expiry / 2 does not hold ({duration.total_seconds():g} s is more than "
                f"{self._expiry_s / 2:g} s): Azure's clients would take what a host of ours still "
                "works on; shorten the lease"
            )
        self._limit_s = min(self._limit_s, duration.total_seconds() * _SHARE_OF_LEASE)
        return await super().grant(
            holder=holder, token=token, group=group, duration=duration, info=info
        )

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """See ``Store``. At times one call more, to theirs; others if something has to be done."""
        changes = await super().renew(lease, since=since, info=info)
        border = await self._border(lease)
        border.learn(changes)
        changed = False
        try:
            if waiting := border.to_extend():
                await self._in_time(border.extend(waiting))
            if self._is_due(border.records) or self._arrears.failed or border.looks_dead_soon():
                changed = await self._in_time(self._settled(border))
        except StoreUnavailable as trouble:
            self._bear(border, lease, trouble)
            return changes
        if border.looks_dead_soon():
            raise StoreUnavailable(
                "the records of Azure's clients: those of what is held here could not be written "
                "for so long that they will look dead"
            )
        if changed:
            changes = await super().renew(lease, since=since)
            border.learn(changes)
        return changes

    async def revoke(self, lease: Lease) -> None:
        """See ``Store``. What stands in their records is freed."""
        border = self._borders.get(lease.holder)
        left = list(border.records.by_partition) if border is not None else []
        if border is not None:
            await self._parting.secure(border, left, limit_s=self._limit_s / 2)
        await super().revoke(lease)
        self._borders.pop(lease.holder, None)
        if border is not None:
            await self._parting.write_off(border.records, lease.group, left, border.me)

    async def close(self) -> None:
        """See ``Store``."""
        await self._arrears.close()
        await super().close()

    async def _settled(self, border: Reconciler) -> bool:
        await border.records.look()
        # Not all of the time: that one checkpoint hangs must not keep us from the records.
        await self._parting.catch_up(limit_s=self._limit_s / 2)
        return await border.settle()

    async def _in_time(self, answer: Awaitable[T]) -> T:
        """What theirs say, if they do soon: a lease of ours must not end for want of it.

        Raises:
            StoreUnavailable: they do not.
        """
        try:
            return await self._clock.bounded(answer, seconds=self._limit_s)
        except TimeoutError as late:
            raise StoreUnavailable(
                f"the records of Azure's clients: no answer within {self._limit_s:.3g} s"
            ) from late

    def _is_due(self, records: OwnershipRecords) -> bool:
        since_s = self._clock.boottime_s() - (records.looked_s or 0.0)
        return records.looked_s is None or since_s >= self._expiry_s / _LOOKS_PER_EXPIRY

    def _bear(self, border: Reconciler, lease: Lease, trouble: StoreUnavailable) -> None:
        """Go on without their records, for as long as nobody there can take ours for dead.

        Raises:
            StoreUnavailable: that time is over.
        """
        now_s, looked_s = self._clock.boottime_s(), border.records.looked_s
        # A record of ours is refreshed after half of the expiry, and a lease is trusted on.
        allowed_s = self._expiry_s / 2 - lease.duration_s
        if looked_s is None or now_s - looked_s > allowed_s or border.looks_dead_soon():
            raise trouble
        log.warning(
            "%s: going on without the records of Azure's clients: %s", lease.holder, trouble
        )

    # ---------------------------------------------------------- ownerships

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """See ``Store``. At most 64 at once: each is a request of its own to theirs."""
        border = await self._border(lease)
        records, me = border.records, border.me
        if records.looked_s is None:
            await records.look()
        asked = {last_part(each.key): each for each in wanted[:MAX_AT_ONCE]}
        # Also where our name stands already: somebody may have taken it since. And who was given
        # one by a host that shares no store with it says so by writing it again.
        to_write = [each for each in asked if force or not records.client(each)]
        mine = await records.write(dict.fromkeys(to_write, me))
        if not mine:
            return ()
        to_claim = [each for partition, each in asked.items() if partition in mine]
        won = await super().claim(lease, to_claim, force=force)
        border.won(won)
        had = {last_part(each.key) for each in won}
        await self._parting.write_off(records, lease.group, mine - had, me)
        return won

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """See ``Store``. Clients of theirs do not answer, so they are not asked."""
        border = await self._border(lease)
        if border.records.client(last_part(wanted.key)):
            return False
        return await super().ask(lease, wanted)

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """See ``Store``. To a client of theirs: released in ours, and given in its record.

        Raises:
            StoreUnavailable: for some the last checkpoint is not in theirs, or it is not sure
                whether a client has claimed them; the others are passed.
        """
        ownerships = [each.ownership for each in hand_overs]
        owed = await self._parting.secure_all(ownerships, limit_s=self._limit_s / 2)
        ready = [each for each in hand_overs if each.ownership.key not in owed]
        away = [each for each in ready if is_stand_in(each.to)]
        inside = [each for each in ready if each not in away]
        passed = list(await super().hand_over(inside, limit=limit)) if inside else []
        by_client: dict[tuple[str, str], list[HandOver]] = {}
        for each in away:
            by_client.setdefault((group_of(each.ownership.key), each.to), []).append(each)
        for (group, to), found in by_client.items():
            notes = {each.ownership.key: each.note for each in found if each.note is not None}
            client = self._records_of(group).client_named(to)
            passed += await self._give([each.ownership for each in found], to=client, notes=notes)
        must_be_ready(owed)
        return passed

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """See ``Store``. Their records are freed too, after the last checkpoint was written.

        Raises:
            StoreUnavailable: for some it is not in theirs, or it is not sure whether a client has
                claimed them; the others are released.
        """
        owed = await self._parting.secure_all(ownerships, limit_s=self._limit_s / 2)
        ready = [each for each in ownerships if each.key not in owed]
        noted = {key: note for key, note in (notes or {}).items() if key not in owed}
        done = await self._give(ready, to="", notes=noted) if ready else ()
        must_be_ready(owed)
        return done

    async def _give(
        self, ownerships: Sequence[Ownership], *, to: str, notes: Mapping[str, str] | None
    ) -> Sequence[str]:
        done = await super().release(ownerships, notes=notes)
        over = [each for each in ownerships if each.key in done]
        await self._parting.write_off_all(over, self._records_of, to=to)
        return done

    # --------------------------------------------------------- checkpoints

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """See ``Store``. What ours has taken is written to theirs; if that fails, in a cycle."""
        refused = await super().checkpoint(marks)
        self._arrears.add(
            mark
            for mark in marks
            if mark.ownership.key not in refused and can_be_told(mark.position)
        )
        keys = {mark.ownership.key for mark in marks}
        await self._arrears.write(limit_s=self._limit_s, keys=keys)
        return refused

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """See ``Store``. Of each partition the checkpoint that is ahead, ours or theirs."""
        found = dict(await super().checkpoints(group))
        theirs = await self._records_of(group).positions()
        self._arrears.inherit(self._lacking(found.values(), theirs))
        for partition, position in theirs.items():
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
        """See ``Store``. Theirs are put to the same places; without one, to the beginning."""
        held = await super().reset(positions)
        if not held:
            for key, position in positions.items():
                self._arrears.forget(key)
                records = self._records_of(group_of(key))
                await records.put(last_part(key), position or BEGINNING)
        return held

    def _lacking(
        self, ours: Iterable[Checkpoint], theirs: Mapping[str, Position]
    ) -> Iterable[CheckpointWrite]:
        """What we own, and whoever had it before us could not tell theirs of."""
        for known in ours:
            there = theirs.get(last_part(known.key))
            if can_be_told(known.position) and (there is None or there < known.position):
                owned = (border.owned(known.key) for border in self._borders.values())
                for ownership in filter(None, owned):
                    yield CheckpointWrite(ownership=ownership, position=known.position)

    def _is_still_ours(self, mark: CheckpointWrite) -> bool:
        border = self._borders.get(mark.ownership.holder)
        return border is not None and border.is_still(mark.ownership)

    async def _put(self, key: str, position: Position) -> None:
        await self._records_of(group_of(key)).put(last_part(key), position)

    # --------------------------------------------------------------- parts

    async def _border(self, lease: Lease) -> Reconciler:
        border = self._borders.get(lease.holder)
        if border is None:
            self._own.add(owner_of_ours(lease.holder))
            border = self._borders[lease.holder] = Reconciler(
                await self.inner(),
                self._records_of(lease.group),
                lease=lease,
                owes=self._arrears.owes,
                alone=self._alone,
                expiry_s=self._expiry_s,
                clock=self._clock,
                rng=self._rng,
            )
        return border

    def _records_of(self, group: str) -> OwnershipRecords:
        records = self._records.get(group)
        if records is None:
            place = ConsumerGroup(namespace=self._namespace, hub=self._hub, group=last_part(group))
            records = self._records[group] = OwnershipRecords(
                self._theirs,
                place,
                expiry_s=self._expiry_s,
                clock=self._clock,
                is_ours=self._own.__contains__ if self._alone else is_of_ours,
            )
        return records


class RecordsStore(MixedStore):
    """Give it to ``EventProcessor`` as its store, one for each processor."""

    _alone = True

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
        """Connects to nothing yet. The arguments are those of ``MixedStore``.

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
        """See ``Store``: only to be shown, there is nothing to be opened by it."""
        return f"azure-records://{self._namespace}/{self._hub}"
