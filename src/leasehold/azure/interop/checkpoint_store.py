"""Checkpoint stores for the consumer clients of ``azure.eventhub``, on any store of Leasehold.

``AsyncCheckpointStore`` is for ``azure.eventhub.aio``; ``CheckpointStore`` is for the blocking
clients and runs the other one in a thread. ``ClientOwnerships`` answers the four calls of both.

An owner of Azure is a holder of Leasehold: one lease covers all that it owns. So a round of the
client's load balancer is one renewal, and one claim if it wants something new. Guarantees:

1. **The lease decides**, by the store's clock. An owner whose lease ends owns nothing, whatever the
   clocks of the machines say: a live owner is always shown as fresh, any other as free.
2. **A claim is a compare-and-set** on the epoch, which is in the etag. Only what was won is
   returned; a lost answer is an error, and counts as nothing won.
3. **A checkpoint is fenced**: an owner that has lost the partition is refused with
   ``FencedWrite``. Checkpoints never go back: one that would is skipped, without an error, because
   the client delivers some events twice after it has connected again.
4. **No owner keeps more than its even share**: what is too much is omitted from the answer, so that
   the client stops it, and is handed over one round later, when it has stopped.

A claim that names the present owner's etag takes the partition forcibly, as the client's balancer
means it. A partition that is being handed over to another holder cannot be taken.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio

from leasehold.errors import FencedWrite, LeaseLost, StoreError, UsageError

try:
    from azure.eventhub import CheckpointStore as Contract
    from azure.eventhub.aio import CheckpointStore as AsyncContract
except ImportError as error:
    raise UsageError(
        f"Azure's clients need the package {error.name!r}: pip install 'leasehold[azure]'"
    ) from error

from leasehold.azure.interop.record_layout import (
    ConsumerGroup,
    azure_offset,
    consumer_group_of,
    parse_checkpoint,
)
from leasehold.clock import SystemClock, host_name, new_suffix, new_token, system_random
from leasehold.core.balance import Snapshot, Strategy, plan
from leasehold.core.lease_timing import MAX_LEASE_S, MIN_LEASE_S
from leasehold.lease.group_state import sanitized
from leasehold.model import CheckpointWrite, HandOver, KeyClaim, Lease, MemberInfo, Refusal, State
from leasehold.names import check_name, last_part, seconds_of
from leasehold.stores import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import Coroutine, Iterable, Mapping, Sequence
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.model import Changes, Ownership, Position, Resource
    from leasehold.ports import Store

log = logging.getLogger("leasehold.azure")

T = TypeVar("T")
Row = dict[str, Any]

_IN_FORCE = frozenset((State.LEASED, State.BREAKING))


@dataclass(slots=True, kw_only=True)
class _ClientLease:
    """One owner of Azure in one group: its lease, what it owns, and what it is giving up."""

    owner: str
    consumer_group: ConsumerGroup
    lease: Lease
    owned: dict[str, Ownership] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)


class ClientOwnerships:
    """The calls of any number of clients in this process. For one event loop."""

    def __init__(
        self, store: Store, *, stream: str, lease: timedelta, clock: Clock, rng: random.Random
    ) -> None:
        self._store = store
        self._stream = stream
        self._lease = lease
        self._clock = clock
        self._rng = rng
        self._client_leases: dict[tuple[str, str], _ClientLease] = {}
        self._owners: dict[str, str] = {}  # by holder: all that were ever granted here
        self._ended: set[str] = set()
        self._lock = anyio.Lock()

    # ----------------------------------------------------------- ownership

    async def list_ownership(self, consumer_group: ConsumerGroup) -> list[Row]:
        """List each partition that was ever claimed, with its owner, by one read."""
        found = await self._store.resources(consumer_group.keys_group)
        return [
            self._row(consumer_group, resource, owner=self._shown_owner(resource))
            for _, resource in sorted(found.items())
        ]

    async def claim_ownership(self, wanted: Iterable[Mapping[str, Any]]) -> list[Row]:
        """Take, keep or, with an empty owner, give up; return what was done."""
        by_owner: dict[tuple[ConsumerGroup, str], list[Mapping[str, Any]]] = defaultdict(list)
        for each in wanted:
            consumer_group = consumer_group_of(each, stream=self._stream)
            by_owner[consumer_group, str(each.get("owner_id") or "")].append(each)
        won: list[Row] = []
        async with self._lock:
            for (consumer_group, owner), rows in by_owner.items():
                work = (
                    self._balance(consumer_group, owner, rows)
                    if owner
                    else self._release(consumer_group, rows)
                )
                won += await work
        return won

    async def close(self) -> None:
        """End every lease that was granted here; raise if some could not be ended."""
        failure: StoreError | None = None
        async with self._lock:
            while self._client_leases:
                _, client = self._client_leases.popitem()
                self._ended.update(client.owned)
                try:
                    await self._store.revoke(client.lease)
                except StoreError as error:
                    failure = error
        if failure is not None:
            raise failure

    async def _balance(
        self, consumer_group: ConsumerGroup, owner: str, rows: Sequence[Mapping[str, Any]]
    ) -> list[Row]:
        """Run one round of a balancer: renew, claim what is new, give up what is too much."""
        client, changes = await self._renewed(consumer_group, owner)
        known = {each.key: each for each in changes.resources if not each.forgotten}
        self._drop_lost(client, known)
        wanted = {consumer_group.key(str(row["partition_id"])): row for row in rows}
        missing = [key for key in wanted if key not in known]
        if missing:
            await self._store.declare(missing)
        new = [
            KeyClaim(key=key, seen_epoch=_epoch(row.get("etag")))
            for key, row in wanted.items()
            if key not in client.owned
        ]
        won = await self._store.claim(client.lease, new, force=True) if new else ()
        for ownership in won:
            client.owned[ownership.key] = ownership
            self._ended.discard(ownership.key)
        if won:
            client.stopping.clear()  # the group has changed: check again in the next round
        else:
            await self._give_up_surplus(client, changes)
        kept = [key for key in wanted if key in client.owned and key not in client.stopping]
        return [self._won(wanted[key], client.owned[key].epoch, owner=owner) for key in kept]

    async def _renewed(
        self, consumer_group: ConsumerGroup, owner: str
    ) -> tuple[_ClientLease, Changes]:
        """Return the client of an owner under a running lease, and the whole group."""
        client = self._client_leases.get((consumer_group.keys_group, owner))
        if client is not None:
            try:
                return client, await self._store.renew(client.lease)
            except LeaseLost as lost:
                log.warning("%s: lease lost (%s); joining again", owner, lost.reason)
                self._ended.update(client.owned)
                del self._client_leases[consumer_group.keys_group, owner]
        holder = owner if owner not in self._owners else f"{owner}~{new_suffix()}"
        self._owners[holder] = owner
        lease = await self._store.grant(
            holder=holder,
            token=new_token(),
            group=consumer_group.keys_group,
            duration=self._lease,
            info=MemberInfo(host=host_name(), pid=os.getpid()),
        )
        client = self._client_leases[consumer_group.keys_group, owner] = _ClientLease(
            owner=owner, consumer_group=consumer_group, lease=lease
        )
        return client, await self._store.renew(lease)

    def _drop_lost(self, client: _ClientLease, known: Mapping[str, Resource]) -> None:
        """Forget what the client no longer owns by the store."""
        for key, ownership in list(client.owned.items()):
            now = known.get(key)
            held = now is not None and now.holder == client.lease.holder and now.state in _IN_FORCE
            if not held or now is None or now.epoch != ownership.epoch:
                del client.owned[key]
                self._ended.add(key)

    async def _give_up_surplus(self, client: _ClientLease, changes: Changes) -> None:
        snapshot = Snapshot(
            members={
                member.holder: sanitized(member.info) for member in changes.members if member.alive
            },
            resources={each.key: each for each in changes.resources if not each.forgotten},
        )
        if client.lease.holder not in snapshot.members:
            return
        surplus = plan(Strategy.EVEN, snapshot, client.lease.holder, self._rng).hand_over
        due = {key: to for key, to in surplus.items() if key in client.owned}
        stopped = [
            HandOver(ownership=client.owned[key], to=to)
            for key, to in due.items()
            if key in client.stopping
        ]
        client.stopping = set(due)
        if stopped:
            for key in await self._store.hand_over(stopped, limit=self._lease):
                client.owned.pop(key, None)
                client.stopping.discard(key)
                self._ended.add(key)

    async def _release(
        self, consumer_group: ConsumerGroup, rows: Sequence[Mapping[str, Any]]
    ) -> list[Row]:
        """Release what this process owns and names; with its last partition an owner leaves."""
        done: list[Row] = []
        for row in rows:
            key = consumer_group.key(str(row["partition_id"]))
            client = self._client_lease_of(key)
            if client is None or client.owned[key].epoch != _epoch(row.get("etag")):
                continue
            ownership = client.owned.pop(key)
            self._ended.add(key)
            if client.owned:
                await self._store.release([ownership])
            else:
                del self._client_leases[consumer_group.keys_group, client.owner]
                await self._store.revoke(client.lease)
            done.append(self._won(row, ownership.epoch, owner=""))
        return done

    # ---------------------------------------------------------- checkpoints

    async def update_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Write a checkpoint under the ownership that this process has.

        A client that was started for one partition by name owns nothing, and is not balanced: then
        the checkpoint is written if no other client owns the partition.
        """
        consumer_group = consumer_group_of(checkpoint, stream=self._stream)
        key, position = consumer_group.key(str(checkpoint["partition_id"])), _position(checkpoint)
        client = self._client_lease_of(key)
        if client is not None:
            await self._write(client.owned[key], position)
        elif key in self._ended:
            raise _fenced(key, 0)
        else:
            await self._write_unowned(key, position)

    async def list_checkpoints(self, consumer_group: ConsumerGroup) -> list[Row]:
        """List all checkpoints of the group, as Azure's clients expect them."""
        found = await self._store.checkpoints(consumer_group.keys_group)
        return [
            {
                **consumer_group.ids(),
                "partition_id": last_part(key),
                "offset": azure_offset(checkpoint.position),
                "sequence_number": checkpoint.position.sequence_number,
            }
            for key, checkpoint in sorted(found.items())
        ]

    async def _write(self, ownership: Ownership, position: Position) -> None:
        refused = await self._store.checkpoint(
            [CheckpointWrite(ownership=ownership, position=position)]
        )
        reason = refused.get(ownership.key)
        if reason is Refusal.FENCED:
            raise _fenced(ownership.key, ownership.epoch)
        if reason is Refusal.BEHIND:
            log.info("%s: a checkpoint that would go back was left out", ownership.key)

    async def _write_unowned(self, key: str, position: Position) -> None:
        """Own the key for the length of one write, unless another holder does."""
        holder = f"checkpoint-{new_suffix()}"
        lease = await self._store.grant(
            holder=holder, token=new_token(), group="", duration=self._lease, info=MemberInfo()
        )
        try:
            await self._store.declare([key])
            group = key.rpartition("/")[0]
            epoch = (await self._store.resources(group))[key].epoch
            won = await self._store.claim(lease, [KeyClaim(key=key, seen_epoch=epoch)])
            if not won:
                raise _fenced(key, epoch)
            await self._write(won[0], position)
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.revoke(lease)

    # ---------------------------------------------------------------- rows

    def _client_lease_of(self, key: str) -> _ClientLease | None:
        return next(
            (client for client in self._client_leases.values() if key in client.owned), None
        )

    def _shown_owner(self, resource: Resource) -> str:
        """Return the owner or receiver; a client of this process may claim what is reserved."""
        if resource.holder is not None and resource.state in _IN_FORCE:
            return self._owners.get(resource.holder, resource.holder)
        if resource.handed_to is not None and resource.handed_to not in self._owners:
            return resource.handed_to
        return ""

    def _row(self, consumer_group: ConsumerGroup, resource: Resource, *, owner: str) -> Row:
        return {
            **consumer_group.ids(),
            "partition_id": last_part(resource.key),
            "owner_id": owner,
            "etag": f"{resource.epoch}.{resource.version}",
            "last_modified_time": self._now_s(),
        }

    def _won(self, row: Mapping[str, Any], epoch: int, *, owner: str) -> Row:
        stamp = {"etag": f"{epoch}.0", "last_modified_time": self._now_s()}
        return {**row, "owner_id": owner, **stamp}

    def _now_s(self) -> float:
        # Azure's clients compare it with their own clock: a live owner is never an old one.
        return self._clock.utc_now().timestamp()


