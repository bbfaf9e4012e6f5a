"""``CheckpointStore`` for ``azure.eventhub.aio``: its consumer clients on any of our stores.

The guarantees are those of ``desk``. Needs ``pip install 'leasehold[azure]'``.

The four calls of Azure's ``CheckpointStore``, answered from a store of ours.

An owner of theirs is a holder of ours: one lease covers all that it owns, so a round of their load
balancer is one renewal, and one claim if it wants something new. Guarantees:

1. **The lease decides**, by the store's clock. Whoever lets it end owns nothing, whatever the
   clocks of the machines say: a living owner is always shown as fresh, any other as free.
2. **A claim is a compare-and-set** on the epoch, which is in the etag. Only what was won is
   returned; an answer that never came is an error, and counts as nothing won.
3. **A checkpoint is fenced**: an owner that has lost the partition is refused with
   ``FencedWrite``. Checkpoints never go back: one that would is left out, without an error, for
   their client delivers some events twice after it has connected again.
4. **Nobody keeps more than its even share**: what is too much is left out of the answer, so that
   their client stops it, and handed over one round later, when it has stopped.

A claim that names the present owner's etag takes the partition by force, as their balancer means
it. A partition that is being handed over to somebody else can not be taken.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import anyio

from leasehold.adapters.azure.record_layout import Place, place_of, resume_at, stored_of
from leasehold.clock import SystemClock, host_name, new_suffix, new_token, system_random
from leasehold.core.balance import Snapshot, Strategy, plan
from leasehold.core.lease_timing import LEAST_LEASE_S, MOST_LEASE_S
from leasehold.errors import FencedWrite, LeaseLost, StoreError, UsageError
from leasehold.lease.group_state import sound
from leasehold.model import HandOver, Lease, Mark, MarkRefusal, MemberInfo, State, Wanted
from leasehold.names import check_name, last_part, seconds_of
from leasehold.stores import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.model import Changes, Ownership, Position, Resource
    from leasehold.ports import Store

log = logging.getLogger("leasehold.azure")

Row = dict[str, Any]

_IN_FORCE = frozenset((State.LEASED, State.BREAKING))


@dataclass(slots=True, kw_only=True)
class _Seat:
    """One owner of theirs in one group: its lease, what it owns, and what it is giving up."""

    owner: str
    place: Place
    lease: Lease
    owned: dict[str, Ownership] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)


class Desk:
    """The calls of any number of clients in this process. For one event loop."""

    def __init__(
        self, store: Store, *, stream: str, lease: timedelta, clock: Clock, rng: random.Random
    ) -> None:
        """Nobody has a lease yet: each owner gets one with its first claim."""
        self._store = store
        self._stream = stream
        self._lease = lease
        self._clock = clock
        self._rng = rng
        self._seats: dict[tuple[str, str], _Seat] = {}
        self._owners: dict[str, str] = {}  # by holder: all that were ever granted here
        self._ended: set[str] = set()
        self._turn = anyio.Lock()

    # ----------------------------------------------------------- ownership

    async def list_ownership(self, place: Place) -> list[Row]:
        """Each partition that was ever claimed, and its owner; one call, which only reads."""
        found = await self._store.resources(place.keys_group)
        return [
            self._row(place, resource, owner=self._shown_owner(resource))
            for _, resource in sorted(found.items())
        ]

    async def claim_ownership(self, wanted: Iterable[Mapping[str, Any]]) -> list[Row]:
        """Take, keep or, with an empty owner, give up; return what was done so.

        Raises:
            StoreError: the store did not answer, or can not serve; nothing is known to be won.
        """
        by_owner: dict[tuple[Place, str], list[Mapping[str, Any]]] = defaultdict(list)
        for each in wanted:
            place = place_of(each, stream=self._stream)
            by_owner[place, str(each.get("owner_id") or "")].append(each)
        won: list[Row] = []
        async with self._turn:
            for (place, owner), rows in by_owner.items():
                turn = self._round(place, owner, rows) if owner else self._free(place, rows)
                won += await turn
        return won

    async def close(self) -> None:
        """End every lease that was granted here: what is still owned is free at once.

        Raises:
            StoreError: some could not be ended; they end by themselves.
        """
        trouble: StoreError | None = None
        async with self._turn:
            while self._seats:
                _, seat = self._seats.popitem()
                self._ended.update(seat.owned)
                try:
                    await self._store.revoke(seat.lease)
                except StoreError as error:
                    trouble = error
        if trouble is not None:
            raise trouble

    async def _round(
        self, place: Place, owner: str, rows: Sequence[Mapping[str, Any]]
    ) -> list[Row]:
        """One round of a client's balancer: renew, claim what is new, give up what is too much."""
        seat, changes = await self._renewed(place, owner)
        known = {each.key: each for each in changes.resources if not each.forgotten}
        self._take_stock(seat, known)
        wanted = {place.key(str(row["partition_id"])): row for row in rows}
        missing = [key for key in wanted if key not in known]
        if missing:
            await self._store.declare(missing)
        new = [
            Wanted(key=key, seen_epoch=_epoch(row.get("etag")))
            for key, row in wanted.items()
            if key not in seat.owned
        ]
        won = await self._store.claim(seat.lease, new, force=True) if new else ()
        for ownership in won:
            seat.owned[ownership.key] = ownership
            self._ended.discard(ownership.key)
        if won:
            seat.stopping.clear()  # the group is another one now: look again in the next round
        else:
            await self._give_up_surplus(seat, changes)
        kept = [key for key in wanted if key in seat.owned and key not in seat.stopping]
        return [self._won(wanted[key], seat.owned[key].epoch, owner=owner) for key in kept]

    async def _renewed(self, place: Place, owner: str) -> tuple[_Seat, Changes]:
        """The seat of an owner under a lease that lives, and the whole group as it is now."""
        seat = self._seats.get((place.keys_group, owner))
        if seat is not None:
            try:
                return seat, await self._store.renew(seat.lease)
            except LeaseLost as lost:
                log.warning("%s: lease lost (%s); joining again", owner, lost.reason)
                self._ended.update(seat.owned)
                del self._seats[place.keys_group, owner]
        holder = owner if owner not in self._owners else f"{owner}~{new_suffix()}"
        self._owners[holder] = owner
        lease = await self._store.grant(
            holder=holder,
            token=new_token(),
            group=place.keys_group,
            duration=self._lease,
            info=MemberInfo(host=host_name(), pid=os.getpid()),
        )
        seat = self._seats[place.keys_group, owner] = _Seat(owner=owner, place=place, lease=lease)
        return seat, await self._store.renew(lease)

    def _take_stock(self, seat: _Seat, known: Mapping[str, Resource]) -> None:
        """Forget what is not ours any more by the store's word."""
        for key, ownership in list(seat.owned.items()):
            now = known.get(key)
            held = now is not None and now.holder == seat.lease.holder and now.state in _IN_FORCE
            if not held or now is None or now.epoch != ownership.epoch:
                del seat.owned[key]
                self._ended.add(key)

    async def _give_up_surplus(self, seat: _Seat, changes: Changes) -> None:
        snapshot = Snapshot(
            members={peer.holder: sound(peer.info) for peer in changes.peers if peer.alive},
            resources={each.key: each for each in changes.resources if not each.forgotten},
        )
        if seat.lease.holder not in snapshot.members:
            return
        surplus = plan(Strategy.EVEN, snapshot, seat.lease.holder, self._rng).hand_over
        due = {key: to for key, to in surplus.items() if key in seat.owned}
        stopped = [
            HandOver(ownership=seat.owned[key], to=to)
            for key, to in due.items()
            if key in seat.stopping
        ]
        seat.stopping = set(due)
        if stopped:
            for key in await self._store.hand_over(stopped, limit=self._lease):
                seat.owned.pop(key, None)
                seat.stopping.discard(key)
                self._ended.add(key)

    async def _free(self, place: Place, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Release what this process owns and names; with its last partition an owner leaves."""
        done: list[Row] = []
        for row in rows:
            key = place.key(str(row["partition_id"]))
            seat = self._seat_of(key)
            if seat is None or seat.owned[key].epoch != _epoch(row.get("etag")):
                continue
            ownership = seat.owned.pop(key)
            self._ended.add(key)
            if seat.owned:
                await self._store.release([ownership])
            else:
                del self._seats[place.keys_group, seat.owner]
                await self._store.revoke(seat.lease)
            done.append(self._won(row, ownership.epoch, owner=""))
        return done

    # ---------------------------------------------------------- checkpoints

    async def update_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Write a checkpoint under the ownership that this process has.

        A client that was started for one partition by name owns nothing, and nobody balances it:
        then the checkpoint is written if nobody else owns the partition.

        Raises:
            FencedWrite: the partition was lost, or is somebody else's; nothing was written.
            UsageError: there is no sequence number; nothing was written.
        """
        place = place_of(checkpoint, stream=self._stream)
        key, position = place.key(str(checkpoint["partition_id"])), _position(checkpoint)
        seat = self._seat_of(key)
        if seat is not None:
            await self._mark(seat.owned[key], position)
        elif key in self._ended:
            raise _fenced(key, 0)
        else:
            await self._mark_unowned(key, position)

    async def list_checkpoints(self, place: Place) -> list[Row]:
        """All checkpoints of the group, in the words of their clients."""
        found = await self._store.checkpoints(place.keys_group)
        return [
            {
                **place.ids(),
                "partition_id": last_part(key),
                "offset": resume_at(checkpoint.position),
                "sequence_number": checkpoint.position.sequence_number,
            }
            for key, checkpoint in sorted(found.items())
        ]

    async def _mark(self, ownership: Ownership, position: Position) -> None:
        refused = await self._store.checkpoint([Mark(ownership=ownership, position=position)])
        reason = refused.get(ownership.key)
        if reason is MarkRefusal.FENCED:
            raise _fenced(ownership.key, ownership.epoch)
        if reason is MarkRefusal.BEHIND:
            log.info("%s: a checkpoint that would go back was left out", ownership.key)

    async def _mark_unowned(self, key: str, position: Position) -> None:
        """Own the key for the length of one write, unless somebody else does."""
        holder = f"checkpoint-{new_suffix()}"
        lease = await self._store.grant(
            holder=holder, token=new_token(), group="", duration=self._lease, info=MemberInfo()
        )
        try:
            await self._store.declare([key])
            group = key.rpartition("/")[0]
            epoch = (await self._store.resources(group))[key].epoch
            won = await self._store.claim(lease, [Wanted(key=key, seen_epoch=epoch)])
            if not won:
                raise _fenced(key, epoch)
            await self._mark(won[0], position)
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.revoke(lease)

    # ---------------------------------------------------------------- words

    def _seat_of(self, key: str) -> _Seat | None:
        return next((seat for seat in self._seats.values() if key in seat.owned), None)

    def _shown_owner(self, resource: Resource) -> str:
        """Who has it, or is about to get it; a client of this process may claim what is kept."""
        if resource.holder is not None and resource.state in _IN_FORCE:
            return self._owners.get(resource.holder, resource.holder)
        if resource.handed_to is not None and resource.handed_to not in self._owners:
            return resource.handed_to
        return ""

    def _row(self, place: Place, resource: Resource, *, owner: str) -> Row:
        return {
            **place.ids(),
            "partition_id": last_part(resource.key),
            "owner_id": owner,
            "etag": f"{resource.epoch}.{resource.version}",
            "last_modified_time": self._now_s(),
        }

    def _won(self, row: Mapping[str, Any], epoch: int, *, owner: str) -> Row:
        stamp = {"etag": f"{epoch}.0", "last_modified_time": self._now_s()}
        return {**row, "owner_id": owner, **stamp}

    def _now_s(self) -> float:
        # Their clients compare it with their own clock: a living owner is never an old one.
        return self._clock.utc_now().timestamp()


def _epoch(etag: object) -> int:
    """The epoch in an etag of ours; 0, that of a key nobody ever had, for any other."""
    head = str(etag or "").partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else 0


def _position(checkpoint: Mapping[str, Any]) -> Position:
    position = stored_of("", checkpoint).position
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


try:
    from azure.eventhub.aio import CheckpointStore as _Contract
except ImportError as error:
    raise UsageError(
        f"Azure's clients need the package {error.name!r}: pip install 'leasehold[azure]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.ports import Store


def __getattr__(name: str) -> Any:
    if name != "BlobRecords":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:  # who has no blobs needs no client for them
        return import_module("leasehold.adapters.azure.blob_records").BlobRecords
    except ImportError as error:
        raise UsageError(
            f"the blobs of Azure's clients need the package {error.name!r}: "
            "pip install azure-storage-blob"
        ) from error


class CheckpointStore(_Contract):
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
        """Connects to nothing yet.

        ``store``: its URL, or a store, which then is not closed. ``lease``: how long a client that
        has died keeps its partitions. It must be longer than the client's
        ``load_balancing_interval`` by a good half, since a client renews once in each. ``stream``:
        the name that the stream has to hosts of ours which are in the same group; without one the
        keys have the names of namespace and hub.

        Raises:
            InvalidDuration: the lease is shorter or longer than any store allows.
            InvalidName: the stream can not be in a key.
        """
        if stream:
            check_name(stream, what="stream")
        seconds_of(lease, what="lease", least_s=LEAST_LEASE_S, most_s=MOST_LEASE_S)
        self._store = store
        self._lease = lease
        self._stream = stream
        self._clock = clock or SystemClock()
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._desk: Desk | None = None
        self._closed = False

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """All partitions that were ever claimed, with their owners; ours among them."""
        del kwargs
        place = self._place(fully_qualified_namespace, eventhub_name, consumer_group)
        return await (await self._at_desk()).list_ownership(place)

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: object
    ) -> Iterable[dict[str, Any]]:
        """Take, keep or give up partitions; return those for which it was done.

        Raises:
            StoreError: the store did not answer, or can not serve.
        """
        del kwargs
        return await (await self._at_desk()).claim_ownership(ownership_list)

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        """Write a checkpoint.

        Raises:
            FencedWrite: the partition is not owned here any more.
            UsageError: it has no sequence number.
        """
        del kwargs
        await (await self._at_desk()).update_checkpoint(checkpoint)

    async def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """All checkpoints of the group."""
        del kwargs
        place = self._place(fully_qualified_namespace, eventhub_name, consumer_group)
        return await (await self._at_desk()).list_checkpoints(place)

    async def close(self) -> None:
        """End the leases of this process, and close what was opened. Again is harmless."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._opening:
                desk, self._desk = self._desk, None
            try:
                if desk is not None:
                    await desk.close()
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

    async def _at_desk(self) -> Desk:
        async with self._opening:
            if self._closed:
                # A client that sleeps its interval out must not get a lease that nobody ends.
                raise UsageError("this CheckpointStore was closed: make another one")
            if self._desk is None:
                store = self._store
                if isinstance(store, str):
                    opened = open_store(store, clock=self._clock)
                    store = await self._opened.enter_async_context(opened)
                self._desk = Desk(
                    store,
                    stream=self._stream,
                    lease=self._lease,
                    clock=self._clock,
                    rng=system_random(),
                )
            return self._desk

    def _place(self, namespace: str, hub: str, group: str) -> Place:
        return Place(namespace=namespace, hub=hub, group=group, stream=self._stream)
