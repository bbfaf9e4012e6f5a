"""Fault runs of files find every bug that is put into the code, each for what it is."""

from __future__ import annotations

import re

import pytest
from tests.files.simulation.files_mutants import MUTANTS, FilesMutant
from tests.support.replaced import replaced

from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.files_run import run_files

MAX_SEEDS = 150
# Seeds that are known to find a bug that few find: they are tried first.
KNOWN_SEEDS = {
    "confirms one block": 66,
    "forgets a failed sync": 32,
    "keeps the cache": 67,
    "compares the name only": 47,
    "exhaustion is a fault of the volume": 51,
    "shortest wins": 57,
    "late recoveries commit": 25,
    "hides the loss": 96,
}


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.spec("B9", "F8")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: FilesMutant) -> None:
    seeds = sorted(range(MAX_SEEDS), key=lambda seed: seed != KNOWN_SEEDS.get(mutant.name))
    caught = next(filter(None, (_broken(mutant, seed) for seed in seeds)), None)
    assert caught, f"{mutant.name} was not found by {MAX_SEEDS} seeds"
    assert caught.startswith("seed ")
    assert re.search(mutant.found_as, caught), caught


def _broken(mutant: FilesMutant, seed: int) -> str | None:
    try:
        with replaced(mutant.parts):
            run_files(seed)
    except InvariantBroken as broken:
        return str(broken)
    return None
