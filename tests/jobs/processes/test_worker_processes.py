"""Workers as processes on SQLite: they share, they stop, and what can not stop ends with them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.support.pausing import pause
from tests.support.worker_place import TICKING, Place, stop, until

from leasehold.stores import open_store

pytestmark = pytest.mark.timeout(300)

WORKERS = 3
COMMAND = ("-c", "from leasehold.cli.app import run; run()", "worker")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        yield made
    finally:
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
    until(lambda: len(written(place)) > after + 1)
    stop(other)
    if number is signal.SIGSTOP:
        stop(victim)
    seconds = written(place)
    assert interrupted in seconds
    assert len(seconds) == len(set(seconds))
    epochs = [int(line[2]) for line in place.lines("wrote")]
    assert epochs == sorted(set(epochs))


def known(place: Place) -> int:
    async def members() -> int:
        async with open_store(place.url) as store:
            return len(await store.members("job"))

    return anyio.run(members)


def begun_by(place: Place, worker: subprocess.Popen[bytes]) -> list[int]:
    return [int(line[1]) for line in place.lines("begins") if int(line[3]) == worker.pid]


def written(place: Place) -> list[int]:
    return [int(line[1]) for line in place.lines("wrote")]


@pytest.mark.spec("J5")
@pytest.mark.parametrize(
    ("occurrences", "apart"),
    [(8, 2), pytest.param(200, 10, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])],
)
def test_a_rolling_restart_of_three_workers_runs_each_second_exactly_once(
    place: Place, occurrences: int, apart: int
) -> None:
    """Each of them is replaced, the oldest first, after so many occurrences."""
    workers, restarts = [started(place) for _ in range(WORKERS)], 0
    while (done := len(place.lines("tick"))) < occurrences:
        more = min(done + apart, occurrences)
        # One that has just been started does not listen to signals yet.
        place.await_lines("ready", WORKERS + restarts)
        place.await_lines("tick", more)
        workers.append(started(place))
        stop(workers.pop(0))
        restarts += 1
    place.await_lines("ready", WORKERS + restarts)
    for each in workers:
        stop(each)
    ran = [(int(line[1]), int(line[2])) for line in place.lines("tick")]
    seconds, epochs = zip(*ran, strict=True)
    assert restarts >= WORKERS
    assert len(seconds) >= occurrences
    assert list(seconds) == list(range(seconds[0], seconds[0] + len(seconds)))
    assert list(epochs) == sorted(epochs)


def started(place: Place) -> subprocess.Popen[bytes]:
    # No worker dies here. A machine with much else to do must not cost a lease.
    return place.start(*TICKING, place.url, WORKER_LEASE_S="60")


def test_a_function_that_blocks_the_event_loop_does_not_cost_the_lease(place: Place) -> None:
    worker = place.start(*COMMAND, "tests.support.worker_jobs:blocking", WORKER_LEASE_S="8")
    assert worker.wait(100) == 0
    assert [line[1] for line in place.lines("blocking")] == ["begins", "holds"]
