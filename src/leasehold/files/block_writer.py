"""Writing one block to several volumes.

Nothing is acknowledged before every volume of the block has it, and before the writer has checked
that no recovery has fenced it on any of them. A volume that fails is dropped from the block before
anything more is acknowledged, or the writer stops for good.

``OpenReplica`` is one replica while it is written: the two files of a block on one volume. The meta
file is created before the data file. A fence that finds no meta file creates the data file itself,
so a writer that was paused before it began cannot begin afterwards.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from leasehold.errors import LeaseholdError, UsageError, VolumeUnusable
from leasehold.files.block_meta import (
    CELL_AT,
    HEADER_BYTES,
    PIECE_BYTES,
    RECORD_BYTES,
    BlockHeader,
    BlockRecord,
    RecordKind,
    add_to_checksum,
    encode_acknowledged,
    encode_header,
    encode_record,
    salt,
)
from leasehold.files.model import SealedBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from leasehold.files.disk import Bytes, Disk
    from leasehold.files.volumes import Volume

_CLOSED: Final = -1


class OpenReplica:
    """The descriptors of one replica. Every method raises ``OSError`` if the volume fails."""

    __slots__ = ("_disk", "_files", "_records", "data", "directory", "id", "mark", "meta")

    def __init__(
        self, volume: Volume, *, block_id: int, generation: int, header: bytes, disk: Disk
    ) -> None:
        """Make the files; neither may exist."""
        self.id = volume.id
        self.directory = volume.directory(block_id)
        self._disk = disk
        self._records = 0
        self.data = self.meta = _CLOSED
        # Before the first file of the block: an older database must find that it is older.
        self.mark = volume.open_mark(block_id, generation, disk=disk)
        try:
            meta_path = volume.meta_path(block_id, generation)
            data_path = volume.data_path(block_id)
            self.meta = disk.create(meta_path, what="meta")
            self.data = disk.create(data_path, what="data")
            self._files = (
                (meta_path, disk.identity(self.meta)),
                (data_path, disk.identity(self.data)),
            )
            disk.write_at(self.meta, header, 0, what="header")
        except BaseException:
            self.close()
            raise

    def write_data(self, piece: Bytes, offset: int) -> None:
        """Put the bytes of a piece where they belong."""
        self._disk.write_at(self.data, piece, offset, what="data")

    def append(self, records: bytes, *, what: str = "record") -> None:
        """Add one record or more."""
        at = HEADER_BYTES + RECORD_BYTES * self._records
        self._disk.write_at(self.meta, records, at, what=what)
        self._records += len(records) // RECORD_BYTES

    def check(self) -> None:
        """Return if both files still have their names: no recovery has fenced this writer.

        A file of the same name that is not the one which was made here does not count: what is
        written goes to the other one, which no reader finds.
        """
        for path, identity in self._files:
            found = self._disk.identity_at(path)
            if found is None:
                raise FileNotFoundError(
                    errno.ENOENT, "the file is gone: the block was fenced or removed", path
                )
            if found != identity:
                raise OSError(errno.ESTALE, "another file has this name now", path)

    def acknowledge(self, cell: bytes) -> None:
        """Publish the length that readers may see."""
        self._disk.write_at(self.meta, cell, CELL_AT, what="acknowledged")

    def sync_directory(self) -> None:
        """Make the names of the two files durable."""
        self._disk.sync_directory(self.directory, what="block")

    def close_mark(self) -> None:
        """Close the descriptor of the volume's mark, once it is durable."""
        mark, self.mark = self.mark, _CLOSED
        if mark != _CLOSED:
            with suppress(OSError):
                self._disk.close(mark)

    def close(self) -> None:
        """Close the descriptors; what was not synced is left to the kernel."""
        self.close_mark()
        for fd in (self.meta, self.data):
            if fd != _CLOSED:
                with suppress(OSError):
                    self._disk.close(fd)
        self.meta = self.data = _CLOSED


