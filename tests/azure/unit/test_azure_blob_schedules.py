"""Safety of the Azure Blob store in any order of things: pauses, lost answers, late requests.

At no moment do two hosts believe in one key; epochs and checkpoints never go back; what has ended
stays ended. A position is taken only from who owns the key just then, and one that was taken is
never lost. ``tests/support/azure_schedule.py`` says how the order is made.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.azure_schedule import CURRENT, Call, HostStore, Service, started
from tests.support.seeds import seeded

from leasehold.azure.blob_store import checkpoint_blobs, document_cache, http, ownerships
from leasehold.azure.blob_store.checkpoint_blobs import CheckpointBlobs, parse_checkpoint_blob
from leasehold.azure.blob_store.document_cache import DocumentCache, GroupListing
from leasehold.azure.blob_store.group_document import GroupDocument
from leasehold.azure.blob_store.naming import LeaseLocation
from leasehold.core.backoff import Backoff
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import (
    Changes,
    CheckpointWrite,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
    Refusal,
    Resource,
    State,
)

GROUP = "partition/orders/billing"
DOCUMENT = LeaseLocation(GROUP).document_blob
KEYS = [f"{GROUP}/{number}" for number in range(3)]
LEASE_S = 15.0
# The part of a lease that a host does not believe in: its clock may run slow.
MARGIN = 0.1
STEPS = 2000
MAX_BESIDE, SELDOM = 2, 0.1
AT_ONCE = Backoff(base_s=1e-6, max_s=1e-6)


@dataclass
class Host:
    """A careful member: believes from when it asked, and stops before it gives away."""

    name: str
    store: HostStore
    rng: random.Random
    acknowledged: Callable[[str, int], None]
    positions: float
    group: str = GROUP
    lease: Lease | None = None
    incarnation: int = 0
    version: int = 0
    trusted_s: float = 0.0
    owned: dict[str, Ownership] = field(default_factory=dict)
    stops_s: dict[str, float] = field(default_factory=dict)
    call: Call | None = None
    heard: Callable[[Any], None] = lambda _answer: None
    done: set[str] = field(default_factory=set)
    beside: list[tuple[Call, CheckpointWrite]] = field(default_factory=list)

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
            (12, 6, self.positions, 1, 1, 1.5, 0.2),
        )[0]
        mine = [each for key, each in self.owned.items() if self.believes(key)]
        if kind == "renew":
            since, sent_s = self.version, self.now_s()
            self._call(
                kind,
                lambda cancelled: self.store.leases.renew(lease, since, None, cancelled),
                lambda changes: self._renewed(lease, sent_s, changes),
            )
        elif kind == "claim":
            self._call(kind, self._claiming(lease), lambda taken: self._claimed(lease, taken))
        elif kind == "break":
            self._call(kind, self._breaking, lambda _: None)
        elif kind == "revoke":
            self._stop()
            self._call(
                kind, lambda cancelled: self.store.leases.revoke(lease, cancelled), lambda _: None
            )
        elif mine:
            self._with(kind, rng.choice(mine))

    def _with(self, kind: str, mine: Ownership) -> None:
        ownerships = self.store.ownerships
        back = self.rng.choice([0, 0, 0, 20])  # some are behind
        position = Position(sequence_number=max(0, self.store.http_client.service.written - back))
        if kind == "checkpoint":
            writes = [CheckpointWrite(ownership=mine, position=position)]

            def marked(refused: Mapping[str, Refusal]) -> None:
                if not refused:
                    self.acknowledged(mine.key, position.sequence_number)

            self._call(kind, lambda cancelled: ownerships.checkpoint(writes, cancelled), marked)
            return
        del self.owned[mine.key]
        if kind == "release":
            self._call(
                kind, lambda cancelled: ownerships.release([mine], {}, cancelled), lambda _: None
            )
        else:
            to = f"{self.rng.choice('abc')}.{self.rng.randint(1, 3)}"
            passed = [HandOver(ownership=mine, to=to)]
            self._call(
                kind, lambda cancelled: ownerships.hand_over(passed, 5.0, cancelled), lambda _: None
            )

    def step_beside(self) -> None:
        """Begin a checkpoint beside all other calls, or let one go on."""
        mine = [each for key, each in self.owned.items() if self.believes(key)]
        if mine and len(self.beside) < MAX_BESIDE and self.rng.random() < SELDOM:
            position = Position(sequence_number=self.store.http_client.service.written)
            write = CheckpointWrite(ownership=self.rng.choice(mine), position=position)
            call = started(lambda cancelled: self.store.ownerships.checkpoint([write], cancelled))
            self.beside.append((call, write))
        elif self.beside:
            call, write = self.rng.choice(self.beside)
            call.step()
            if call.over:
                self.beside.remove((call, write))
                if call.error is None and not call.answer:
                    self.acknowledged(write.ownership.key, write.position.sequence_number)
                    self.done.add("beside")
                assert isinstance(call.error, StoreUnavailable | None), call.error

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
            lambda cancelled: self.store.leases.grant(lease, MemberInfo(), cancelled),
            granted,
        )

    def _claiming(self, lease: Lease) -> Callable[[threading.Event], object]:
        def claim(cancelled: threading.Event) -> object:
            found: Mapping[str, Resource] = self.store.cache.read(
                LeaseLocation(GROUP),
                lambda context: context.document.resources(GROUP, context.now),
                cancelled,
                liveness_of=GroupDocument.live_holders,
            )
            free = {State.AVAILABLE, State.BROKEN, State.EXPIRED}
            wanted = [
                KeyClaim(key=key, seen_epoch=each.epoch)
                for key, each in found.items()
                if each.state in free
            ]
            return self.store.ownerships.claim(lease, wanted, cancelled, force=False)

        return claim

    def _breaking(self, cancelled: threading.Event) -> object:
        key = self.rng.choice(KEYS)
        found = self.store.cache.read(
            LeaseLocation(GROUP),
            lambda context: context.document.resources(GROUP, context.now),
            cancelled,
        )
        if key not in found:
            return None
        return self.store.ownerships.break_(key, found[key].epoch, LEASE_S, cancelled)

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

    def _renewed(self, lease: Lease, sent_s: float, changes: Changes) -> None:
        if lease != self.lease:
            return
        self.trusted_s = max(self.trusted_s, sent_s + LEASE_S * (1 - MARGIN))
        self.version = changes.version
        for term in changes.ended:
            if term.key in self.owned and self.owned[term.key].epoch == term.epoch:
                del self.owned[term.key]
        for each in changes.resources:
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
    """Looks at every document and every checkpoint blob that is written."""

    service: Service
    wrong: list[str] = field(default_factory=list)
    written_to_blobs: int = 0
    reached: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    latest: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended: set[tuple[str, str]] = field(default_factory=set)
    takers: dict[tuple[str, int], str] = field(default_factory=dict)

    def guarded(self, judgement: Callable[..., None]) -> Callable[..., None]:
        """In the thread of a call, whose error nobody may hear."""

        def judged(*seen: object) -> None:
            try:
                judgement(*seen)
            except AssertionError as error:
                self.wrong.append(str(error))

        return judged

    def check_document(self, name: str, document: dict[str, Any]) -> None:
        for last, epoch, _, holder, terms, *_ in document["keys"]:
            key = f"{document['group']}/{last}"
            assert epoch >= self.epochs.get(key, 0), "an epoch fell"
            self.epochs[key] = epoch
            for number, term in enumerate(terms):
                assert self.takers.setdefault((key, term[0]), term[1]) == term[1], "one epoch, two"
                open_ = len(term) < 5 or term[4] is None
                assert open_ == (number == len(terms) - 1 and holder is not None), "no end"
        for last, epoch, number, *_ in document["marks"]:
            key = f"{document['group']}/{last}"
            assert (epoch, number) >= self.latest.get(key, (0, 0)), "a checkpoint went back"
            self.latest[key] = (epoch, number)
        for each in document["leases"]:
            known = (name, each["holder"])
            if "ended" in each:
                self.ended.add(known)
            else:
                assert known not in self.ended, "a dead lease came back"
        self.positions()

    def check_checkpoint_blob(
        self, name: str, before: Mapping[str, str], after: Mapping[str, str]
    ) -> None:
        old, new = parse_checkpoint_blob(before, GROUP), parse_checkpoint_blob(after, GROUP)
        assert not self.service.blobs[name].lease_id, "a late call writes a sealed checkpoint blob"
        named, owners = self._owners()
        for key, checkpoint in new.checkpoints.items():
            if old.checkpoints.get(key) != checkpoint:
                self.written_to_blobs += 1
                assert name in named, "a checkpoint blob that nobody looks at"
                assert owners[key] == (named[name], checkpoint.epoch), "not by the owner"
        self.positions()

    def positions(self) -> dict[str, int]:
        """How far each key is, by the document and the checkpoint blobs that it names."""
        named, owners = self._owners()
        document = json.loads(self.service.blobs[DOCUMENT].body)
        found = {f"{GROUP}/{last}": number for last, _, number, *_ in document["marks"]}
        for name, holder in named.items():
            if name not in self.service.blobs:
                continue  # nobody has written there yet, or not any more
            for key, write in parse_checkpoint_blob(
                self.service.blobs[name].metadata, GROUP
            ).checkpoints.items():
                if owners[key] == (holder, write.epoch):
                    found[key] = max(found.get(key, -1), write.position.sequence_number)
        for key, number in self.reached.items():
            assert found.get(key, -1) >= number, "a position was lost"
        self.reached = found
        return found

    def acknowledged(self, key: str, number: int) -> None:
        assert self.positions()[key] >= number, "a position was acknowledged and is not there"

    def _owners(self) -> tuple[dict[str, str], dict[str, tuple[str | None, int]]]:
        """The checkpoint blobs that the document names, their holders, and who owns each key."""
        document = json.loads(self.service.blobs[DOCUMENT].body)
        leases = (each for each in document["leases"] if "slip" in each)
        named = {
            LeaseLocation(GROUP).checkpoint_blob(each["holder"], each["slip"]): each
            for each in leases
        }
        owners = {f"{GROUP}/{each[0]}": (each[3], each[1]) for each in document["keys"]}
        return {name: each["holder"] for name, each in named.items()}, owners


def is_known(seed: int) -> bool:
    """Whether enough happens with this seed; with others only what is safe is checked."""
    return 1 <= seed <= 4


# How much of all is checkpoints, and how often time passes.
WILD, CALM = (4.0, 0.06), (40.0, 0.02)


@pytest.mark.spec("L7", "C2")
@pytest.mark.parametrize("weather", [WILD, CALM], ids=["wild", "calm"])
@seeded(5)
def test_no_order_of_things_gives_a_key_to_two(seed: int, weather: tuple[float, float]) -> None:
    rng = random.Random(seed)
    judge, hosts = _played(rng, [GROUP, GROUP, rng.choice([GROUP, "", "job"])], weather, 0.0)
    if not is_known(seed):
        return
    assert max(judge.epochs.values()) > 1 or weather is CALM
    assert judge.written_to_blobs or weather is WILD
    assert {"grant", "renew", "claim"} <= set[str]().union(*(host.done for host in hosts))


@pytest.mark.spec("L7", "C2", "C3")
@seeded(4)
def test_nor_do_five_hosts_with_several_calls_at_a_time(seed: int) -> None:
    """So many take turns to look. Calls of one host stop also between comparing and writing."""
    looks, real_look, real_jot, real_make = (
        list[int](),
        DocumentCache.poll_document,
        CheckpointBlobs.write,
        CheckpointBlobs.create,
    )

    def poll_document(*given: Any) -> GroupListing:
        looks.append(1)
        return real_look(*given)

    def write(*given: Any) -> bool:
        CURRENT.call.pause()
        return real_jot(*given)

    def create(*given: Any) -> str | None:
        name = real_make(*given)
        CURRENT.call.pause()
        return name

    with (
        patch.object(DocumentCache, "poll_document", poll_document),
        patch.object(CheckpointBlobs, "write", write),
        patch.object(CheckpointBlobs, "create", create),
    ):
        judge, hosts = _played(random.Random(seed), [GROUP] * 5, (30.0, 0.01), 0.4)
    if not is_known(seed):
        return
    assert looks
    assert judge.written_to_blobs
    assert any("beside" in host.done for host in hosts)


def _played(
    rng: random.Random, groups: list[str], weather: tuple[float, float], beside: float
) -> tuple[Judge, list[Host]]:
    """A host for each group; ``beside`` says how many of all steps are of calls beside others."""
    service = Service()
    judge = Judge(service)
    service.on_document, service.on_checkpoint_blob = (
        judge.guarded(judge.check_document),
        judge.guarded(judge.check_checkpoint_blob),
    )
    hosts = [
        Host(name, HostStore(service, rng), rng, judge.acknowledged, weather[0], group)
        for name, group in zip("abcde", groups, strict=False)
    ]
    running: list[tuple[Host, Call]] = []
    first = started(lambda cancelled: hosts[0].store.ownerships.declare(KEYS, cancelled))
    while not first.over:
        first.step()
    give_up_rate, paused = rng.choice([0.0, 0.02, 0.1]), set[int]()
    with (
        patch.object(http, "_BACKOFF", AT_ONCE),
        patch.object(document_cache, "_BACKOFF", AT_ONCE),
        patch.object(document_cache, "_LOCK_TIMEOUT_S", 0.0),
        patch.object(checkpoint_blobs, "_LOCK_TIMEOUT_S", 0.0),
        patch.object(checkpoint_blobs, "_YIELD_S", 0.0),
        patch.object(ownerships, "_LOCK_TIMEOUT_S", 0.0),
        patch.object(ownerships, "_OFTEN_WRITES", 0),  # a checkpoint blob for every host
    ):
        for _ in range(STEPS * (2 if beside else 1)):
            if beside and rng.random() < beside:
                rng.choice(hosts).step_beside()
            else:
                _something(rng, service, hosts, running, paused, give_up_rate, weather[1])
            for key in KEYS:
                assert sum(host.believes(key) for host in hosts) <= 1, "two believe in one key"
            assert not judge.wrong, judge.wrong
    for call in [call for _, call in running] + [call for each in hosts for call, _ in each.beside]:
        call.dropped = True
        call.go.release()
        assert call.stopped.acquire(timeout=90)
    return judge, hosts


def _something(
    rng: random.Random,
    service: Service,
    hosts: list[Host],
    running: list[tuple[Host, Call]],
    paused: set[int],
    give_up_rate: float,
    hurry: float,
) -> None:
    """One host takes one step, or time passes, or what was lost arrives after all."""
    luck = rng.random()
    if luck < hurry:
        service.now_s += rng.choices([0.1, 0.5, 1.0, 3.0, 8.0, 16.0], [4, 4, 3, 2, 1, 1])[0]
        return
    if rng.random() < 0.03:
        paused.clear()
        paused.update(rng.sample(range(len(hosts)), rng.choice([0, 1, 1, 2])))
    host = rng.choice([each for n, each in enumerate(hosts) if n not in paused])
    limbo = host.store.http_client.limbo
    if luck < hurry + 0.02 and limbo:
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
    elif call is host.call and rng.random() < give_up_rate:
        call.cancelled.set()  # nobody waits for it any more, and it goes on a little
        host.call = None
