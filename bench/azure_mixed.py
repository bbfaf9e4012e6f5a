"""Two of our hosts and two stock clients of azure-eventhub in one consumer group.

All in processes of their own; events come from the endpoint and flow all the time. Ours keep their
leases in the Azure Blob store, theirs their records with ``BlobCheckpointStore``, on one Azurite.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench.azure_hub import HUB, endpoint
from bench.azure_mixed_child import Told
from bench.processor_scene import PATIENCE_S, Notes, until
from bench.report import Row, at_most, cost, exactly
from tests.support.azurite import azurite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from bench.azure_hub import Endpoint
    from tests.support.azurite import Azurite

_EACH = 2
_CYCLES = 6  # in their expiry, as with their defaults
_MIN_LEASE_S = 15.0  # of a blob
_FLOW_EVERY_S = 0.1
_IN_ORDER = frozenset(("shutdown", "handed_over"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One of ours or of theirs, in a process."""

    kind: str
    process: subprocess.Popen[str]
    notes: Notes

    def ended(self) -> None:
        """Wait for its end, which must be in good order."""
        code = self.process.wait(PATIENCE_S)
        said = self.notes.path.with_suffix(".err").read_text()
        assert code == 0, f"one of {self.kind} ended with {code}:\n{said}"

    def times(self, word: str) -> list[float]:
        """When it has noted this."""
        found = [line.split() for line in self.notes.path.read_text().splitlines()]
        return [float(words[1]) for words in found if words[0] == word]


@dataclass(kw_only=True)
class Group:
    """All members that ever were; what is left of them is killed at the end."""

    hub: Endpoint
    service: Azurite
    root: Path
    partitions: int
    interval_s: float
    all: list[Host] = field(default_factory=list)
    living: list[Host] = field(default_factory=list)
    _shared: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._shared = {
            "container": self.service.new_container("mixed"),
            "store_url": self.service.new_store_url(),
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.all:
            host.process.kill()
            with host.process:
                pass

    def start(self, kind: str) -> None:
        """Two more, of ours or of theirs."""
        for _ in range(_EACH):
            path = self.root / f"notes-{len(self.all)}"
            path.touch()
            with path.with_suffix(".err").open("w") as errors:
                process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", "bench.azure_mixed_child", kind],
                    stdin=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(self._told(path))) + "\n")
            process.stdin.flush()
            host = Host(kind=kind, process=process, notes=Notes(path))
            self.all.append(host)
            self.living.append(host)

    def end(self, kind: str) -> None:
        leaving = [each for each in self.living if each.kind == kind]
        self.living = [each for each in self.living if each.kind != kind]
        for host in leaving:
            host.process.send_signal(signal.SIGTERM)
        for host in leaving:
            host.ended()

    def is_owned(self) -> bool:
        """Whether each partition is worked on by exactly one of those that live."""
        held = [each.notes.held() for each in self.living]
        return len(set().union(*held)) == sum(map(len, held)) == self.partitions

    def is_even(self) -> bool:
        counts = [len(each.notes.held()) for each in self.living]
        return self.is_owned() and max(counts) - min(counts) <= 1

    def cycles_until_even(self) -> int:
        """From the moment at which the last one came: the most that one of theirs has begun."""
        until(lambda: all(each.times("ready") for each in self.living), what="all have begun")
        began_s = max(time_s for each in self.living for time_s in each.times("ready"))
        until(self.is_even, what="the partitions are shared evenly")
        even_s = time.monotonic()
        return max(
            sum(began_s <= time_s <= even_s for time_s in each.times("cycle"))
            for each in self.living
        )

    def _told(self, notes: Path) -> Told:
        return Told(
            notes=str(notes),
            connection=self.hub.connection,
            address=self.hub.address(),
            namespace=self.hub.namespace(),
            hub=HUB,
            storage=self.service.connection_string,
            interval_s=self.interval_s,
            expiry_s=max(_CYCLES * self.interval_s, 2 * _MIN_LEASE_S),
            lease_s=_MIN_LEASE_S,
            renew_s=self.interval_s / 3,  # 10 s beside 30 s, with the usual times
            **self._shared,
        )


