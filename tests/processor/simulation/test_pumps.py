"""Three hundred fault runs of real work: pumps, handlers, checkpoints and a fenced sink."""

from __future__ import annotations

import pytest
from tests.support.golden import changed_stories
from tests.support.seeds import seeded

from leasehold.testing.sim.pump_run import PumpRun, run_pump_faults

SEEDS = 300
CHUNK = 25
SOME = 30
_kept: dict[int, PumpRun] = {}


def run(seed: int) -> PumpRun:
    """Run this seed; several tests use the first ones, which run once."""
    if seed in _kept:
        return _kept[seed]
    made = run_pump_faults(seed)
    if seed < SOME:
        _kept[seed] = made
    return made


@pytest.mark.spec("B9", "C3", "C5", "E1", "B3", "B5", "B6", "P11")
@seeded(SEEDS, name="first", step=CHUNK)
def test_no_event_is_lost_or_handled_by_a_zombie(first: int) -> None:
    runs = [run(seed) for seed in range(first, first + CHUNK)]
    assert changed_stories("pumps", ((each.seed, each.story) for each in runs)) == []
    assert all(each.calls > 0 for each in runs)
    assert sum(each.orderly for each in runs) > 0


@pytest.mark.spec("B6", "P11")
@pytest.mark.parametrize("seed", [10_001_075, 10_004_191])
def test_a_receiver_that_hangs_twice_is_opened_a_third_time(seed: int) -> None:
    """When the faults end, the receiver of the last host has hung for a second time."""
    assert run_pump_faults(seed).events > 0


@pytest.mark.spec("B9", "P14")
def test_a_caller_that_is_done_after_its_time_has_acknowledged_nothing() -> None:
    """It ends between the timeout and the report of it; its partition is drained before it asks.

    Nobody has been told that the batch is done: it comes again at the next owner.
    """
    assert run_pump_faults(10_316).repeated > 0


@pytest.fixture(scope="module")
def some_runs() -> list[PumpRun]:
    return [run(seed) for seed in range(SOME)]


@pytest.mark.spec("B9", "B5")
def test_zombies_do_write_and_are_refused(some_runs: list[PumpRun]) -> None:
    """Without them the runs would not show that the fences are needed."""
    assert sum(each.zombies for each in some_runs) > 0
    assert sum(each.writes_refused for each in some_runs) > 0


@pytest.mark.spec("C5")
def test_events_come_again_after_a_crash_and_the_days_show_it(some_runs: list[PumpRun]) -> None:
    assert sum(each.repeated for each in some_runs) > 0
    assert sum(each.orderly for each in some_runs) > len(some_runs)


@pytest.mark.spec("B4", "B6", "P1", "P14")
def test_the_options_of_a_run_are_drawn_and_used(some_runs: list[PumpRun]) -> None:
    drawn = {option for each in some_runs for option in each.options}
    assert drawn == {
        *("async", "thread", "pull", "skip", "dead_letter", "by_load", "resets", "grows"),
    }
    for count in ("skipped", "dead_letters", "resets"):
        assert sum(getattr(each, count) for each in some_runs) > 0


def test_a_day_of_work_can_be_told_step_by_step() -> None:
    story: list[str] = []
    run_pump_faults(3, trace=story.append)
    assert any("starts" in line for line in story)
    assert any("opened" in line for line in story)
    assert any("handles" in line for line in story)
