"""A disk that hands every call on to another: what the misbehaving ones build on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.files.disk import Bytes, Disk


class PassingDisk:
    """Hands every call on, and knows the path behind each descriptor."""

    def __init__(self, disk: Disk) -> None:
        """Pass everything on to ``disk``."""
        self.disk = disk
        self.paths: dict[int, str] = {}

    def create(self, path: str, *, what: str) -> int:
        """See ``Disk``."""
        fd = self.disk.create(path, what=what)
        self.paths[fd] = path
        return fd

    def open(self, path: str, *, write: bool = False) -> int:
        """See ``Disk``."""
        fd = self.disk.open(path, write=write)
        self.paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """See ``Disk``."""
        self.paths.pop(fd, None)
        self.disk.close(fd)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """See ``Disk``."""
        self.disk.write_at(fd, data, offset, what=what)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """See ``Disk``."""
        return self.disk.read_at(fd, size, offset)

    def size(self, fd: int) -> int:
        """See ``Disk``."""
        return self.disk.size(fd)

    def exists(self, path: str) -> bool:
        """See ``Disk``."""
        return self.disk.exists(path)

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """See ``Disk``."""
        return self.disk.sync(fds, what=what)

    def sync_directory(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self.disk.sync_directory(path, what=what)

    def rename(self, source: str, target: str, *, what: str) -> None:
        """See ``Disk``."""
        self.disk.rename(source, target, what=what)

    def link(self, source: str, target: str, *, what: str) -> None:
        """See ``Disk``."""
        self.disk.link(source, target, what=what)

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """See ``Disk``."""
        self.disk.truncate(path, size, what=what)

    def unlink(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self.disk.unlink(path, what=what)

    def names(self, path: str) -> list[str]:
        """See ``Disk``."""
        return self.disk.names(path)

    def make_directory(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self.disk.make_directory(path, what=what)

    def free_bytes(self, path: str) -> int:
        """See ``Disk``."""
        return self.disk.free_bytes(path)
