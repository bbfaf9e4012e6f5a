"""Fault runs with pumps find every bug that is put into the code, each for what it is."""

from __future__ import annotations

import re

import pytest
from tests.processor.simulation.option_mutants import OPTION_MUTANTS
from tests.processor.simulation.pump_mutants import MUTANTS, PumpMutant

from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.pump_run import run_pump_faults

ALL_MUTANTS = MUTANTS + OPTION_MUTANTS
MAX_SEEDS = 150
# Seeds that are known to find a bug that few find, or find as what they are: they are tried first.
KNOWN_SEEDS = {
    "unfenced checkpoints": 51,
    "a late copy goes back": 54,
    "ends with its receiver": 6,
    "retries after loss": 42,
    "re-opens under the handler": 2,
    "unfenced sink": 12,
    "re-opens once": 21,
    "the watchdog hangs, too": 36,
    "says released": 17,
    "asks for the last term": 143,
    "counts repeats once": 17,
    "gives out what was offered": 33,
    "resets in part": 20,
    "ignores loss between events": 26,
    "waits for its thread": 19,
    "a late thread counts as ended": 18,
    "loses the letter": 145,
    "ignores what is stored": 12,
    "leaves free keys": 3,
    "never damps": 13,
}


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 15
    assert len(OPTION_MUTANTS) >= 15
    assert len({mutant.name for mutant in ALL_MUTANTS}) == len(ALL_MUTANTS)


@pytest.mark.spec("B9")
@pytest.mark.parametrize("mutant", ALL_MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: PumpMutant) -> None:
    seeds = sorted(range(MAX_SEEDS), key=lambda seed: seed != KNOWN_SEEDS.get(mutant.name))
    caught = next(filter(None, (_broken(mutant, seed) for seed in seeds)), None)
    assert caught, f"{mutant.name} was not found by {MAX_SEEDS} seeds"
    assert caught.startswith("seed ")
    assert re.search(mutant.found_as, caught), caught


def _broken(mutant: PumpMutant, seed: int) -> str | None:
    try:
        with mutant.part.in_place():
            run_pump_faults(seed)
    except InvariantBroken as broken:
        return str(broken)
    return None
