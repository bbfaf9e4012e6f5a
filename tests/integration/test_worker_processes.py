"""Workers as processes on SQLite: they share, they stop, and what can not stop ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.rolling_restart import APART, OCCURRENCES, WORKERS, RollingRestart
from tests.support.worker_place import Place

COMMAND = ("-c", "from leasehold.cli.app import run; run()", "worker")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()


@pytest.mark.spec("J5")
@pytest.mark.timeout(900)
def test_a_rolling_restart_of_three_workers_runs_each_second_exactly_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """200 of them. In a whole run it was started long before (see ``tests/e2e``)."""
    outcome = RollingRestart(tmp_path_factory).outcome()
    assert "trouble" not in outcome
    assert outcome["restarts"] >= OCCURRENCES // APART - WORKERS
    seconds, epochs = zip(*outcome["ran"], strict=True)
    assert len(seconds) >= OCCURRENCES
    assert list(seconds) == list(range(seconds[0], seconds[0] + len(seconds)))
    assert list(epochs) == sorted(epochs)


def test_a_function_that_blocks_the_event_loop_does_not_cost_the_lease(place: Place) -> None:
    worker = place.start(*COMMAND, "tests.support.worker_jobs:blocking", WORKER_LEASE_S="2")
    assert worker.wait(60) == 0
    assert [line[1] for line in place.lines("blocking")] == ["begins", "holds"]
