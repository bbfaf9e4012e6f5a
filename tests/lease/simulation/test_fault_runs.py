"""Three hundred fault runs of members, and none of them may break a rule."""

from __future__ import annotations

import pytest
from tests.support.golden import changed_stories
from tests.support.seeds import seeded

from leasehold.testing.sim.fault_run import run_faults

SEEDS = 300
CHUNK = 25


@pytest.mark.spec("B9", "B1", "B2", "P5", "P9")
@seeded(SEEDS, name="first", step=CHUNK)
def test_no_invariant_is_broken(first: int) -> None:
    runs = [run_faults(seed) for seed in range(first, first + CHUNK)]
    assert changed_stories("members", ((run.seed, run.story) for run in runs)) == []
    assert sum(run.changes for run in runs) > CHUNK
    if first == 0:  # without refused writes the simulator would not show that fencing works
        assert sum(run.writes_refused for run in runs) > 0


def test_a_run_can_be_told_step_by_step() -> None:
    story: list[str] = []
    run_faults(3, trace=story.append)
    assert any("starts" in line for line in story)
    assert any("opened" in line for line in story)