def _epoch(etag: object) -> int:
    """Return the epoch in an etag; 0, that of a key without an owner yet, for any other."""
    head = str(etag or "").partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else 0


def _position(checkpoint: Mapping[str, Any]) -> Position:
    position = parse_checkpoint("", checkpoint).position
    if position is None:
        raise UsageError(
            f"a checkpoint needs a sequence number, not {checkpoint.get('sequence_number')!r}: "
            "give the one of the last event that was processed"
        )
    return position


def _fenced(key: str, epoch: int) -> FencedWrite:
    return FencedWrite(
        f"the checkpoint of {key} was refused: this process does not own it any more; stop the "
        "work on it, its new owner goes on from the last checkpoint",
        key=key,
        epoch=epoch,
        reason="fenced",
    )


class AsyncCheckpointStore(AsyncContract):
    """Give it to ``EventHubConsumerClient(..., checkpoint_store=...)``; close it after the client.

    For the event loop that uses it first, and any number of clients in it.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        lease: timedelta = timedelta(seconds=60),
        stream: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Connect to nothing yet.

        ``store``: its URL, or a store, which then is not closed. ``lease``: how long a client that
        has crashed keeps its partitions. It must be longer than the client's
        ``load_balancing_interval`` by a good half, since a client renews once in each. ``stream``:
        the name of the stream for Leasehold hosts in the same group; without one the keys have the
        names of namespace and hub.

        Raises:
            InvalidDuration: the lease is shorter or longer than any store allows.
            InvalidName: the stream is not valid in a key.
        """
        if stream:
            check_name(stream, what="stream")
        seconds_of(lease, what="lease", min_s=MIN_LEASE_S, max_s=MAX_LEASE_S)
        self._store = store
        self._lease = lease
        self._stream = stream
        self._clock = clock or SystemClock()
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._ownerships: ClientOwnerships | None = None
        self._closed = False

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """List all partitions that were ever claimed, with their owners."""
        del kwargs
        group = self._group(fully_qualified_namespace, eventhub_name, consumer_group)
        return await (await self._opened_ownerships()).list_ownership(group)

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: object
    ) -> Iterable[dict[str, Any]]:
        """Take, keep or give up partitions; return those for which it was done.

        Raises:
            StoreError: the store did not answer, or cannot serve.
        """
        del kwargs
        return await (await self._opened_ownerships()).claim_ownership(ownership_list)

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        """Write a checkpoint.

        Raises:
            FencedWrite: the partition is no longer owned here.
            UsageError: it has no sequence number.
        """
        del kwargs
        await (await self._opened_ownerships()).update_checkpoint(checkpoint)

    async def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """List all checkpoints of the group."""
        del kwargs
        group = self._group(fully_qualified_namespace, eventhub_name, consumer_group)
        return await (await self._opened_ownerships()).list_checkpoints(group)

    async def close(self) -> None:
        """End the leases of this process, and close what was opened. Safe to call twice."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._opening:
                ownerships, self._ownerships = self._ownerships, None
            try:
                if ownerships is not None:
                    await ownerships.close()
            finally:
                await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _opened_ownerships(self) -> ClientOwnerships:
        async with self._opening:
            if self._closed:
                # A client that waits for its interval must not get a lease that is never ended.
                raise UsageError("this CheckpointStore was closed: make another one")
            if self._ownerships is None:
                store = self._store
                if isinstance(store, str):
                    opened = open_store(store, clock=self._clock)
                    store = await self._opened.enter_async_context(opened)
                self._ownerships = ClientOwnerships(
                    store,
                    stream=self._stream,
                    lease=self._lease,
                    clock=self._clock,
                    rng=system_random(),
                )
            return self._ownerships

    def _group(self, namespace: str, hub: str, group: str) -> ConsumerGroup:
        return ConsumerGroup(namespace=namespace, hub=hub, group=group, stream=self._stream)


class CheckpointStore(Contract):
    """Give it to ``EventHubConsumerClient(..., checkpoint_store=...)``; close it after the client.

    For any number of clients and threads. A process that was forked after its first use must make
    its own.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        lease: timedelta = timedelta(seconds=60),
        stream: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Connect to nothing yet. The arguments are those of ``AsyncCheckpointStore``.

        Raises:
            InvalidDuration: the lease is shorter or longer than any store allows.
            InvalidName: the stream is not valid in a key.
        """
        self._inner = AsyncCheckpointStore(store, lease=lease, stream=stream, clock=clock)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """List all partitions that were ever claimed, with their owners."""
        del kwargs
        return self._call(
            self._inner.list_ownership(fully_qualified_namespace, eventhub_name, consumer_group)
        )

    def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: object
    ) -> Iterable[dict[str, Any]]:
        """Take, keep or give up partitions; return those for which it was done.

        Raises:
            StoreError: the store did not answer, or cannot serve.
        """
        del kwargs
        return self._call(self._inner.claim_ownership(list(ownership_list)))

    def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        """Write a checkpoint.

        Raises:
            FencedWrite: the partition is no longer owned here.
            UsageError: it has no sequence number.
        """
        del kwargs
        self._call(self._inner.update_checkpoint(checkpoint))

    def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """List all checkpoints of the group."""
        del kwargs
        return self._call(
            self._inner.list_checkpoints(fully_qualified_namespace, eventhub_name, consumer_group)
        )

    def close(self) -> None:
        """End the leases of this process, and close what was opened. Safe to call twice."""
        with self._starting:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or self._process != os.getpid():
            return  # the thread and the leases are those of the process that was forked
        try:
            asyncio.run_coroutine_threadsafe(self._inner.close(), loop).result()
        finally:
            with suppress(RuntimeError):  # the loop has ended with its thread
                loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._running()
        except UsageError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._closed:
                raise UsageError("this CheckpointStore was closed: make another one")
            if self._loop is not None and self._process != os.getpid():
                raise UsageError(
                    "this CheckpointStore was used before the process was forked, and its thread "
                    "is not here: make another one"
                )
            if self._loop is None:
                self._process = os.getpid()
                self._loop = asyncio.new_event_loop()
                # A daemon: a program that forgot to close it must still be able to end.
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="leasehold-azure", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
