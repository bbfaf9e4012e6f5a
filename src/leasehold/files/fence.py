"""Fencing one replica, examining its end, and sealing it: a recovery on one volume.

After ``fence`` the old writer can change nothing that is ever read. A volume's answer is given only
when it is frozen in a file that the old writer cannot reach; it is the same for every later
attempt, after any crash. The steps and the names are those of ``docs/design/files.md``: a ``.meta``
was not fenced yet. A ``.p`` was fenced and its copy is not finished: any ``.f`` beside it was never
relied on. A ``.f`` without a ``.p`` is the answer; of several, the one with the highest id.

``examine`` finds which records have their bytes. It reads only the pieces after the last
``durable`` mark, and changes nothing.

Until the journal has the block as complete, nothing destroys evidence: ``seal`` adds one file and
writes again what may not be durable, with the same bytes. Only ``tidy`` and ``remove`` delete; both
may be repeated at any time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from leasehold.core.block_agreement import ReplicaAnswer, ReplicaCondition
from leasehold.errors import LeaseholdError, UsageError, VolumeUnusable
from leasehold.files.block_meta import BlockHeader, RecordKind, checksum, encode, parse
from leasehold.files.block_pieces import rewrite_pieces, sound_pieces

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leasehold.files.block_meta import BlockRecord, ParsedRecords
    from leasehold.files.disk import Disk
    from leasehold.files.model import Block
    from leasehold.files.volumes import Volume


def examine(
    volume: Volume,
    block: Block,
    evidence: FenceEvidence,
    *,
    disk: Disk,
    boot_id: bytes = b"",
    merged: Sequence[BlockRecord] | None = None,
) -> ReplicaAnswer:
    """Return the condition of a replica, and how much of it is sound.

    A replica that has a seal is ``SEALED`` only if its tail has the bytes and the seal fits. One
    that once had more than it has, by its own acknowledged length or by records that stand after
    a bad one, is ``CUT``; one that lost something durable is ``DAMAGED``.

    ``merged`` are the records of all replicas: the pieces that are looked for. If the machine was
    restarted since (it has another ``boot_id``), the header may have an older length than the one
    that was synced last. Then everything that is sound here may have been acknowledged.
    """
    if not evidence.present:
        return ReplicaAnswer(
            volume=volume.id, condition=ReplicaCondition.ABSENT, length=0, checksum=0
        )
    wanted = evidence.records if merged is None else merged
    # One that lost a durable record may have lost durable bytes too: then all of it is read.
    durable = 0 if evidence.length < evidence.lost_durable else evidence.durable
    sound, bytes_read = sound_pieces(volume, block, wanted, durable=durable, disk=disk)
    first_bad = next((each for each in range(len(wanted)) if each not in sound), len(wanted))
    records = evidence.records[:first_bad]
    length = records[-1].end if records else 0
    found = checksum(records)
    known = max(evidence.acknowledged, evidence.durable, evidence.lost_durable)
    if boot_id not in {b"", evidence.boot_id}:
        known = max(known, length)
    return ReplicaAnswer(
        volume=volume.id,
        condition=_condition(evidence, length, found),
        length=length,
        checksum=found,
        acknowledged=known,
        durable=max(evidence.durable, evidence.lost_durable),
        pieces=sound,
        bytes_read=bytes_read,
    )


def _condition(evidence: FenceEvidence, length: int, found: int) -> ReplicaCondition:
    if length < max(evidence.durable, evidence.lost_durable):
        return ReplicaCondition.DAMAGED
    whole = length == evidence.length
    if evidence.sealed and whole:
        return (
            ReplicaCondition.SEALED if evidence.seal_checksum == found else ReplicaCondition.DAMAGED
        )
    if not whole or length < max(evidence.acknowledged, evidence.lost):
        return ReplicaCondition.CUT
    return ReplicaCondition.WHOLE if length else ReplicaCondition.EMPTY


def seal(
    volume: Volume,
    block: Block,
    recovery_id: int,
    records: Sequence[BlockRecord],
    length: int,
    *,
    boot_id: bytes,
    disk: Disk,
    trusted: Collection[int] = (),
    others: Sequence[Volume] = (),
) -> int:
    """End a replica at ``length`` under the recovery id, durably, bytes and all.

    Pieces that are not ``trusted`` are written again before the sync: see ``rewrite_pieces``.
    Returns the checksum of the block.
    """
    kept = [record for record in records if record.kind is RecordKind.DATA and record.end <= length]
    if length <= 0 or not kept or kept[-1].end != length:
        raise UsageError(
            f"block {block.id:#x} has no record that ends at {length}. Seal at the agreed length."
        )
    if not disk.exists(frozen_path(volume, block, recovery_id)):
        raise Superseded(
            f"block {block.id:#x} on volume {volume.id!r} is not fenced by recovery {recovery_id} "
            "any more. Leave the file to the later one."
        )
    header = BlockHeader(
        block_id=block.id,
        generation=recovery_id,
        file_id=block.file_id,
        boot_id=boot_id,
        acknowledged=length,
    )
    target = volume.meta_path(block.id, recovery_id)
    aside = target.removesuffix("meta") + "new"
    data = disk.open(volume.data_path(block.id), write=True)
    try:
        # The old writer may never have synced its last bytes, or its sync may have failed: they
        # are written again and synced, and promised from here on.
        rewrite_pieces(
            volume,
            block,
            data,
            kept,
            recovery_id=recovery_id,
            trusted=trusted,
            others=others,
            disk=disk,
        )
        write_durably(
            aside, encode(header, kept, seal=True), disk=disk, what="seal", with_it=[data]
        )
    finally:
        disk.close(data)
    disk.rename(aside, target, what="seal")
    disk.sync_directory(volume.directory(block.id), what="seal")
    return checksum(kept)


def tidy(volume: Volume, block: Block, recovery_id: int, length: int, *, disk: Disk) -> None:
    """After the commit: cut the bytes to their length and remove all but the sealed replica.

    A volume without the sealed meta file did not take part and is left alone: ``remove`` is for it.
    """
    directory = volume.directory(block.id)
    sealed = volume.meta_path(block.id, recovery_id)
    data = volume.data_path(block.id)
    if not disk.exists(sealed):
        return
    fd = disk.open(data)
    try:
        longer = disk.size(fd) > length
    finally:
        disk.close(fd)
    if longer:
        disk.truncate(data, length, what="tail")
    _remove(directory, block.id, keep={sealed, data}, disk=disk)


def remove(volume: Volume, block_id: int, *, disk: Disk) -> None:
    """Remove every file of a block."""
    _remove(volume.directory(block_id), block_id, keep=set(), disk=disk)


def _remove(directory: str, block_id: int, *, keep: set[str], disk: Disk) -> None:
    stem = f"{block_id:016x}"
    paths = [
        f"{directory}/{name}"
        for name in disk.names(directory)
        if name[: len(stem)] == stem and name[len(stem) : len(stem) + 1] in {"-", "."}
    ]
    # The meta files go first: a writer that is still at it finds at its next check that it is out.
    gone = sorted(path for path in paths if path not in keep)
    gone.sort(key=lambda path: not path.endswith(".meta"))
    for path in gone:
        disk.unlink(path, what="removed")
    if gone:
        disk.sync_directory(directory, what="removed")


_ID_DIGITS: Final = 16
_TRIES: Final = 4


class Superseded(LeaseholdError):
    """A later recovery is at work on this volume: this attempt gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceEvidence:
    """What a volume has of a fenced block; it never changes again.

    ``acknowledged`` is what readers could see here; ``lost`` and ``lost_durable`` are the lengths
    before a bad record, if valid records follow it. ``slots`` are all positions, bad ones too.
    """

    volume: str
    records: tuple[BlockRecord, ...]
    sealed: bool
    acknowledged: int
    present: bool
    seal_checksum: int = 0
    durable: int = 0
    lost: int = 0
    lost_durable: int = 0
    boot_id: bytes = b""
    slots: tuple[BlockRecord | None, ...] = ()

    @property
    def length(self) -> int:
        """The end of the last valid record."""
        return self.records[-1].end if self.records else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFiles:
    """The names of one block and generation in its directory; ids in rising order."""

    meta: bool
    fenced: tuple[int, ...]
    frozen: tuple[int, ...]
    sealed: int  # the highest later generation that has a meta file, or 0
    newest: int  # the highest generation or recovery id of any name of the block


