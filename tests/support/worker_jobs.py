"""Jobs for tests that run workers as processes. What is run is written to a file, line by line."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

from leasehold.jobs import Run, job

LOG_FILE = os.environ.get("WORKER_LOG_FILE", os.devnull)
LEASE = timedelta(seconds=float(os.environ.get("WORKER_LEASE_S", "3")))


def write(*words: object) -> None:
    line = " ".join(str(each) for each in words) + "\n"
    with open(LOG_FILE, "a", encoding="utf-8") as file:  # noqa: PTH123 - one write, appended
        file.write(line)


@job("tick", every="1s", lease=LEASE, catch_up="all", overlap="queue")
def tick(run: Run) -> None:
    assert run.occurrence is not None
    write("tick", int(run.occurrence.timestamp()), run.epoch, os.getpid())


@job("blocking", lease=LEASE)
async def blocking(run: Run) -> None:
    """Blocks the event loop until the lease has been renewed without it."""
    write("blocking", "begins", run.epoch)
    left = run.remaining()
    while (now := run.remaining()) <= left:
        left = now
        threading.Event().wait(0.01)
    run.check()
    write("blocking", "holds", run.epoch)
    os.kill(os.getpid(), signal.SIGTERM)


@job("careful", every="1s", lease=LEASE, catch_up="all", overlap="queue")
def careful(run: Run) -> None:
    """Takes a while, and writes only if it is still reserved then."""
    assert run.occurrence is not None
    second = int(run.occurrence.timestamp())
    write("begins", second, run.attempt, os.getpid())
    for _ in range(20):
        run.lost.wait(0.02)
        run.check()
    write("wrote", second, run.epoch, os.getpid())
