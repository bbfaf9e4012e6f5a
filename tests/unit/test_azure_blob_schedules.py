"""Safety of the Azure Blob store in any order of things: pauses, lost answers, late requests.

At no moment do two hosts believe in one key; epochs and checkpoints never go back; what has ended
stays ended. ``tests/support/azure_schedule.py`` says how the order is made.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.azure_schedule import Call, HostStore, Service, started

from leasehold.core.ladder import Ladder
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import (
    Changes,
    HandOver,
    Lease,
    Mark,
    MemberInfo,
    Ownership,
    Position,
    Resource,
    State,
    Wanted,
)
from leasehold.stores.azure_blob import shelf, wire
from leasehold.stores.azure_blob.book import Book
from leasehold.stores.azure_blob.naming import Home

GROUP = "partition/orders/billing"
KEYS = [f"{GROUP}/{number}" for number in range(3)]
LEASE_S = 15.0
# The part of a lease that a host does not believe in: its clock may run slow.
MARGIN = 0.1
STEPS = 2000
AT_ONCE = Ladder(base_s=1e-6, most_s=1e-6)


@dataclass
class Host:
    """A careful member: believes from when it asked, and stops before it gives away."""

    name: str
    store: HostStore
    rng: random.Random
    group: str = GROUP
    lease: Lease | None = None
    incarnation: int = 0
    version: int = 0
    trusted_s: float = 0.0
    owned: dict[str, Ownership] = field(default_factory=dict)
    stops_s: dict[str, float] = field(default_factory=dict)
    call: Call | None = None
    heard: Callable[[Any], None] = lambda _answer: None
    sequence: int = 0
    done: set[str] = field(default_factory=set)

    def now_s(self) -> float:
        return self.store.clock.boottime_s()

    def believes(self, key: str) -> bool:
        now_s = self.now_s()
        return (
            key in self.owned
            and now_s < self.trusted_s
            and now_s < self.stops_s.get(key, now_s + 1)
        )

    # ---------------------------------------------------------------- calls

    def begin(self) -> None:
        """Make some call or other."""
        if self.lease is None or self.now_s() >= self.trusted_s + 60:
            self._join()
            return
        lease, rng = self.lease, self.rng
        kind = rng.choices(
            ("renew", "claim", "checkpoint", "release", "hand_over", "break", "revoke"),
            (12, 6, 2, 1, 1, 1.5, 0.2),
        )[0]
        mine = [each for key, each in self.owned.items() if self.believes(key)]
        if kind == "renew":
            since, sent_s = self.version, self.now_s()
            self._call(
                kind,
                lambda given_up: self.store.leasing.renew(lease, since, None, given_up),
                lambda told: self._renewed(lease, sent_s, told),
            )
        elif kind == "claim":
            self._call(kind, self._claiming(lease), lambda taken: self._claimed(lease, taken))
        elif kind == "break":
            self._call(kind, self._breaking, lambda _: None)
        elif kind == "revoke":
            self._stop()
            self._call(
                kind, lambda given_up: self.store.leasing.revoke(lease, given_up), lambda _: None
            )
        elif mine:
            self._with(kind, rng.choice(mine))

    def _with(self, kind: str, mine: Ownership) -> None:
        keeping = self.store.keeping
        self.sequence += 1
        position = Position(sequence_number=self.sequence * 7 % 50 + self.sequence)
        if kind == "checkpoint":
            marks = [Mark(ownership=mine, position=position)]
            self._call(kind, lambda given_up: keeping.checkpoint(marks, given_up), lambda _: None)
            return
        del self.owned[mine.key]
        if kind == "release":
            self._call(kind, lambda given_up: keeping.release([mine], {}, given_up), lambda _: None)
        else:
            to = f"{self.rng.choice('abc')}.{self.rng.randint(1, 3)}"
            passed = [HandOver(ownership=mine, to=to)]
            self._call(
                kind, lambda given_up: keeping.hand_over(passed, 5.0, given_up), lambda _: None
            )

    def _join(self) -> None:
        self._stop()
        self.incarnation += 1
        name = f"{self.name}.{self.incarnation}"
        lease = Lease(holder=name, token=f"t {name}", group=self.group, duration_s=LEASE_S)
        sent_s = self.now_s()

        def granted(found: Lease) -> None:
            assert found == lease
            self.lease, self.version = lease, 0
            self.trusted_s = sent_s + LEASE_S * (1 - MARGIN)

        self._call(
            "grant",
            lambda given_up: self.store.leasing.grant(lease, MemberInfo(), given_up),
            granted,
        )

    def _claiming(self, lease: Lease) -> Callable[[threading.Event], object]:
        def claim(given_up: threading.Event) -> object:
            found: Mapping[str, Resource] = self.store.shelf.read(
                Home(GROUP),
                lambda turn: turn.book.resources(GROUP, turn.now),
                given_up,
                concerns=Book.everybody,
            )
            free = {State.AVAILABLE, State.BROKEN, State.EXPIRED}
            wanted = [
                Wanted(key=key, seen_epoch=each.epoch)
                for key, each in found.items()
                if each.state in free
            ]
            return self.store.keeping.claim(lease, wanted, given_up, force=False)

        return claim

    def _breaking(self, given_up: threading.Event) -> object:
        key = self.rng.choice(KEYS)
        found = self.store.shelf.read(
            Home(GROUP), lambda turn: turn.book.resources(GROUP, turn.now), given_up
        )
        if key not in found:
            return None
        return self.store.keeping.break_(key, found[key].epoch, LEASE_S, given_up)

    def _call(
        self,
        kind: str,
        work: Callable[[threading.Event], object],
        heard: Callable[[Any], None],
    ) -> None:
        self.call = started(work)

        def and_count(answer: object) -> None:
            self.done.add(kind)
            heard(answer)

        self.heard = and_count

    # ---------------------------------------------------------------- answers

    def hear(self, call: Call) -> None:
        if isinstance(call.error, LeaseLost):
            self._stop()
        elif call.error is None:
            self.heard(call.answer)
        elif not isinstance(call.error, StoreUnavailable):
            raise call.error

    def _renewed(self, lease: Lease, sent_s: float, told: Changes) -> None:
        if lease != self.lease:
            return
        self.trusted_s = max(self.trusted_s, sent_s + LEASE_S * (1 - MARGIN))
        self.version = told.version
        for term in told.ended:
            if term.key in self.owned and self.owned[term.key].epoch == term.epoch:
                del self.owned[term.key]
        for each in told.resources:
            if each.holder == lease.holder and each.breaking_s is not None:
                self.stops_s[each.key] = sent_s + each.breaking_s * (1 - MARGIN)

    def _claimed(self, lease: Lease, taken: list[Ownership]) -> None:
        if lease != self.lease:
            return
        for each in taken:
            known = self.owned.get(each.key)
            if known is None or known.epoch < each.epoch:
                self.stops_s.pop(each.key, None)
                self.owned[each.key] = each

    def _stop(self) -> None:
        self.owned.clear()
        self.stops_s.clear()
        self.lease = None


@dataclass
class Judge:
    """Looks at every book that is written."""

    epochs: dict[str, int] = field(default_factory=dict)
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended: set[tuple[str, str]] = field(default_factory=set)
    takers: dict[tuple[str, int], str] = field(default_factory=dict)

    def look(self, name: str, book: dict[str, Any]) -> None:
        for last, epoch, _, holder, terms, *_ in book["keys"]:
            key = f"{book['group']}/{last}"
            assert epoch >= self.epochs.get(key, 0), "an epoch fell"
            self.epochs[key] = epoch
            for number, term in enumerate(terms):
                assert self.takers.setdefault((key, term[0]), term[1]) == term[1], "one epoch, two"
                open_ = len(term) < 5 or term[4] is None
                assert open_ == (number == len(terms) - 1 and holder is not None), "no end"
        for last, epoch, number, *_ in book["marks"]:
            key = f"{book['group']}/{last}"
            assert (epoch, number) >= self.marks.get(key, (0, 0)), "a checkpoint went back"
            self.marks[key] = (epoch, number)
        for each in book["leases"]:
            known = (name, each["holder"])
            if "ended" in each:
                self.ended.add(known)
            else:
                assert known not in self.ended, "a dead lease came back"


@pytest.mark.spec("L7")
@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_things_gives_a_key_to_two(seed: int) -> None:
    rng, judge, service = random.Random(seed), Judge(), Service()
    service.on_book = judge.look
    hosts = [
        Host(name, HostStore(service, rng), rng, group)
        for name, group in zip("abc", (GROUP, GROUP, rng.choice([GROUP, "", "job"])), strict=True)
    ]
    running: list[tuple[Host, Call]] = []
    first = started(lambda given_up: hosts[0].store.keeping.declare(KEYS, given_up))
    while not first.over:
        first.step()
    patience, asleep = rng.choice([0.0, 0.02, 0.1]), set[int]()
    with (
        patch.object(wire, "_LADDER", AT_ONCE),
        patch.object(shelf, "_LADDER", AT_ONCE),
        patch.object(shelf, "_COURTESY_S", 0.0),
    ):
        for _ in range(STEPS):
            _something(rng, service, hosts, running, asleep, patience)
            for key in KEYS:
                assert sum(host.believes(key) for host in hosts) <= 1, "two believe in one key"
    for _, call in running:
        call.dropped = True
        call.go.release()
        assert call.stopped.acquire(timeout=30)
    assert max(judge.epochs.values()) > 1
    assert {"grant", "renew", "claim"} <= set[str]().union(*(host.done for host in hosts))


def _something(
    rng: random.Random,
    service: Service,
    hosts: list[Host],
    running: list[tuple[Host, Call]],
    asleep: set[int],
    patience: float,
) -> None:
    """One host takes one step, or time passes, or what was lost arrives after all."""
    luck = rng.random()
    if luck < 0.06:
        service.now_s += rng.choices([0.1, 0.5, 1.0, 3.0, 8.0, 16.0], [4, 4, 3, 2, 1, 1])[0]
        return
    if rng.random() < 0.03:
        asleep.clear()
        asleep.update(rng.sample(range(len(hosts)), rng.choice([0, 1, 1, 2])))
    host = rng.choice([each for n, each in enumerate(hosts) if n not in asleep])
    limbo = host.store.wire.limbo
    if luck < 0.08 and limbo:
        limbo.pop(rng.randrange(len(limbo)))()
        return
    if host.call is None:
        host.begin()
        if host.call is not None:
            running.append((host, host.call))
        return
    old = [call for owner, call in running if owner is host]
    call = rng.choice(old) if rng.random() < 0.3 else host.call
    call.step()
    if call.over:
        running.remove((host, call))
        if call is host.call:
            host.call = None
            host.hear(call)
    elif call is host.call and rng.random() < patience:
        call.given_up.set()  # nobody waits for it any more, and it goes on a little
        host.call = None