if TYPE_CHECKING:
    OnFailed = Callable[[Mapping[str, OSError], tuple[str, ...]], None]

SYNC_EVERY_BYTES: Final = 16 << 20  # as much as a recovery may have to read again


class BlockWriter:
    """One block, open for writing. For one caller at a time.

    ``on_failed`` gets the volumes that failed and those that are left. It returns when the journal
    has dropped them from the block, or raises; what it raises is raised by every later call too.
    """

    def __init__(self, block_id: int, generation: int, *, disk: Disk, on_failed: OnFailed) -> None:
        """Begin without a volume; ``create`` is the way to make one."""
        self.block_id = block_id
        self.generation = generation
        self._disk = disk
        self._on_failed = on_failed
        self._salt = salt(block_id)
        self._replicas: list[OpenReplica] = []
        self._length = self._acknowledged = self._durable = self._checksum = 0
        self._names_synced = self._sealed = False
        self._broken: BaseException | None = None

    @classmethod
    def create(
        cls,
        block_id: int,
        generation: int,
        file_id: int,
        volumes: Sequence[Volume],
        *,
        disk: Disk,
        boot_id: bytes,
        on_failed: OnFailed,
    ) -> Self:
        """Make the replicas on all volumes."""
        writer = cls(block_id, generation, disk=disk, on_failed=on_failed)
        header = encode_header(
            BlockHeader(block_id=block_id, generation=generation, file_id=file_id, boot_id=boot_id)
        )
        failed: dict[str, OSError] = {}
        try:
            for volume in volumes:
                try:
                    writer._replicas.append(
                        OpenReplica(
                            volume,
                            block_id=block_id,
                            generation=generation,
                            header=header,
                            disk=disk,
                        )
                    )
                except OSError as error:
                    failed[volume.id] = error
            writer._drop_failed(failed)
        except BaseException:
            writer.close()
            raise
        return writer

    @property
    def length(self) -> int:
        """All that was written."""
        return self._length

    @property
    def acknowledged(self) -> int:
        """What readers may see."""
        return self._acknowledged

    @property
    def durable(self) -> int:
        """What survives a power cut on every volume of the block."""
        return self._durable

    @property
    def checksum(self) -> int:
        """The checksum of all that was written."""
        return self._checksum

    @property
    def volumes(self) -> tuple[str, ...]:
        """The volumes that have all of it."""
        return tuple(replica.id for replica in self._replicas)

    def write_piece(self, data: Bytes) -> None:
        """Write one piece to every volume, without acknowledging it."""
        self._check_ready()
        _check_piece(data)
        encoded = self._write_data(data)
        self._on_each_replica(lambda replica: replica.append(encoded))
        if self._length - self._durable >= SYNC_EVERY_BYTES:
            self._make_durable()

    def _write_data(self, data: Bytes) -> bytes:
        """Write the bytes of a piece; return its encoded record."""
        start = self._length
        end = start + len(data)
        record = BlockRecord(kind=RecordKind.DATA, crc=crc32c(data), end=end, durable=self._durable)
        self._on_each_replica(lambda replica: replica.write_data(data, start))
        self._length = end
        self._checksum = add_to_checksum(self._checksum, record)
        return encode_record(record, salted=self._salt)

    def acknowledge(self) -> None:
        """Let readers see what was written (a flush). It survives the end of every process."""
        self._check_ready()
        self._check_and_acknowledge()

    def sync(self) -> None:
        """Make durable what was written, and let readers see it."""
        self._check_ready()
        self._make_durable()
        self._check_and_acknowledge()

    def seal(self, last: Bytes = b"") -> SealedBlock:
        """End the block: durable, with a seal; the caller then completes it in the journal.

        ``last`` is one more piece; its record and the seal are one write.
        """
        self._check_ready()
        if last:
            _check_piece(last)
        encoded = self._write_data(last) if last else b""
        # A seal means that all of it is durable. It is written with the bytes, in one sync: if a
        # power cut tears them apart, the check of the tail finds a seal without its bytes.
        end = self._length
        record = BlockRecord(
            kind=RecordKind.SEAL, crc=self._checksum, end=end, durable=self._durable
        )
        encoded += encode_record(record, salted=self._salt)
        self._on_each_replica(lambda replica: replica.append(encoded, what="seal"))
        # Acknowledged before it is synced, as by a flush: the acknowledged length is durable too.
        self._check_and_acknowledge()
        self._make_durable()
        self._sealed = True
        return SealedBlock(
            block_id=self.block_id, length=end, checksum=self._checksum, volumes=self.volumes
        )

    def close(self) -> None:
        """Close the descriptors. Nothing is written, synced or acknowledged."""
        if self._broken is None:
            self._broken = UsageError(f"block {self.block_id:#x} is closed. Open the file again.")
        for replica in self._replicas:
            replica.close()
        self._replicas.clear()

    def _check_ready(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._sealed:
            raise UsageError(f"block {self.block_id:#x} is sealed. Write to the next block.")

    def _on_each_replica(self, act: Callable[[OpenReplica], None]) -> None:
        """Run ``act`` on every volume, then continue without those where it failed."""
        failed: dict[str, OSError] = {}
        for replica in self._replicas:
            try:
                act(replica)
            except OSError as error:
                failed[replica.id] = error
            except BaseException as error:
                # The volumes may differ now: only a recovery can decide. Not the error itself: it
                # may be an interrupt, and is raised by every later call, in other threads too.
                self._broken = VolumeUnusable(
                    f"block {self.block_id:#x}: a write was interrupted ({error!r}). What was "
                    "acknowledged is safe: close the file, then append to it."
                )
                raise
        if failed:
            self._drop_failed(failed)

    def _make_durable(self) -> None:
        end = self._length
        files = {replica.data: replica.id for replica in self._replicas}
        files |= {replica.meta: replica.id for replica in self._replicas}
        files |= {each.mark: each.id for each in self._replicas if each.mark != _CLOSED}
        errors = self._disk.sync(list(files), what="block")
        self._drop_failed({files[fd]: error for fd, error in errors.items()})
        if not self._names_synced:
            self._on_each_replica(OpenReplica.sync_directory)
            for replica in self._replicas:
                replica.close_mark()
            self._names_synced = True
        self._durable = end

    def _check_and_acknowledge(self) -> None:
        self._on_each_replica(OpenReplica.check)
        cell = encode_acknowledged(self._length)
        self._on_each_replica(lambda replica: replica.acknowledge(cell))
        self._acknowledged = self._length

    def _drop_failed(self, failed: Mapping[str, OSError]) -> None:
        """Continue without these volumes, if the journal agrees."""
        left = [replica for replica in self._replicas if replica.id not in failed]
        if not failed and left:
            return
        # Broken until the journal has agreed, so that nothing continues if it does not.
        self._broken = VolumeUnusable(_none_left(self.block_id, failed))
        try:
            self._on_failed(failed, tuple(replica.id for replica in left))
        except LeaseholdError as error:
            self._broken = error  # anything else, an interrupt, is not to be raised again
            raise
        if not left:
            raise self._broken
        self._broken = None
        for replica in self._replicas:
            if replica.id in failed:
                replica.close()
        self._replicas = left


def _check_piece(data: Bytes) -> None:
    if not 0 < len(data) <= PIECE_BYTES:
        raise UsageError(
            f"a piece has 1 to {PIECE_BYTES} bytes, this one {len(data)}. Split what you write."
        )


def _none_left(block_id: int, failed: Mapping[str, OSError]) -> str:
    each = "; ".join(f"{volume}: {error}" for volume, error in failed.items()) or "none was given"
    return (
        f"no volume is left for block {block_id:#x} ({each}). What was acknowledged is safe where "
        "the volumes come back: repair them, then recover the file."
    )
