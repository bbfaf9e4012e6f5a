"""Three hundred bad days of real work: pumps, handlers, checkpoints and a sink behind a fence."""

from __future__ import annotations

import pytest
from tests.support.golden import changed_stories
from tests.support.seeds import seeded

from leasehold.testing.sim.pump_run import PumpDay, run_pump_day

SEEDS = 300
CHUNK = 25
SOME = 30
_kept: dict[int, PumpDay] = {}


def day(seed: int) -> PumpDay:
    """Run this day; the first ones are looked at by several tests, and run once."""
    if seed in _kept:
        return _kept[seed]
    made = run_pump_day(seed)
    if seed < SOME:
        _kept[seed] = made
    return made


@pytest.mark.spec("B9", "C3", "C5", "E1", "B3", "B5", "B6", "P11")
@seeded(SEEDS, name="first", step=CHUNK)
def test_no_event_is_lost_or_handled_by_a_zombie(first: int) -> None:
    days = [day(seed) for seed in range(first, first + CHUNK)]
    assert changed_stories("pumps", ((each.seed, each.story) for each in days)) == []
    assert all(each.calls > 0 for each in days)
    assert sum(each.orderly for each in days) > 0


@pytest.fixture(scope="module")
def some_days() -> list[PumpDay]:
    return [day(seed) for seed in range(SOME)]


@pytest.mark.spec("B9", "B5")
def test_zombies_do_write_and_are_refused(some_days: list[PumpDay]) -> None:
    """Without them the days would not show that the fences are needed."""
    assert sum(each.zombies for each in some_days) > 0
    assert sum(each.writes_refused for each in some_days) > 0


@pytest.mark.spec("C5")
def test_events_come_again_after_a_crash_and_the_days_show_it(some_days: list[PumpDay]) -> None:
    assert sum(each.repeated for each in some_days) > 0
    assert sum(each.orderly for each in some_days) > len(some_days)


def test_a_day_of_work_can_be_told_step_by_step() -> None:
    story: list[str] = []
    run_pump_day(3, tell=story.append)
    assert any("starts" in line for line in story)
    assert any("opened" in line for line in story)
    assert any("handles" in line for line in story)
