"""The only access to the volumes: every effect on a file system goes through a ``Disk``.

Each call that changes something names ``what`` it is for, such as ``"meta"``. Tests pass their own
disk, which kills the process at a named call, or forgets what was not synced.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from leasehold.runtime import private_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

Bytes = bytes | bytearray | memoryview

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Disk(Protocol):
    """The file system as the file layer uses it. Everything raises ``OSError`` on failure."""

    def create(self, path: str, *, what: str) -> int:
        """Make a new, empty file that must not exist; return a descriptor to read and write."""
        ...

    def open(self, path: str, *, write: bool = False) -> int:
        """Open a file that must exist."""
        ...

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        ...

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """Write all of ``data``, or raise; part of it may then be there."""
        ...

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def map(self, fd: int, length: int) -> memoryview:
        """Return the first bytes in place, read-only; valid while the view lives."""
        ...

    def size(self, fd: int) -> int:
        """Return the length of an open file."""
        ...

    def identity(self, fd: int) -> object:
        """Return what distinguishes an open file from any other that has its path later."""
        ...

    def identity_at(self, path: str) -> object:
        """Return the same for the file that has this path now; None if there is none."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the path exists; raise if that is not known."""
        ...

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """Make the contents of these files durable; return the ones that failed, with the error.

        The one call that does not raise: of several volumes one may fail and the others not.
        """
        ...

    def sync_directory(self, path: str, *, what: str) -> None:
        """Make the names in a directory durable."""
        ...

    def rename(self, source: str, target: str, *, what: str) -> None:
        """Rename a file, replacing any that has the new name."""
        ...

    def link(self, source: str, target: str, *, what: str) -> None:
        """Give a file a second name, which must not exist."""
        ...

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """Cut a file to ``size`` bytes, and make that durable."""
        ...

    def unlink(self, path: str, *, what: str) -> None:
        """Remove a file; a missing one is not an error."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        ...

    def make_directory(self, path: str, *, what: str) -> None:
        """Make a directory unless it exists."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return the free bytes on the file system of ``path`` for this user."""
        ...


class SystemDisk:
    """The operating system's own file systems."""

    def __init__(self, helpers: Executor | None = None) -> None:
        """``helpers`` sync several files side by side."""
        self._sync_threads = helpers

    def create(self, path: str, *, what: str) -> int:  # noqa: ARG002
        """Make a new, empty file that must not exist. It is private; see ``private_files``."""
        return private_files.create_file(path)

    def open(self, path: str, *, write: bool = False) -> int:
        """Open a file that must exist."""
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:  # noqa: ARG002
        """Write all of ``data``, or raise."""
        done = os.pwrite(fd, data, offset)
        while done < len(data):  # a short write: the disk may be nearly full, or a signal came
            done += os.pwrite(fd, memoryview(data)[done:], offset + done)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``."""
        parts = [os.pread(fd, size, offset)]
        have = len(parts[0])
        while parts[-1] and have < size:
            parts.append(os.pread(fd, size - have, offset + have))
            have += len(parts[-1])
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def map(self, fd: int, length: int) -> memoryview:
        """Return the first bytes in place, read-only."""
        mapping = _Mapping(fd, length)
        array = (ctypes.c_ubyte * length).from_address(mapping.address)
        array.mapping = mapping  # type: ignore[attr-defined]  # it lives as long as a view of it
        return memoryview(array).cast("B").toreadonly()

    def size(self, fd: int) -> int:
        """Return the length of an open file."""
        return os.fstat(fd).st_size

    def identity(self, fd: int) -> object:
        """Return the device and the inode of an open file."""
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def identity_at(self, path: str) -> object:
        """Return the device and the inode of the file at a path; None if there is none."""
        try:
            found = os.stat(path)  # noqa: PTH116 - the fastest way, and it is asked at every flush
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self.identity_at(path) is not None

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:  # noqa: ARG002
        """Make the contents of these files durable, in parallel: the kernel waits once for all."""
        if self._sync_threads is None or len(fds) == 1:
            results = [_sync(fd) for fd in fds]
        else:
            waiting = [self._sync_threads.submit(_sync, fd) for fd in fds[1:]]
            results = [_sync(fds[0]), *(each.result() for each in waiting)]
        return {fd: error for fd, error in zip(fds, results, strict=True) if error is not None}

    def sync_directory(self, path: str, *, what: str) -> None:  # noqa: ARG002
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str, *, what: str) -> None:  # noqa: ARG002
        """Rename a file, replacing any that has the new name."""
        os.rename(source, target)  # noqa: PTH104

    def link(self, source: str, target: str, *, what: str) -> None:  # noqa: ARG002
        """Give a file a second name, which must not exist."""
        os.link(source, target)

    def truncate(self, path: str, size: int, *, what: str) -> None:  # noqa: ARG002
        """Cut a file to ``size`` bytes, and make that durable."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def unlink(self, path: str, *, what: str) -> None:  # noqa: ARG002
        """Remove a file."""
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(path)  # noqa: PTH208

    def make_directory(self, path: str, *, what: str) -> None:  # noqa: ARG002
        """Make a directory unless it exists."""
        with suppress(FileExistsError):
            private_files.make_directory(path)

    def free_bytes(self, path: str) -> int:
        """Return the free bytes on the file system of ``path`` for this user."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def _sync(fd: int) -> OSError | None:
    try:
        os.fdatasync(fd)
    except OSError as error:
        return error
    return None


class _Mapping:
    """Mapped memory, until nothing refers to it. Python's own ``mmap`` keeps a descriptor."""

    def __init__(self, fd: int, length: int) -> None:
        flags = (length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        self.address = _libc.mmap(None, *flags)
        self.length = length
        if self.address in {None, ctypes.c_void_p(-1).value}:
            self.address = None
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def __del__(self) -> None:
        if self.address is not None:
            _libc.munmap(self.address, self.length)
