"""The volumes of a namespace: which exist, which can be used, which get the next block.

A volume is one directory, usually one disk, with an identity file. It is used only if that file
names the expected volume and namespace. So an empty mount point, or another disk mounted in its
place, is found before a byte is written. A directory that holds something else is never touched.

The journal knows each volume by its id and path. A missing one is never recreated at its old path:
the empty mount point of a disk that is away looks just like a new directory.

Each volume has a high-water mark, the file ``MARKS``: the highest block id and epoch that were
ever used on it. The journal draws a number before a volume sees it. So a volume whose mark is above
the journal's own numbers was written under a newer state of the database, which was then replaced
by an older one. Such a volume is read, and neither written nor tidied until an operator decides.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from leasehold.errors import UsageError, VolumeUnusable
from leasehold.files.model import VolumeMark, newer_volume

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from leasehold.clock import Clock
    from leasehold.errors import VolumeNewer
    from leasehold.files.disk import Disk
    from leasehold.files.journal import Journal
    from leasehold.files.model import Block

FORMAT: Final = 1
_IDENTITY = "VOLUME"
_ASIDE = "VOLUME.new"
_PROBE = "CHECK"
_BLOCKS = "blocks"
_MARKS = "MARKS"
_OURS = {_IDENTITY, _ASIDE, _PROBE, _BLOCKS, _MARKS}
_OF_THE_FILE_SYSTEM = {"lost+found"}
_IDENTITY_BYTES = 4096
_DIRECTORIES = 256
# Slots, so that writers of different blocks need no lock; the mark is the highest of all.
_SLOTS = 16
_SLOT = struct.Struct("<QQI12x")
_NUMBERS = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeIdentity:
    """The contents of an identity file."""

    namespace: str
    volume: str
    format: int = FORMAT


class Volume:
    """A directory with blocks. Making the object touches nothing; ``check`` does."""

    __slots__ = ("_blocks", "disk", "id", "namespace", "root")

    def __init__(self, id: str, root: Path | str, disk: Disk, *, namespace: str = "") -> None:  # noqa: A002
        """Without ``namespace``, that of the identity file is not compared."""
        self.id = id
        self.root = os.fspath(root)
        self.disk = disk
        self.namespace = namespace
        self._blocks = f"{self.root}/{_BLOCKS}"

    def __repr__(self) -> str:
        return f"Volume({self.id!r}, {self.root!r})"

    @classmethod
    def make(cls, root: Path | str, *, disk: Disk, namespace: str, id: str) -> Volume:  # noqa: A002
        """Prepare a directory, durably. Safe to repeat."""
        volume = cls(id, root, disk, namespace=namespace)
        disk.make_directory(volume.root, what="volume")
        found = cls.found(root, disk=disk)
        if found is None:
            volume._refuse_foreign()
            volume._prepare()
        elif (found.namespace, found.volume) != (namespace, id):
            raise VolumeUnusable(
                f"{volume.root} is volume {found.volume!r} of namespace {found.namespace!r} and is "
                f"left as it is. Give volume {id!r} a directory of its own."
            )
        return volume

    @classmethod
    def found(cls, root: Path | str, *, disk: Disk) -> VolumeIdentity | None:
        """Return the identity of the directory; None if it has none."""
        try:
            fd = disk.open(f"{os.fspath(root)}/{_IDENTITY}")
        except FileNotFoundError:
            return None
        try:
            raw = disk.read_at(fd, _IDENTITY_BYTES, 0)
        finally:
            disk.close(fd)
        try:
            fields = json.loads(raw)
            identity = VolumeIdentity(
                namespace=str(fields["namespace"]),
                volume=str(fields["volume"]),
                format=int(fields["format"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise VolumeUnusable(
                f"{root}/{_IDENTITY} can not be understood ({error}). Restore it from a copy, or "
                "take the volume out of service."
            ) from error
        if identity.format != FORMAT:
            raise VolumeUnusable(
                f"{root} has format {identity.format}, this program knows {FORMAT}. Use the "
                "version of Leasehold that made it."
            )
        return identity

    def check(self, *, write: bool = True) -> None:
        """Return if the directory is this volume and, with ``write``, can be written."""
        try:
            found = self.found(self.root, disk=self.disk)
            if found is not None and self._is(found):
                if write:
                    self._probe()
                return
        except OSError as error:
            raise VolumeUnusable(
                f"volume {self.id!r} at {self.root} can not be used: {error.strerror or error}. "
                "Repair or mount it, or take it out of service."
            ) from error
        if found is None:
            raise VolumeUnusable(
                f"volume {self.id!r} is not at {self.root}: there is no {_IDENTITY} file. Is the "
                "disk mounted? If it is gone for good, see `leasehold files replace`."
            )
        raise VolumeUnusable(
            f"{self.root} is volume {found.volume!r} of namespace {found.namespace!r}, not "
            f"{self.id!r} of {self.namespace or found.namespace!r}. Mount the right disk there."
        )

    def directory(self, block_id: int) -> str:
        """Return where the files of a block are."""
        return f"{self._blocks}/{block_id & 0xFF:02x}"

    def data_path(self, block_id: int) -> str:
        """Return the bytes of a block."""
        return f"{self._blocks}/{block_id & 0xFF:02x}/{block_id:016x}.data"

    def meta_path(self, block_id: int, generation: int) -> str:
        """Return the records of a block, under one generation."""
        return f"{self._blocks}/{block_id & 0xFF:02x}/{block_id:016x}-{generation:016x}.meta"

    def copy_path(self, block_id: int, copy_epoch: int, kind: str) -> str:
        """Return a file, ``data`` or ``meta``, of a replica that was copied under this epoch."""
        return f"{self._blocks}/{block_id & 0xFF:02x}/{block_id:016x}+{copy_epoch:016x}.{kind}"

    def data_of(self, block: Block) -> str:
        """Return the bytes of a block: of the writer's own replica, or of a copy."""
        epoch = block.copy_on(self.id)
        return self.copy_path(block.id, epoch, "data") if epoch else self.data_path(block.id)

    def meta_of(self, block: Block) -> str:
        """Return the records of a block: of the writer's own replica, or of a copy."""
        epoch = block.copy_on(self.id)
        if epoch:
            return self.copy_path(block.id, epoch, "meta")
        return self.meta_path(block.id, block.generation)

    def open_mark(self, block_id: int, epoch: int, *, disk: Disk) -> int:
        """Write a block id and an epoch into the mark; return the descriptor, to sync and close.

        The caller syncs it no later than the first bytes of the block.
        """
        path = f"{self.root}/{_MARKS}"
        try:
            fd = disk.open(path, write=True)
        except FileNotFoundError:
            fd = self._new_marks(path, disk)
        try:
            at = block_id % _SLOTS * _SLOT.size
            before = _mark_in(disk.read_at(fd, _SLOT.size, at))
            joined = before.joined(VolumeMark(block=block_id, epoch=epoch))
            numbers = _NUMBERS.pack(joined.block, joined.epoch)
            slot = _SLOT.pack(joined.block, joined.epoch, crc32c(numbers))
            disk.write_at(fd, slot, at, what="mark")
        except BaseException:
            disk.close(fd)
            raise
        return fd

    def _new_marks(self, path: str, disk: Disk) -> int:
        try:
            fd = disk.create(path, what="mark")
        except FileExistsError:  # another process made it in this moment
            return disk.open(path, write=True)
        try:
            disk.sync_directory(self.root, what="mark")
        except BaseException:
            disk.close(fd)
            raise
        return fd

    def raise_mark(self, block_id: int, epoch: int, *, disk: Disk) -> None:
        """Write a block id and an epoch into the mark, durably."""
        fd = self.open_mark(block_id, epoch, disk=disk)
        try:
            for error in disk.sync([fd], what="mark").values():
                raise error
        finally:
            disk.close(fd)

    def mark(self) -> VolumeMark:
        """Return the highest block id and epoch that were ever used here; raises ``OSError``."""
        try:
            fd = self.disk.open(f"{self.root}/{_MARKS}")
        except FileNotFoundError:  # no block was ever written
            return VolumeMark()
        try:
            return _mark_in(self.disk.read_at(fd, _SLOTS * _SLOT.size, 0))
        finally:
            self.disk.close(fd)

    def free_bytes(self) -> int:
        """Return the free bytes; raise ``OSError`` if the volume fails."""
        return self.disk.free_bytes(self.root)

    def missing_directories(self) -> frozenset[int]:
        """Return the numbers of the block directories that are missing; raises ``OSError``."""
        names: set[str] = set()
        with suppress(FileNotFoundError):
            names = set(self.disk.names(self._blocks))
        return frozenset(each for each in range(_DIRECTORIES) if f"{each:02x}" not in names)

    def restore_directories(self, open_blocks: Collection[int]) -> None:
        """Make directories again that are missing, durably; the identity must be there.

        Not those that the ``open_blocks`` had: there, "no such directory" tells a recovery that the
        volume has lost its replica. An empty directory would say that there never was one.
        """
        lost = self.missing_directories() - {block_id % _DIRECTORIES for block_id in open_blocks}
        if lost:
            self._make_directories(sorted(lost))
            self.disk.sync_directory(self.root, what="volume")

    def _make_directories(self, numbers: Iterable[int] = range(_DIRECTORIES)) -> None:
        self.disk.make_directory(self._blocks, what="volume")
        for number in numbers:
            self.disk.make_directory(f"{self._blocks}/{number:02x}", what="volume")
        self.disk.sync_directory(self._blocks, what="volume")

    def _is(self, found: VolumeIdentity) -> bool:
        return found.volume == self.id and self.namespace in {"", found.namespace}

    def _probe(self) -> None:
        path = f"{self.root}/{_PROBE}"
        with suppress(FileExistsError):  # another process checks too, or died while it did
            self.disk.close(self.disk.create(path, what="check"))
        self.disk.unlink(path, what="check")

    def _refuse_foreign(self) -> None:
        names = set(self.disk.names(self.root)) - _OURS - _OF_THE_FILE_SYSTEM
        names = {name for name in names if not name.startswith(f"{_ASIDE}.")}
        if names:
            raise VolumeUnusable(
                f"{self.root} is not empty (it has {min(names)!r}) and is not a volume; it is left "
                "as it is. Give the volume an empty directory."
            )

    def _prepare(self) -> None:
        """The identity comes last: a directory that has it has everything."""
        disk = self.disk
        self._make_directories()
        with suppress(FileExistsError):
            disk.close(disk.create(f"{self.root}/{_MARKS}", what="volume"))
        fields = {"format": FORMAT, "namespace": self.namespace, "volume": self.id}
        aside = f"{self.root}/{_ASIDE}.{self.id}"
        disk.unlink(aside, what="volume")
        fd = disk.create(aside, what="volume")
        try:
            disk.write_at(fd, json.dumps(fields).encode() + b"\n", 0, what="volume")
            for error in disk.sync([fd], what="volume").values():
                raise error
        finally:
            disk.close(fd)
        # A link, not a rename: of two concurrent makers, the second must not replace the first.
        disk.link(aside, f"{self.root}/{_IDENTITY}", what="volume")
        disk.unlink(aside, what="volume")
        disk.sync_directory(self.root, what="volume")
        disk.sync_directory(os.path.dirname(os.path.abspath(self.root)), what="volume")  # noqa: PTH100, PTH120


