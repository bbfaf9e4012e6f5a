"""Whole sessions are stopped, woken and killed, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from leasehold.clock import SystemClock
from leasehold.log import Log, LogOptions
from leasehold.spark.demo.driver import DriverBrake
from leasehold.spark.demo.drivers import kill_session, session_members, signal_session, stop_session
from leasehold.spark.demo.screen import WaitPoint
from leasehold.spark.demo.show import EventSender

# A leader, and a child in a process group of its own, as Spark's workers are.
PROGRAM = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"],
                         stdin=subprocess.PIPE, process_group=0)
input()
"""
PATIENCE_S = 100


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == "up\n"
        try:
            yield popen
        finally:
            kill_session(popen.pid)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_a_session_has_also_the_workers_in_other_process_groups(
    leader: subprocess.Popen[str],
) -> None:
    members = set(session_members(leader.pid))
    assert leader.pid in members
    assert len(members) == 2
    assert len({os.getpgid(each) for each in members}) == 2
    assert os.getpid() not in members


def test_a_session_stands_still_and_goes_on(leader: subprocess.Popen[str]) -> None:
    assert stop_session(leader.pid) == 2
    assert os.waitid(os.P_PID, leader.pid, os.WSTOPPED | os.WNOWAIT) is not None
    # The kernel tells of the leader alone; the others stop a moment later, each when it runs.
    while {state(each) for each in session_members(leader.pid)} != {"T"}:
        threading.Event().wait(0.01)
    assert signal_session(leader.pid, signal.SIGCONT) == 2
    assert os.waitid(os.P_PID, leader.pid, os.WCONTINUED | os.WNOWAIT) is not None
    assert "T" not in {state(each) for each in session_members(leader.pid)}


def test_nothing_is_left_of_a_session_that_was_killed(leader: subprocess.Popen[str]) -> None:
    stop_session(leader.pid)  # what stands still dies too
    assert kill_session(leader.pid) == 2
    assert leader.wait(PATIENCE_S) == -signal.SIGKILL
    assert leader.stdout is not None
    assert leader.stdout.read() == ""  # comes to its end when the last process is gone
    while set(session_members(leader.pid)):  # its files are closed a moment before it is dead
        threading.Event().wait(0.01)


def test_a_brake_holds_one_batch_at_one_moment_and_lets_it_go() -> None:
    brake, waits, passed = DriverBrake(), threading.Event(), threading.Event()
    brake.wait_at(WaitPoint.STAGED, rows=9, tell=waits.set)
    assert not waits.is_set()  # nobody asked

    def batch() -> None:
        brake.wait_at(WaitPoint.COMMITTED, rows=9, tell=pytest.fail)
        brake.wait_at(WaitPoint.STAGED, rows=4, tell=pytest.fail)
        brake.wait_at(WaitPoint.STAGED, rows=5, tell=waits.set)
        passed.set()

    brake.ask(WaitPoint.STAGED, min_rows=5)
    thread = threading.Thread(target=batch)
    thread.start()
    assert waits.wait(PATIENCE_S)
    assert not passed.is_set()
    brake.go()
    assert passed.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_the_sender_sends_everything_once_in_order_and_waits_at_its_gate(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    bodies = [str(number) for number in range(9_000)]
    events = pa.table({"key": ["k"] * len(bodies), "body": bodies})
    options = LogOptions(run_monitor=False)
    with Log.open(url, volumes=[tmp_path / "disk"], options=options) as log:
        log.create("flights", partitions=1)
        sender = EventSender(log, "flights", events, per_s=None, clock=SystemClock())
        sender.start()
        found: list[int] = []
        with log.reader("flights", 0) as reader:
            for gate in (4_000, 9_000):
                sender.open_to(gate)
                while len(found) < gate:
                    assert reader.wait(timedelta(seconds=PATIENCE_S))
                    found += [int(each.body) for each in reader.read() or ()]
                assert sender.sent == gate
        sender.close()
    assert sender.error is None
    assert found == list(range(9_000))
