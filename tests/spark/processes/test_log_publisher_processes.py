"""Drivers in processes of their own that write to the log, killed and paused at each step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.log_publisher import (
    bodies,
    counted,
    left_over,
    make_log,
    publisher,
    query_request,
    staged,
)

from leasehold.spark.log_writer import publisher as publisher_module

ROOT = Path(__file__).resolve().parents[3]
STEPS = [("staged", 1), ("committed", 1), ("sending", 1), ("sending", 5), ("sent", 1)]


class Driver:
    """See ``publishing_process``."""

    def __init__(self, url: str, **options: Any) -> None:
        order = {"url": url, "first": 0, "count": 1, "rows": 200, "epoch": 0} | options
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.log_publisher_process", json.dumps(order)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def line(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        text = self._popen.stdout.readline()
        assert text, "the driver has ended without a word"
        found: dict[str, Any] = json.loads(text)
        return found

    def wait(self) -> int:
        return self._popen.wait(100)

    def end(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    def until_stopped(self) -> None:
        seen = os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)


@pytest.fixture
def drive(url: str) -> Iterator[Callable[..., Driver]]:
    """Start drivers, which are gone at the end of the test."""
    started: list[Driver] = []

    def begin(**options: Any) -> Driver:
        started.append(Driver(url, **options))
        return started[-1]

    yield begin
    for driver in started:
        driver.end()


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/store.db"
    make_log(made, tmp_path)
    return made


@pytest.mark.spec("S4")
@pytest.mark.parametrize(("at", "times"), STEPS)
def test_a_batch_whose_driver_is_killed_is_stored_once(
    url: str, drive: Callable[..., Driver], tmp_path: Path, at: str, times: int
) -> None:
    driver = drive(signal="KILL", at=at, times=times)
    assert driver.line() == {"at": at}
    assert driver.wait() == -signal.SIGKILL
    if at == "staged":
        assert bodies(url) == []
    # The next driver replays the batch, as Spark does, and goes on.
    after = publisher(url)
    after.commit(query_request(0), staged(after.plan(), "b0", 200))
    after.commit(query_request(1), staged(after.plan(), "b1", 200))
    after.close()
    assert counted(url) == {"b0": 200, "b1": 200}
    orphans = 4 if at == "staged" else 0  # until they are a day old
    assert len(left_over(tmp_path)) == orphans


@pytest.mark.spec("S4", "S5", "B5")
@pytest.mark.parametrize(("at", "times"), STEPS)
def test_a_driver_that_was_paused_adds_nothing_when_it_wakes_up(
    url: str,
    drive: Callable[..., Driver],
    at: str,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "_OWNER_TIMEOUT_S", 0.5)  # of an owner that is paused
    old = drive(signal="STOP", at=at, times=times, epoch=1, count=2)
    assert old.line() == {"at": at}
    old.until_stopped()
    new = publisher(url)
    for number in range(4):  # it took over, and replays the batch that was under way
        new.commit(query_request(number, epoch=2), staged(new.plan(), f"b{number}", 200))
    old.resume()
    refused = {"refused": "FencedWrite"}
    assert old.line() == {"batch": 0} | (refused if at == "staged" else {})
    assert old.line() == {"batch": 1} | refused
    assert old.wait() == 0
    new.close()
    assert counted(url) == {f"b{number}": 200 for number in range(4)}


@pytest.mark.spec("S4")
def test_two_drivers_that_race_for_the_same_batches_store_each_once(
    url: str, drive: Callable[..., Driver]
) -> None:
    drivers = [drive(count=6, rows=60) for _ in range(2)]
    output: list[list[dict[str, Any]]] = [[], []]

    def listen(path: int) -> None:
        output[path] = [drivers[path].line() for _ in range(6)]

    threads = [threading.Thread(target=listen, args=(path,)) for path in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [driver.wait() for driver in drivers] == [0, 0]
    # One that is behind by more than a batch hears that these numbers are over.
    refusals = {each["refused"] for lines in output for each in lines if "refused" in each}
    assert refusals <= {"SinkChanged"}
    assert counted(url) == {f"b{number}": 60 for number in range(6)}