def mixed(*, partitions: int, interval_s: float) -> Sequence[Row]:
    """Theirs come to ours, ours leave, and come to theirs."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root,
        azurite() as service,
        endpoint(partitions=partitions) as hub,
        Group(
            hub=hub, service=service, root=Path(root), partitions=partitions, interval_s=interval_s
        ) as group,
    ):
        hub.flow(every_s=_FLOW_EVERY_S)
        group.start("ours")
        until(group.is_even, what="ours have shared it out")
        group.start("theirs")
        theirs_came = group.cycles_until_even()
        group.end("ours")
        until(group.is_owned, what="theirs have all")
        group.start("ours")
        ours_came = group.cycles_until_even()
        time.sleep(interval_s)  # events flow on, in good peace
        sent = {(part, n) for part, count in hub.ends().items() for n in range(count)}
        until(lambda: sent <= _seen(group.all), what="all events are handled")
        group.end("ours")
        group.end("theirs")
        told = outcome(group.all, sent)
    what = f"{_EACH} of ours, {_EACH} of theirs, {partitions} partitions"
    return [
        cost(f"{what}: theirs come, their cycles until even", theirs_came, bar=at_most(3)),
        cost("the same: ours come", ours_came, bar=at_most(3)),
        cost(f"the same, {len(sent):,} events: lost", told.lost, bar=exactly(0)),
        cost("the same: ours given twice on orderly moves", told.in_order, bar=exactly(0)),
        cost("the same: ours given twice where theirs robbed us", told.robbed),
        cost("of these: while we were giving it up in order", told.overtaken),
        cost("the same: theirs given twice", told.theirs),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Events that nobody was given, and those that were given again after somebody had them."""

    lost: int
    in_order: int
    robbed: int
    overtaken: int  # of those robbed
    theirs: int


def outcome(hosts: Sequence[Host], sent: set[tuple[int, int]]) -> Outcome:
    """Who had each event first tells whose it was, and how that one's work on it ended."""
    notes = [(host.kind, host.notes.path.read_text()) for host in hosts]
    claims = [claim for kind, text in notes if kind == "theirs" for claim in claims_in(text)]
    given: dict[tuple[int, int], list[tuple[float, str]]] = {}
    for kind, text in notes:
        for term in terms(text):
            end = kind if kind == "theirs" else term.end(claims)
            for at_s, numbers in term.batches:
                for number in numbers:
                    given.setdefault((term.partition, number), []).append((at_s, end))
    twice: Counter[str] = Counter()
    for each in given.values():
        twice.update(end for _, end in sorted(each)[:-1])
    return Outcome(
        lost=len(sent - set(given)),
        in_order=twice["in order"],
        robbed=twice["robbed"] + twice["overtaken"],
        overtaken=twice["overtaken"],
        theirs=twice["theirs"],
    )


@dataclass(kw_only=True)
class Term:
    """A member's work on a partition, from its opening to its closing: what it was given when."""

    partition: int
    epoch: int
    opened_s: float
    overtaken_s: float = -math.inf
    reason: str = "shutdown"
    batches: list[tuple[float, range]] = field(default_factory=list)

    def end(self, claims: Iterable[tuple[int, float]]) -> str:
        """How it ended, by the word of our host.

        That it was overtaken is believed only if one of theirs has noted such a claim.
        """
        if self.reason not in _IN_ORDER:
            return "robbed"
        was_claimed = any(
            partition == self.partition and self.opened_s < at_s < self.overtaken_s
            for partition, at_s in claims
        )
        return "overtaken" if was_claimed else "in order"


def claims_in(text: str) -> list[tuple[int, float]]:
    """The partitions that one of theirs has claimed, or claimed again, and when."""
    lines = [line.split() for line in text.splitlines()]
    return [(int(words[1]), float(words[2])) for words in lines if words[0] == "claim"]


def terms(text: str) -> list[Term]:
    """All of one member."""
    found: list[Term] = []
    at_work: dict[int, Term] = {}
    for line in text.splitlines():
        word, *rest = line.split()
        if word == "open":
            term = Term(partition=int(rest[0]), epoch=int(rest[1]), opened_s=float(rest[2]))
            found.append(term)
            at_work[term.partition] = term
        elif word == "batch":
            numbers = range(int(rest[1]), int(rest[2]) + 1)
            at_work[int(rest[0])].batches.append((float(rest[3]), numbers))
        elif word == "close":
            term = at_work[int(rest[0])]
            term.reason = rest[2]
        elif word == "overtaken":
            term = at_work[int(rest[0])]
            if term.epoch == int(rest[1]):
                term.overtaken_s = float(rest[2])
    return found


def _seen(hosts: Sequence[Host]) -> set[tuple[int, int]]:
    return {event for host in hosts for event in host.notes.handled()}
