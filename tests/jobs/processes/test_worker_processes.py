"""Workers as processes on SQLite: they share, they stop, and what can not stop ends with them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.support.pausing import pause
from tests.support.worker_cluster import TICKING, WorkerCluster, stop, until

from leasehold.stores import open_store

pytestmark = pytest.mark.timeout(300)

WORKERS = 3
COMMAND = ("-c", "from leasehold.cli.app import run; run()", "worker")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WorkerCluster]:
    made = WorkerCluster(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.spec("J2", "J5")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_what_a_worker_has_begun_is_run_by_another_and_written_once(
    cluster: WorkerCluster, number: signal.Signals
) -> None:
    jobs = "tests.support.worker_jobs:careful"
    workers = [cluster.start(*COMMAND, jobs) for _ in range(2)]
    until(lambda: known(cluster) == 2)
    cluster.await_lines("begins", len(cluster.lines("begins")) + 1)
    _, second, _, pid = cluster.lines("begins")[-1]
    victim, other = sorted(workers, key=lambda each: each.pid != int(pid))
    if number is signal.SIGSTOP:
        pause(victim.pid, cluster.url)
    else:
        victim.kill()
    interrupted = int(second)
    begun = len(begun_by(cluster, other))
    until(lambda: interrupted in written(cluster) and len(begun_by(cluster, other)) > begun)
    if number is signal.SIGSTOP:
        victim.send_signal(signal.SIGCONT)
    after = len(written(cluster))
    until(lambda: len(written(cluster)) > after + 1)
    stop(other)
    if number is signal.SIGSTOP:
        stop(victim)
    seconds = written(cluster)
    assert interrupted in seconds
    assert len(seconds) == len(set(seconds))
    epochs = [int(line[2]) for line in cluster.lines("wrote")]
    assert epochs == sorted(set(epochs))


def known(cluster: WorkerCluster) -> int:
    async def members() -> int:
        async with open_store(cluster.url) as store:
            return len(await store.members("job"))

    return anyio.run(members)


def begun_by(cluster: WorkerCluster, worker: subprocess.Popen[bytes]) -> list[int]:
    return [int(line[1]) for line in cluster.lines("begins") if int(line[3]) == worker.pid]


def written(cluster: WorkerCluster) -> list[int]:
    return [int(line[1]) for line in cluster.lines("wrote")]


@pytest.mark.spec("J5")
@pytest.mark.parametrize(
    ("occurrences", "apart"),
    [(8, 2), pytest.param(200, 10, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])],
)
def test_a_rolling_restart_of_three_workers_runs_each_second_exactly_once(
    cluster: WorkerCluster, occurrences: int, apart: int
) -> None:
    """Each of them is replaced, the oldest first, after so many occurrences."""
    workers, restarts = [started(cluster) for _ in range(WORKERS)], 0
    while (done := len(cluster.lines("tick"))) < occurrences:
        more = min(done + apart, occurrences)
        # One that has just been started does not listen to signals yet.
        cluster.await_lines("ready", WORKERS + restarts)
        cluster.await_lines("tick", more)
        workers.append(started(cluster))
        stop(workers.pop(0))
        restarts += 1
    cluster.await_lines("ready", WORKERS + restarts)
    for each in workers:
        stop(each)
    ran = [(int(line[1]), int(line[2])) for line in cluster.lines("tick")]
    seconds, epochs = zip(*ran, strict=True)
    assert restarts >= WORKERS
    assert len(seconds) >= occurrences
    assert list(seconds) == list(range(seconds[0], seconds[0] + len(seconds)))
    assert list(epochs) == sorted(epochs)


def started(cluster: WorkerCluster) -> subprocess.Popen[bytes]:
    # No worker dies here. A machine with much else to do must not cost a lease.
    return cluster.start(*TICKING, cluster.url, WORKER_LEASE_S="60")


def test_a_function_that_blocks_the_event_loop_does_not_cost_the_lease(
    cluster: WorkerCluster,
) -> None:
    worker = cluster.start(*COMMAND, "tests.support.worker_jobs:blocking", WORKER_LEASE_S="8")
    assert worker.wait(100) == 0
    assert [line[1] for line in cluster.lines("blocking")] == ["begins", "holds"]
