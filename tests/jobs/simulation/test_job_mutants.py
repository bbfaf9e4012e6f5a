"""Fault runs with jobs find every bug that is put into the code, each for what it is."""

from __future__ import annotations

import re

import pytest
from tests.jobs.simulation.job_mutants import MUTANTS, JobMutant

from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.jobs_run import run_job_faults

MAX_SEEDS = 150
# Seeds that are known to find a bug that few find: they are tried first.
KNOWN_SEEDS = {
    "trusts forever": 1,
    "checks nothing": 10,
    "keeps the loss to itself": 17,
    "releases before the end": 38,
    "runs again after a crash": 10,
    "never done": 9,
    "passes over what was missed": 11,
    "counts no attempts": 9,
    "follows its own clock": 10,
    "all is well": 3,
    "unfenced checkpoints": 16,
}


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 10
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.spec("J2", "J5", "J6", "J7")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: JobMutant) -> None:
    seeds = sorted(range(MAX_SEEDS), key=lambda seed: seed != KNOWN_SEEDS.get(mutant.name))
    caught = next(filter(None, (_broken(mutant, seed) for seed in seeds)), None)
    assert caught, f"{mutant.name} was not found by {MAX_SEEDS} seeds"
    assert caught.startswith("seed ")
    assert re.search(mutant.found_as, caught), caught


def _broken(mutant: JobMutant, seed: int) -> str | None:
    try:
        with mutant.part.in_place():
            run_job_faults(seed)
    except InvariantBroken as broken:
        return str(broken)
    return None
