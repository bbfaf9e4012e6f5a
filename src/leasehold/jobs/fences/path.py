"""A file that is replaced as a whole, and only by the current holder of a job.

Beside it are two more files: ``.NAME.fence`` has the highest epoch that was shown; ``.NAME.lock``
is locked (``flock``) while that is compared and while the file is replaced.

- A reader sees the file of before or the new one, whole, at any moment and after any crash.
- The epoch is raised, and synced, before the block begins. It is compared again under the lock when
  the block has ended: a writer that slept meanwhile is refused, however far it was.
- While a block runs nothing is locked, so nobody waits for a writer that stands still in it.

What the block writes goes to a draft beside the file. A draft that a killed process has left is
removed by the next writer.
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
from leasehold.jobs.fences.token import epoch_of, refusal
from leasehold.names import seconds_of
from leasehold.stores.sqlite.database import LockWait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.jobs.fences.token import HasEpoch

_PATIENCE = timedelta(seconds=30)
_LONGEST_S = 3600.0
_DRAFT = ".draft"
_NEW_FILE = 0o666  # less what the umask takes away


class FencedPath:
    """One file. Any number of processes and threads may replace it; the highest epoch wins.

    Its mode is kept, and its owner where the process may set it; a new file has what the umask
    leaves. Symbolic links are followed, hard links are cut. What is there and is no regular file
    is refused. The file system must have locks that work (``flock``) and a rename that is one
    step: all local ones do.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience: timedelta = _PATIENCE) -> None:
        """``patience``: how long to wait for another process that replaces it right now.

        Raises:
            InvalidDuration: it is longer than an hour.
        """
        self.path = Path(os.path.realpath(path))
        self._fence = self.path.with_name(f".{self.path.name}.fence")
        self._lock = self.path.with_name(f".{self.path.name}.lock")
        self._patience_s = seconds_of(patience, what="patience", min_s=0.0, max_s=_LONGEST_S)

    @contextmanager
    def replace(self, epoch: int | HasEpoch) -> Iterator[BinaryIO]:
        """Write the new content in the block; at its end it takes the place of the old, durably.

        An error in the block leaves the file as it was.

        Raises:
            FencedWrite: a higher epoch was shown, before or during the block. Nothing was changed.
            JobHeld: another process has been replacing it for longer than the patience.
            DataDamaged: the file with the highest epoch can not be read.
            OSError: the directory can not be written to, the disk is full, and the like.
            UsageError: the epoch is none, the path is a directory, a device or the like, or the
                block closed the file.
        """
        number = epoch_of(epoch)
        self._check_kind()
        with ExitStack() as last:
            with self._locked(number):
                self._sweep()
                self._show(number)
                draft = self._new_draft()
                last.callback(_removed, draft)
                file = last.enter_context(_held(draft, mode=self._mode()))
            yield file
            if file.closed:
                raise UsageError(
                    f"the block has closed the file, so {self.path} was not replaced: leave it "
                    "open, it is closed at the end of the block"
                )
            self._finish(file)
            with self._locked(number):
                self._show(number)
                self._check_kind()
                draft.replace(self.path)
                _sync_directory(self.path.parent)

    @contextmanager
    def replace_text(self, epoch: int | HasEpoch, *, encoding: str = "utf-8") -> Iterator[TextIO]:
        """The same for text; see ``replace``."""
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
        """Return the highest epoch that was shown; 0 if there was none.

        Raises:
            DataDamaged: the file that it is in can not be read.
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
        """A rename would put a plain file in the place of a device or a pipe, for all who use it.

        Raises:
            UsageError: there is something that is no regular file.
        """
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            raise UsageError(
                f"{self.path} is {_kind(mode)}, and only a regular file can be replaced: give the "
                "path of a file, or of one that does not exist yet"
            )

    # ------------------------------------------------------------ steps, under the lock

    def _show(self, number: int) -> None:
        """Make the epoch the highest one.

        Raises:
            FencedWrite: there is a higher one.
        """
        highest = self.highest_epoch()
        if highest > number:
            raise refusal(
                f"the new content of {self.path}",
                epoch=number,
                highest=highest,
                key=str(self.path),
                made_anew=f"delete {self._fence}",
            )
        if highest < number:
            draft = self._new_draft()
            try:
                with _held(draft) as file:
                    file.write(json.dumps({"token": number}).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                    draft.replace(self._fence)
            except BaseException:
                _removed(draft)
                raise
            # Before anything is written under it: after a power cut it must not be forgotten.
            _sync_directory(self.path.parent)

    def _new_draft(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{new_suffix()}{_DRAFT}")

    def _sweep(self) -> None:
        """Remove drafts whose process has gone: the lock on them went with it."""
        # The suffix has no dot: what has one is a draft of another file, such as NAME.bak.
        mine = re.compile(rf"\.{re.escape(self.path.name)}\.[0-9a-f]+{re.escape(_DRAFT)}")
        for draft in self.path.parent.iterdir():
            if not mine.fullmatch(draft.name):
                continue
            with suppress(OSError), draft.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()

    def _mode(self) -> int:
        """For the draft: nobody may read it who may not read the file that it will be."""
        try:
            return stat.S_IMODE(self.path.stat().st_mode)
        except FileNotFoundError:
            return _NEW_FILE

    def _finish(self, file: BinaryIO) -> None:
        """All bytes on the disk, with the mode of the file that is there now."""
        file.flush()
        with suppress(FileNotFoundError):
            found = self.path.stat()
            with suppress(PermissionError):
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
        os.fsync(file.fileno())

    @contextmanager
    def _locked(self, number: int) -> Iterator[None]:
        """Nobody else compares or replaces. The kernel lets go when the process ends.

        It is let go by a call, not by closing the file: a process that was forked meanwhile has
        the file open too.
        """
        stopwatch, never = SystemClock().boottime_s, threading.Event()
        patience = LockWait(self._patience_s, rng=system_random(), stopwatch=stopwatch)
        with self._lock.open("a+b") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not patience.pause(never):
                        raise self._busy(lock) from None
            try:
                lock.truncate(0)
                lock.write(f"{number} process {os.getpid()} on {host_name()}\n".encode())
                lock.flush()
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _busy(self, lock: BinaryIO) -> JobHeld:
        lock.seek(0)
        epoch, _, who = lock.read(200).decode(errors="replace").strip().partition(" ")
        who = who or "another process"
        return JobHeld(
            f"{who} has been replacing {self.path} for {self._patience_s:g} s or more: if it is "
            "stopped, end it, and the lock is gone with it; if its disk is slow, wait longer",
            holder=who,
            epoch=int(epoch) if epoch.isdecimal() else 0,
            ends_in_s=0.0,
        )


@contextmanager
def _held(draft: Path, *, mode: int = _NEW_FILE) -> Iterator[BinaryIO]:
    """A new file, locked for as long as it is open: so it is known whose process has gone."""
    handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _removed(draft: Path) -> None:
    draft.unlink(missing_ok=True)


def _kind(mode: int) -> str:
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
