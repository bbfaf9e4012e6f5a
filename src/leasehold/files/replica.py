"""One replica while it is written: the two files of a block on one volume, open.

The meta file is made before the data file. A fence that finds no meta file takes the name of the
data file, so a writer that was asleep before it began can not begin afterwards.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from leasehold.files.meta import CELL_AT, HEADER_BYTES, RECORD_BYTES

if TYPE_CHECKING:
    from leasehold.files.disk import Bytes, Disk
    from leasehold.files.volume import Volume

_CLOSED: Final = -1


class OpenReplica:
    """The descriptors of one replica. Every method raises ``OSError`` if the volume fails."""

    __slots__ = ("_disk", "_meta_path", "_records", "data", "directory", "id", "meta")

    def __init__(
        self, volume: Volume, *, block_id: int, generation: int, header: bytes, disk: Disk
    ) -> None:
        """Make the files; neither may exist."""
        self.id = volume.id
        self.directory = volume.directory(block_id)
        self._disk = disk
        self._meta_path = volume.meta_path(block_id, generation)
        self._records = 0
        self.data = _CLOSED
        self.meta = disk.create(self._meta_path, what="meta")
        try:
            self.data = disk.create(volume.data_path(block_id), what="data")
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
        """Return if the meta file still has its name: nobody has fenced us here.

        Raises:
            FileNotFoundError: it is gone.
        """
        if not self._disk.exists(self._meta_path):
            raise FileNotFoundError(
                2, "the meta file is gone: the block was fenced or removed", self._meta_path
            )

    def acknowledge(self, cell: bytes) -> None:
        """Tell readers how much they may see."""
        self._disk.write_at(self.meta, cell, CELL_AT, what="acknowledged")

    def sync_directory(self) -> None:
        """Make the names of the two files durable."""
        self._disk.sync_directory(self.directory, what="block")

    def close(self) -> None:
        """Give the descriptors back; what was not synced is left to the kernel."""
        for fd in (self.meta, self.data):
            if fd != _CLOSED:
                with suppress(OSError):
                    self._disk.close(fd)
        self.meta = self.data = _CLOSED
