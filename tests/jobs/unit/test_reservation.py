"""Reservations on simulated time: the rules, step by step. Nothing here waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TypeVar

import pytest
from tests.support.job_scene import LEASE, LEASE_S, Scene, now, play

from leasehold.errors import (
    CheckpointBehind,
    FencedWrite,
    InvalidDuration,
    InvalidName,
    LeaseLost,
    StoreUnavailable,
    StoreUnusable,
    UsageError,
)
from leasehold.jobs import Held, Outcome
from leasehold.jobs.claimant import Parting
from leasehold.jobs.wish import GROUP, Wish
from leasehold.model import EndReason, Position
from leasehold.names import job_key

T = TypeVar("T")


def test_a_free_job_is_had_at_once_and_its_epoch_rises_each_time() -> None:
    async def story(scene: Scene) -> None:
        for epoch in (1, 2, 3):
            job, _ = await scene.held()
            assert job.valid
            assert job.ownerships[job_key("nightly")].epoch == epoch
            job.release()
            await job.leave()
            assert not job.valid
            assert job.remaining_s() == 0.0

    play(story)


def test_one_who_does_not_wait_is_told_who_has_it_and_until_when() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        await asyncio.sleep(4)
        late, _ = scene.claimant()
        found = await late.take(wait_s=0)
        assert isinstance(found, Held)
        assert (found.key, found.epoch) == (job_key("nightly"), 1)
        assert found.holder == job.ownerships[job_key("nightly")].holder
        assert found.ends_in_s == pytest.approx(LEASE_S - 4)
        assert found.pid > 0
        assert "'nightly' is held by nightly-" in str(found)
        assert "6 s from now" in str(found)

    play(story)


def test_one_that_is_handed_over_is_kept_for_its_heir_until_that_takes_it() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        keeping = asyncio.create_task(job.keep())
        heir, _ = scene.claimant()
        waiting = asyncio.create_task(heir.take(wait_s=None))
        await asyncio.sleep(1)
        job.release()
        await keeping
        await job.leave(Parting(to=heir.holder, outcome=Outcome.HANDED_OVER))
        late, _ = scene.claimant()
        found = await late.take(wait_s=0)
        assert isinstance(found, Held)
        assert str(found) == f"'nightly' is kept for {heir.holder}, which has not taken it yet"
        assert (found.kept, found.since) == (True, None)
        assert await waiting is None
        found = await late.take(wait_s=0)
        assert isinstance(found, Held)
        assert f"is held by {heir.holder}" in str(found)
        assert "epoch 2" in str(found)

    play(story)


def test_it_is_kept_for_as_long_as_the_store_answers() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()
        keeping = asyncio.create_task(job.keep())
        await asyncio.sleep(100 * LEASE_S)
        assert job.valid
        assert job.remaining_s() > LEASE_S / 2
        assert not heard.of("lost")
        job.release()
        await keeping

    play(story)


def test_who_waits_has_it_soon_after_a_release_and_after_the_end_of_a_lease() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        keeping = asyncio.create_task(job.keep())
        follower, heard = scene.claimant()
        waiting = asyncio.create_task(follower.take(wait_s=None))
        await asyncio.sleep(30)
        assert len(heard.of("waits")) == 1  # said once, not at each look
        job.release()
        await keeping
        released_s = now()
        await job.leave()
        assert await waiting is None
        assert now() - released_s <= follower.wish.look_s + 0.01
        # The follower renews no more: as if it were dead.
        died_s = now()
        third, _ = scene.claimant()
        assert await third.take(wait_s=None) is None
        assert now() - died_s >= LEASE_S - follower.wish.look_s
        assert now() - died_s <= LEASE_S + 0.2
        terms = await scene.store.history(job_key("nightly"))
        assert [term.reason for term in terms] == [None, EndReason.EXPIRED, EndReason.RELEASED]

    play(story)


@pytest.mark.spec("B5")
def test_the_loss_is_told_while_there_is_time_to_stop_and_nobody_else_is_in() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()
        keeping = asyncio.create_task(job.keep())
        await asyncio.sleep(3.1)
        renewed_s = 2.5  # of 10 s, a renewal each 2.5 s
        scene.store.away = True
        await keeping
        assert heard.of("lost") == ["local_deadline"]
        assert now() == pytest.approx(renewed_s + LEASE_S * 0.7)
        assert not job.valid
        assert job.remaining_s() == pytest.approx(LEASE_S * 0.2)
        scene.store.away = False
        follower, _ = scene.claimant()
        assert await follower.take(wait_s=None) is None
        assert now() >= renewed_s + LEASE_S

    play(story)


def test_a_pause_between_the_answer_of_the_store_and_its_arrival_ends_belief_for_good() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()

        def pause() -> None:
            scene.clock.ahead_s += 2 * LEASE_S
            assert not job.valid  # before anything of ours had time to run

        scene.store.after_renewal = pause
        await job.keep()
        assert heard.of("lost") == ["local_deadline"]
        assert not job.valid
        assert job.remaining_s() == 0.0

    play(story)


def test_what_was_taken_by_force_or_broken_is_lost_at_the_next_renewal() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()
        keeping = asyncio.create_task(job.keep())
        await scene.store.break_(job_key("nightly"), epoch=1, after=timedelta(0))
        await keeping
        assert heard.of("lost") == ["broken"]
        assert job.remaining_s() == 0.0
        other, told = await scene.held()
        keeping = asyncio.create_task(other.keep())
        began_s = now()
        await scene.store.break_(job_key("nightly"), epoch=2, after=timedelta(seconds=5))
        await keeping
        assert told.of("lost") == ["broken"]
        assert now() + other.remaining_s() < began_s + 5  # it has stopped by then

    play(story)


def test_several_names_are_had_together_or_not_at_all() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held("first", "place")
        late, _ = scene.claimant("second", "place")
        found = await late.take(wait_s=3)
        assert found is not None
        assert found.key == job_key("place")
        resources = await scene.store.resources(GROUP)
        assert resources[job_key("second")].holder is None
        job.release()
        await job.leave()
        assert await late.take(wait_s=None) is None
        assert list(late.ownerships) == [job_key("second"), job_key("place")]
        assert late.ownerships[job_key("place")].epoch == 2

    play(story)


def test_claimants_that_want_the_same_names_in_any_order_all_get_their_turn() -> None:
    async def story(scene: Scene) -> None:
        wishes = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "a")]
        inside: list[set[str]] = []

        async def turn(names: tuple[str, ...]) -> None:
            job, _ = scene.claimant(*names)
            assert await job.take(wait_s=None) is None
            assert not any(other & set(names) for other in inside)
            inside.append(set(names))
            await asyncio.sleep(1)
            inside.remove(set(names))
            job.release()
            await job.leave()

        await asyncio.gather(*(turn(names) for names in wishes for _ in range(3)))

    play(story)


@pytest.mark.parametrize("call", ["declare", "grant", "renew", "claim"])
def test_a_lost_answer_while_taking_is_asked_again_and_takes_nothing_twice(call: str) -> None:
    async def story(scene: Scene) -> None:
        scene.store.deaf = frozenset({call})
        job, _ = scene.claimant()
        assert await job.take(wait_s=None) is None
        assert job.ownerships[job_key("nightly")].epoch == 1
        assert len(await scene.store.members(GROUP)) == 1

    play(story)


def test_a_lost_answer_to_the_release_is_asked_again() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        scene.store.deaf = frozenset({"revoke"})
        job.release()
        await job.leave()
        assert not await scene.store.members(GROUP)

    play(story)


@pytest.mark.spec("B5")
def test_what_is_given_up_is_renewed_no_more_and_nobody_is_let_in_before_its_time() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()
        keeping = asyncio.create_task(job.keep())
        await asyncio.sleep(26)
        job.give_up()
        await keeping  # no renewal any more
        assert not job.valid
        assert heard.of("lost") == ["given up"]
        over_s = now() + job.remaining_s()
        assert over_s > now() + LEASE_S / 2  # the time to stop in
        follower, _ = scene.claimant()
        assert await follower.take(wait_s=None) is None
        assert now() >= over_s
        assert now() <= over_s + LEASE_S * 0.2

    play(story)


def test_what_was_given_up_can_be_released_as_soon_as_the_work_has_stopped() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        job.give_up()
        await job.leave()
        follower, _ = scene.claimant()
        assert await follower.take(wait_s=0) is None

    play(story)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_release_that_the_store_does_not_hear_is_over_soon_however_long_the_lease(
    hangs: bool,
) -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(lease=timedelta(hours=1))
        job.release()
        scene.store.away = hangs
        scene.store.error = None if hangs else StoreUnavailable("away")
        asked_s = now()
        await job.leave()
        assert now() == pytest.approx(asked_s + 15)

    play(story)


def test_one_who_waits_outlives_a_store_that_is_away_for_long() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        keeping = asyncio.create_task(job.keep())
        follower, _ = scene.claimant()
        waiting = asyncio.create_task(follower.take(wait_s=None))
        await asyncio.sleep(5)
        scene.store.away = True
        await keeping
        await asyncio.sleep(50)
        scene.store.away = False
        assert await waiting is None
        assert follower.valid

    play(story)


def test_a_store_that_does_not_answer_in_the_time_to_wait_is_an_error_and_not_an_answer() -> None:
    async def story(scene: Scene) -> None:
        scene.store.away = True
        job, _ = scene.claimant()
        with pytest.raises(StoreUnavailable):
            await job.take(wait_s=0)
        scene.store.error = StoreUnusable("read-only")
        with pytest.raises(StoreUnusable):
            await job.take(wait_s=None)
        assert not job.valid

    play(story)


def test_progress_is_stored_under_the_epoch_and_never_goes_back() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        await job.mark(Position(sequence_number=7, offset="half way"))
        with pytest.raises(CheckpointBehind):
            await job.mark(Position(sequence_number=6))
        stored = (await scene.store.checkpoints(GROUP))[job_key("nightly")]
        assert (stored.epoch, stored.position.sequence_number) == (1, 7)
        assert stored.position.offset == "half way"

    play(story)


@pytest.mark.spec("B5")
def test_one_who_was_paused_while_it_stored_its_progress_is_told_of_the_loss() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        scene.store.away = True
        marking = asyncio.create_task(job.mark(Position(sequence_number=7)))
        await asyncio.sleep(0)
        scene.clock.ahead_s = 2 * LEASE_S
        with pytest.raises(LeaseLost, match="before the store answered"):
            await marking

    play(story)


def test_progress_that_gets_no_answer_in_time_may_be_stored_again() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        scene.store.deaf = frozenset({"checkpoint"})
        with pytest.raises(StoreUnavailable):
            await job.mark(Position(sequence_number=7))
        await job.mark(Position(sequence_number=7))

    play(story)


@pytest.mark.spec("B5")
def test_progress_of_one_whose_reservation_was_broken_is_refused_and_counted() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()
        await scene.store.break_(job_key("nightly"), epoch=1, after=timedelta(0))
        with pytest.raises(FencedWrite, match="epoch 1"):
            await job.mark(Position(sequence_number=1))
        assert heard.of("lost") == ["fenced"]
        assert await scene.store.fenced_writes(GROUP) == 1

    play(story)


def test_an_operator_can_ask_for_it_and_it_is_kept_for_whom_it_is_meant() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()
        keeping = asyncio.create_task(job.keep())
        one, _ = scene.claimant()
        two, _ = scene.claimant()
        waiting = [asyncio.create_task(each.take(wait_s=None)) for each in (one, two)]
        await asyncio.sleep(1)
        heir = two.holder
        assert await scene.store.request_hand_over(job_key("nightly"), epoch=1, to=heir)
        await asyncio.sleep(3)
        assert heard.of("asked") == [heir]
        assert job.valid  # it is asked, not taken
        job.release()
        await keeping
        await job.leave(Parting(to=heir, outcome=Outcome.HANDED_OVER))
        assert await waiting[1] is None
        assert not waiting[0].done()
        waiting[0].cancel()
        assert await scene.store.request_leave(heir)
        keeping = asyncio.create_task(two.keep())
        await asyncio.sleep(3)
        assert two.valid
        two.release()
        await keeping

    play(story)


def test_a_key_that_was_forgotten_meanwhile_is_declared_again() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held("nightly", "other")
        late, _ = scene.claimant()
        waiting = asyncio.create_task(late.take(wait_s=None))
        await asyncio.sleep(1)
        job.release()
        await job.leave()
        await scene.store.forget([job_key("nightly")])
        assert await waiting is None
        assert late.ownerships[job_key("nightly")].epoch == 2

    play(story)


def test_wishes_that_can_not_be_are_refused() -> None:
    with pytest.raises(UsageError, match="names of one or more jobs"):
        Wish.of((), lease=LEASE)
    with pytest.raises(UsageError, match="names of one or more jobs"):
        Wish.of("nightly", lease=LEASE)
    with pytest.raises(InvalidName):
        Wish.of(("",), lease=LEASE)
    with pytest.raises(InvalidDuration, match="lease"):
        Wish.of(("nightly",), lease=timedelta(0))
    assert Wish.of(("a", "a"), lease=LEASE).keys == (job_key("a"),)
