"""One SQLite connection: whole transactions, one at a time, with a fair wait for the lock.

Everything here blocks and runs in a worker thread. A transaction that fails changes nothing; one
that found the database locked is run again from its beginning. Errors of the driver become errors
of the store that say what to do.

Why not SQLite's own busy handler: it pauses longer and longer, up to 100 ms. Under load that is
unfair: the call that has waited longest tries least often, new calls overtake it, and some writers
starve for seconds. Here the longest pause (``LockWait``) shrinks the longer a call has waited, so
the oldest call tries most often. Each pause is random, so that callers do not synchronise.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from leasehold.clock import SystemClock, system_random
from leasehold.errors import StoreUnavailable, StoreUnusable, UsageError
from leasehold.stores.sqlite.migrations import queries

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

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
    """Return whether another process holds the lock: a later try may succeed."""
    return _kind(error) in _BUSY


def unusable(path: Path, error: sqlite3.Error) -> StoreUnusable:
    """Return the error for a database that answers and cannot serve."""
    meaning = _MEANING.get(_kind(error), "can not serve")
    return StoreUnusable(f"{path} {meaning} ({error})")


def _kind(error: sqlite3.Error) -> int:
    # Errors that Python's own module makes carry no code.
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & _KIND


# Measured with 2 to 24 processes that renew without a pause, on two cores: with a smaller minimum
# the tries themselves take the processor away from the lock holder.
_FIRST_S = 0.020
_MIN_S = 0.002
# After this time the longest pause is half of the first one, after twice that a third, ...
_SHRINK_S = 0.050


def max_pause_s(waited_s: float) -> float:
    """Return the upper limit of the next pause of a call that has waited ``waited_s``."""
    return max(_MIN_S, _FIRST_S / (1 + waited_s / _SHRINK_S))


class LockWait:
    """The wait of one call for a lock, at most ``limit_s`` in total."""

    def __init__(
        self, limit_s: float, *, rng: random.Random, stopwatch: Callable[[], float]
    ) -> None:
        self._limit_s = limit_s
        self._rng = rng
        self._stopwatch = stopwatch
        self._since = stopwatch()

    @property
    def left_s(self) -> float:
        """The rest of the limit."""
        return max(0.0, self._limit_s - (self._stopwatch() - self._since))

    def pause(self, given_up: threading.Event) -> bool:
        """Pause; False, without a pause, if the time is over or the call was given up."""
        left_s = self.left_s
        if not left_s:
            return False
        longest_s = max_pause_s(self._limit_s - left_s)
        return not given_up.wait(min(left_s, self._rng.uniform(0.0, longest_s)))


_LOCKS = Path("/proc/locks")
_WRITE_LOCK_AT = range(120, 123)  # in the -shm file: the locks to write, checkpoint and recover


def _lock_holder(path: Path) -> str:
    """Describe the process that holds the write lock, as far as the kernel tells it.

    The lock file is not opened: closing it would release the locks that SQLite has on it here.
    """
    unknown = "another process (look for one that is stopped in a transaction)"
    try:
        found = path.with_name(f"{path.name}-shm").stat()
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        locks = [line.split() for line in _LOCKS.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return unknown
    for words in locks:
        # "7: POSIX ADVISORY WRITE 4711 fe:00:1234 120 120"; a process that waits has "->" in it.
        if words[1:2] == ["POSIX"] and words[3:4] == ["WRITE"] and words[5:6] == [device]:
            pid, first = int(words[4]), int(words[6])
            if first in _WRITE_LOCK_AT and pid > 0:
                return _described(pid)
    return unknown


def _described(pid: int) -> str:
    """Name a process, and say what to do if it is stopped."""
    if pid == os.getpid():
        return "another connection of this process"
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        if state.rpartition(")")[2].split()[0] in {"T", "t"}:
            return (
                f"process {pid}, which is stopped in a transaction (let it continue with "
                f"`kill -CONT {pid}`, or end it with `kill -KILL {pid}`: then what it had begun is "
                "undone)"
            )
    return f"process {pid}"


T = TypeVar("T")
Params = dict[str, str | int | float | None]

_CACHED_STATEMENTS = 128


class Transaction:
    """Runs statements by name in an open transaction."""

    def __init__(
        self, connection: sqlite3.Connection, texts: Mapping[str, str] | None = None
    ) -> None:
        """``texts`` are the statements by name; by default those of the store."""
        self._connection = connection
        self._texts = queries() if texts is None else texts

    def using(self, texts: Mapping[str, str]) -> Transaction:
        """Return the same transaction with other statements."""
        return Transaction(self._connection, texts)

    def all(self, name: str, **params: str | float | None) -> list[Any]:
        """Return all rows of the answer, as tuples."""
        return self._connection.execute(self._texts[name], params).fetchall()

    def one(self, name: str, **params: str | float | None) -> Any | None:
        """Return the first row of the answer; None if there is none."""
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
        """Return the version of the last change, and the boot id that the times refer to."""
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


def _uri(path: Path) -> str:
    """Return the URI with which SQLite opens a file and never makes one, open to other users."""
    quoted = quote(os.fsencode(path))
    return f"file:{'//' if quoted.startswith('/') else ''}{quoted}?mode=rw"


class Database:
    """A database file, open. Safe to use from several threads; not in a forked process."""

    def __init__(self, path: Path, *, busy_limit_s: float) -> None:
        """Connect to a file that exists; nothing is read or written yet."""
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
                _uri(path),
                uri=True,
                timeout=0.0,  # no busy handler: see ``LockWait``
                isolation_level=None,  # only explicit transactions
                check_same_thread=False,  # the lock serialises the threads
                cached_statements=_CACHED_STATEMENTS,
            )
        except sqlite3.Error as error:
            raise unusable(path, error) from error

    def use_write_ahead_log(self) -> None:
        """Switch on the write-ahead log, with a sync at each commit."""
        (mode,) = self._run_locked(
            lambda connection: connection.execute("PRAGMA journal_mode = WAL").fetchone(),
            threading.Event(),
        )
        if mode != "wal":
            raise StoreUnusable(
                f"{self.path} lies on a file system on which processes can not share memory "
                f"(journal mode {mode!r}): put it on a local disk"
            )
        # FULL, though it waits for the disk at each commit: with less, a power failure could
        # undo the last grants, and an epoch that was already used elsewhere would be issued
        # again. Epochs never decrease.
        self._run_locked(lambda connection: connection.execute("PRAGMA synchronous = FULL"))

    def keep_identity(self) -> None:
        """Remember which file this is, to notice when it is replaced."""
        self._identity = self._file()

    def write(self, work: Callable[[Transaction], T], given_up: threading.Event | None = None) -> T:
        """Run ``work`` in one transaction under the write lock. It may be run several times."""
        return self._run_locked(
            lambda con: self._transaction(con, "BEGIN IMMEDIATE", work), given_up
        )

    def read(self, work: Callable[[Transaction], T], given_up: threading.Event | None = None) -> T:
        """Run ``work`` on one consistent state of the database, without the write lock."""
        return self._run_locked(lambda con: self._transaction(con, "BEGIN", work), given_up)

    def close(self) -> None:
        """Wait for the running call, then close the file. Safe to call twice."""
        if self.forked:
            return  # the locks and the log of the file belong to the process that opened it
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened it."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise ``UsageError`` in a child of the process that opened it."""
        if self.forked:
            raise UsageError(
                f"{self.path} was opened before this process was forked: a SQLite connection "
                "must not be shared with a child; open the store again in each process"
            )

    def _run_locked(
        self,
        action: Callable[[sqlite3.Connection], T],
        given_up: threading.Event | None = None,
    ) -> T:
        # Before anything else: the lock may have been held at the moment of the fork.
        self.check_process()
        lock_wait = LockWait(self._busy_limit_s, rng=self._rng, stopwatch=self._stopwatch)
        if not self._lock.acquire(timeout=self._busy_limit_s):
            raise StoreUnavailable(
                f"{self.path}: other calls of this process kept it busy for "
                f"{self._busy_limit_s:g} s"
            )
        try:
            return self._retry_while_locked(action, lock_wait, given_up or threading.Event())
        except OverflowError as error:
            raise UsageError(f"{error}: numbers in this store have 64 bits") from error
        finally:
            self._lock.release()

    def _retry_while_locked(
        self,
        action: Callable[[sqlite3.Connection], T],
        lock_wait: LockWait,
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
                if not lock_wait.pause(given_up):
                    raise StoreUnavailable(
                        f"{self.path} is locked by {_lock_holder(self.path)} for "
                        f"{self._busy_limit_s:g} s: nothing was written"
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
            # After a full disk or a failed commit SQLite may have rolled back already.
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
