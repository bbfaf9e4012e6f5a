"""Three hundred fault runs of files: several writers, bad volumes, power cuts, and recovery."""

from __future__ import annotations

import pytest
from tests.support.seeds import seeded

from leasehold.testing.sim.files_run import FilesRun, run_files

SEEDS = 300
CHUNK = 25
SOME = 30
_kept: dict[int, FilesRun] = {}


def run(seed: int) -> FilesRun:
    """Run this seed; several tests use the first ones, which run once."""
    if seed in _kept:
        return _kept[seed]
    made = run_files(seed)
    if seed < SOME:
        _kept[seed] = made
    return made


@pytest.mark.spec("B9", "F2", "F3", "F4", "F7", "F8")
@seeded(SEEDS, name="first", step=CHUNK)
def test_what_was_acknowledged_is_readable_or_its_loss_is_known(first: int) -> None:
    runs = [run(seed) for seed in range(first, first + CHUNK)]
    assert sum(each.acknowledged > 0 for each in runs) > CHUNK / 2
    assert sum(each.recoveries for each in runs) > CHUNK


@pytest.fixture(scope="module")
def some_runs() -> list[FilesRun]:
    return [run(seed) for seed in range(SOME)]


def test_faults_do_happen_and_some_destroy_every_replica(some_runs: list[FilesRun]) -> None:
    """Without them the runs would not show that recovery is needed, nor that a loss is told."""
    assert sum(each.power_cuts for each in some_runs) > 0
    assert sum(each.losses for each in some_runs) > 0
    assert sum(each.refused for each in some_runs) > 0
    assert {each.volumes for each in some_runs} == {1, 2, 3}


@pytest.mark.parametrize("seed", [3, 17])
def test_the_same_seed_is_the_same_run_and_can_be_told_step_by_step(seed: int) -> None:
    first: list[str] = []
    second: list[str] = []
    assert run_files(seed, trace=first.append) == run_files(seed, trace=second.append)
    assert first == second
    assert any("starts" in line for line in first)
    assert any("the faults stop" in line for line in first)
