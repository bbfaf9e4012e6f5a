"""Disks that misbehave on purpose: for tests of what is written to volumes.

Each takes a ``Disk`` and is one, so they can be stacked:

* ``PassingDisk`` passes every call on; the base of the others
* ``RecordingDisk`` records the points that a run passes, such as ``"before rename fence"``
* ``KillingDisk`` calls your function at one of these points
* ``FailingDisk`` lets volumes fail, be full or read-only, and recover
* ``PowerCutDisk`` loses what was not synced, as a power cut does
* ``FailedSyncDisk`` reports a failed sync once, as a kernel does, and loses what it was about

In ``PowerCutDisk`` contents are kept once ``sync`` has returned, names once ``sync_directory`` has.
Of everything else a cut keeps any part, at random: some writes and not others, half of one, zeros
where bytes were; new names or not, renames and removals or not. It is harsher than most file
systems. Directories themselves are kept.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.files.disk import Bytes, Disk


class PassingDisk:
    """Passes every call on to ``disk``, and knows the path behind each descriptor."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.paths: dict[int, str] = {}

    def create(self, path: str, *, what: str) -> int:
        """Create the file."""
        fd = self.disk.create(path, what=what)
        self.paths[fd] = path
        return fd

    def open(self, path: str, *, write: bool = False) -> int:
        """Open the file."""
        fd = self.disk.open(path, write=write)
        self.paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """Close the descriptor."""
        self.paths.pop(fd, None)
        self.disk.close(fd)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """Write at the offset."""
        self.disk.write_at(fd, data, offset, what=what)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """Read at the offset."""
        return self.disk.read_at(fd, size, offset)

    def map(self, fd: int, length: int) -> memoryview:
        """Return the first bytes, in place."""
        return self.disk.map(fd, length)

    def size(self, fd: int) -> int:
        """Return the size of the file."""
        return self.disk.size(fd)

    def identity(self, fd: int) -> object:
        """Return what distinguishes an open file from others."""
        return self.disk.identity(fd)

    def identity_at(self, path: str) -> object:
        """Return what distinguishes the file at a path from others."""
        return self.disk.identity_at(path)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self.disk.exists(path)

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """Sync the files; return those that failed."""
        return self.disk.sync(fds, what=what)

    def sync_directory(self, path: str, *, what: str) -> None:
        """Sync the directory."""
        self.disk.sync_directory(path, what=what)

    def rename(self, source: str, target: str, *, what: str) -> None:
        """Rename the file."""
        self.disk.rename(source, target, what=what)

    def link(self, source: str, target: str, *, what: str) -> None:
        """Link the file under a second name."""
        self.disk.link(source, target, what=what)

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """Truncate the file."""
        self.disk.truncate(path, size, what=what)

    def unlink(self, path: str, *, what: str) -> None:
        """Remove the file."""
        self.disk.unlink(path, what=what)

    def names(self, path: str) -> list[str]:
        """Return the names in the directory."""
        return self.disk.names(path)

    def make_directory(self, path: str, *, what: str) -> None:
        """Create the directory."""
        self.disk.make_directory(path, what=what)

    def free_bytes(self, path: str) -> int:
        """Return the free space in bytes."""
        return self.disk.free_bytes(path)


if TYPE_CHECKING:
    Names = dict[str, "Inode"]


@dataclass(slots=True, eq=False)
class Inode:
    """One file: its safe contents, and the writes since."""

    safe: bytes = b""
    waiting: list[tuple[int, bytes]] = field(default_factory=list)

    def settle(self) -> None:
        """Make the writes safe."""
        for offset, data in self.waiting:
            self.safe = written_over(self.safe, offset, data)
        self.waiting.clear()

    def after_a_cut(self, rng: random.Random) -> bytes:
        """Return mostly the first writes and a torn one; sometimes any of them."""
        found = self.safe
        waiting = self.waiting
        if rng.random() < 0.3:
            for offset, data in waiting:
                if rng.random() < 0.5:
                    found = written_over(found, offset, data)
            return found
        kept = rng.randint(0, len(waiting))
        for offset, data in waiting[:kept]:
            found = written_over(found, offset, data)
        if kept < len(waiting) and rng.random() < 0.7:
            offset, data = waiting[kept]
            part = rng.randint(0, len(data))
            torn = data[:part] if rng.random() < 0.5 else bytes(part)
            found = written_over(found, offset, torn)
        return found


