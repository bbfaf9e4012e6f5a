"""Workers as processes on SQLite: they share, they stop, and what can not stop ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.worker_place import TICKING, Place, stop, until

COMMAND = ("-c", "from leasehold.cli.app import run; run()", "worker")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()


@pytest.mark.spec("J5")
def test_a_rolling_restart_of_three_workers_runs_each_second_exactly_once(place: Place) -> None:
    words = (*TICKING, place.url)
    workers = [place.start(*words) for _ in range(3)]
    until(lambda: len(place.lines("ready")) == 3 and len(place.lines("tick")) >= 1)
    workers.append(place.start(*words))
    stop(workers[0])
    until(lambda: len(place.lines("ready")) == 4 and len(place.lines("tick")) >= 3)
    for worker in workers[1:3]:
        stop(worker)
    before = len(place.lines("tick"))
    until(lambda: len(place.lines("tick")) >= before + 2)
    stop(workers[3])
    ran = place.ticked()
    assert set(ran.values()) == {1}
    assert list(ran) == list(range(min(ran), max(ran) + 1))
    epochs = [int(line[2]) for line in place.lines("tick")]
    assert epochs == sorted(epochs)


def test_a_function_that_blocks_the_event_loop_does_not_cost_the_lease(place: Place) -> None:
    worker = place.start(*COMMAND, "tests.support.worker_jobs:blocking", WORKER_LEASE_S="1")
    assert worker.wait(60) == 0
    assert [line[1] for line in place.lines("blocking")] == ["begins", "holds"]
