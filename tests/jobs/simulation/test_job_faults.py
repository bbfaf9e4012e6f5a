"""Three hundred fault runs of workers, one-shot reservations and operators."""

from __future__ import annotations

import pytest
from tests.support.seeds import seeded

from leasehold.testing.sim.jobs_run import JobRun, run_job_faults

SEEDS = 300
CHUNK = 25
SOME = 30
_kept: dict[int, JobRun] = {}


def run(seed: int) -> JobRun:
    """Run this seed; several tests use the first ones, which run once."""
    if seed in _kept:
        return _kept[seed]
    made = run_job_faults(seed)
    if seed < SOME:
        _kept[seed] = made
    return made


@pytest.mark.spec("J2", "J5", "J6", "J7")
@seeded(SEEDS, name="first", step=CHUNK)
def test_no_occurrence_is_lost_or_run_twice_and_nothing_runs_after_a_loss(first: int) -> None:
    runs = [run(seed) for seed in range(first, first + CHUNK)]
    assert sum(each.runs for each in runs) > 5 * len(runs)


def test_the_runs_have_crashes_losses_and_every_answer() -> None:
    some = [run(seed) for seed in range(SOME)]
    assert sum(each.repeated for each in some) > 0
    assert sum(each.writes_refused for each in some) > 0
    answers = {answer for each in some for answer in each.answers}
    assert answers >= {"Done", "Held", "LeaseLost", "OccurrenceNotDue", "StoreUnavailable"}


def test_a_seed_is_the_same_run_every_time_and_can_be_told() -> None:
    story: list[str] = []
    told = run_job_faults(3, trace=story.append)
    assert told == run(3)
    assert any("starts" in line for line in story)
    assert any(" runs <Run" in line for line in story)
    assert any("the operator" in line for line in story)
