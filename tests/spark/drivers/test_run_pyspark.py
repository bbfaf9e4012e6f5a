"""PySpark's own tree of processes under ``leasehold run``: it is killed whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.support.command_runs import alive, family, kill, until
from tests.support.command_wrappers import Alone

from leasehold.jobs.command.guard import command_processes, processes

pytestmark = pytest.mark.timeout(180)


def test_kill_9_of_the_wrapper_ends_driver_java_daemon_and_worker(tmp_path: Path) -> None:
    target = tmp_path / "family"
    command = [sys.executable, "-m", "tests.support.command_pyspark", str(target)]
    wrapper = Alone(f"sqlite:///{tmp_path}/leases.db", tmp_path, "--lease", "20s", command=command)
    everyone: list[int] = []
    try:
        until(lambda: target.exists() or wrapper.popen.poll() is not None, within_s=120)
        driver, daemon, worker = family(target)
        everyone = command_processes(processes(), ancestor=wrapper.popen.pid, session=driver)
        assert {driver, daemon, worker} < set(everyone)
        assert len(everyone) >= 5  # the guard and Java as well
        assert os.getpgid(daemon) == daemon != os.getpgid(driver)
        wrapper.popen.kill()
        until(lambda: not alive(everyone))
    finally:
        wrapper.end()
        kill(everyone)