@dataclass(slots=True)
class Directory:
    """The names that are safe, and the changes to them since: (name, file or None if removed)."""

    safe: Names = field(default_factory=dict)
    waiting: list[list[tuple[str, Inode | None]]] = field(default_factory=list)
    now: Names = field(default_factory=dict)

    def change(self, *parts: tuple[str, Inode | None]) -> None:
        """Record one atomic change: a rename has two parts."""
        self.waiting.append(list(parts))
        _changed(self.now, parts)

    def settle(self) -> None:
        """Make the names safe."""
        self.safe = dict(self.now)
        self.waiting.clear()

    def after_a_cut(self, rng: random.Random) -> Names:
        """Return the safe names, with any of the changes since."""
        found = dict(self.safe)
        in_order = rng.random() < 0.5
        kept = rng.randint(0, len(self.waiting))
        for number, parts in enumerate(self.waiting):
            if number < kept if in_order else rng.random() < 0.5:
                _changed(found, parts)
        return found


class PowerCutDisk(PassingDisk):
    """Passes every call on, and knows what is not safe yet.

    What existed before counts as safe. Renames stay within one directory. ``sync`` of a file makes
    its contents safe but not its name, as in POSIX.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._files: dict[int, Inode] = {}
        self._folders: dict[str, Directory] = {}

    def cut(self, rng: random.Random) -> None:
        """Put the directories into a state that a power cut could leave.

        All processes have ended then: descriptors from before must only be closed.
        """
        for directory, folder in self._folders.items():
            left = {name: file.after_a_cut(rng) for name, file in folder.after_a_cut(rng).items()}
            for name in folder.now:
                (Path(directory) / name).unlink(missing_ok=True)
            for name, contents in left.items():
                (Path(directory) / name).write_bytes(contents)
        self._files.clear()
        self._folders.clear()

    def create(self, path: str, *, what: str) -> int:
        """Create the file."""
        folder, name = self._at(path)
        fd = super().create(path, what=what)
        self._files[fd] = file = Inode()
        folder.change((name, file))
        return fd

    def open(self, path: str, *, write: bool = False) -> int:
        """Open the file."""
        fd = super().open(path, write=write)
        if Path(path).is_file():
            folder, name = self._at(path)
            self._files[fd] = folder.now[name]
        return fd

    def close(self, fd: int) -> None:
        """Close the descriptor."""
        self._files.pop(fd, None)
        super().close(fd)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """Write at the offset."""
        super().write_at(fd, data, offset, what=what)
        self._files[fd].waiting.append((offset, bytes(data)))

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """Sync the files; return those that failed."""
        failed = super().sync(fds, what=what)
        for fd in fds:
            if fd not in failed:
                self._files[fd].settle()
        return failed

    def sync_directory(self, path: str, *, what: str) -> None:
        """Sync the directory."""
        super().sync_directory(path, what=what)
        if path in self._folders:
            self._folders[path].settle()

    def rename(self, source: str, target: str, *, what: str) -> None:
        """Rename the file."""
        folder, name = self._at(source)
        super().rename(source, target, what=what)
        folder.change((name, None), (os.path.basename(target), folder.now[name]))  # noqa: PTH119

    def link(self, source: str, target: str, *, what: str) -> None:
        """Link the file under a second name."""
        folder, name = self._at(source)
        super().link(source, target, what=what)
        folder.change((os.path.basename(target), folder.now[name]))  # noqa: PTH119

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """Truncate the file."""
        folder, name = self._at(path)
        super().truncate(path, size, what=what)
        file = folder.now[name]
        file.settle()
        file.safe = file.safe[:size]

    def unlink(self, path: str, *, what: str) -> None:
        """Remove the file."""
        folder, name = self._at(path)
        super().unlink(path, what=what)
        if name in folder.now:
            folder.change((name, None))

    def _at(self, path: str) -> tuple[Directory, str]:
        directory, name = os.path.split(path)
        folder = self._folders.get(directory)
        if folder is None:
            folder = self._folders[directory] = Directory()
            with suppress(FileNotFoundError):
                for each in Path(directory).iterdir():
                    if each.is_file():
                        folder.now[each.name] = Inode(safe=each.read_bytes())
            folder.settle()
        return folder, name


class FailedSyncDisk(PowerCutDisk):
    """Lets syncs fail as a kernel does: the error is reported once, and the bytes are lost.

    After a failed sync the bytes can still be read, since they are in the page cache. The next
    sync of the file returns without an error, though they never reach the disk. Only writing
    them again helps. ``remount`` shows what is on the disk.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._failing: dict[str, int] = {}

    def fail_syncs(self, root: Path | str, times: int = 1) -> None:
        """Let the next ``times`` syncs of files below a directory fail."""
        self._failing[os.fspath(root)] = times

    def remount(self) -> None:
        """Forget the page cache: every file has what was synced. Names are kept."""
        for directory, folder in self._folders.items():
            for name, file in folder.now.items():
                (Path(directory) / name).write_bytes(file.safe)
        self._files.clear()
        self._folders.clear()

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """Sync the files; return those that failed."""
        failed: dict[int, OSError] = {}
        for fd in fds:
            path = self.paths[fd]
            for root, left in self._failing.items():
                if left and path.startswith(f"{root}/"):
                    self._files[fd].waiting.clear()
                    failed[fd] = OSError(errno.EIO, os.strerror(errno.EIO), path)
        for root in self._failing:
            if any(self.paths[fd].startswith(f"{root}/") for fd in failed):
                self._failing[root] -= 1
        good = [fd for fd in fds if fd not in failed]
        return failed | dict(super().sync(good, what=what) if good else {})


