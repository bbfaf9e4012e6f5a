"""Volumes of a simulated machine, in memory, with the faults of real disks.

A write goes into the page cache, where every process reads it. ``sync`` and ``sync_directory`` make
it durable, as in POSIX: contents by the one, names by the other. On top of that a volume may

* fail a sync and forget what it was about: each descriptor that was open then reports it once, as
  in Linux since 4.13, and one that is opened later says nothing,
* lie: report a sync as done, and lose what it was about in a power cut,
* fail calls, be full, be away, and come back: as it was, as it was long ago, or empty,
* change a single bit of what it keeps.

What was destroyed is reported to ``on_damage``, so that a check knows which replicas are sound.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.files.block_meta import parse_acknowledged
from leasehold.testing.disk import Directory, Inode, written_over

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from leasehold.files.disk import Bytes
    from leasehold.testing.sim.blocking_process import SimProcess

PLENTY_BYTES = 1 << 40
_ID_DIGITS = 16


class Damage(Enum):
    """What has happened to a replica."""

    FLIPPED = "flipped"  # a bit of it has changed
    GONE = "gone"  # its volume came back empty
    OLD = "old"  # its volume came back as it was earlier, or has lost what it said was durable
    CACHED = "cached"  # only what was never durable is lost


@dataclass(slots=True, eq=False)
class CachedFile(Inode):
    """A file: what is safe, the writes since (both of ``Inode``), and what readers see.

    ``lied``: this many of the waiting writes were reported as durable. ``forgotten``: readers see
    bytes that will never be written. ``failures``: how often bytes were forgotten.
    """

    now: bytearray = field(default_factory=bytearray)
    lied: int = 0
    forgotten: bool = False
    failures: int = 0

    def settle(self) -> None:
        """Make the writes safe."""
        Inode.settle(self)
        self.lied = 0

    def forget(self) -> bool:
        """Fail to write back: readers still see what was lost. Return whether there was any."""
        if len(self.waiting) == self.lied:
            return False
        self.forgotten = True
        del self.waiting[self.lied :]
        self.failures += 1
        return True

    def drop_cache(self) -> bool:
        """Show what is on the disk or still to be written there; return whether that differs."""
        if not self.forgotten:
            return False
        found = self.safe
        for offset, data in self.waiting:
            found = written_over(found, offset, data)
        differs = found != self.now
        self.now, self.forgotten = bytearray(found), False
        return differs


class SimVolume:
    """One file system, mounted at ``root``."""

    def __init__(
        self, name: str, *, on_damage: Callable[[str, int, Damage], None], lies: bool = False
    ) -> None:
        self.name = name
        self.root = f"/{name}"
        self.folders: dict[str, Directory] = {self.root: Directory()}
        self._made: set[str] = set()
        self.mount = 0  # what was opened under an earlier one has failed
        self.lies = lies
        self.is_away = self.is_full = False
        self.failure_rate = 0.0
        self.failing_syncs = 0
        self._on_damage = on_damage

    @property
    def is_sound(self) -> bool:
        """Whether it answers every call now."""
        return not (self.is_away or self.is_full or self.failure_rate or self.failing_syncs)

    def files(self) -> Iterator[tuple[str, CachedFile]]:
        """Yield all files, by path."""
        for folder, directory in self.folders.items():
            for name, file in directory.now.items():
                assert isinstance(file, CachedFile)
                yield f"{folder}/{name}", file

    def blocks(self) -> set[int]:
        """Return the blocks that have any file here."""
        return {block for path, _ in self.files() if (block := block_of(path))}

    def settle(self) -> None:
        """Make all durable that is not: after the set-up of a run."""
        for directory in self.folders.values():
            directory.settle()
        for _, file in self.files():
            file.settle()

    # ------------------------------------------------------------------- faults

    def flip(self, rng: random.Random, *, prefer: Collection[int] = ()) -> str:
        """Change a bit of a block's files, most often of these; return what was hit."""
        found = [(path, file) for path, file in self.files() if block_of(path) and file.now]
        if not found:
            return "nothing"
        preferred = [each for each in found if block_of(each[0]) in prefer]
        if preferred and rng.random() < 0.7:
            found = preferred
        path, file = rng.choice(found)
        at, mask = rng.randrange(len(file.now)), 1 << rng.randrange(8)
        file.now[at] ^= mask
        if at < len(file.safe):
            file.safe = written_over(file.safe, at, bytes([file.safe[at] ^ mask]))
        file.waiting = [
            (offset, _flipped(data, at - offset, mask)) for offset, data in file.waiting
        ]
        self._on_damage(self.name, block_of(path), Damage.FLIPPED)
        return f"{path} at {at}"

    def fail_write_back(self, file: CachedFile, path: str) -> None:
        """Lose what is waiting of a file."""
        if file.forget() and block_of(path):
            self._on_damage(self.name, block_of(path), Damage.CACHED)

    def drop_caches(self) -> None:
        """Show what is on the disk: memory is needed for something else."""
        for _, file in self.files():
            file.drop_cache()

    def remount(self) -> None:
        """Unmount and mount again: what waits is written, what was forgotten is gone."""
        self.mount += 1
        self.drop_caches()
        for directory in self.folders.values():
            directory.settle()
        for _, file in self.files():
            file.settle()

    def cut(self, rng: random.Random) -> None:
        """Leave what a power cut leaves."""
        self.mount += 1
        for path, file in self.files():
            if file.lied and block_of(path):
                self._on_damage(self.name, block_of(path), Damage.OLD)
        lost = Damage.OLD if self.lies else Damage.CACHED
        for folder, directory in self.folders.items():
            before = directory.now
            directory.safe = directory.after_a_cut(rng)
            directory.now = dict(directory.safe)
            directory.waiting.clear()
            for name in set(before) ^ set(directory.now):
                if block_of(f"{folder}/{name}"):
                    self._on_damage(self.name, block_of(f"{folder}/{name}"), lost)
        for _, file in self.files():
            file.safe = file.after_a_cut(rng)
            file.now = bytearray(file.safe)
            file.waiting.clear()
            file.lied, file.forgotten = 0, False

    def copy_back(self) -> None:
        """Replace every file by a copy of itself: what is open has no name any more."""
        for directory in self.folders.values():
            for name, file in list(directory.now.items()):
                data = bytes(file.now)  # type: ignore[attr-defined]
                directory.now[name] = CachedFile(safe=data, now=bytearray(data))
            directory.settle()

    def copy(self) -> dict[str, dict[str, bytes]]:
        """Return the files of all directories that have any, to be brought back later."""
        return {
            folder: {name: bytes(file.now) for name, file in directory.now.items()}  # type: ignore[attr-defined]
            for folder, directory in self.folders.items()
            if directory.now or folder == self.root
        }

    def become(self, contents: Mapping[str, Mapping[str, bytes]]) -> None:
        """Be mounted with other contents: an earlier copy, or nothing at all."""
        before, kind = self.copy(), Damage.OLD if contents[self.root] else Damage.GONE
        self.mount += 1
        self._made = self._made | set(self.folders)
        self.folders = {}
        for folder in sorted(self._made) if contents[self.root] else [self.root]:
            self.folders[folder] = directory = Directory()
            for name, data in contents.get(folder, {}).items():
                directory.now[name] = CachedFile(safe=data, now=bytearray(data))
            directory.settle()
        after = self.copy()
        for folder in set(before) | set(after):
            old, new = before.get(folder, {}), after.get(folder, {})
            for name in set(old) | set(new):
                if block_of(f"{folder}/{name}") and old.get(name) != new.get(name):
                    self._on_damage(self.name, block_of(f"{folder}/{name}"), kind)