def fence(volume: Volume, block: Block, recovery_id: int, *, disk: Disk) -> FenceEvidence:
    """Fence the writer of a block on one volume and return what is there; may be repeated."""
    if recovery_id <= block.generation:
        raise Superseded(
            f"recovery id {recovery_id} is not above generation {block.generation} of block "
            f"{block.id}. Begin a new recovery at the journal."
        )
    # The recovery id gets into names here: an older database must find that it is older.
    volume.raise_mark(block.id, recovery_id, disk=disk)
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError):  # another attempt renamed it under our hands
            return _fence(_BlockPaths(volume, block), recovery_id, disk=disk)
    return _fence(_BlockPaths(volume, block), recovery_id, disk=disk)


def block_files(volume: Volume, block: Block, *, disk: Disk) -> BlockFiles:
    """Return which files of a block are there; raises ``OSError``."""
    stem = f"{block.id:016x}-"
    fenced: list[int] = []
    frozen: list[int] = []
    metas: list[int] = []
    for name in disk.names(volume.directory(block.id)):
        if not name.startswith(stem):
            continue
        generation, _, rest = name[len(stem) :].partition(".")
        if rest == "meta":
            metas.append(_parse_id(generation))
        elif _parse_id(generation) == block.generation:
            kind = {"p": fenced, "f": frozen}.get(rest[:1])
            number = _parse_id(rest[1:])
            if kind is not None and number:
                kind.append(number)
    return BlockFiles(
        meta=block.generation in metas,
        fenced=tuple(sorted(fenced)),
        frozen=tuple(sorted(frozen)),
        sealed=max((each for each in metas if each > block.generation), default=0),
        newest=max((*fenced, *frozen, *metas), default=0),
    )


