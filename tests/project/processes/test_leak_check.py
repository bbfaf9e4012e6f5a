"""What outlives a test run fails it, and is named with the test that left it behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
from pathlib import Path

from tests.support import leaks
from tests.support.run_report import RunReport

leaks.LIMIT_S = 0.5


def pytest_configure(config):
    plugins = config.pluginmanager
    if not hasattr(config, "workerinput"):
        plugins.register(report := leaks.LeakReport(), leaks.KEY)
        plugins.register(RunReport(Path("report.json"), report))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        plugins.register(leaks.LeakCheck(config))
"""
LEAKY = """
import socket, subprocess, tempfile, threading
from threading import Event, Thread

KEPT = []

def test_clean(tmp_path):
    tempfile.TemporaryDirectory().cleanup()

def test_thread():
    Thread(target=Event().wait, args=(3,), name="stray").start()

def test_folder():
    tempfile.mkdtemp(prefix="stray")

def test_socket():
    KEPT.append(socket.socket())

def test_process():
    KEPT.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_each_leak_is_named_with_its_test(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_leaky.py").write_text(LEAKY, encoding="utf-8")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "-n", workers]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *words, f"--basetemp={tmp_path}/base", "--rootdir=.", "test_leaky.py"],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    found = {each.split("::")[1].split()[0]: each.split()[0] for each in report["leaks"]}
    assert found == {
        "test_thread": "thread",
        "test_folder": "temporary",
        "test_socket": found["test_socket"],
        "test_process": "process",
    }
    assert found["test_socket"].startswith("socket:")
    assert done.stdout.count("LEAKED") == 4
    assert (report["exit"], report["passed"], report["failed"]) == (1, 5, {})
