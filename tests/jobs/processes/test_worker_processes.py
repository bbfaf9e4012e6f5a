"""Workers as processes on SQLite: they share, they stop, and what can not stop ends with them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.support.pausing import pause
from tests.support.rolling_restart import APART, OCCURRENCES, WORKERS, RollingRestart
from tests.support.worker_place import Place, stop, until

from leasehold.stores import open_store

COMMAND = ("-c", "from leasehold.cli.app import run; run()", "worker")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()


@pytest.mark.spec("J2", "J5")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_what_a_worker_has_begun_is_run_by_another_and_written_once(
    place: Place, number: signal.Signals
) -> None:
    jobs = "tests.support.worker_jobs:careful"
    workers = [place.start(*COMMAND, jobs) for _ in range(2)]
    until(lambda: known(place) == 2)
    place.await_lines("begins", len(place.lines("begins")) + 1)
    _, second, _, pid = place.lines("begins")[-1]
    victim, other = sorted(workers, key=lambda each: each.pid != int(pid))
    if number is signal.SIGSTOP:
        pause(victim.pid, place.url)
    else:
        victim.kill()
    interrupted = int(second)
    begun = len(begun_by(place, other))
    until(lambda: interrupted in written(place) and len(begun_by(place, other)) > begun)
    if number is signal.SIGSTOP:
        victim.send_signal(signal.SIGCONT)
    after = len(written(place))
    until(lambda: len(written(place)) > after + 2)
    stop(other)
    if number is signal.SIGSTOP:
        stop(victim)
    seconds = written(place)
    assert interrupted in seconds
    assert len(seconds) == len(set(seconds))
    epochs = [int(line[2]) for line in place.lines("wrote")]
    assert epochs == sorted(set(epochs))


def known(place: Place) -> int:
    async def peers() -> int:
        async with open_store(place.url) as store:
            return len(await store.peers("job"))

    return anyio.run(peers)


def begun_by(place: Place, worker: subprocess.Popen[bytes]) -> list[int]:
    return [int(line[1]) for line in place.lines("begins") if int(line[3]) == worker.pid]


def written(place: Place) -> list[int]:
    return [int(line[1]) for line in place.lines("wrote")]


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
