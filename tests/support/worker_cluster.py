"""A store, and workers as processes on it, which write what they run to a log file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from leasehold.clock import SystemClock

CLOCK = SystemClock()
ROOT = Path(__file__).resolve().parents[2]
TICKING = ("-m", "tests.support.worker_process")


class WorkerCluster:
    """A store, a log file, and worker processes that use them."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory / 'leases.db'}"
        self.log_file = directory / "runs.log"
        self.log_file.touch()
        self._workers: list[subprocess.Popen[bytes]] = []

    def lines(self, word: str) -> list[list[str]]:
        found = [line.split() for line in self.log_file.read_text().splitlines()]
        return [line for line in found if line[0] == word]

    def await_lines(self, word: str, count: int) -> None:
        """Wait until there are so many."""
        until(lambda: len(self.lines(word)) >= count)

    def ticked(self) -> Counter[int]:
        """How often each second was run."""
        return Counter(int(line[1]) for line in self.lines("tick"))

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={
                **os.environ,
                "LEASEHOLD_STORE": self.url,
                "WORKER_LOG_FILE": str(self.log_file),
                **env,
            },
            stderr=subprocess.DEVNULL,
        )
        self._workers.append(worker)
        return worker

    def end(self) -> None:
        for each in self._workers:
            if each.poll() is None:
                each.kill()
            each.wait()


def until(holds: Callable[[], bool], *, within_s: float = 100.0) -> None:
    end_s = CLOCK.boottime_s() + within_s
    while not holds():
        assert CLOCK.boottime_s() < end_s, "it has not come to pass"
        threading.Event().wait(0.02)


def stop(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(100) == 0
