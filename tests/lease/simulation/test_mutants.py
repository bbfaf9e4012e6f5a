"""The simulator finds every known bug of the peers."""

from __future__ import annotations

import re

import pytest
from tests.lease.simulation.mutants import MUTANTS, Mutant
from tests.support.replaced import Replacement, replaced

from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.fault_run import run_faults

MAX_SEEDS = 150
SAFETY = r"believes in|two owners|worked on by two|told twice"
# A bug must be found for what it is, not by some accident that it causes.
FOUND_AS = {
    "keeps for ever": r"not even|no calm",
    "counts only owners": r"not even",
    "keeps the remainder": r"not even",
    "leaving seen as active": r"not even|no calm",
    "leaves expired alone": r"not even",
    "assigns anew": r"not even|moves",
    "forgets epochs": r"epoch \d+ follows",
    "unfenced writes": r"a write of epoch",
    "checkpoints go back": r"went back",
}
# Days that are known to find it, for those that live long: they are tried first.
BAD_DAYS = {"trust from the answer": 16, "claims blindly": 24, "waits for ever": 105}


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 15
    assert all(mutant.source for mutant in MUTANTS)


@pytest.mark.spec("B9")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant) -> None:
    seeds = sorted(range(MAX_SEEDS), key=lambda seed: seed != BAD_DAYS.get(mutant.name))
    caught = next(filter(None, (_broken(mutant, seed) for seed in seeds)), None)
    assert caught, f"{mutant.name} ({mutant.source}) lived through {MAX_SEEDS} days"
    assert caught.startswith("seed ")
    assert re.search(FOUND_AS.get(mutant.name, SAFETY), caught), caught


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (
            "leasehold.core.lease_timing:LeaseTiming.believed_until",
            "there is no leasehold.core.lease_timing:LeaseTiming",
        ),
        ("leasehold.core.trust:trusted_until", "there is no leasehold.core.trust"),
        ("leasehold.core.lease_timing:LeaseTiming.check", r"takes \['self'\] by now"),
    ],
)
def test_a_mutant_of_a_part_that_is_gone_fails_the_run(target: str, why: str) -> None:
    mutant = Replacement(target=target, make=lambda _original: lambda self, sent_at_s: sent_at_s)
    with pytest.raises(LookupError, match=why), replaced((mutant,)):
        pass


def _broken(mutant: Mutant, seed: int) -> str | None:
    try:
        with replaced(mutant.parts):
            run_faults(seed)
    except InvariantBroken as broken:
        return str(broken)
    return None
