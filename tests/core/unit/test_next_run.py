"""What is run, passed over and waited for: by tables, and by chance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.cron import parse_schedule
from leasehold.core.next_run import (
    MAX_MISSED,
    RunDecision,
    RunLocation,
    decide,
    settled_by,
    shift_of,
)
from leasehold.jobs import CatchUp, OnCrash, Overlap

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOURLY = parse_schedule("0 * * * *")
SECONDLY = parse_schedule("every 1s")


@dataclass(frozen=True)
class Rules:
    on_crash: OnCrash = OnCrash.RERUN
    catch_up: CatchUp = CatchUp.LATEST
    max_age: timedelta | None = None
    overlap: Overlap = Overlap.SKIP


def at(hour: float, *, second: float = 0.0) -> datetime:
    return NOON + timedelta(hours=hour, seconds=second)


def decided(
    *,
    done: float,
    now: datetime,
    rules: Rules | None = None,
    started: float | None = None,
    location: RunLocation = RunLocation.NOWHERE,
    shift_s: float = 0.0,
) -> RunDecision:
    return decide(
        HOURLY,
        done=at(done),
        started=None if started is None else at(started),
        now=now,
        rules=rules or Rules(),
        location=location,
        shift=timedelta(seconds=shift_s),
    )


@pytest.mark.parametrize(
    ("rules", "now", "run"),
    [
        (Rules(), at(1, second=-1), None),
        (Rules(), at(1), 1),
        (Rules(), at(1, second=0.4), 1),
        (Rules(), at(5, second=1800), 5),
        (Rules(catch_up=CatchUp.NONE), at(5, second=59), 5),
        (Rules(catch_up=CatchUp.NONE), at(5, second=61), None),
        (Rules(catch_up=CatchUp.ALL), at(5, second=1800), 1),
        (Rules(catch_up=CatchUp.ALL, max_age=timedelta(hours=2)), at(5), 3),
        (Rules(max_age=timedelta(minutes=10)), at(5, second=599), 5),
        (Rules(max_age=timedelta(minutes=10)), at(5, second=601), None),
    ],
)
def test_catching_up(rules: Rules, now: datetime, run: int | None) -> None:
    found = decided(done=0, now=now, rules=rules)
    assert found.run == (None if run is None else at(run))
    assert not found.again
    if run is None:
        assert found.check_at == HOURLY.next(now)


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_run_that_crashed_comes_first_or_never(catch_up: CatchUp) -> None:
    again = Rules(catch_up=catch_up)
    assert decided(done=0, started=1, now=at(4), rules=again) == RunDecision(run=at(1), again=True)
    leave = Rules(catch_up=catch_up, on_crash=OnCrash.ABANDON)
    assert decided(done=0, started=1, now=at(1.5), rules=leave) == RunDecision(check_at=at(2))
    after = decided(done=0, started=1, now=at(4), rules=leave)
    assert after == RunDecision(run=at(2 if catch_up is CatchUp.ALL else 4))


def test_a_run_that_crashed_too_long_ago_is_left() -> None:
    rules = Rules(max_age=timedelta(hours=1))
    assert decided(done=0, started=1, now=at(3), rules=rules) == RunDecision(run=at(3))


def test_what_runs_elsewhere_is_waited_for() -> None:
    assert decided(done=0, started=1, now=at(1), location=RunLocation.ELSEWHERE) == RunDecision(
        waiting=at(1)
    )
    assert decided(done=0, now=at(1), location=RunLocation.ELSEWHERE) == RunDecision(waiting=at(1))
    assert decided(done=1, now=at(1), location=RunLocation.ELSEWHERE) == RunDecision(check_at=at(2))


@pytest.mark.parametrize(
    ("overlap", "now", "wanted"),
    [
        (Overlap.SKIP, at(2), RunDecision()),
        (Overlap.QUEUE, at(2), RunDecision()),
        (Overlap.REPLACE, at(1.5), RunDecision(check_at=at(2))),
        (Overlap.REPLACE, at(2), RunDecision(stop=True)),
    ],
)
def test_what_runs_here_makes_room_only_if_it_is_to_be_replaced(
    overlap: Overlap, now: datetime, wanted: RunDecision
) -> None:
    rules = Rules(overlap=overlap)
    assert decided(done=0, started=1, now=now, rules=rules, location=RunLocation.HERE) == wanted


def test_a_long_run_passes_over_what_came_meanwhile_only_if_it_is_to_be_skipped() -> None:
    def settled(overlap: Overlap, *, began: datetime, ended: datetime) -> datetime:
        rules = Rules(overlap=overlap)
        return settled_by(HOURLY, at(1), began=began, ended=ended, rules=rules)

    assert settled(Overlap.SKIP, began=at(1), ended=at(1.9)) == at(1)
    assert settled(Overlap.SKIP, began=at(1), ended=at(3.5)) == at(3)
    assert settled(Overlap.QUEUE, began=at(1), ended=at(3.5)) == at(1)
    assert settled(Overlap.REPLACE, began=at(1), ended=at(3.5)) == at(1)
    # What was missed before it began still waits, so nothing behind it can be passed over.
    assert settled(Overlap.SKIP, began=at(2.5), ended=at(3.5)) == at(1)
    # The clock was set back while it ran.
    assert settled(Overlap.SKIP, began=at(1), ended=at(-5)) == at(1)


def test_a_clock_that_is_ahead_or_behind_or_set_back_runs_nothing_twice() -> None:
    ahead = decided(done=0, now=at(1, second=3))
    assert ahead.run == at(1)
    for behind in (at(1, second=-3), at(1, second=2), at(0.5), at(-48)):
        found = decided(done=1, now=behind)
        assert found == RunDecision(check_at=at(2))


@pytest.mark.parametrize("jitter_s", [0, 1, 600])
def test_jitter_moves_the_run_and_not_the_occurrence(jitter_s: float) -> None:
    shift = shift_of("nightly", timedelta(seconds=jitter_s))
    assert timedelta(0) <= shift <= timedelta(seconds=jitter_s)
    assert shift == shift_of("nightly", timedelta(seconds=jitter_s))
    before, then = at(1) + shift - timedelta(milliseconds=1), at(1) + shift
    moved_s = shift.total_seconds()
    assert decided(done=0, now=before, shift_s=moved_s) == RunDecision(check_at=at(1) + shift)
    assert decided(done=0, now=then, shift_s=moved_s).run == at(1)


def test_jitter_spreads_jobs_evenly() -> None:
    shifts = sorted(shift_of(f"job{n}", timedelta(seconds=100)).total_seconds() for n in range(400))
    assert shifts[40] < 20
    assert shifts[360] > 80


def test_after_a_year_away_a_decision_looks_at_a_thousand_occurrences() -> None:
    now = NOON + timedelta(days=365)
    for rules in (Rules(), Rules(catch_up=CatchUp.NONE), Rules(catch_up=CatchUp.ALL)):
        found = decide(SECONDLY, done=NOON, started=None, now=now, rules=rules)
        assert found.run is not None
        missed = 1 if rules.catch_up is not CatchUp.ALL else MAX_MISSED
        assert now - found.run == timedelta(seconds=missed - 1)


@settings(max_examples=200)
@given(
    clocks=st.lists(
        st.tuples(st.integers(0, 2), st.floats(-5, 5), st.booleans()), min_size=5, max_size=60
    ),
    catch_up=st.sampled_from(CatchUp),
    on_crash=st.sampled_from(OnCrash),
    overlap=st.sampled_from(Overlap),
)
def test_nodes_with_any_clocks_do_each_occurrence_once_and_in_order(
    clocks: list[tuple[int, float, bool]], catch_up: CatchUp, on_crash: OnCrash, overlap: Overlap
) -> None:
    """One node after another looks by its own clock; some crash in the middle of a run."""
    rules = Rules(on_crash=on_crash, catch_up=catch_up, overlap=overlap)
    schedule = parse_schedule("every 3s")
    done, started, true_s = NOON, None, 0.0
    ended: list[datetime] = []
    begun: list[datetime] = []
    for step_s, skew_s, crashes in clocks:
        true_s += step_s
        now = NOON + timedelta(seconds=true_s + skew_s)
        found = decide(schedule, done=done, started=started, now=now, rules=rules)
        assert found.run is None or found.again or found.run <= now
        assert found.check_at is None or found.check_at > now
        if found.run is None:
            continue
        assert found.again == (found.run == started)
        begun.append(found.run)
        started = found.run
        if not crashes:
            ended.append(found.run)
            done = settled_by(schedule, found.run, began=now, ended=now, rules=rules)
            started = None
        else:
            done = found.run - timedelta(seconds=1)
    assert ended == sorted(set(ended))
    if on_crash is OnCrash.ABANDON:
        assert begun == sorted(set(begun))
    if catch_up is CatchUp.ALL and ended and on_crash is OnCrash.RERUN:
        assert ended == list(schedule.occurrences(NOON, ended[-1]))