def frozen_path(volume: Volume, block: Block, recovery_id: int) -> str:
    """Return the copy of the records that the old writer cannot reach."""
    return _BlockPaths(volume, block).frozen(recovery_id)


def fenced_path(volume: Volume, block: Block, recovery_id: int) -> str:
    """Return the old writer's own meta file, under a name that it does not know."""
    return _BlockPaths(volume, block).fenced(recovery_id)


def read_meta(path: str, *, block_id: int, disk: Disk) -> ParsedRecords:
    """Read and parse a meta file; raises ``OSError``."""
    return parse(_read_file(path, disk=disk), block_id=block_id)


def write_durably(
    path: str, data: bytes, *, disk: Disk, what: str, with_it: Sequence[int] = ()
) -> None:
    """Write a file with these bytes, replacing any; its name is not durable yet.

    The files ``with_it`` are synced at the same time.
    """
    disk.unlink(path, what=what)
    fd = disk.create(path, what=what)
    try:
        disk.write_at(fd, data, 0, what=what)
        for error in disk.sync([fd, *with_it], what=what).values():
            raise error
    finally:
        disk.close(fd)


def evidence_of(volume: Volume, parsed: ParsedRecords | None) -> FenceEvidence:
    """Return the evidence of a replica from its parsed meta file; None: it has none."""
    if parsed is None:
        return FenceEvidence(
            volume=volume.id, records=(), sealed=False, acknowledged=0, present=False
        )
    header, seal = parsed.header, parsed.seal
    return FenceEvidence(
        volume=volume.id,
        records=parsed.records,
        sealed=seal is not None,
        acknowledged=(header.acknowledged or 0) if header else 0,
        present=True,
        seal_checksum=seal.crc if seal else 0,
        durable=parsed.durable,
        lost=parsed.lost_end,
        lost_durable=parsed.lost_durable,
        boot_id=header.boot_id if header else b"",
        slots=parsed.slots,
    )


