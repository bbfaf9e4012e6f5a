"""Three hundred bad days of real work: pumps, handlers, checkpoints and a sink behind a fence."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from leasehold.testing.sim.pump_day import PumpDay, run_pump_day

SEEDS = 300
CHUNK = 25


@pytest.mark.spec("B9", "C3", "C5", "E1", "B3", "B5", "B6", "P11")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_event_is_lost_or_handled_by_a_zombie(first: int) -> None:
    days = [run_pump_day(seed) for seed in range(first, first + CHUNK)]
    assert all(day.calls > 0 for day in days)
    assert sum(day.orderly for day in days) > 0


@pytest.fixture(scope="module")
def some_days() -> list[PumpDay]:
    return [run_pump_day(seed) for seed in range(30)]


@pytest.mark.spec("B9", "B5")
def test_zombies_do_write_and_are_refused(some_days: list[PumpDay]) -> None:
    """Without them the days would not show that the fences are needed."""
    assert sum(day.zombies for day in some_days) > 0
    assert sum(day.writes_refused for day in some_days) > 0


@pytest.mark.spec("C5")
def test_events_come_again_after_a_crash_and_the_days_show_it(some_days: list[PumpDay]) -> None:
    assert sum(day.repeated for day in some_days) > 0
    assert sum(day.orderly for day in some_days) > len(some_days)


@pytest.mark.spec("B9")
def test_a_day_of_work_repeats_itself_exactly_in_another_process() -> None:
    here = [run_pump_day(seed).story for seed in (1, 2, 3)]
    for hash_seed in ("1", "2"):
        assert _stories_elsewhere(hash_seed) == here


def _stories_elsewhere(hash_seed: str) -> list[str]:
    program = (
        "import json; from leasehold.testing.sim.pump_day import run_pump_day;"
        "print(json.dumps([run_pump_day(seed).story for seed in (1, 2, 3)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    stories: list[str] = json.loads(done.stdout)
    return stories


def test_a_day_of_work_can_be_told_step_by_step() -> None:
    story: list[str] = []
    run_pump_day(3, tell=story.append)
    assert any("starts" in line for line in story)
    assert any("opened" in line for line in story)
    assert any("handles" in line for line in story)
