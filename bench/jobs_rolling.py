"""Three real workers, replaced one after the other, while a job runs each second."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.report import Row, cost, exactly, rate
from tests.support.worker_cluster import TICKING, WorkerCluster, stop

WORKERS = 3
_APART = 10  # occurrences between two restarts


def rows(*, occurrences: int = 200) -> list[Row]:
    """Doubled and lost occurrences; a worker is replaced about each ten of them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        cluster = WorkerCluster(Path(directory))
        try:
            restarts = _restarts(cluster, occurrences)
        finally:
            cluster.end()
        ran = cluster.ticked()
    doubled = sum(times - 1 for times in ran.values())
    lost = max(ran) - min(ran) + 1 - len(ran)
    what = f"{WORKERS} workers as processes, {len(ran)} occurrences of a job each second"
    return [
        rate(f"{what}: workers replaced", restarts),
        cost("the same: run twice", doubled, bar=exactly(0)),
        cost("the same: never run", lost, bar=exactly(0)),
    ]


def _restarts(cluster: WorkerCluster, occurrences: int) -> int:
    workers = [cluster.start(*TICKING, cluster.url) for _ in range(WORKERS)]
    cluster.await_lines("ready", WORKERS)
    restarts = 0
    while (done := len(cluster.lines("tick"))) < occurrences:
        cluster.await_lines("tick", min(done + _APART, occurrences))
        workers.append(cluster.start(*TICKING, cluster.url))
        stop(workers.pop(0))
        restarts += 1
        cluster.await_lines("ready", WORKERS + restarts)
    for each in workers:
        stop(each)
    return restarts