class _BlockPaths:
    """The names of one block and generation on one volume."""

    def __init__(self, volume: Volume, block: Block) -> None:
        self.directory = volume.directory(block.id)
        self.data = volume.data_path(block.id)
        self.meta = volume.meta_path(block.id, block.generation)
        self._stem = self.meta.removesuffix("meta")
        self.block = block
        self.volume = volume

    def fenced(self, recovery_id: int) -> str:
        return f"{self._stem}p{recovery_id:016x}"

    def frozen(self, recovery_id: int) -> str:
        return f"{self._stem}f{recovery_id:016x}"


def _fence(paths: _BlockPaths, recovery_id: int, *, disk: Disk) -> FenceEvidence:
    _refuse_late(paths, recovery_id, disk=disk)
    found = _claim(paths, recovery_id, disk=disk)
    if found.fenced:
        _freeze(paths, recovery_id, disk=disk)
    parsed = None
    if found.fenced or found.frozen:
        parsed = read_meta(paths.frozen(recovery_id), block_id=paths.block.id, disk=disk)
    # A later attempt may have come in between; then its copy counts and not this one.
    _refuse_late(paths, recovery_id, disk=disk)
    return evidence_of(paths.volume, parsed)


def _refuse_late(paths: _BlockPaths, recovery_id: int, *, disk: Disk) -> None:
    newest = block_files(paths.volume, paths.block, disk=disk).newest
    if newest > recovery_id:
        raise Superseded(
            f"recovery {recovery_id} of block {paths.block.id:#x} came too late on volume "
            f"{paths.volume.id!r}: {newest} was there. Leave the file to that one."
        )


def _claim(paths: _BlockPaths, recovery_id: int, *, disk: Disk) -> BlockFiles:
    """Rename what is there to this recovery id, durably, and keep a late writer from beginning."""
    found = block_files(paths.volume, paths.block, disk=disk)
    if not (found.meta or found.fenced or found.frozen):
        if found.sealed:
            raise VolumeUnusable(
                f"block {paths.block.id:#x} on volume {paths.volume.id!r} was sealed under epoch "
                f"{found.sealed}, which this database does not know: it is older than the block. "
                "The block is left as it is. Restore the newer database."
            )
        try:
            disk.close(disk.create(paths.data, what="blocker"))
        except FileExistsError:
            # The data file is made after the meta file: either that came after the listing, or
            # it was lost. If the writer is still there, its check finds no name.
            found = block_files(paths.volume, paths.block, disk=disk)
    if found.fenced or found.frozen:
        if found.meta:  # a second name of what was fenced: the writer must not find it
            disk.unlink(paths.meta, what="fence")
        name = paths.fenced if found.fenced else paths.frozen
        last = (found.fenced or found.frozen)[-1]
        if last != recovery_id:
            disk.rename(name(last), name(recovery_id), what="fence")
    elif found.meta:
        disk.rename(paths.meta, paths.fenced(recovery_id), what="fence")
        found = replace(found, fenced=(recovery_id,))
    disk.sync_directory(paths.directory, what="fence")
    return found


def _freeze(paths: _BlockPaths, recovery_id: int, *, disk: Disk) -> None:
    """Copy the records to a new inode; only then remove the fenced one.

    All is copied as it is found, bad records too: they are evidence of what was lost. Each name
    is durable before the next step: a power cut must not bring the fenced file back beside a copy
    that was relied on, since the cut may have taken records from it.
    """
    raw = _read_file(paths.fenced(recovery_id), disk=disk)
    write_durably(paths.frozen(recovery_id), raw, disk=disk, what="frozen")
    disk.sync_directory(paths.directory, what="frozen")
    disk.unlink(paths.fenced(recovery_id), what="fenced")
    disk.sync_directory(paths.directory, what="fenced")


def _read_file(path: str, *, disk: Disk) -> bytes:
    fd = disk.open(path)
    try:
        return disk.read_at(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)


def _parse_id(digits: str) -> int:
    """Parse an id of 16 hex digits; return 0 if it is not valid, since ids begin at 1."""
    if len(digits) != _ID_DIGITS:
        return 0
    try:
        return int(digits, 16)
    except ValueError:
        return 0
