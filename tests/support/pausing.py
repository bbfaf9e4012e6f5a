"""SIGSTOP to a process that uses a SQLite store, but not in the middle of a transaction.

A process that is stopped there keeps the whole file locked for all processes until it resumes. That
is how SQLite works, is reported after 5 s, and is not what a test of a pause means to show. So the
test holds the store's write lock while it stops a process. A process can have itself stopped like
that, too: ``pause_me`` starts this module as a program.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_SQLITE = "sqlite:///"
_LOCK_S = 120.0


@contextmanager
def no_transaction(url: str) -> Iterator[None]:
    """Hold the write lock of a SQLite store: no other process is in a transaction then."""
    if not url.startswith(_SQLITE):
        yield
        return
    path = url.removeprefix(_SQLITE).partition("?")[0]
    with closing(sqlite3.connect(path, timeout=_LOCK_S, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def pause(pid: int, url: str) -> None:
    """Return when it is paused and the store can be written to."""
    with no_transaction(url):
        os.kill(pid, signal.SIGSTOP)
        _still(pid)


def pause_me(url: str, *, group: bool = False) -> None:
    """Stop this process, or its whole group, until it gets SIGCONT."""
    number = -os.getpgid(0) if group else os.getpid()
    if url.startswith(_SQLITE):
        program = [sys.executable, "-m", "tests.support.pausing", str(number), url]
        subprocess.run(program, cwd=_ROOT, check=True, start_new_session=True)
    elif group:
        os.kill(number, signal.SIGSTOP)
    else:
        # To this thread, which stops here; the others stop with it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _still(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "Tt":
        threading.Event().wait(0.001)


if __name__ == "__main__":
    _who, _url = int(sys.argv[1]), sys.argv[2]
    with no_transaction(_url):
        os.kill(_who, signal.SIGSTOP)
        _still(os.getppid())