def _mark_in(raw: bytes) -> VolumeMark:
    """Return the highest numbers of these slots; one that is not valid does not count."""
    found = VolumeMark()
    for block, epoch, crc in _SLOT.iter_unpack(raw[: len(raw) // _SLOT.size * _SLOT.size]):
        if block and crc == crc32c(_NUMBERS.pack(block, epoch)):
            found = found.joined(VolumeMark(block=block, epoch=epoch))
    return found


log = logging.getLogger("leasehold.files")

DEFAULT_REPLICATION = 3
# For this long a volume that was found usable gets new blocks without another check. One that fails
# in the meantime is dropped from the block by its writer.
_RECHECK_INTERVAL_S = 1.0


class Volumes:
    """All volumes by id. Safe to use from several threads.

    One that was replaced is no longer chosen or listed, and those that have it open still get it.
    """

    def __init__(self, known: Iterable[Volume], *, clock: Clock) -> None:
        self._by_id = {volume.id: volume for volume in known}
        self._replaced: frozenset[str] = frozenset()
        self._clock = clock
        self._checked_at: dict[str, float] = {}
        self._list_volumes: Callable[[], Iterable[Volume]] = tuple
        self._numbers: Callable[[], VolumeMark] | None = None
        self._make_in_place_of: Callable[[str, str], str] | None = None

    @classmethod
    def opened(
        cls,
        journal: Journal,
        roots: Sequence[Path | str],
        *,
        disk: Disk,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> Volumes:
        """Open the volumes of the journal and those at ``roots``, made and registered if new."""
        known = journal.volumes()
        if not known and not roots:
            raise UsageError(
                f"{journal.url} has no volumes yet: name one or more directories to keep files in, "
                "or make a stream of the log with `leasehold log create NAME --volume DIR`"
            )
        namespace = journal.namespace_id(new_id=new_id())
        at_path = {path: id_ for id_, path in known.items()}
        for root in roots:
            path = str(Path(root).absolute())
            if path not in at_path:
                volume_id = _volume_id_at(path, disk=disk, namespace=namespace, new_id=new_id)
                journal.register_volume(volume_id, path)
                known[volume_id] = path

        def listed() -> list[Volume]:
            now = journal.volumes().items()
            return [Volume(id_, path, disk, namespace=namespace) for id_, path in now]

        def make_in_place_of(volume_id: str, path: str) -> str:
            made = _volume_id_at(path, disk=disk, namespace=namespace, new_id=new_id)
            if made == volume_id:  # it is the volume itself, at another path
                journal.register_volume(volume_id, path)
            else:
                journal.replace_volume(volume_id, by=made, path=path)
            return made

        volumes = cls(listed(), clock=clock)
        volumes._list_volumes = listed
        volumes._make_in_place_of = make_in_place_of
        volumes._numbers = journal.numbers
        for error in volumes.newer().values():
            log.error("%s", error)
        return volumes

    def __len__(self) -> int:
        return len(self.all())

    def all(self) -> Sequence[Volume]:
        """Return every volume, usable or not."""
        return tuple(each for each in self._by_id.values() if each.id not in self._replaced)

    def refresh(self) -> None:
        """Learn which volumes were added or replaced by other processes."""
        listed = {volume.id: volume for volume in self._list_volumes()}
        if listed:
            moved = {
                id_ for id_, old in self._by_id.items() if listed.get(id_, old).root != old.root
            }
            self._by_id = {
                id_: volume for id_, volume in (listed | self._by_id).items() if id_ not in moved
            } | {id_: listed[id_] for id_ in moved}
            self._replaced = frozenset(self._by_id) - frozenset(listed)

    def replace(self, volume_id: str, root: Path | str) -> str:
        """Forget a volume that is gone for good, make one at ``root``, and return its id.

        Safe to repeat. A volume that is found at ``root`` under its own id has only moved.

        Raises:
            UsageError: the volume answers, or there is none, or ``root`` is that of another.
            VolumeUnusable: no volume can be made at ``root``.
        """
        path = self.check_replacement(volume_id, root)
        assert self._make_in_place_of is not None  # noqa: S101 - it was checked
        made = self._make_in_place_of(volume_id, path)
        self.refresh()
        return made

    def check_replacement(self, volume_id: str, root: Path | str) -> str:
        """Return the absolute path if ``replace`` may be called; nothing is changed."""
        self.refresh()
        path = str(Path(root).absolute())
        at_path = {volume.root: volume.id for volume in self.all()}
        if volume_id not in at_path.values() or self._make_in_place_of is None:
            raise UsageError(f"there is no volume {volume_id}: see `leasehold files volumes`")
        if at_path.get(path, volume_id) != volume_id:
            raise UsageError(
                f"{path} is volume {at_path[path]}. Give the new volume a directory of its own."
            )
        with suppress(VolumeUnusable):
            self.readable(volume_id)
            raise UsageError(
                f"volume {volume_id} answers at {self.get(volume_id).root}: it need not be "
                "replaced. Missing copies on it are made again by themselves, or at once by "
                "`leasehold files repair --execute`. To take it out of service, unmount it first."
            )
        return path

    def is_replaced(self, volume_id: str) -> bool:
        """Return whether the journal no longer knows this volume: nothing of it is left to tidy."""
        if any(each.id == volume_id for each in self.all()):
            return False
        self.refresh()
        return bool(self.all()) and all(each.id != volume_id for each in self.all())

    def known(self, volume_ids: Iterable[str]) -> list[Volume]:
        """Return the volumes with these ids, without those that the journal does not know."""
        found = []
        for each in volume_ids:
            with suppress(VolumeUnusable):
                found.append(self.get(each))
        return found

    def get(self, volume_id: str) -> Volume:
        """Return the volume with this id."""
        if volume_id not in self._by_id:  # another process has added it in the meantime
            self._by_id = {volume.id: volume for volume in self._list_volumes()} | self._by_id
        try:
            return self._by_id[volume_id]
        except KeyError:
            raise VolumeUnusable(
                f"the journal knows no volume {volume_id}: it was replaced"
            ) from None

    def readable(self, volume_id: str) -> Volume:
        """Return the volume with this id, after a check that it is the right one."""
        volume = self.get(volume_id)
        volume.check(write=False)
        return volume

    def usable(self, volume_id: str) -> Volume:
        """Return the volume with this id, after a check that it can be written or tidied.

        Raises:
            VolumeNewer: it was written under a newer state of the database.
        """
        volume = self.get(volume_id)
        volume.check()
        newer = self._newer([volume])
        if newer:
            raise newer[volume_id]
        return volume

    def newer(self) -> dict[str, VolumeNewer]:
        """Return the volumes that are newer than the database, each with the error."""
        return self._newer(self.all())

    def _newer(self, volumes: Iterable[Volume]) -> dict[str, VolumeNewer]:
        # The marks first: what another process draws in the meantime is then no difference.
        marks = {volume.id: (volume, self.mark([volume])) for volume in volumes}
        if self._numbers is None or not any(mark.block for _, mark in marks.values()):
            return {}
        known = self._numbers()
        return {
            id_: newer_volume(f"volume {id_!r} at {volume.root}", mark, known)
            for id_, (volume, mark) in marks.items()
            if mark.is_above(known)
        }

    def mark(self, volumes: Iterable[Volume]) -> VolumeMark:
        """Return the highest mark of these volumes; those that fail are left out."""
        found = VolumeMark()
        for volume in volumes:
            with suppress(OSError):
                found = found.joined(volume.mark())
        return found

    def choose(self, *, replication: int, min_volumes: int, turn: int) -> tuple[Volume, ...]:
        """Choose volumes for a new block in turn; skip those that cannot be used."""
        found, errors = self._usable_in_turn(replication, turn)
        if errors and len(found) < replication:
            before = self.all()
            self.refresh()  # one may have been replaced by another process
            if self.all() != before:
                found, errors = self._usable_in_turn(replication, turn)
        if len(found) < min_volumes:
            raise VolumeUnusable(
                f"{len(found)} of {len(self)} volumes can be used and {min_volumes} are needed: "
                f"{'; '.join(errors) or 'add volumes, or ask for fewer replicas'}"
            )
        if len(found) < replication and errors:
            log.warning(
                "a block is begun on %d of %d volumes: %s",
                len(found),
                replication,
                "; ".join(errors),
            )
        return tuple(found)

    def _usable_in_turn(self, replication: int, turn: int) -> tuple[list[Volume], list[str]]:
        """Return usable volumes from the one whose turn it is, and why others were skipped."""
        ordered = sorted(self.all(), key=lambda volume: volume.id)
        first = turn % len(ordered)
        found: list[Volume] = []
        errors: list[str] = []
        for volume in ordered[first:] + ordered[:first]:
            if len(found) == replication:
                break
            try:
                self._check_unless_recent(volume)
            except VolumeUnusable as error:
                errors.append(str(error))
            else:
                found.append(volume)
        return found, errors

    def _check_unless_recent(self, volume: Volume) -> None:
        now = self._clock.boottime_s()
        if (
            not 0
            <= now - self._checked_at.get(volume.id, -_RECHECK_INTERVAL_S)
            < _RECHECK_INTERVAL_S
        ):
            self._checked_at.pop(volume.id, None)
            volume.check()
            self._checked_at[volume.id] = now


def _volume_id_at(path: str, *, disk: Disk, namespace: str, new_id: Callable[[], str]) -> str:
    """Return the id of the volume at ``path``, made if there is none."""
    identity = _found(path, disk)
    if identity is None:
        volume_id = new_id()
        try:
            Volume.make(path, disk=disk, namespace=namespace, id=volume_id)
        except (OSError, VolumeUnusable) as error:
            identity = _found(path, disk)  # another process may make it in this moment
            if identity is None and isinstance(error, OSError):
                raise VolumeUnusable(
                    f"no volume can be made at {path}: {error.strerror or error}. Create the "
                    "directory above it, or mount the disk, with the right to write there."
                ) from error
            if identity is None:
                raise
        else:
            return volume_id
    if identity.namespace != namespace:
        raise VolumeUnusable(
            f"{path} is a volume of another namespace ({identity.namespace}, ours is {namespace}): "
            "choose another directory, or the store it belongs to"
        )
    return identity.volume


def _found(path: str, disk: Disk) -> VolumeIdentity | None:
    try:
        return Volume.found(path, disk=disk)
    except OSError:
        return None
