"""One SQLite connection: whole transactions, one at a time, with a fair wait for the lock.

Everything here blocks and runs in a worker thread. A transaction that fails leaves nothing
behind; one that found the database locked is run again from its beginning.

What the driver's errors mean to a user of the store.

How a call waits for a lock that somebody else holds.

SQLite's own busy handler pauses longer and longer, up to 100 ms. Under load that turns fairness
upside down: who has waited longest asks most seldom, newcomers get in before it, and some writers
starve for seconds. Here the longest pause *shrinks* the longer a call has waited, so that the one
that has waited longest asks most often. Each pause is drawn by lot, so that callers do not march
in step.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.clock import SystemClock, system_random
from leasehold.errors import StoreUnavailable, StoreUnusable, UsageError
from leasehold.stores.sqlite.migrations import queries

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence
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
_NOT_A_DATABASE = "is no database that Leasehold can read: choose another path"
_MEANING = {
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: "can not be opened: give this process the right to write to the file "
    "and to make files in its directory",
    sqlite3.SQLITE_FULL: "has no room to grow, the disk is full: nothing was written; make room",
    sqlite3.SQLITE_IOERR: "can not be read or written: look at the disk and the system's log",
    sqlite3.SQLITE_CORRUPT: "is damaged: stop all that use it and bring back a copy",
    sqlite3.SQLITE_NOTADB: _NOT_A_DATABASE,
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


# Measured with 2 to 24 processes that renew without a pause, on two cores: with a smaller least
# pause the asking itself takes the processor away from the one that holds the lock.
_FIRST_S = 0.020
_MIN_S = 0.002
# After this time the longest pause is half of the first one, after twice that a third, ...
_SHRINK_S = 0.050


def longest_pause_s(waited_s: float) -> float:
    """The upper limit of the next pause of a call that has waited for so long."""
    return max(_MIN_S, _FIRST_S / (1 + waited_s / _SHRINK_S))


class LockWait:
    """The waiting of one call, ``limit_s`` in total at most."""

    def __init__(
        self, limit_s: float, *, rng: random.Random, stopwatch: Callable[[], float]
    ) -> None:
        """Begin to wait now."""
        self._limit_s = limit_s
        self._rng = rng
        self._stopwatch = stopwatch
        self._since = stopwatch()

    @property
    def left_s(self) -> float:
        """What remains of the limit."""
        return max(0.0, self._limit_s - (self._stopwatch() - self._since))

    def pause(self, given_up: threading.Event) -> bool:
        """Wait a little; False, at once, if the time is over or nobody wants the answer now."""
        left_s = self.left_s
        if not left_s:
            return False
        longest_s = longest_pause_s(self._limit_s - left_s)
        return not given_up.wait(min(left_s, self._rng.uniform(0.0, longest_s)))


T = TypeVar("T")
Params = dict[str, str | int | float | None]

_CACHED_STATEMENTS = 128


class Transaction:
    """Statements by name, in the transaction that is open."""

    def __init__(
        self, connection: sqlite3.Connection, texts: Mapping[str, str] | None = None
    ) -> None:
        """Over a connection in which a transaction has begun.

        ``texts`` are the statements by name; those of the store if none are given.
        """
        self._connection = connection
        self._texts = queries() if texts is None else texts

    def using(self, texts: Mapping[str, str]) -> Transaction:
        """The same transaction, with other statements."""
        return Transaction(self._connection, texts)

    def all(self, name: str, **params: str | float | None) -> list[Any]:
        """All rows of the answer, as tuples."""
        return self._connection.execute(self._texts[name], params).fetchall()

    def one(self, name: str, **params: str | float | None) -> Any | None:
        """The first row of the answer."""
        return self._connection.execute(self._texts[name], params).fetchone()

    def run(self, name: str, **params: str | float | None) -> int:
        """Run a statement that changes something; return how many rows it changed."""
        return self._connection.execute(self._texts[name], params).rowcount

    def many(self, name: str, params: Sequence[Params]) -> int:
        """Run a statement once for each set of values; return how many rows it changed."""
        if not params:
            return 0
        return self._connection.executemany(self._texts[name], params).rowcount

    def meta(self) -> tuple[int, str]:
        """The version of the last change, and the boot whose seconds the times are.

        Raises:
            StoreUnusable: somebody has deleted it.
        """
        found = self.one("meta")
        if found is None:
            raise StoreUnusable("the database has lost its row of meta: bring back a copy")
        return found[0], found[1]

    def script(self, statement: str) -> None:
        """Run one statement of a migration."""
        self._connection.execute(statement)

    def pragma(self, name: str) -> int:
        """Read a number of the database's header."""
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def set_pragma(self, name: str, value: int) -> None:
        """Write a number of the database's header, as part of the transaction."""
        self._connection.execute(f"PRAGMA {name} = {value:d}")


