"""What a group takes of the blob service: our hosts on blobs, and azure-eventhub's on theirs.

Ours are real members on the Azure Blob store, each with a store object of its own. Theirs is the
real ``OwnershipManager`` with the real ``BlobCheckpointStore``. Both use the same Azurite, and each
request is counted where it is sent.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from azure.eventhub._eventprocessor.ownership_manager import OwnershipManager
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from bench.azure_tally import LOOKING, Bill, CountingTransport, Cycle, Tally, WatchedStore
from bench.peer import EXPIRY_S, GREEDY
from bench.peer import _Client as PeerClient

from leasehold.azure.blob_store import AzureBlobStore
from leasehold.azure.blob_store.address import BlobAddress
from leasehold.clock import SystemClock
from leasehold.core.lease_timing import LeaseTiming
from leasehold.lease.member import Member
from leasehold.lease.options import MemberOptions
from leasehold.model import Position
from leasehold.names import partition_group, partition_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.support.azurite import Azurite

    from leasehold.model import Ownership
    from leasehold.ports import Store

_HUB, _CONSUMERS = "hub", "$default"
_GROUP = partition_group(_HUB, _CONSUMERS)
_PATIENCE_S = 120.0
_FIRST_ONES = 5
# The calls of a cycle do not depend on its length, but for whether it looks: those that do and
# those that do not are counted apart. Short ones are sooner counted.
_TIMING = LeaseTiming(lease_s=30.0, renew_s=0.5, margin_s=3.0, call_s=8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """``quiet`` and ``busy``: one host, one cycle, without and with checkpoints of all the others.

    ``checkpoint``: the positions of all partitions of the group, once. ``restart``: one host ends
    in good order and another one comes, beyond the cycles.
    """

    quiet: Cycle
    busy: Cycle
    checkpoint: Bill
    restart: Bill


# ------------------------------------------------------------------------ ours


class _Work:
    """A keeper for which there is nothing to do."""

    def opened(self, ownership: Ownership) -> None:
        pass

    def drain(self, ownership: Ownership) -> bool:
        del ownership
        return True

    def closed(self, ownership: Ownership, reason: str) -> None:
        pass


@dataclass(kw_only=True)
class _Ours:
    """A group of members, each with its own store object on the same container."""

    url: str
    partitions: int
    tally: Tally = field(default_factory=Tally)
    members: dict[Member, asyncio.Task[None]] = field(default_factory=dict)
    stores: list[AzureBlobStore] = field(default_factory=list)

    async def join(self) -> Member:
        opened = await AzureBlobStore.open(BlobAddress.of(self.url, {}), clock=SystemClock())
        self.stores.append(opened)
        store = cast("Store", WatchedStore(opened, self.tally))
        options = MemberOptions(group=_GROUP, timing=_TIMING)
        member = Member(store, options, keeper=_Work())
        self.members[member] = asyncio.create_task(member.run())
        return member

    async def leave(self, member: Member) -> None:
        member.drain()
        await self.members[member]
        del self.members[member]

    async def even(self) -> None:
        def shared() -> bool:
            held = [len(each.held()) for each in self.members]
            return sum(held) == self.partitions and max(held) - min(held) <= 1

        await _until(shared)

    @property
    def renewals(self) -> int:
        return self.tally.done["renew"] + self.tally.done["renew" + LOOKING]

    async def cycles(self, count: int) -> Cycle:
        """So many of each, counted anew; in one of them at least each looks who is alive."""
        self.tally.clear()
        hosts, looks = len(self.members), "renew" + LOOKING
        await _until(lambda: self.renewals >= count * hosts and self.tally.done[looks] >= hosts)
        return Cycle(look=self.tally.mean(looks), glance=self.tally.mean("renew"))

    async def quiet(self, count: int) -> Cycle:
        """What one cycle of one host takes, when nothing has happened for a while."""
        await self.cycles(2)
        return await self.cycles(count)


async def our_quiet(azurite: Azurite, *, partitions: int, cycles: int) -> Cycle:
    """One host alone, one cycle."""
    async with _our_group(azurite, hosts=1, partitions=partitions) as group:
        return await group.quiet(cycles)


async def our_take(azurite: Azurite, *, hosts: int, partitions: int, cycles: int) -> Taken:
    async with _our_group(azurite, hosts=hosts, partitions=partitions) as group:
        tally = group.tally
        quiet = await group.quiet(cycles)
        tally.clear()
        await group.leave(next(iter(group.members)))
        await group.join()
        await group.even()
        renewals = tally.done["renew" + LOOKING], tally.done["renew"]
        restart = tally.total().less(
            quiet.look.times(renewals[0]).plus(quiet.glance.times(renewals[1]))
        )
        writing = [asyncio.create_task(_write(each)) for each in group.members]
        # The first of a host go into the book; a day has 86,400 of the others.
        await _until(lambda: tally.done["checkpoint"] >= _FIRST_ONES * hosts)
        busy = await group.cycles(2 * cycles)
        await _until(lambda: tally.done["checkpoint"] >= cycles * hosts)
        checkpoint = tally.mean("checkpoint").times(hosts)
        for each in writing:
            each.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
    return Taken(quiet=quiet, busy=busy, checkpoint=checkpoint, restart=restart)


async def _write(member: Member) -> None:
    """Each second, as a processor does at its defaults: all positions in one call."""
    number = 0
    while True:
        number += 1
        position = Position(sequence_number=number, offset=str(number))
        await member.checkpoint({each.key: position for each in member.held()})
        await asyncio.sleep(1.0)


@asynccontextmanager
async def _our_group(azurite: Azurite, *, hosts: int, partitions: int) -> AsyncIterator[_Ours]:
    group = _Ours(url=azurite.new_store_url(), partitions=partitions)
    try:
        await group.join()
        keys = [partition_key(_HUB, _CONSUMERS, str(number)) for number in range(partitions)]
        await group.stores[0].declare(keys)
        for _ in range(1, hosts):
            await group.join()
        await group.even()
        yield group
    finally:
        for task in group.members.values():
            task.cancel()
        await asyncio.gather(*group.members.values(), return_exceptions=True)
        for store in group.stores:
            await store.close()


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            if true():
                return
            await asyncio.sleep(0.02)


# ---------------------------------------------------------------------- theirs


def their_take(azurite: Azurite, *, hosts: int, partitions: int) -> Taken:
    tally = Tally()
    store = BlobCheckpointStore(
        azurite.url,
        azurite.new_container("theirs"),
        credential={"account_name": azurite.account, "account_key": azurite.key},  # type: ignore[arg-type]
        transport=CountingTransport(tally),
    )
    ids = [str(number) for number in range(partitions)]

    def manager(name: str) -> OwnershipManager:
        return OwnershipManager(
            eventhub_client=cast("Any", PeerClient(partition_ids=ids)),
            consumer_group=_CONSUMERS,
            owner_id=name,
            checkpoint_store=store,
            ownership_timeout=EXPIRY_S,
            load_balancing_strategy=GREEDY,
            partition_id=None,
        )

    place = manager("any")
    where = {
        "fully_qualified_namespace": place.fully_qualified_namespace,
        "eventhub_name": place.eventhub_name,
        "consumer_group": place.consumer_group,
    }
    # Shared out evenly from the first: they would need a cycle for each partition of an owner.
    names = [f"owner{number}" for number in range(hosts)]
    rows = [{**where, "partition_id": each, "owner_id": names[int(each) % hosts]} for each in ids]
    assert len(list(store.claim_ownership(rows))) == partitions
    managers = [manager(name) for name in names]
    tally.clear()
    for each in managers:
        with tally.doing("cycle"):
            each.claim_ownership()
    quiet = tally.mean("cycle")
    restart = _restarted(tally, managers[0], manager("another")).less(quiet)
    positions = [
        {**where, "partition_id": each, "offset": "1", "sequence_number": 1} for each in ids
    ]
    for _ in range(2):  # the first time makes the blobs
        tally.clear()
        for position in positions:
            store.update_checkpoint(position)
    checkpoint = tally.total()
    cycle = Cycle(look=quiet, glance=quiet)
    return Taken(quiet=cycle, busy=cycle, checkpoint=checkpoint, restart=restart)


def _restarted(tally: Tally, leaving: OwnershipManager, joining: OwnershipManager) -> Bill:
    """The best case for them: the new one comes first, and takes all that was given back."""
    tally.clear()
    for each in list(leaving.owned_partitions):
        leaving.release_ownership(each["partition_id"])
    taken = joining.claim_ownership()
    joining.get_checkpoints()
    assert taken
    return tally.total()
