"""A day of a group, in requests to the blob service and in money, computed from measured ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.azure_storage import our_quiet, our_take, their_take
from bench.azure_tally import Bill, Kind
from bench.peer import MEAN_PERIOD_S
from bench.report import Bar, Row, at_most, cost
from tests.support.azurite import azurite

from leasehold.azure.blob_store.lease_calls import turns
from leasehold.processor import ProcessorOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.azure_storage import Taken

DAY_S = 86_400.0
# US dollars for 10,000 operations on block blobs, hot tier: the sample prices of Microsoft's pages
# on estimating costs ("Sample prices", Blob Service endpoint). True ones differ by region and
# contract; only the ratio of dear to cheap operations counts in the ratio of two bills.
PRICE_OF_10_000 = {
    Kind.WRITE: 0.055,
    Kind.LIST: 0.055,
    Kind.READ: 0.0044,
    Kind.OTHER: 0.0044,
    Kind.DELETE: 0.0,
}
# Our lease of 30 s on a blob, as the Event Processor Host has it. The store's longest, 60 s, can
# be renewed each 27 s at most.
CYCLE_S = ProcessorOptions.event_processor_host().timing.renew_s
LONGEST_CYCLE_S = 27.0
CHECKPOINT_EVERY_S = ProcessorOptions().checkpoint.interval_s or 1.0
_A_TWENTIETH = Bar(words="<= 1/20", least=20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """``looks``: in which part of its cycles a host looks who is alive."""

    hosts: int
    cycle_s: float
    events_flow: bool
    looks: float = 1.0

    def bill(self, taken: Taken) -> Bill:
        """The cycles, the checkpoints if events flow, and one rolling restart."""
        cycle = (taken.busy if self.events_flow else taken.quiet).mean(self.looks)
        total = cycle.times(self.hosts * DAY_S / self.cycle_s)
        if self.events_flow:
            total = total.plus(taken.checkpoint.times(DAY_S / CHECKPOINT_EVERY_S))
        return total.plus(taken.restart.times(self.hosts))


def looks(*, hosts: int) -> float:
    """In which part of its cycles a host of ours looks who is alive: the store's own rule.

    All cycles here are a third of a lease or longer, so that no turn has two of them.
    """
    return 1 / turns(hosts)


def price(bill: Bill) -> float:
    return sum(count * PRICE_OF_10_000[kind] for kind, count in bill.items()) / 10_000


def storage(*, hosts: int, partitions: int, cycles: int) -> Sequence[Row]:
    """Both sides on the same Azurite, one after the other."""
    with azurite() as service:
        ours = asyncio.run(our_take(service, hosts=hosts, partitions=partitions, cycles=cycles))
        alone = asyncio.run(our_quiet(service, partitions=partitions, cycles=cycles))
        theirs = their_take(service, hosts=hosts, partitions=partitions)
        theirs_alone = their_take(service, hosts=1, partitions=partitions)
    named = "peer: azure-eventhub with BlobCheckpointStore"
    group = f"{hosts} hosts x {partitions} partitions"
    share = looks(hosts=hosts)
    return [
        _calls(
            f"{group}: storage calls per host and cycle; {named}",
            ours.quiet.mean(share),
            theirs.quiet.look,
            at_most(2.0),
        ),
        _calls("the same with 1 host", alone.look, theirs_alone.quiet.look, at_most(2.0)),
        _calls(
            f"{hosts} hosts, while all write checkpoints", ours.busy.mean(share), theirs.busy.look
        ),
        _calls(
            f"{hosts} hosts: calls to write all positions once", ours.checkpoint, theirs.checkpoint
        ),
        _calls("the same: calls of one restart", ours.restart, theirs.restart),
        *_days(hosts, ours, theirs),
    ]


def _days(hosts: int, ours: Taken, theirs: Taken) -> Sequence[Row]:
    every = f"a position of each partition each {CHECKPOINT_EVERY_S:g} s"
    own = f"24 h, {every}, cycles of {CYCLE_S:g} s and {MEAN_PERIOD_S:g} s"
    same = f"24 h, {every}, cycles of {LONGEST_CYCLE_S:g} s on both sides"
    still = f"24 h without events, cycles of {CYCLE_S:g} s and {MEAN_PERIOD_S:g} s"
    still_same = f"24 h without events, cycles of {LONGEST_CYCLE_S:g} s on both sides"
    rows: list[Row] = []
    for what, our_s, their_s, flow, bar in (
        (own, CYCLE_S, MEAN_PERIOD_S, True, _A_TWENTIETH),
        (same, LONGEST_CYCLE_S, LONGEST_CYCLE_S, True, None),
        (still, CYCLE_S, MEAN_PERIOD_S, False, None),
        (still_same, LONGEST_CYCLE_S, LONGEST_CYCLE_S, False, None),
    ):
        share = looks(hosts=hosts)
        mine = Day(hosts=hosts, cycle_s=our_s, events_flow=flow, looks=share).bill(ours)
        other = Day(hosts=hosts, cycle_s=their_s, events_flow=flow).bill(theirs)
        rows += [
            _times(f"{what}: storage transactions", mine.total(), other.total(), bar),
            _times("the same: US dollars at list prices", price(mine), price(other), bar),
        ]
    return rows


def _calls(what: str, ours: Bill, theirs: Bill, bar: Bar | None = None) -> Row:
    return cost(what, float(ours.total()), float(theirs.total()), bar)


def _times(what: str, ours: float, peer: float, bar: Bar | None) -> Row:
    """The bar is on the ratio."""
    row = cost(what, ours, peer)
    return Row(
        what=row.what,
        ours=row.ours,
        peer=row.peer,
        ratio=row.ratio,
        bar=bar.words if bar else None,
        met=bar.met(peer / ours) if bar else True,
    )
