"""SIGSTOP to a process that uses a SQLite store, but not in the middle of a transaction.

One that is stopped there keeps the whole file locked, for everybody, until it goes on: that is
SQLite's way, is told after 5 s, and is not what a test of a pause means to show.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

_SQLITE = "sqlite:///"
_TRIES = 500


def pause(pid: int, url: str) -> None:
    """Return when it stands still and the store can be written to."""
    for _ in range(_TRIES):
        os.kill(pid, signal.SIGSTOP)
        while "T" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
            threading.Event().wait(0.001)
        if not url.startswith(_SQLITE) or _is_free(url.removeprefix(_SQLITE)):
            return
        os.kill(pid, signal.SIGCONT)
        threading.Event().wait(0.01)
    raise AssertionError(f"{url} is locked whenever it is looked at")


def _is_free(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True
