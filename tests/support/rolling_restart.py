"""A rolling restart of three workers over 200 seconds, beside all other tests.

It is a process of its own, which waits and hardly works: whoever comes first in a session starts
it, and whoever comes last finds what has become of it. It ends with the session at the latest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from tests.support.worker_place import ROOT, TICKING, Place, stop, until

OCCURRENCES = 200
WORKERS = 3
APART = 10  # occurrences between two restarts
# No worker dies here. A machine with much else to do must not cost a lease.
LEASE_S = "30"
LONG_S = 600.0
_STARTED: list[subprocess.Popen[bytes]] = []


class RollingRestart:
    """The one of this session. It is started by the first who asks for it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        base, parallel = factory.getbasetemp(), "PYTEST_XDIST_WORKER" in os.environ
        self.directory = (base.parent if parallel else base) / "rolling-restart"
        try:
            self.directory.mkdir()
        except FileExistsError:
            return
        session = os.getppid() if parallel else os.getpid()
        words = [sys.executable, "-m", "tests.support.rolling_restart"]
        _STARTED.append(subprocess.Popen([*words, str(self.directory), str(session)], cwd=ROOT))

    def begun(self) -> int:
        """Wait for the first occurrences; return how many there were."""
        book = self.directory / "book"
        until(lambda: book.exists() and "tick" in book.read_text(), within_s=LONG_S)
        return book.read_text().count("tick")

    def outcome(self) -> dict[str, Any]:
        """Wait for the end; return what was run."""
        found = self.directory / "outcome"
        until(found.exists, within_s=LONG_S)
        outcome: dict[str, Any] = json.loads(found.read_text())
        return outcome


def rolled(place: Place) -> int:
    """Replace one after the other; return how many were."""

    def start() -> subprocess.Popen[bytes]:
        return place.start(*TICKING, place.url, WORKER_LEASE_S=LEASE_S)

    workers, restarts = [start() for _ in range(WORKERS)], 0
    while (done := len(place.lines("tick"))) < OCCURRENCES:
        ready, more = WORKERS + restarts, min(done + APART, OCCURRENCES)
        until(lambda ready=ready: len(place.lines("ready")) >= ready, within_s=LONG_S)  # type: ignore[misc]
        until(lambda more=more: len(place.lines("tick")) >= more, within_s=LONG_S)  # type: ignore[misc]
        workers.append(start())
        stop(workers.pop(0))
        restarts += 1
    # One that has just been started does not listen to signals yet.
    until(lambda: len(place.lines("ready")) >= WORKERS + restarts, within_s=LONG_S)
    for each in workers:
        stop(each)
    return restarts


def main(directory: Path, session: int) -> None:
    place, outcome = Place(directory), dict[str, Any]()

    def watch() -> None:
        while Path(f"/proc/{session}").exists():
            threading.Event().wait(1.0)
        place.end()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        outcome["restarts"] = rolled(place)
    except BaseException:
        outcome["trouble"] = traceback.format_exc()
        raise
    finally:
        place.end()
        outcome["ran"] = [[int(word) for word in line[1:3]] for line in place.lines("tick")]
        written = directory / "outcome.part"
        written.write_text(json.dumps(outcome))
        written.rename(directory / "outcome")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
