"""The run of a moment is reserved, not only the name; and what the log says. Simulated time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.job_scene import LEASE, LEASE_S, WALL, Scene, play

from leasehold.errors import (
    FencedWrite,
    InvalidOptions,
    LeaseLost,
    OccurrenceNotDue,
    StoreUnavailable,
    UsageError,
)
from leasehold.jobs import Done, Held, OnCrash, Outcome, Reservation, run_log, try_reserve
from leasehold.jobs.claimant import Claimant, Parting
from leasehold.jobs.run_log import RunLogEntry, log_entries
from leasehold.jobs.wish import GROUP, Wish
from leasehold.model import Position
from leasehold.names import job_key

TWO = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
THREE = TWO + timedelta(hours=1)
KEY = job_key("nightly")


async def end(job: Claimant, outcome: Outcome = Outcome.OK, *, words: str = "") -> None:
    job.release()
    await job.leave(Parting(outcome=outcome, words=words))


async def log(scene: Scene, key: str = KEY) -> list[RunLogEntry]:
    return log_entries(await scene.store.history(key))


async def outcomes(scene: Scene) -> list[Outcome | None]:
    return [entry.outcome for entry in await log(scene)]


@pytest.mark.spec("J1")
def test_on_crash_works_as_text_and_other_text_is_refused(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    asked = partial(try_reserve, "nightly", store=store, occurrence=TWO - timedelta(days=365))
    first = asked(on_crash="abandon")
    assert isinstance(first, Reservation)
    first.release(outcome=Outcome.LOST)
    assert isinstance(asked(on_crash="abandon"), Done)
    again = asked(on_crash="rerun")
    assert isinstance(again, Reservation)
    again.release()
    with pytest.raises(InvalidOptions, match="must be one of 'rerun', 'abandon', not 'leave'"):
        asked(on_crash="leave")


@pytest.mark.spec("J3")
@pytest.mark.parametrize("call", ["claim", "checkpoint"])
def test_what_was_given_without_our_hearing_is_given_back_and_was_no_run(call: str) -> None:
    async def story(scene: Scene) -> None:
        job, _ = scene.claimant("nightly", "weekly", occurrence=TWO)
        scene.store.deaf = frozenset({call})
        with pytest.raises(StoreUnavailable):
            await job.take(wait_s=0)
        await job.leave()
        assert not await scene.store.members(GROUP)
        for key in (KEY, job_key("weekly")):
            assert [each.outcome for each in await log(scene, key)] == [Outcome.NO_RUN]
        following, _ = await scene.held("nightly", "weekly", occurrence=TWO)
        await end(following)
        assert await outcomes(scene) == [Outcome.OK, Outcome.NO_RUN]

    play(story)


@pytest.mark.spec("J6")
@pytest.mark.parametrize(
    ("skew_s", "clock"),
    [
        (2 * 3600.0, "this machine's clock is 2:00:00 ahead of it: set it right"),
        (-60.0, "this machine's clock is 0:01:00 behind it: set it right"),
        (0.0, "this machine's clock agrees: ask again when it is due"),
    ],
)
def test_an_occurrence_in_the_future_of_the_store_is_refused_and_silences_nothing(
    skew_s: float, clock: str
) -> None:
    due, future = WALL - timedelta(hours=1), WALL + timedelta(hours=2)

    async def story(scene: Scene) -> None:
        wrong, _ = scene.claimant("nightly", "weekly", occurrence=future)
        scene.clock.skew_s = skew_s
        with pytest.raises(OccurrenceNotDue) as refused:
            await wrong.take(wait_s=None)
        await wrong.leave()
        scene.clock.skew_s = 0.0
        assert refused.value.occurrence == future
        assert refused.value.store_time == WALL
        assert clock in str(refused.value)
        assert "'nightly' is not due: the store's clock shows 2026-03-02" in str(refused.value)
        assert not await scene.store.checkpoints(GROUP)
        assert not await scene.store.members(GROUP)
        for key in (KEY, job_key("weekly")):
            assert [each.outcome for each in await log(scene, key)] == [Outcome.NO_RUN]
        following, _ = await scene.held("nightly", "weekly", occurrence=due)
        await end(following)
        assert await outcomes(scene) == [Outcome.OK, Outcome.NO_RUN]

    play(story)


@pytest.mark.parametrize("early_s", [0.0, 0.2 * LEASE_S])
def test_clocks_that_differ_by_little_refuse_no_occurrence(early_s: float) -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=WALL + timedelta(seconds=early_s))
        await end(job)

    play(story)


@pytest.mark.parametrize("call", ["history", "release"])
def test_a_lost_answer_while_an_early_occurrence_is_refused_records_nothing(call: str) -> None:
    async def story(scene: Scene) -> None:
        job, _ = scene.claimant(occurrence=WALL + timedelta(hours=2))
        scene.store.deaf = frozenset({call})
        with pytest.raises(OccurrenceNotDue):
            await job.take(wait_s=None)
        await job.leave()
        assert not await scene.store.checkpoints(GROUP)
        assert set(await outcomes(scene)) == {Outcome.NO_RUN}

    play(story)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.FAILED])
def test_an_occurrence_that_is_done_is_had_by_nobody_again_and_leaves_one_entry(
    outcome: Outcome,
) -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=TWO)
        await end(job, outcome)
        late, _ = scene.claimant(occurrence=TWO)
        answer = await late.take(wait_s=None)
        assert answer == Done(key=KEY, occurrence=TWO, started=False, holder=job.holder)
        assert f"at 2026-03-01 02:00:00 UTC is done by {job.holder}" in str(answer)
        await late.leave()
        assert await outcomes(scene) == [outcome]
        assert not await scene.store.members(GROUP)
        early, _ = scene.claimant(occurrence=TWO - timedelta(seconds=1))
        assert isinstance(await early.take(wait_s=0), Done)
        following, _ = await scene.held(occurrence=THREE)
        await end(following)
        assert [entry.note.occurrence for entry in await log(scene)] == [THREE, TWO]

    play(story)


def test_one_that_runs_elsewhere_is_waited_for_and_then_there_is_nothing_to_do() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=TWO)
        keeping = asyncio.create_task(job.keep())
        for on_crash in OnCrash:
            impatient, _ = scene.claimant(occurrence=TWO, on_crash=on_crash)
            assert isinstance(await impatient.take(wait_s=1), Held)
        late, _ = scene.claimant(occurrence=TWO)
        waiting = asyncio.create_task(late.take(wait_s=None))
        await asyncio.sleep(30)
        job.release()
        await keeping
        await end(job)
        assert isinstance(await waiting, Done)
        assert await outcomes(scene) == [Outcome.OK]

    play(story)


def test_after_a_crash_it_is_run_again_as_the_next_attempt() -> None:
    async def story(scene: Scene) -> None:
        jobs = [scene.claimant(occurrence=TWO)[0] for _ in range(3)]
        for attempt, job in enumerate(jobs, start=1):
            assert await job.take(wait_s=None) is None  # and dies
            assert job.note.attempt == attempt
        await end(jobs[-1])
        found = await log(scene)
        assert [entry.outcome for entry in found] == [Outcome.OK, Outcome.EXPIRED, Outcome.EXPIRED]
        assert [entry.note.attempt for entry in found] == [3, 2, 1]

    play(story)


def test_after_a_crash_it_is_left_alone_if_that_is_asked_for() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=TWO)
        late, _ = scene.claimant(occurrence=TWO, on_crash=OnCrash.ABANDON)
        answer = await late.take(wait_s=None)
        assert answer == Done(key=KEY, occurrence=TWO, started=True, holder=job.holder)
        assert "was started and not finished" in str(answer)
        following, _ = scene.claimant(occurrence=THREE, on_crash=OnCrash.ABANDON)
        assert await following.take(wait_s=None) is None
        assert following.note.attempt == 1

    play(story)


@pytest.mark.parametrize("on_crash", OnCrash)
def test_one_that_was_let_go_before_anything_was_run_has_not_crashed(on_crash: OnCrash) -> None:
    async def story(scene: Scene) -> None:
        for _ in range(3):
            job, _ = await scene.held(occurrence=TWO, on_crash=on_crash)
            assert job.note.attempt == 1
            await end(job, Outcome.NO_RUN)
        job, _ = await scene.held(occurrence=TWO, on_crash=on_crash)
        assert job.note.attempt == 1

    play(story)


def test_an_idle_reservation_after_a_crash_hides_nothing_and_counts_as_no_attempt() -> None:
    async def story(scene: Scene) -> None:
        await scene.held(occurrence=TWO)
        idle, _ = scene.claimant(occurrence=TWO)
        assert await idle.take(wait_s=None) is None
        await end(idle, Outcome.NO_RUN)
        careful, _ = scene.claimant(occurrence=TWO, on_crash=OnCrash.ABANDON)
        assert isinstance(await careful.take(wait_s=0), Done)
        await careful.leave()
        again, _ = await scene.held(occurrence=TWO)
        assert again.note.attempt == 2

    play(story)


@pytest.mark.parametrize("call", ["claim", "checkpoint"])
def test_a_take_that_was_called_off_after_the_claim_is_no_crash(call: str) -> None:
    async def story(scene: Scene) -> None:
        job, _ = scene.claimant(occurrence=TWO, on_crash=OnCrash.ABANDON)
        scene.store.deaf = frozenset({call})
        with pytest.raises(StoreUnavailable):
            await job.take(wait_s=0)
        await job.leave()
        following, _ = await scene.held(occurrence=TWO, on_crash=OnCrash.ABANDON)
        assert following.note.attempt == 1

    play(story)


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.KILLED, Outcome.HANDED_OVER])
def test_a_run_that_did_not_come_to_its_end_leaves_the_occurrence_open(outcome: Outcome) -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=TWO)
        await end(job, outcome)
        again, _ = await scene.held(occurrence=TWO)
        assert again.note.attempt == 2
        assert await outcomes(scene) == [None, outcome]

    play(story)


@pytest.mark.parametrize("on_crash", OnCrash)
@pytest.mark.parametrize("call", ["claim", "checkpoint", "checkpoints", "renew"])
def test_an_answer_that_is_lost_while_taking_costs_no_run_and_makes_no_second(
    call: str, on_crash: OnCrash
) -> None:
    async def story(scene: Scene) -> None:
        scene.store.deaf = frozenset({call})
        job, _ = scene.claimant(occurrence=TWO, on_crash=on_crash)
        assert await job.take(wait_s=None) is None
        assert job.note.attempt == 1
        assert job.ownerships[KEY].epoch == 1
        await end(job)
        assert await outcomes(scene) == [Outcome.OK]

    play(story)


@pytest.mark.parametrize("call", ["checkpoint", "release", "revoke"])
def test_an_answer_that_is_lost_at_the_end_is_asked_again(call: str) -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=TWO)
        scene.store.deaf = frozenset({call})
        await end(job, words="well")
        found = await log(scene)
        assert [(entry.outcome, entry.note.words) for entry in found] == [(Outcome.OK, "well")]
        late, _ = scene.claimant(occurrence=TWO)
        assert isinstance(await late.take(wait_s=0), Done)

    play(story)


@pytest.mark.spec("B5")
def test_one_that_slept_through_its_lease_can_neither_settle_nor_sign_the_run() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=TWO)
        follower, _ = scene.claimant(occurrence=TWO)
        assert await follower.take(wait_s=None) is None
        await end(job, words="I was first")
        found = await log(scene)
        assert [entry.outcome for entry in found] == [None, Outcome.EXPIRED]
        assert [entry.note.words for entry in found] == ["", ""]
        third, _ = scene.claimant(occurrence=TWO)
        assert isinstance(await third.take(wait_s=0), Held)  # not done
        assert await scene.store.fenced_writes(GROUP) == 1

    play(story)


def test_a_job_with_positions_of_its_own_can_have_no_occurrences() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held()
        await job.mark(Position(sequence_number=7))
        await end(job)
        late, _ = scene.claimant(occurrence=TWO)
        with pytest.raises(UsageError, match="another name"):
            await late.take(wait_s=None)

    play(story)


def test_occurrences_are_moments_to_the_second() -> None:
    with pytest.raises(UsageError, match="no time zone"):
        Wish.of(("nightly",), lease=LEASE, occurrence=datetime(2026, 3, 1, 2))  # noqa: DTZ001
    berlin = timezone(timedelta(hours=1))
    wish = Wish.of(
        ("nightly",), lease=LEASE, occurrence=datetime(2026, 3, 1, 3, 0, 0, 9, tzinfo=berlin)
    )
    assert wish.occurrence == TWO


@pytest.mark.spec("J3")
def test_the_log_says_who_where_and_how_far_from_the_very_first_moment() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held("nightly", "place")
        (entry,) = await log(scene)
        assert entry.holder == job.holder
        assert entry.outcome is None
        assert entry.note.pid > 0
        assert entry.note.host
        await job.progress("3 of 7")
        assert [each.note.words for each in await log(scene)] == ["3 of 7"]
        await end(job, Outcome.FAILED)
        (entry,) = await log(scene)
        assert (entry.outcome, entry.note.words) == (Outcome.FAILED, "3 of 7")
        (other,) = await log(scene, job_key("place"))
        assert other.outcome is Outcome.FAILED

    play(story)


@pytest.mark.spec("B5")
def test_progress_of_one_whose_reservation_was_broken_is_refused_and_it_is_told() -> None:
    async def story(scene: Scene) -> None:
        job, heard = await scene.held()
        scene.store.deaf = frozenset({"annotate"})
        with pytest.raises(StoreUnavailable):
            await job.progress("1")
        await scene.store.break_(KEY, epoch=1, after=timedelta(0))
        with pytest.raises(FencedWrite, match="the progress of job/nightly was refused"):
            await job.progress("2")
        assert heard.of("lost") == ["fenced"]
        scene.store.away = True
        with pytest.raises(LeaseLost, match="before the store answered"):
            await job.progress("3")
        (entry,) = await log(scene)
        assert (entry.outcome, entry.note.words) == (Outcome.BROKEN, "1")

    play(story)


def test_a_hand_over_that_nobody_can_receive_is_a_release_with_the_same_words() -> None:
    async def story(scene: Scene) -> None:
        for heir, alive in (("", True), ("nobody-x-1", False)):
            job, _ = await scene.held()
            other, _ = scene.claimant()
            assert isinstance(await other.take(wait_s=0), Held)
            job.release()
            parting = Parting(to=heir or other.holder, outcome=Outcome.HANDED_OVER, words="yours")
            await job.leave(parting)
            third, _ = scene.claimant()
            assert isinstance(await third.take(wait_s=0), Held) is alive
            await third.leave()
            if alive:
                assert await other.take(wait_s=0) is None
            await other.leave()
            found = [each for each in await log(scene) if each.note.words == "yours"]
            assert found[0].outcome is Outcome.HANDED_OVER
            assert found[0].epoch == job.ownerships[KEY].epoch

    play(story)


@pytest.mark.spec("J7")
def test_trouble_while_waiting_is_tried_again_with_growing_pauses_until_the_time_is_over() -> None:
    async def story(scene: Scene) -> None:
        tries: list[float] = []

        scene.store.error = StoreUnavailable("away")
        scene.store.on_call = lambda _name: tries.append(asyncio.get_running_loop().time())
        job, _ = scene.claimant()
        with pytest.raises(StoreUnavailable):
            await job.take(wait_s=3 * LEASE_S)
        assert tries[-1] == pytest.approx(3 * LEASE_S)  # a last try at the end, none after it
        pauses = [later - one for one, later in pairwise(tries)]
        assert len(tries) < 25
        assert max(pauses[:2]) < min(pauses[4:-1])
        assert max(pauses) <= LEASE_S / 4
        scene.store.error = None
        assert await job.take(wait_s=0) is None

    play(story)


def test_what_is_marked_is_what_the_timetable_reads() -> None:
    async def story(scene: Scene) -> None:
        job, _ = await scene.held(occurrence=TWO)
        found = run_log.read_progress((await scene.store.checkpoints(GROUP))[KEY])
        assert found is not None
        assert found.started == TWO
        await end(job)
        found = run_log.read_progress((await scene.store.checkpoints(GROUP))[KEY])
        assert found is not None
        assert (found.done, found.started) == (TWO, None)

    play(story)
