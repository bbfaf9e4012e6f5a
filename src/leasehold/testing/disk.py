"""Disks that misbehave on purpose: for those who test what is written to volumes.

Each takes a ``Disk`` and is one, so they can be put on top of each other:

``RecordingDisk``  remembers the points that a run passes, such as ``"before rename fence"``
``KillingDisk``    calls a function of yours at one of these points
``FailingDisk``    lets whole volumes go away, be full or read-only, and come back

``PowerCutDisk``   forgets what was not synced
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from leasehold.testing.passing_disk import PassingDisk
from leasehold.testing.power_cut import PowerCutDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from leasehold.files.disk import Bytes, Disk

__all__ = ["FailingDisk", "KillingDisk", "PassingDisk", "PowerCutDisk", "RecordingDisk"]


class RecordingDisk(PassingDisk):
    """Remembers, in their order, the points that a run passes: two for each effect.

    A point is ``"before"`` or ``"after"``, the effect and what it was for: ``"after sync block"``.
    """

    def __init__(self, disk: Disk) -> None:
        """Begin with no points."""
        super().__init__(disk)
        self.points: list[str] = []

    def passed(self, point: str) -> None:
        """Called at every point."""
        self.points.append(point)

    def create(self, path: str, *, what: str) -> int:
        """See ``Disk``."""
        self.passed(f"before create {what}")
        fd = super().create(path, what=what)
        self.passed(f"after create {what}")
        return fd

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """See ``Disk``."""
        self.passed(f"before write {what}")
        super().write_at(fd, data, offset, what=what)
        self.passed(f"after write {what}")

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """See ``Disk``."""
        self.passed(f"before sync {what}")
        failed = super().sync(fds, what=what)
        self.passed(f"after sync {what}")
        return failed

    def sync_directory(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self.passed(f"before sync_directory {what}")
        super().sync_directory(path, what=what)
        self.passed(f"after sync_directory {what}")

    def rename(self, source: str, target: str, *, what: str) -> None:
        """See ``Disk``."""
        self.passed(f"before rename {what}")
        super().rename(source, target, what=what)
        self.passed(f"after rename {what}")

    def link(self, source: str, target: str, *, what: str) -> None:
        """See ``Disk``."""
        self.passed(f"before link {what}")
        super().link(source, target, what=what)
        self.passed(f"after link {what}")

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """See ``Disk``."""
        self.passed(f"before truncate {what}")
        super().truncate(path, size, what=what)
        self.passed(f"after truncate {what}")

    def unlink(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self.passed(f"before unlink {what}")
        super().unlink(path, what=what)
        self.passed(f"after unlink {what}")

    def make_directory(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self.passed(f"before make_directory {what}")
        super().make_directory(path, what=what)
        self.passed(f"after make_directory {what}")


class KillingDisk(RecordingDisk):
    """Calls ``kill`` when ``point`` is passed for the ``nth`` time (the first is 1)."""

    def __init__(self, disk: Disk, point: str, nth: int, kill: Callable[[], None]) -> None:
        """``kill`` may end the process, stop it, or raise."""
        super().__init__(disk)
        self._point = point
        self._left = nth
        self._kill = kill

    def passed(self, point: str) -> None:
        """Called at every point."""
        super().passed(point)
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                self._kill()


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FailingDisk(PassingDisk):
    """Lets everything below a directory fail, until it is healed.

    With ``ENOSPC`` only what needs room fails, with ``EROFS`` what changes something, with any
    other number everything: the disk is gone.
    """

    def __init__(self, disk: Disk) -> None:
        """Begin with nothing failing."""
        super().__init__(disk)
        self._failing: dict[str, int] = {}

    def fail(self, volume_root: Path | str, number: int = errno.EIO) -> None:
        """Let this directory, and all below it, fail with this ``errno`` from now on."""
        self._failing[os.fspath(volume_root)] = number

    def heal(self, volume_root: Path | str) -> None:
        """Let it work again."""
        self._failing.pop(os.fspath(volume_root), None)

    def create(self, path: str, *, what: str) -> int:
        """See ``Disk``."""
        self._meet(path, changes=True, needs_room=True)
        return super().create(path, what=what)

    def open(self, path: str, *, write: bool = False) -> int:
        """See ``Disk``."""
        self._meet(path, changes=write)
        return super().open(path, write=write)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """See ``Disk``."""
        self._meet(self.paths[fd], changes=True, needs_room=True)
        super().write_at(fd, data, offset, what=what)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """See ``Disk``."""
        self._meet(self.paths[fd])
        return super().read_at(fd, size, offset)

    def size(self, fd: int) -> int:
        """See ``Disk``."""
        self._meet(self.paths[fd])
        return super().size(fd)

    def exists(self, path: str) -> bool:
        """See ``Disk``."""
        self._meet(path)
        return super().exists(path)

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """See ``Disk``."""
        failed: dict[int, OSError] = {}
        for fd in fds:
            try:
                self._meet(self.paths[fd])
            except OSError as error:
                failed[fd] = error
        good = [fd for fd in fds if fd not in failed]
        return failed | dict(super().sync(good, what=what) if good else {})

    def sync_directory(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self._meet(path)
        super().sync_directory(path, what=what)

    def rename(self, source: str, target: str, *, what: str) -> None:
        """See ``Disk``."""
        self._meet(source, changes=True)
        super().rename(source, target, what=what)

    def link(self, source: str, target: str, *, what: str) -> None:
        """See ``Disk``."""
        self._meet(source, changes=True)
        super().link(source, target, what=what)

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """See ``Disk``."""
        self._meet(path, changes=True)
        super().truncate(path, size, what=what)

    def unlink(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self._meet(path, changes=True)
        super().unlink(path, what=what)

    def names(self, path: str) -> list[str]:
        """See ``Disk``."""
        self._meet(path)
        return super().names(path)

    def make_directory(self, path: str, *, what: str) -> None:
        """See ``Disk``."""
        self._meet(path, changes=True, needs_room=True)
        super().make_directory(path, what=what)

    def free_bytes(self, path: str) -> int:
        """See ``Disk``."""
        number = self._number(path)
        if number in _FULL:
            return 0
        self._meet(path)
        return super().free_bytes(path)

    def _number(self, path: str) -> int | None:
        for root, number in self._failing.items():
            if path == root or path.startswith(f"{root}/"):
                return number
        return None

    def _meet(self, path: str, *, changes: bool = False, needs_room: bool = False) -> None:
        number = self._number(path)
        if number is None or (number in _FULL and not needs_room):
            return
        if number == errno.EROFS and not changes:
            return
        raise OSError(number, os.strerror(number), path)
