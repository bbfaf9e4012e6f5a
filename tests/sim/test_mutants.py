"""The simulator finds every known bug of the peers."""

from __future__ import annotations

import pytest
from tests.sim.mutants import MUTANTS, Mutant

from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.storm import run_day

MOST_SEEDS = 150


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 15
    assert all(mutant.source for mutant in MUTANTS)


@pytest.mark.spec("B9")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant) -> None:
    caught = next(filter(None, (_broken(mutant, seed) for seed in range(MOST_SEEDS))), None)
    assert caught, f"{mutant.name} ({mutant.source}) lived through {MOST_SEEDS} days"
    assert caught.startswith("seed ")


def _broken(mutant: Mutant, seed: int) -> str | None:
    try:
        run_day(seed, parts=mutant.parts)
    except InvariantBroken as broken:
        return str(broken)
    return None
