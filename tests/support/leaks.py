"""Nothing outlives a test run: processes, threads, sockets and temporary folders are looked for.

Each worker has a temporary directory of its own. After each test it notes which threads, sockets
and entries of that directory are new; at the end, when all fixtures have been torn down, what is
still there of them is a leak of the test after which it was first seen. Processes are found by the
controller: each child inherits ``PYTEST_CURRENT_TEST``, which names the test that started it.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support import run_directory

from leasehold.clock import SystemClock

KEY = "leaks"
LIMIT_S = 20.0
CLOCK = SystemClock()
SOCKETS = f"leasehold-{os.getuid()}"  # where owners of partitions listen: it stays, for all of them


class LeakCheck:
    """In each process that runs tests: threads, sockets, temporary files."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._place = Path(tempfile.mkdtemp(prefix="t", dir=run_directory.begun()))
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._place)
        self._by: dict[str, str] = dict.fromkeys(self._look(), "")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        result = yield
        for each in self._look():
            self._by.setdefault(each, item.nodeid)
        return result

    @pytest.hookimpl(wrapper=True, trylast=True)  # after the fixtures, before xdist sends it
    def pytest_sessionfinish(self) -> Any:
        result = yield
        gc.collect()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and self._by.get(_named(thread)):
                thread.join(LIMIT_S)
        owned = _python_sockets()  # others are of libraries: deltalake keeps some for its threads
        found = [
            f"{what}: {self._by[what]}"
            for what in self._look()
            if self._by.get(what) and (what in owned or not what.startswith("socket:"))
        ]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[KEY] = found
        elif report := self._config.pluginmanager.get_plugin(KEY):
            report.found += found
        return result

    def _look(self) -> list[str]:
        threads = [_named(each) for each in threading.enumerate() if not each.daemon]
        names = {each.name for each in os.scandir(self._place)} - {SOCKETS}
        files = [f"temporary {each}" for each in names]
        return threads + files + _sockets()


class LeakReport:
    """In the process that reports: the leaks of all workers, and processes that are left."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.place = run_directory.begin()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.found += getattr(node, "workeroutput", {}).get(KEY, [])

    @pytest.hookimpl(wrapper=True, trylast=True)  # before the terminal's summary
    def pytest_sessionfinish(self, session: pytest.Session) -> Any:
        result = yield
        self.found += _processes()
        left = [each.name for each in run_directory.shared().iterdir()]
        self.found += [f"shared {each}" for each in left if not each.startswith(".")]
        if self.found and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if not session.exitstatus:
            shutil.rmtree(self.place, ignore_errors=True)
        return result

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.place.exists():
            terminalreporter.write_line(f"what the tests wrote is in {self.place}")
        if self.found:
            terminalreporter.section("leaks")
            for each in self.found:
                terminalreporter.write_line(f"LEAKED {each}", red=True)


def _processes() -> list[str]:
    """Processes of this run that do not end, with the tests that started them; they are killed."""
    end_s = CLOCK.boottime_s() + LIMIT_S
    while (left := dict(_living())) and CLOCK.boottime_s() < end_s:
        threading.Event().wait(0.1)  # what a worker has started may end a little after it
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return list(left.values())


def _living() -> Iterator[tuple[int, str]]:
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or int(each.name) == os.getpid():
            continue
        with suppress(OSError):
            env = (each / "environ").read_bytes().decode(errors="replace").split("\0")
            by = [x.partition("=")[2] for x in env if x.startswith("PYTEST_CURRENT_TEST=")]
            words = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
            # Without a test it is a worker of xdist, without words it is just ending.
            if by and words and run_directory.belongs(env):
                yield int(each.name), f"process {words}: {by[0]}"


def _named(thread: threading.Thread) -> str:
    return f"thread {thread.name} ({thread.ident})"


def _sockets() -> list[str]:
    found = []
    for each in os.scandir("/proc/self/fd"):
        with suppress(OSError):
            target = str(Path(each.path).readlink())
            if target.startswith("socket:"):
                found.append(target)
    return found


def _python_sockets() -> set[str]:
    """The sockets of this process that objects of Python hold."""
    found = set()
    for each in gc.get_objects():
        if isinstance(each, socket.socket) and each.fileno() >= 0:
            with suppress(OSError):
                found.add(str(Path(f"/proc/self/fd/{each.fileno()}").readlink()))
    return found
