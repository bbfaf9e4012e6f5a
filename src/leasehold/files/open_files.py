"""A bound on the descriptors of this process: files that are written share a limited number.

A writer has two files open on each volume. With many partitions that is more than a process may
open. ``BoundedDisk`` stands before the disk: a file that it created is known by a number, and has a
descriptor only while it is among those used last. Before one is closed for another, what was
written is synced, so that no failed write-back goes unnoticed. It is opened again under its path,
and must be the same file.

No free descriptor or no memory is a failure of this process and not of a volume. It is raised as
``ProcessExhausted``, which is not an ``OSError``: no volume is dropped for it.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from leasehold.errors import ProcessExhausted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.files.disk import Bytes, Disk

T = TypeVar("T")

_FIRST_NUMBER: Final = 1 << 30  # above every descriptor
_SHARE: Final = 4  # a quarter of the descriptors; the others are for readers, sockets, databases
_RANGE: Final = (16, 4096)
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_EXHAUSTED: Final = _NO_DESCRIPTOR | {errno.ENOMEM}
_TRIES: Final = 64
_PATIENCE_S: Final = 10.0
# Not needed after a power cut, and repaired by the next write of the page.
_UNSYNCED: Final = "acknowledged"


class _SharedFile:
    """A file that is being written; ``fd`` is None while it has no descriptor."""

    __slots__ = ("disk", "error", "fd", "identity", "is_closing", "is_dirty", "path", "users")

    def __init__(self, disk: Disk, path: str, fd: int) -> None:
        self.disk = disk
        self.path = path
        self.fd: int | None = fd
        self.identity: object = None
        self.users = 0
        self.is_dirty = self.is_closing = False
        self.error: OSError | None = None


class _ReopenError(OSError):
    """A file has no descriptor and cannot be opened again; the files beside it may be sound."""

    def __init__(self, file_number: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror, error.filename)
        self.file_number = file_number


class OpenFiles:
    """The files that a process writes. Safe to use from several threads."""

    def __init__(self, max_open: int = 0) -> None:
        """``max_open`` 0: a quarter of what the process may open."""
        self._max_open = max_open
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._numbers = count(_FIRST_NUMBER)
        self._files: dict[int, _SharedFile] = {}
        self._open: OrderedDict[int, _SharedFile] = OrderedDict()  # the one used last comes last

    @property
    def max_open(self) -> int:
        """How many files may have a descriptor; more only while all of them are in use."""
        if self._max_open:
            return self._max_open
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        lowest, highest = _RANGE
        return highest if limit < 0 else min(max(limit // _SHARE, lowest), highest)

    @property
    def open_count(self) -> int:
        """How many files have a descriptor now."""
        return len(self._open)

    def add(self, disk: Disk, path: str, create: Callable[[], int]) -> int:
        """Create a file and return its number."""
        with self._changed:
            self._make_room(1, keep=frozenset())
        file = _SharedFile(disk, path, self.with_descriptors(create))
        with self._changed:
            number = next(self._numbers)
            self._files[number] = self._open[number] = file
        return number

    def acquire(self, numbers: Sequence[int], *, dirty: bool = False) -> list[_SharedFile]:
        """Give these files descriptors, which they keep until ``release``."""
        with self._changed:
            files = [self._file(number) for number in numbers]
            for file in files:
                if file.fd is None or file.is_closing:
                    self._open_again(numbers, files)
                    break
            for number, file in zip(numbers, files, strict=True):
                file.users += 1
                file.is_dirty |= dirty
                self._open.move_to_end(number)
        return files

    def release(self, files: Sequence[_SharedFile]) -> None:
        """Let these files be closed for others."""
        with self._changed:
            for file in files:
                file.users -= 1
            self._changed.notify_all()

    def remove(self, number: int) -> None:
        """Close a file."""
        with self._changed:
            file = self._file(number)
            del self._files[number]
            self._open.pop(number, None)
            if file.is_closing:
                return  # the thread that syncs it closes it
            fd, file.fd = file.fd, None
            self._changed.notify_all()
        if fd is not None:
            file.disk.close(fd)

    def with_descriptors(self, call: Callable[[], T]) -> T:
        """Run what opens a file; if no descriptor is free, close files that are not in use."""
        for _ in range(_TRIES):
            try:
                return call()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise translated(error) from error
                with self._changed:
                    if not self._close_one(keep=frozenset()) and not self._wait_for_a_user():
                        raise _exhausted(str(error)) from error
        raise _exhausted("what became free was taken by others")

    def _file(self, number: int) -> _SharedFile:
        try:
            return self._files[number]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _open_again(self, numbers: Sequence[int], files: Sequence[_SharedFile]) -> None:
        """Open those that have no descriptor. Others may close some while this one waits."""
        keep = frozenset(numbers)
        for _ in range(_TRIES):
            if any(each.is_closing for each in files):
                self._changed.wait(_PATIENCE_S)
                continue
            missing = sum(each.fd is None for each in files)
            if not missing:
                return
            self._make_room(missing, keep=keep)
            try:
                for number, file in zip(numbers, files, strict=True):
                    if file.fd is None:
                        self._reopen(number, file)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise translated(error) from error
                if not self._close_one(keep=keep) and not self._wait_for_a_user():
                    raise _exhausted(str(error)) from error
        raise _exhausted("its files were closed again and again for others")

    def _reopen(self, number: int, file: _SharedFile) -> None:
        try:
            file.fd = _open_same(file)
        except OSError as error:
            raise _ReopenError(number, error) from error
        self._open[number] = file

    def _make_room(self, needed: int, *, keep: frozenset[int]) -> None:
        """Close files until ``needed`` more are within the limit, if that is possible."""
        for _ in range(_TRIES + needed):
            if len(self._open) + needed <= self.max_open:
                return
            if not self._close_one(keep=keep) and not self._wait_for_a_user():
                return  # all that are open are needed here

    def _wait_for_a_user(self) -> bool:
        """Wait until another thread is done with a file; False if none uses one, or for long."""
        if not any(file.users or file.is_closing for file in self._open.values()):
            return False
        return self._changed.wait(_PATIENCE_S)

    def _close_one(self, *, keep: frozenset[int]) -> bool:
        """Close the file that was not used for longest; one that needs no sync, if there is one."""
        idle = [
            (number, file)
            for number, file in self._open.items()
            if not file.users and not file.is_closing and number not in keep
        ]
        if not idle:
            return False
        number, file = next((each for each in idle if not each[1].is_dirty), idle[0])
        if file.is_dirty:
            self._sync_without_lock(file)
        self._open.pop(number, None)
        fd, file.fd = file.fd, None
        if fd is not None:
            try:
                try:
                    file.identity = file.disk.identity(fd)
                finally:
                    file.disk.close(fd)
            except OSError as error:  # of this file, and not of the one that needs the room
                file.error = file.error or error
        return True

    def _sync_without_lock(self, file: _SharedFile) -> None:
        """Sync a file before it is closed. It takes long, and others must not wait for it."""
        assert file.fd is not None  # noqa: S101 - it is one of the open ones
        file.is_closing = True  # no other thread uses it: an error is reported to one sync only
        self._changed.release()
        try:
            for error in file.disk.sync([file.fd], what="closed for others").values():
                file.error = error  # each later sync of this file reports it
            file.is_dirty = False
        finally:
            self._changed.acquire()
            file.is_closing = False
            self._changed.notify_all()


def _open_same(file: _SharedFile) -> int:
    fd = file.disk.open(file.path, write=True)
    try:
        found = file.disk.identity(fd)
    except OSError:
        file.disk.close(fd)
        raise
    if found != file.identity:
        file.disk.close(fd)
        raise OSError(errno.ESTALE, "another file has this name now", file.path)
    return fd


_OF_THIS_PROCESS = OpenFiles()
os.register_at_fork(after_in_child=_OF_THIS_PROCESS._reset)  # noqa: SLF001 - its own module


class BoundedDisk:
    """A disk whose written files share the descriptors of the process."""

    def __init__(self, disk: Disk, *, open_files: OpenFiles | None = None) -> None:
        self._disk = disk
        self._files = open_files or _OF_THIS_PROCESS

    def create(self, path: str, *, what: str) -> int:
        """Make a new, empty file that must not exist."""
        return self._files.add(self._disk, path, lambda: self._disk.create(path, what=what))

    def open(self, path: str, *, write: bool = False) -> int:
        """Open a file that must exist; the caller closes it soon."""
        return self._files.with_descriptors(lambda: self._disk.open(path, write=write))

    def close(self, fd: int) -> None:
        """Close a file."""
        if fd < _FIRST_NUMBER:
            self._disk.close(fd)
        else:
            self._files.remove(fd)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """Write all of ``data``, or raise."""
        self._on(
            fd,
            lambda real: self._disk.write_at(real, data, offset, what=what),
            dirty=what != _UNSYNCED,
        )

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``."""
        return self._on(fd, lambda real: self._disk.read_at(real, size, offset))

    def map(self, fd: int, length: int) -> memoryview:
        """Return the first bytes in place."""
        return self._on(fd, lambda real: self._disk.map(real, length))

    def size(self, fd: int) -> int:
        """Return the length of an open file."""
        return self._on(fd, self._disk.size)

    def identity(self, fd: int) -> object:
        """Return what distinguishes an open file from others."""
        return self._on(fd, self._disk.identity)

    def identity_at(self, path: str) -> object:
        """Return what distinguishes the file that has this path; None if there is none."""
        return _checked(lambda: self._disk.identity_at(path))

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return _checked(lambda: self._disk.exists(path))

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """Make the contents of these files durable; an earlier failure is reported again."""
        numbers = [fd for fd in fds if fd >= _FIRST_NUMBER]
        failed: dict[int, OSError] = {}
        files = self._acquire_reopened(numbers, failed)
        try:
            by_descriptor = {fd: fd for fd in fds if fd < _FIRST_NUMBER}
            for number, file in zip(numbers, files, strict=True):
                assert file.fd is not None  # noqa: S101 - it is in use
                by_descriptor[file.fd] = number
            found = self._disk.sync(list(by_descriptor), what=what) if by_descriptor else {}
            errors = failed | {by_descriptor[fd]: error for fd, error in found.items()}
            for number, file in zip(numbers, files, strict=True):
                file.is_dirty = False
                file.error = file.error or errors.get(number)
                if file.error is not None:
                    errors[number] = file.error
            return errors
        finally:
            self._files.release(files)

    def _acquire_reopened(
        self, numbers: list[int], failed: dict[int, OSError]
    ) -> list[_SharedFile]:
        """Acquire these files; those that cannot be opened again are moved to ``failed``."""
        while True:
            try:
                return self._files.acquire(numbers)
            except _ReopenError as error:
                failed[error.file_number] = error
                numbers.remove(error.file_number)

    def sync_directory(self, path: str, *, what: str) -> None:
        """Make the names in a directory durable."""
        self._files.with_descriptors(lambda: self._disk.sync_directory(path, what=what))

    def rename(self, source: str, target: str, *, what: str) -> None:
        """Rename a file."""
        _checked(lambda: self._disk.rename(source, target, what=what))

    def link(self, source: str, target: str, *, what: str) -> None:
        """Give a file a second name."""
        _checked(lambda: self._disk.link(source, target, what=what))

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """Cut a file."""
        self._files.with_descriptors(lambda: self._disk.truncate(path, size, what=what))

    def unlink(self, path: str, *, what: str) -> None:
        """Remove a file."""
        _checked(lambda: self._disk.unlink(path, what=what))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return self._files.with_descriptors(lambda: self._disk.names(path))

    def make_directory(self, path: str, *, what: str) -> None:
        """Make a directory unless it exists."""
        _checked(lambda: self._disk.make_directory(path, what=what))

    def free_bytes(self, path: str) -> int:
        """Return the free bytes."""
        return _checked(lambda: self._disk.free_bytes(path))

    def _on(self, fd: int, call: Callable[[int], T], *, dirty: bool = False) -> T:
        """Run a call on the descriptor of a file."""
        if fd < _FIRST_NUMBER:
            return _checked(lambda: call(fd))
        files = self._files.acquire((fd,), dirty=dirty)
        try:
            real = files[0].fd
            assert real is not None  # noqa: S101 - it is in use
            return call(real)
        except OSError as error:
            raise translated(error) from error
        finally:
            self._files.release(files)


def _checked(call: Callable[[], T]) -> T:
    try:
        return call()
    except OSError as error:
        raise translated(error) from error


def translated(error: OSError) -> Exception:
    """Return the error to raise: that of the volume as it is, that of the process by its name."""
    return _exhausted(str(error)) if error.errno in _EXHAUSTED else error


def _exhausted(why: str) -> ProcessExhausted:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessExhausted(
        f"this process has no descriptor or memory left ({why}); its limit is {limit} open files. "
        "The volumes are not concerned. Raise the limit (`ulimit -n`), or give the process less "
        "work; the call can be repeated."
    )