class Database:
    """A database file, open. Safe to use from several threads; not in a forked process."""

    def __init__(self, path: Path, *, busy_limit_s: float) -> None:
        """Connect; nothing is read or written yet.

        Raises:
            StoreUnusable: the file can not be opened.
        """
        self.path = path
        self._busy_limit_s = busy_limit_s
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._rng = system_random()
        # How long a call waits for others is real time, whatever clock the leases go by.
        self._stopwatch = SystemClock().boottime_s
        self._identity: tuple[int, int] | None = None
        try:
            self._connection: sqlite3.Connection | None = sqlite3.connect(
                path,
                timeout=0.0,  # no busy handler: see patience.py
                isolation_level=None,  # no transaction but those that are begun here
                check_same_thread=False,  # the lock sees to it that threads take turns
                cached_statements=_CACHED_STATEMENTS,
            )
        except sqlite3.Error as error:
            raise unusable(path, error) from error

    def use_write_ahead_log(self) -> None:
        """Readers and the writer do not hinder each other, and what was committed stays.

        Raises:
            StoreUnavailable: locked by others for too long.
            StoreUnusable: the file system can not do it, or the file can not be written.
        """
        (mode,) = self._alone(
            lambda connection: connection.execute("PRAGMA journal_mode = WAL").fetchone(),
            threading.Event(),
        )
        if mode != "wal":
            raise StoreUnusable(
                f"{self.path} lies on a file system on which processes can not share memory "
                f"(journal mode {mode!r}): put it on a local disk"
            )
        # FULL, though it waits for the disk at each commit: with less, a power cut could take
        # back the last grants, and an epoch that somebody has already shown elsewhere would be
        # given out a second time. Epochs never fall.
        self._alone(lambda connection: connection.execute("PRAGMA synchronous = FULL"))

    def keep_identity(self) -> None:
        """Remember which file this is, to notice when another one takes its place."""
        self._identity = self._file()

    def write(self, work: Callable[[Transaction], T], given_up: threading.Event | None = None) -> T:
        """Run ``work`` in one transaction under the write lock. It may be run several times.

        Raises:
            StoreUnavailable: locked by others for too long; nothing was written.
            StoreUnusable: read-only, full, damaged, or not the file that was opened.
            UsageError: closed, opened before a fork, or a number too big for the store.
        """
        return self._alone(lambda con: self._transaction(con, "BEGIN IMMEDIATE", work), given_up)

    def read(self, work: Callable[[Transaction], T], given_up: threading.Event | None = None) -> T:
        """Run ``work`` on one consistent state of the database, without the write lock.

        Raises:
            StoreUnavailable: locked by others for too long.
            StoreUnusable: damaged, or not the file that was opened.
            UsageError: closed, or opened before a fork.
        """
        return self._alone(lambda con: self._transaction(con, "BEGIN", work), given_up)

    def close(self) -> None:
        """Wait for the call that is running, then give the file back. Again is harmless."""
        if self.forked:
            return  # the file's locks and its log belong to the process that opened it
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened it."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Refuse to serve a child of the process that opened it.

        Raises:
            UsageError: this is one.
        """
        if self.forked:
            raise UsageError(
                f"{self.path} was opened before this process was forked: a SQLite connection "
                "must not be shared with a child; open the store again in each process"
            )

    def _alone(
        self,
        action: Callable[[sqlite3.Connection], T],
        given_up: threading.Event | None = None,
    ) -> T:
        # Before anything else: the lock may have been held at the moment of the fork.
        self.check_process()
        patience = LockWait(self._busy_limit_s, rng=self._rng, stopwatch=self._stopwatch)
        if not self._lock.acquire(timeout=self._busy_limit_s):
            raise StoreUnavailable(
                f"{self.path}: other calls of this process kept it busy for "
                f"{self._busy_limit_s:g} s"
            )
        try:
            return self._patiently(action, patience, given_up or threading.Event())
        except OverflowError as error:
            raise UsageError(f"{error}: numbers in this store have 64 bits") from error
        finally:
            self._lock.release()

    def _patiently(
        self,
        action: Callable[[sqlite3.Connection], T],
        patience: LockWait,
        given_up: threading.Event,
    ) -> T:
        if self._connection is None:
            raise UsageError(f"{self.path} is closed: open the store again")
        if given_up.is_set():
            raise StoreUnavailable(f"{self.path}: the call was given up before it began")
        while True:
            try:
                return action(self._connection)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise unusable(self.path, error) from error
                if not patience.pause(given_up):
                    raise StoreUnavailable(
                        f"{self.path} is locked by another process for {self._busy_limit_s:g} s: "
                        "nothing was written; look for one that is stopped in a transaction"
                    ) from error

    def _transaction(
        self, connection: sqlite3.Connection, begin: str, work: Callable[[Transaction], T]
    ) -> T:
        connection.execute(begin)
        try:
            self._check_identity()
            answer = work(Transaction(connection))
            connection.execute("COMMIT")
        except BaseException:
            # After a full disk or a failed commit SQLite may have rolled back by itself.
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        return answer

    def _check_identity(self) -> None:
        if self._identity not in {None, self._file()}:
            raise StoreUnusable(
                f"{self.path} was moved or replaced while it was in use: others would not "
                "see our leases, nor we theirs; open the store again"
            )

    def _file(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0)
        return (found.st_dev, found.st_ino)
