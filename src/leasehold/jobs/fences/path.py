"""A file that is replaced as a whole, and only by the current holder of a job.

Beside it are two more files: ``.NAME.fence`` has the highest epoch so far; ``.NAME.lock``
is locked (``flock``) while that is compared and while the file is replaced.

- A reader sees the old file or the new one, complete, at any time and after any crash.
- The epoch is raised, and synced, before the block begins. It is compared again under the lock when
  the block has ended: a writer that was paused in between is rejected.
- While a block runs nothing is locked, so no process waits for a writer that is paused in it.

The block writes to a draft beside the file. A draft that a killed process has left is removed by
the next writer.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import stat
import threading
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from leasehold.clock import SystemClock, host_name, new_suffix, system_random
from leasehold.errors import DataDamaged, JobHeld, UsageError
from leasehold.jobs.fences.epoch import epoch_number, fenced_write
from leasehold.names import seconds_of
from leasehold.runtime.private_files import open_or_create
from leasehold.stores.sqlite.database import LockWait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.jobs.fences.epoch import HasEpoch

_LOCK_TIMEOUT = timedelta(seconds=30)
_MAX_LOCK_TIMEOUT_S = 3600.0
_DRAFT = ".draft"
_NEW_FILE = 0o666  # less what the umask takes away


class FencedPath:
    """One file. Any number of processes and threads may replace it; the highest epoch wins.

    Its mode is kept, and its owner where the process may set it; a new file gets the mode that the
    umask leaves. Symbolic links are followed, hard links are cut. Anything but a regular file is
    rejected. The file system must have working locks (``flock``) and an atomic rename, as all
    local ones do.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, patience: timedelta = _LOCK_TIMEOUT
    ) -> None:
        """``patience`` is how long to wait for another process that is replacing the file.

        Raises:
            InvalidDuration: it is longer than an hour.
        """
        self.path = Path(os.path.realpath(path))
        self._fence = self.path.with_name(f".{self.path.name}.fence")
        self._lock = self.path.with_name(f".{self.path.name}.lock")
        self._lock_timeout_s = seconds_of(
            patience, what="patience", min_s=0.0, max_s=_MAX_LOCK_TIMEOUT_S
        )

    @contextmanager
    def replace(self, epoch: int | HasEpoch) -> Iterator[BinaryIO]:
        """Write the new content in the block; at its end it replaces the old one durably.

        An error in the block leaves the file as it was.

        Raises:
            FencedWrite: a higher epoch was seen, before or during the block. Nothing was changed.
            JobHeld: another process has been replacing it for longer than the patience.
            DataDamaged: the file with the highest epoch cannot be read.
            OSError: the directory cannot be written to, the disk is full, and the like.
            UsageError: the epoch is not valid, the path is not that of a regular file, or the
                block closed the file.
        """
        number = epoch_number(epoch)
        self._check_kind()
        with ExitStack() as last:
            with self._locked(number):
                self._remove_stale_drafts()
                self._raise_epoch(number)
                draft = self._new_draft()
                last.callback(_remove, draft)
                file = last.enter_context(_locked_draft(draft, mode=self._mode()))
            yield file
            if file.closed:
                raise UsageError(
                    f"the block has closed the file, so {self.path} was not replaced: leave it "
                    "open, it is closed at the end of the block"
                )
            self._finish(file)
            with self._locked(number):
                self._raise_epoch(number)
                self._check_kind()
                draft.replace(self.path)
                _sync_directory(self.path.parent)

    @contextmanager
    def replace_text(self, epoch: int | HasEpoch, *, encoding: str = "utf-8") -> Iterator[TextIO]:
        """Write the new content as text; see ``replace``."""
        with self.replace(epoch) as file:
            text = io.TextIOWrapper(file, encoding=encoding, newline="")
            try:
                yield text
                if not text.closed:
                    text.flush()
            finally:
                if not text.closed:
                    text.detach()

    def highest_epoch(self) -> int:
        """Return the highest epoch so far; 0 if there was none.

        Raises:
            DataDamaged: the file that it is in cannot be read.
        """
        try:
            found = json.loads(self._fence.read_bytes())["token"]
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, int):
            raise DataDamaged(
                f"{self._fence} can not be read, so nobody can tell which epoch was the last: "
                "bring it back from a backup, or delete it when no writer but the current holder "
                "of the job is alive"
            )
        return found

    def _check_kind(self) -> None:
        """Reject anything but a regular file: a rename would replace a device or a pipe."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            raise UsageError(
                f"{self.path} is {_kind_of(mode)}, and only a regular file can be replaced: give "
                "the path of a file, or of one that does not exist yet"
            )

    # ------------------------------------------------------------ steps, under the lock

    def _raise_epoch(self, number: int) -> None:
        """Make the epoch the highest one, unless there is a higher one."""
        highest = self.highest_epoch()
        if highest > number:
            raise fenced_write(
                f"the new content of {self.path}",
                epoch=number,
                highest=highest,
                key=str(self.path),
                if_recreated=f"delete {self._fence}",
            )
        if highest < number:
            draft = self._new_draft()
            try:
                with _locked_draft(draft) as file:
                    file.write(json.dumps({"token": number}).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                    draft.replace(self._fence)
            except BaseException:
                _remove(draft)
                raise
            # Before anything is written under it: it must survive a power failure.
            _sync_directory(self.path.parent)

    def _new_draft(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{new_suffix()}{_DRAFT}")

    def _remove_stale_drafts(self) -> None:
        """Remove drafts whose process has ended, and with it the lock on them."""
        # The suffix has no dot: a name with one is a draft of another file, such as NAME.bak.
        mine = re.compile(rf"\.{re.escape(self.path.name)}\.[0-9a-f]+{re.escape(_DRAFT)}")
        for draft in self.path.parent.iterdir():
            if not mine.fullmatch(draft.name):
                continue
            with suppress(OSError), draft.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()

    def _mode(self) -> int:
        """Return the mode for the draft: as readable as the file that it replaces, and no more."""
        try:
            return stat.S_IMODE(self.path.stat().st_mode)
        except FileNotFoundError:
            return _NEW_FILE

    def _finish(self, file: BinaryIO) -> None:
        """Sync the draft, with the mode and owner of the current file."""
        file.flush()
        with suppress(FileNotFoundError):
            found = self.path.stat()
            with suppress(PermissionError):
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
        os.fsync(file.fileno())

    @contextmanager
    def _locked(self, number: int) -> Iterator[None]:
        """Hold the lock, so that no other process compares or replaces.

        The kernel releases it when the process ends. It is released by a call, not by closing the
        file: a process that was forked in the meantime has the file open too.
        """
        stopwatch, never = SystemClock().boottime_s, threading.Event()
        lock_wait = LockWait(self._lock_timeout_s, rng=system_random(), stopwatch=stopwatch)
        while True:
            with os.fdopen(open_or_create(self._lock), "r+b") as lock:
                if _is_locked_now(lock, self._lock):
                    try:
                        lock.truncate(0)
                        lock.write(f"{number} process {os.getpid()} on {host_name()}\n".encode())
                        lock.flush()
                        yield
                    finally:
                        fcntl.flock(lock, fcntl.LOCK_UN)
                    return
                if not lock_wait.pause(never):
                    raise self._busy(lock)

    def _busy(self, lock: BinaryIO) -> JobHeld:
        lock.seek(0)
        epoch, _, who = lock.read(200).decode(errors="replace").strip().partition(" ")
        who = who or "another process"
        return JobHeld(
            f"{who} has been replacing {self.path} for {self._lock_timeout_s:g} s or more: if it "
            "is stopped, end it, and the lock is gone with it; if its disk is slow, wait longer",
            holder=who,
            epoch=int(epoch) if epoch.isdecimal() else 0,
            ends_in_s=0.0,
        )


def _is_locked_now(lock: BinaryIO, path: Path) -> bool:
    """Lock the file if no other process has; False too if it is not the one at ``path`` any more.

    A lock on a file that was removed or renamed keeps no process out: others lock the new one.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    return False


@contextmanager
def _locked_draft(draft: Path, *, mode: int = _NEW_FILE) -> Iterator[BinaryIO]:
    """Create a draft, locked while it is open, which shows whether its process still runs."""
    handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _remove(draft: Path) -> None:
    draft.unlink(missing_ok=True)


def _kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