def block_of(path: str) -> int:
    """Return the block that a file is part of; 0 for other files."""
    digits = path.rpartition("/")[2][:_ID_DIGITS]
    if "/blocks/" not in path or len(digits) < _ID_DIGITS:
        return 0
    return int(digits, 16)


def _flipped(data: bytes, at: int, mask: int) -> bytes:
    if not 0 <= at < len(data):
        return data
    return written_over(data, at, bytes([data[at] ^ mask]))


class SimDisk:
    """The ``Disk`` of one simulated process. Each effect is a step at which it may be paused.

    ``on_acknowledged`` is called with a block and a length before the length is published.
    ``exhausted``: this many of its next calls fail since the process has no descriptor or memory.
    """

    def __init__(
        self,
        volumes: Mapping[str, SimVolume],
        process: SimProcess,
        rng: random.Random,
        *,
        on_acknowledged: Callable[[int, int], None] = lambda _block, _length: None,
    ) -> None:
        self._on_acknowledged = on_acknowledged
        self.exhausted = 0
        self.exhausted_as = errno.EMFILE
        self._volumes = volumes
        self._process = process
        self._rng = rng
        self._next_fd = 3
        self._open: dict[int, tuple[SimVolume, CachedFile, str, int]] = {}
        self._reported: dict[int, int] = {}  # by descriptor: of the failures of its file

    def create(self, path: str, *, what: str) -> int:
        """Make a new, empty file."""
        volume, directory, name = self._entry(path, what)
        self._take_descriptor(path)
        if name in directory.now:
            raise _error(errno.EEXIST, path)
        if volume.is_full:
            raise self._trouble(volume, errno.ENOSPC, path)
        file = CachedFile()
        directory.change((name, file))
        self._process.step(f"after create {what}")
        return self._opened(volume, file, path)

    def open(self, path: str, *, write: bool = False) -> int:
        """Open a file that must exist."""
        del write
        volume, directory, name = self._entry(path, "open")
        self._take_descriptor(path)
        return self._opened(volume, self._named(volume, directory, name, path), path)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        self._open.pop(fd, None)
        self._reported.pop(fd, None)

    def write_at(self, fd: int, data: Bytes, offset: int, *, what: str) -> None:
        """Write all of ``data``, or part of it and raise."""
        volume, file, path = self._file(fd, what)
        copied = bytes(data)
        if what == "acknowledged":
            self._on_acknowledged(block_of(path), parse_acknowledged(copied) or 0)
        if volume.is_full and offset + len(copied) > len(file.now):
            part = copied[: max(0, len(file.now) - offset)]
            copied = part[: self._rng.randint(0, len(part))]
        if copied:
            file.now.extend(bytes(max(0, offset - len(file.now))))
            file.now[offset : offset + len(copied)] = copied
            file.waiting.append((offset, copied))
        if len(copied) < len(data):
            raise self._trouble(volume, errno.ENOSPC, path)
        self._process.step(f"after {what}")

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes."""
        _, file, _ = self._file(fd, "")
        return bytes(file.now[offset : offset + size])

    def map(self, fd: int, length: int) -> memoryview:
        """Return the first bytes as they are now."""
        return memoryview(self.read_at(fd, length, 0))

    def size(self, fd: int) -> int:
        """Return the length of an open file."""
        return len(self._file(fd, "")[1].now)

    def identity(self, fd: int) -> object:
        """Return what distinguishes the file from others."""
        return self._file(fd, "")[1]

    def identity_at(self, path: str) -> object:
        """Return what distinguishes the file at a path; None if there is none."""
        _, directory, name = self._entry(path, "check")
        return directory.now.get(name)

    def exists(self, path: str) -> bool:
        """Return whether the path exists, as a file or a directory."""
        volume, directory, name = self._entry(path, "exists")
        return name in directory.now or path in volume.folders

    def sync(self, fds: Sequence[int], *, what: str) -> dict[int, OSError]:
        """Make contents durable; return those that failed."""
        failed: dict[int, OSError] = {}
        self._process.step(f"sync {what}")
        for fd in fds:
            try:
                volume, file, path = self._file(fd, "")
            except OSError as error:
                failed[fd] = error
                continue
            is_failing = bool(volume.failing_syncs)
            if is_failing:
                volume.failing_syncs -= 1
                volume.fail_write_back(file, path)
            if is_failing or self._reported[fd] < file.failures:
                self._reported[fd] = file.failures
                failed[fd] = self._trouble(volume, errno.EIO, path)
            elif volume.lies:
                file.lied = len(file.waiting)
            else:
                file.settle()
        self._process.step(f"synced {what}")
        return failed

    def sync_directory(self, path: str, *, what: str) -> None:
        """Make the names in a directory durable."""
        if path == "/":
            return
        volume = self._volume(path, f"sync {what}")
        self._take_descriptor(path)
        if path not in volume.folders:
            raise _error(errno.ENOENT, path)
        if not volume.lies:
            volume.folders[path].settle()

    def rename(self, source: str, target: str, *, what: str) -> None:
        """Rename a file within its directory."""
        volume, directory, name = self._entry(source, what)
        file = self._named(volume, directory, name, source)
        directory.change((name, None), (os.path.basename(target), file))  # noqa: PTH119
        self._process.step(f"after {what}")

    def link(self, source: str, target: str, *, what: str) -> None:
        """Give a file a second name."""
        volume, directory, name = self._entry(source, what)
        other = os.path.basename(target)  # noqa: PTH119
        if other in directory.now:
            raise _error(errno.EEXIST, target)
        directory.change((other, self._named(volume, directory, name, source)))

    def truncate(self, path: str, size: int, *, what: str) -> None:
        """Cut a file, durably."""
        volume, directory, name = self._entry(path, what)
        self._take_descriptor(path)
        file = self._named(volume, directory, name, path)
        file.settle()
        file.safe = file.safe[:size]
        file.now = file.now[:size]

    def unlink(self, path: str, *, what: str) -> None:
        """Remove a file; a missing one is not an error."""
        _, directory, name = self._entry(path, what)
        if name in directory.now:
            directory.change((name, None))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        volume = self._volume(path, "names")
        self._take_descriptor(path)
        if path not in volume.folders:
            raise _error(errno.ENOENT, path)
        inside = (
            {each[len(path) + 1 :].partition("/")[0] for each in volume.folders if each != path}
            if path == volume.root
            else set()
        )
        return [*volume.folders[path].now, *sorted(inside)]

    def make_directory(self, path: str, *, what: str) -> None:
        """Make a directory unless it exists."""
        volume = self._volume(path, what)
        volume.folders.setdefault(path, Directory())

    def free_bytes(self, path: str) -> int:
        """Return the free bytes."""
        return 0 if self._volume(path, "free").is_full else PLENTY_BYTES

    # ------------------------------------------------------------------- faults

    def _volume(self, path: str, what: str) -> SimVolume:
        self._process.step(what)
        volume = self._volumes[path.split("/", 2)[1]]
        if volume.failure_rate and self._rng.random() < volume.failure_rate:
            raise self._trouble(volume, errno.EIO, path)
        return volume

    def _entry(self, path: str, what: str) -> tuple[SimVolume, Directory, str]:
        volume = self._volume(path, what)
        folder, _, name = path.rpartition("/")
        if volume.is_away:
            raise self._trouble(volume, errno.ENOENT, path)
        if folder not in volume.folders:
            raise _error(errno.ENOENT, path)
        return volume, volume.folders[folder], name

    def _named(self, volume: SimVolume, directory: Directory, name: str, path: str) -> CachedFile:
        del volume
        file = directory.now.get(name)
        if not isinstance(file, CachedFile):
            raise _error(errno.ENOENT, path)
        return file

    def _opened(self, volume: SimVolume, file: CachedFile, path: str) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = (volume, file, path, volume.mount)
        self._reported[self._next_fd] = file.failures
        return self._next_fd

    def _file(self, fd: int, what: str) -> tuple[SimVolume, CachedFile, str]:
        if what:
            self._process.step(what)
        if fd not in self._open:
            raise _error(errno.EBADF, str(fd))
        volume, file, path, mount = self._open[fd]
        if volume.is_away or mount != volume.mount:
            raise self._trouble(volume, errno.EIO, path)
        if volume.failure_rate and self._rng.random() < volume.failure_rate:
            raise self._trouble(volume, errno.EIO, path)
        return volume, file, path

    def _take_descriptor(self, path: str) -> None:
        if self.exhausted:
            self.exhausted -= 1
            raise _error(self.exhausted_as, path)

    def _trouble(self, volume: SimVolume, number: int, path: str) -> OSError:
        self._process.met_trouble(volume.name)
        return _error(number, path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
