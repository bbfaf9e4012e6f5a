"""The kinds of tests, which are the folders below each room, and what each kind may use.

=============  ===================================================================
``unit``       one module or a few, in this process
``simulation`` many seeds on a simulated clock
``contract``   the suite that every store passes, on one store
``integration`` real files, sockets, threads and servers, in this process
``processes``  child processes, killed and paused
``session``    the Spark session that all such tests share
``drivers``    Spark drivers as processes
``cluster``    a standalone Spark cluster
=============  ===================================================================

Three marks say what a test needs: ``server`` (PostgreSQL, Azurite, or our hub with the clients of
Azure), ``process`` (a child process) and ``spark``. Folders and parameters give most of them, a
test can carry one itself, and the guard fails a test that starts a process without one. ``make
fast`` runs the tests that have none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
NEEDS = ("server", "process", "spark")
NEEDED = {"processes": "process", "session": "spark", "drivers": "spark", "cluster": "spark"}
# Long kinds begin first, so that the end is made of short tests and all workers end together.
ORDER = ("cluster", "drivers", "session", "processes", "contract", "simulation", "integration")
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})


def kind_of(path: Path) -> str:
    """The folder below the room; empty for a file that is not a test of ours."""
    return path.relative_to(TESTS).parts[1] if TESTS in path.parents else ""


def mark(item: pytest.Item) -> None:
    """Add the marks that follow from the folder and the parameters."""
    if need := NEEDED.get(kind_of(item.path)):
        item.add_marker(need)
    call = getattr(item, "callspec", None)
    if call is not None and "postgres" in call.params.values():
        item.add_marker("server")


def rank(item: pytest.Item) -> int:
    """Where the test stands in ``ORDER``."""
    kind = kind_of(item.path)
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


class ByKind(LoadScopeScheduling):  # type: ignore[misc]
    """One worker runs all that shares the Spark session, another one all that starts drivers."""

    def _split_scope(self, nodeid: str) -> str:
        parts = nodeid.partition("::")[0].split("/")
        kind = parts[2] if len(parts) > 3 else ""
        if kind in {"drivers", "cluster"}:
            return "drivers"
        return "session" if kind == "session" else nodeid


class Guard:
    """Fails a test that starts a process or uses a server and has no mark that allows it."""

    active: Guard | None = None

    def __init__(self) -> None:
        self._watches = False
        self._started: list[str] = []
        Guard.active = self
        sys.addaudithook(self._hear)

    def note(self, what: str) -> None:
        """Something is used that needs a mark."""
        if self._watches:
            self._started.append(what)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        # The first inotify of a process looks for its library with ldconfig.
        if event in STARTS and "ldconfig" not in str(args):
            self.note(f"{event} {args[1] if len(args) > 1 else ''}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._started.clear()
        self._watches = not any(map(item.get_closest_marker, NEEDS))
        try:
            return (yield)
        finally:
            self._watches = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        if self._started:
            pytest.fail(
                f"needs more than this process ({self._started[0]}): mark the test with one of "
                f"{', '.join(NEEDS)}, or move it to a folder 'processes'",
                pytrace=False,
            )


def uses(server: str) -> None:
    """Say that the test that runs now uses a server."""
    if Guard.active is not None:
        Guard.active.note(server)