def _changed(names: Names, parts: Sequence[tuple[str, Inode | None]]) -> None:
    for name, file in parts:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def written_over(before: bytes, offset: int, data: bytes) -> bytes:
    """Return the bytes of a file after a write; a gap is filled with zeros."""
    return before[:offset].ljust(offset, b"\0") + data + before[offset + len(data) :]


class RecordingDisk(PassingDisk):
    """Records the points that a run passes, in order: two for each effect.

    A point is ``"before"`` or ``"after"``, the effect and what it was for: ``"after sync block"``.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.points: list[str] = []

    def passed(self, point: str) -> None:
        """Record a point."""
        self.points.append(point)

    def create(self, path: str, *, what: str) -> int:
        """Create the file."""
        self.passed(f"before create {what}")
        fd = super().create(path, what=what)
        self.passed(f"after create {what}")
        return fd

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """Write at the offset."""
        self.passed(f"before write {what}")
        super().write_at(fd, data, offset, what=what)
        self.passed(f"after write {what}")

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """Sync the files; return those that failed."""
        self.passed(f"before sync {what}")
        failed = super().sync(fds, what=what)
        self.passed(f"after sync {what}")
        return failed

    def sync_directory(self, path: str, *, what: str) -> None:
        """Sync the directory."""
        self.passed(f"before sync_directory {what}")
        super().sync_directory(path, what=what)
        self.passed(f"after sync_directory {what}")

    def rename(self, source: str, target: str, *, what: str) -> None:
        """Rename the file."""
        self.passed(f"before rename {what}")
        super().rename(source, target, what=what)
        self.passed(f"after rename {what}")

    def link(self, source: str, target: str, *, what: str) -> None:
        """Link the file under a second name."""
        self.passed(f"before link {what}")
        super().link(source, target, what=what)
        self.passed(f"after link {what}")

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """Truncate the file."""
        self.passed(f"before truncate {what}")
        super().truncate(path, size, what=what)
        self.passed(f"after truncate {what}")

    def unlink(self, path: str, *, what: str) -> None:
        """Remove the file."""
        self.passed(f"before unlink {what}")
        super().unlink(path, what=what)
        self.passed(f"after unlink {what}")

    def make_directory(self, path: str, *, what: str) -> None:
        """Create the directory."""
        self.passed(f"before make_directory {what}")
        super().make_directory(path, what=what)
        self.passed(f"after make_directory {what}")


class KillingDisk(RecordingDisk):
    """Calls ``kill`` when ``point`` is passed for the ``nth`` time (the first is 1).

    ``kill`` may end the process, stop it, or raise.
    """

    def __init__(self, disk: Disk, point: str, nth: int, kill: Callable[[], None]) -> None:
        super().__init__(disk)
        self._point = point
        self._left = nth
        self._kill = kill

    def passed(self, point: str) -> None:
        """Record a point, and call ``kill`` if it is the one."""
        super().passed(point)
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                self._kill()


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FailingDisk(PassingDisk):
    """Lets everything below a directory fail, until ``heal``.

    With ``ENOSPC`` only what needs space fails, with ``EROFS`` what changes something, with any
    other number everything: the disk is gone.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._failing: dict[str, int] = {}

    def fail(self, volume_root: Path | str, number: int = errno.EIO) -> None:
        """Let this directory, and all below it, fail with this ``errno`` from now on."""
        self._failing[os.fspath(volume_root)] = number

    def heal(self, volume_root: Path | str) -> None:
        """Let it work again."""
        self._failing.pop(os.fspath(volume_root), None)

    def create(self, path: str, *, what: str) -> int:
        """Create the file."""
        self._meet(path, changes=True, needs_room=True)
        return super().create(path, what=what)

    def open(self, path: str, *, write: bool = False) -> int:
        """Open the file."""
        self._meet(path, changes=write)
        return super().open(path, write=write)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """Write at the offset."""
        self._meet(self.paths[fd], changes=True, needs_room=True)
        super().write_at(fd, data, offset, what=what)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """Read at the offset."""
        self._meet(self.paths[fd])
        return super().read_at(fd, size, offset)

    def size(self, fd: int) -> int:
        """Return the size of the file."""
        self._meet(self.paths[fd])
        return super().size(fd)

    def identity_at(self, path: str) -> object:
        """Return what distinguishes the file at a path from others."""
        self._meet(path)
        return super().identity_at(path)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        self._meet(path)
        return super().exists(path)

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        """Sync the files; return those that failed."""
        failed: dict[int, OSError] = {}
        for fd in fds:
            try:
                self._meet(self.paths[fd])
            except OSError as error:
                failed[fd] = error
        good = [fd for fd in fds if fd not in failed]
        return failed | dict(super().sync(good, what=what) if good else {})

    def sync_directory(self, path: str, *, what: str) -> None:
        """Sync the directory."""
        self._meet(path)
        super().sync_directory(path, what=what)

    def rename(self, source: str, target: str, *, what: str) -> None:
        """Rename the file."""
        self._meet(source, changes=True)
        super().rename(source, target, what=what)

    def link(self, source: str, target: str, *, what: str) -> None:
        """Link the file under a second name."""
        self._meet(source, changes=True)
        super().link(source, target, what=what)

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """Truncate the file."""
        self._meet(path, changes=True)
        super().truncate(path, size, what=what)

    def unlink(self, path: str, *, what: str) -> None:
        """Remove the file."""
        self._meet(path, changes=True)
        super().unlink(path, what=what)

    def names(self, path: str) -> list[str]:
        """Return the names in the directory."""
        self._meet(path)
        return super().names(path)

    def make_directory(self, path: str, *, what: str) -> None:
        """Create the directory."""
        self._meet(path, changes=True, needs_room=True)
        super().make_directory(path, what=what)

    def free_bytes(self, path: str) -> int:
        """Return the free space in bytes."""
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
