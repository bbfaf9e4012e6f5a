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
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

RUN = "LEASEHOLD_TEST_RUN"
KEY = "leaks"
LIMIT_S = 20.0


class LeakCheck:
    """In each process that runs tests: threads, sockets, temporary files."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._before = tempfile.gettempdir()
        self._place = Path(tempfile.mkdtemp(prefix="lh-"))
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._place)
        self._by: dict[str, str] = dict.fromkeys(self._look(), "")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:  # noqa: ANN401
        result = yield
        for each in self._look():
            self._by.setdefault(each, item.nodeid)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Any:  # noqa: ANN401
        result = yield
        gc.collect()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and self._by.get(_named(thread)):
                thread.join(LIMIT_S)
        found = [f"{what}: {self._by[what]}" for what in self._look() if self._by.get(what)]
        tempfile.tempdir = None
        os.environ["TMPDIR"] = self._before
        shutil.rmtree(self._place, ignore_errors=True)
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[KEY] = found
        elif report := self._config.pluginmanager.get_plugin(KEY):
            report.found += found
        return result

    def _look(self) -> list[str]:
        threads = [_named(each) for each in threading.enumerate() if not each.daemon]
        files = [f"temporary {each.name}" for each in os.scandir(self._place)]
        return threads + files + _sockets()


class LeakReport:
    """In the process that reports: the leaks of all workers, and processes that are left."""

    def __init__(self) -> None:
        self.found: list[str] = []
        os.environ[RUN] = self._run = f"{os.getpid()}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401
        self.found += getattr(node, "workeroutput", {}).get(KEY, [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.found += self._processes()
        if self.found and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:  # noqa: ANN401
        if self.found:
            terminalreporter.section("leaks")
            for each in self.found:
                terminalreporter.write_line(f"LEAKED {each}", red=True)

    def _processes(self) -> list[str]:
        """Processes of this run that have not ended; they are killed."""
        ours = f"{RUN}={self._run}"
        found = []
        for each in Path("/proc").iterdir():
            if not each.name.isdigit() or int(each.name) == os.getpid():
                continue
            with suppress(OSError):
                env = (each / "environ").read_bytes().decode(errors="replace").split("\0")
                if ours not in env:
                    continue
                words = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
                by = [x.partition("=")[2] for x in env if x.startswith("PYTEST_CURRENT_TEST=")]
                if by and words:  # else a worker of xdist, or a process that is just ending
                    found.append(f"process {words}: {by[0]}")
                    os.kill(int(each.name), signal.SIGKILL)
        return found


def _named(thread: threading.Thread) -> str:
    return f"thread {thread.name} ({thread.ident})"


def _sockets() -> list[str]:
    found = []
    for each in os.scandir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(each.path)
            if target.startswith("socket:"):
                found.append(target)
    return found
