"""Many reservations under one lease, and a store that is in trouble. Simulated time."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest
from tests.support.job_scene import LEASE_S, LoopClock, Ring, Scene, now, play, until

from leasehold.errors import LeaseLost, StoreUnavailable, StoreUnusable
from leasehold.jobs.wish import GROUP
from leasehold.model import EndReason, Position, Refusal
from leasehold.names import job_key

A, B, C = (job_key(name) for name in "abc")


def test_a_claim_without_an_answer_is_an_error_and_may_be_asked_again() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(B) as ring:
            await ring.release({B: ""})
            scene.store.deaf = frozenset({"claim"})
            with pytest.raises(StoreUnavailable):
                await ring.take({B: "mine"})
            assert not ring.valid(B)
            proofs = await ring.take({B: "mine"})
            assert proofs[B].epoch == 2  # the first one had come through
            await asyncio.sleep(10 * LEASE_S)
            assert ring.valid(B)
            assert await scene.reasons(B) == [None, EndReason.RELEASED]

    play(story)


@pytest.mark.parametrize("seen_before_the_error", [True, False])
def test_what_the_store_gave_without_our_hearing_is_given_back(seen_before_the_error: bool) -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring, scene.ring() as other:
            await ring.release({A: ""})
            scene.store.deaf = frozenset({"claim"})
            # A renewal is under way while the claim is: its answer comes before, or after.
            scene.store.answer_s = 1.9 if seen_before_the_error else 0.0
            with pytest.raises(StoreUnavailable):
                await ring.take({A: ""}, fresh=False)
            scene.store.answer_s = 0.0
            await asyncio.sleep(LEASE_S / 2)
            assert (await other.take({A: ""}))[A].epoch == 3
            assert not ring.told
            assert await ring.take({A: ""}) == {}

    play(story)


def test_a_release_without_an_answer_is_asked_again_and_its_note_stands() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring:
            scene.store.deaf = frozenset({"release"})
            await ring.release({A: "ended well"})
            assert scene.store.calls["release"] == 2
            assert (await ring.take({A: ""}))[A].epoch == 2
            assert await scene.notes(A) == ["", "ended well"]

    play(story)


def test_a_release_the_store_does_not_hear_for_long_is_told_later() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring, scene.ring() as other:
            scene.store.error = StoreUnavailable("away")
            began_s = now()
            await ring.release({A: "late"})
            assert now() - began_s == pytest.approx(LEASE_S)
            assert not ring.valid(A)
            with pytest.raises((StoreUnavailable, LeaseLost)):
                await ring.take({A: ""})
            scene.store.error = None
            await asyncio.sleep(LEASE_S)
            assert (await other.take({A: ""}))[A].epoch == 2

    play(story)


@pytest.mark.parametrize("call", ["grant", "renew", "declare", "resources"])
def test_another_lost_answer_costs_nothing(call: str) -> None:
    async def story(scene: Scene) -> None:
        scene.store.deaf = frozenset({call})
        key = "wanted/a" if call == "resources" else A
        async with scene.ring() as ring:
            if call in {"declare", "resources"}:
                with pytest.raises(StoreUnavailable):
                    await ring.take({key: ""})
            assert (await ring.take({key: ""}))[key].epoch == 1
            await asyncio.sleep(10 * LEASE_S)
            assert ring.valid(key)
            assert len(await scene.store.members(GROUP)) == 1

    play(story)


@pytest.mark.spec("J2")
@pytest.mark.parametrize("hangs", [True, False])
def test_a_store_that_is_away_for_half_a_lease_costs_nothing(hangs: bool) -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring:
            await asyncio.sleep(2.6)  # just after a renewal
            scene.store.away = hangs
            scene.store.error = None if hangs else StoreUnavailable("away")
            await asyncio.sleep(LEASE_S / 2)
            scene.store.away, scene.store.error = False, None
            await asyncio.sleep(LEASE_S)
            assert ring.valid(A)
            assert not ring.told

    play(story)


@pytest.mark.spec("J2")
@pytest.mark.parametrize("leases", [0.9, 2.0])
def test_a_longer_absence_is_told_in_time_and_it_is_back_afterwards(leases: float) -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B) as ring:
            await asyncio.sleep(2.6)
            renewed_s, before = 2.5, ring.holder
            scene.store.away = True
            await until(lambda: bool(ring.told))
            assert ring.losses() == [(A, "local_deadline"), (B, "local_deadline")]
            assert now() <= renewed_s + 0.7 * LEASE_S + 0.1
            assert not ring.valid(A)
            assert 0 < ring.remaining_s(A) <= 0.2 * LEASE_S
            with pytest.raises((LeaseLost, StoreUnavailable)):
                await ring.take({C: ""})
            await asyncio.sleep(2.6 + leases * LEASE_S - now())
            scene.store.away = False
            await ring.ready()
            assert ring.holder != before
            await until(lambda: now() > renewed_s + LEASE_S + 3)
            assert set(await ring.take({A: "", B: ""})) == {A, B}
            assert await scene.reasons(A) == [None, EndReason.EXPIRED]
            assert len(ring.told) == 2

    play(story)


def test_what_was_lost_and_has_stopped_can_be_given_back_before_its_time() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring, scene.ring() as other:
            ring.clock.ahead_s = 0.75 * LEASE_S  # a pause: belief is over, the lease is not
            await until(lambda: bool(ring.told), within_s=3)
            assert not ring.valid(A)
            await ring.release({A: "stopped"})
            assert (await other.take({A: ""}))[A].epoch == 2
            assert await scene.notes(A) == ["", "stopped"]

    play(story)


@pytest.mark.spec("B5")
def test_a_pause_between_an_answer_and_its_arrival_ends_belief_for_good() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring:
            before = ring.holder

            def pause() -> None:
                scene.store.after_renewal = None
                ring.clock.ahead_s += 2 * LEASE_S
                assert not ring.valid(A)  # before anything of ours had time to run

            scene.store.after_renewal = pause
            await until(lambda: bool(ring.told))
            assert ring.losses() == [(A, "local_deadline")]
            assert not ring.valid(A)
            await until(lambda: ring.holder != before)

    play(story)


def test_leaving_a_store_that_is_away_ends_and_so_does_keeping() -> None:
    async def story(scene: Scene) -> None:
        made = Ring(scene.store, LoopClock(), 1)
        keeping = asyncio.create_task(made.keep())
        await made.ready()
        await made.take({A: ""})
        scene.store.away = True
        await made.leave()
        assert now() <= LEASE_S + 0.1
        await keeping

    play(story)


def test_a_store_that_can_not_serve_is_an_error_at_the_first_attempt_only() -> None:
    async def story(scene: Scene) -> None:
        scene.store.error = StoreUnusable("read-only")
        with pytest.raises(StoreUnusable):
            await Ring(scene.store, LoopClock(), 1).keep()
        scene.store.error = None
        async with scene.ring(A) as ring:
            scene.store.error = StoreUnusable("read-only")
            await asyncio.sleep(3 * LEASE_S)
            scene.store.error = None
            assert ring.losses() == [(A, "local_deadline")]
            await ring.ready()
            assert set(await ring.take({A: ""})) == {A}

    play(story)


def test_a_listener_that_fails_ends_nothing() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B) as ring:

            def fail(key: str, reason: str) -> None:
                raise RuntimeError(key, reason)

            ring._tenancy._on_lost = fail
            await scene.store.break_(A, epoch=1, after=timedelta(0))
            await asyncio.sleep(LEASE_S)
            assert not ring.valid(A)
            assert ring.valid(B)

    play(story)


def hold_back(scene: Scene, name: str) -> asyncio.Event:
    """The next such call reaches the store only when the event is set."""
    arrives, real = asyncio.Event(), getattr(scene.store, name)

    async def late(sent: object) -> object:
        delattr(scene.store, name)
        await arrives.wait()
        return await real(sent)

    setattr(scene.store, name, late)
    return arrives


@pytest.mark.spec("B5")
def test_what_is_refused_late_of_an_old_reservation_does_not_end_the_new_one() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B) as ring:
            arrive = hold_back(scene, "annotate"), hold_back(scene, "checkpoint")
            saying = asyncio.create_task(ring.annotate({A: "half way"}))
            marking = asyncio.create_task(ring.mark({B: Position(sequence_number=7)}))
            await asyncio.sleep(0.1)
            await ring.release({A: "first", B: "first"})
            proofs = await ring.take({A: "second", B: "second"})
            assert {proof.epoch for proof in proofs.values()} == {2}
            for each in arrive:
                each.set()
            assert await saying == [A]
            assert await marking == {B: Refusal.FENCED}
            assert not ring.told
            assert ring.valid(A)
            assert ring.valid(B)
            assert await scene.notes(A) == ["second", "first"]

    play(story)


@pytest.mark.spec("B5")
def test_what_waited_for_its_turn_is_not_said_of_the_next_reservation() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B) as ring:
            arrive = hold_back(scene, "annotate"), hold_back(scene, "checkpoint")
            place = Position(sequence_number=7)
            first = [ring.annotate({B: "b"}), ring.mark({B: place})]
            doing = asyncio.gather(*first)
            await asyncio.sleep(0.1)
            saying = asyncio.create_task(ring.annotate({A: "half way", B: "b2"}))
            marking = asyncio.create_task(ring.mark({A: place, B: place}))
            await asyncio.sleep(0.1)
            await ring.release({A: "first"})
            await ring.take({A: "second"})
            for each in arrive:
                each.set()
            await doing
            assert await saying == [A]
            assert await marking == {A: Refusal.FENCED}
            assert not ring.told
            assert await scene.notes(A) == ["second", "first"]
            assert await scene.notes(B) == ["b2"]
            assert set(await ring.checkpoints()) == {B}

    play(story)


class Storm:
    """Holders that work on a few keys, and a store that loses answers, hangs, and is away."""

    end_s = 300.0

    def __init__(self, scene: Scene, rings: list[Ring], seed: int) -> None:
        self.store, self.rings, self.rng = scene.store, rings, random.Random(seed)
        self.keys = [job_key(str(number)) for number in range(4)]
        self.had = 0

    async def trouble(self) -> None:
        calls = ["claim", "release", "renew", "grant", "annotate", "checkpoint"]
        while now() < self.end_s:
            await asyncio.sleep(self.rng.uniform(0, 4))
            kind = self.rng.randrange(4)
            self.store.deaf = frozenset({self.rng.choice(calls)})
            self.store.answer_s = self.rng.choice([0.0, 0.0, 0.3, 2.5])
            self.store.away = kind == 0
            self.rng.choice(self.rings).clock.ahead_s += 9.0 * (kind == 1)
            await asyncio.sleep(self.rng.uniform(0, 3) * (1 if kind else 3))
            self.store.away, self.store.answer_s = False, 0.0

    async def work(self, ring: Ring) -> None:
        while now() < self.end_s:
            await asyncio.sleep(self.rng.uniform(0, 1))
            key = self.rng.choice(self.keys)
            try:
                if not await ring.take({key: ring.holder}):
                    continue
                await asyncio.sleep(self.rng.uniform(0, 5))
                await ring.annotate({key: "half way"})
            except (LeaseLost, StoreUnavailable):
                pass
            self.had += 1
            await ring.release({key: "end"})

    async def judge(self) -> None:
        while now() < self.end_s:
            for key in self.keys:
                assert sum(ring.valid(key) for ring in self.rings) <= 1
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_two_hold_the_same_key_and_none_stays_held_for_ever(seed: int) -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring() as one, scene.ring() as two, scene.ring() as three:
            rings = [one, two, three]
            storm = Storm(scene, rings, seed)
            works = [storm.work(each) for each in rings * 2]
            await asyncio.gather(storm.trouble(), storm.judge(), *works)
            assert storm.had > 20
            scene.store.deaf = frozenset()
            await asyncio.sleep(2 * LEASE_S)
            seen = await scene.store.resources(GROUP)
            assert [seen[key].holder for key in storm.keys] == [None] * 4

    play(story)
