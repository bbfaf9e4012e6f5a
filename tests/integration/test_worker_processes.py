"""Workers as processes on SQLite: they share, they stop, and what can not stop ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold.clock import SystemClock

CLOCK = SystemClock()
ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("-c", "from leasehold.cli.app import run; run()", "worker")


class Place:
    """A store and a book, and workers on them."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory / 'leases.db'}"
        self.book = directory / "book"
        self.book.touch()
        self._workers: list[subprocess.Popen[bytes]] = []

    def lines(self, word: str) -> list[list[str]]:
        found = [line.split() for line in self.book.read_text().splitlines()]
        return [line for line in found if line[0] == word]

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={
                **os.environ,
                "LEASEHOLD_STORE": self.url,
                "WORKER_BOOK": str(self.book),
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


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()


def until(holds: Callable[[], bool], *, within_s: float = 60.0) -> None:
    end_s = CLOCK.boottime_s() + within_s
    while not holds():
        assert CLOCK.boottime_s() < end_s, "it has not come to pass"
        threading.Event().wait(0.02)


def stop(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


@pytest.mark.spec("J5")
def test_a_rolling_restart_of_three_workers_runs_each_second_exactly_once(place: Place) -> None:
    words = ("-m", "tests.support.worker_process", place.url)
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
    ran = Counter(int(line[1]) for line in place.lines("tick"))
    assert set(ran.values()) == {1}
    assert list(ran) == list(range(min(ran), max(ran) + 1))
    epochs = [int(line[2]) for line in place.lines("tick")]
    assert epochs == sorted(epochs)


def test_a_function_that_blocks_the_event_loop_does_not_cost_the_lease(place: Place) -> None:
    worker = place.start(*COMMAND, "tests.support.worker_jobs:blocking", WORKER_LEASE_S="1")
    assert worker.wait(60) == 0
    assert [line[1] for line in place.lines("blocking")] == ["begins", "holds"]
