"""What the driver's errors mean to a user of the store."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnusable

if TYPE_CHECKING:
    from pathlib import Path

# The lower eight bits of a code are the kind of failure, the rest are details.
_KIND = 0xFF
_BUSY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    # Several processes tried to start or recover the write-ahead log at the same moment.
    sqlite3.SQLITE_PROTOCOL,
}
_READ_ONLY = (
    "is read-only to this process: give it the right to write to the file and its directory"
)
_NO_DATABASE = "is no database that Leasehold can read: choose another path"
_MEANING = {
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: "can not be opened: give this process the right to write to the file "
    "and to make files in its directory",
    sqlite3.SQLITE_FULL: "has no room to grow, the disk is full: nothing was written; make room",
    sqlite3.SQLITE_IOERR: "can not be read or written: look at the disk and the system's log",
    sqlite3.SQLITE_CORRUPT: "is damaged: stop all that use it and bring back a copy",
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock: the same again, later, may succeed."""
    return _kind(error) in _BUSY


def unusable(path: Path, error: sqlite3.Error) -> StoreUnusable:
    """The error for a database that answers and can not serve."""
    meaning = _MEANING.get(_kind(error), "can not serve")
    return StoreUnusable(f"{path} {meaning} ({error})")


def _kind(error: sqlite3.Error) -> int:
    # Errors that Python's own module makes carry no code.
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & _KIND
