"""One segment as a reader sees it: its acknowledged bytes, mapped from one of its volumes.

Views stay valid for as long as they are held, also if the file grows, is recovered or is deleted. A
replica that turns out to be damaged is replaced by another one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from leasehold.clock import boot_id
from leasehold.errors import DataDamaged, VolumeUnusable
from leasehold.files import reader
from leasehold.files.model import BlockState, FileState
from leasehold.files.volumes import Volume
from leasehold.log.owner_address import is_on_this_machine
from leasehold.log.segment import Segment
from leasehold.log.segment_format import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.files.model import Block
    from leasehold.files.namespace import Namespace
    from leasehold.log.segment_list import ListedSegment


class MappedSegment:
    """Not to be shared between threads. It holds no descriptors, so it needs no closing."""

    def __init__(self, entry: ListedSegment, files: Namespace) -> None:
        """Map the acknowledged bytes of the file."""
        self.entry = entry
        self._volumes = {volume.id: volume for volume in files.volumes}
        self._sound: set[str] = set()
        self._bad: set[str] = set()
        self._volume = ""
        self._view = memoryview(b"")
        self._segment: Segment | None = None
        self._file = files.read(entry.path)
        self._length = self._file.length
        self._map()

    @property
    def final(self) -> bool:
        """Whether the file is closed: there will never be more than there is now."""
        return self._file.status.state is FileState.CLOSED

    @property
    def view(self) -> memoryview:
        """All bytes that are acknowledged, in place."""
        return self._view

    @property
    def segment(self) -> Segment | None:
        """The frames that are acknowledged; None while not even the header is."""
        return self._segment

    @property
    def whole(self) -> Segment:
        """The frames that are acknowledged, where a header is required."""
        if self._segment is None:
            raise DataDamaged(f"{self.entry.path} has lost its header: verify the stream")
        return self._segment

    @property
    def written_elsewhere(self) -> bool:
        """Whether its writer runs on another machine, or ran there: the kernel does not tell."""
        status = self._file.status
        return status.host != "" and not is_on_this_machine(status)

    def watched(self) -> tuple[str, ...]:
        """Return the file that changes when more is acknowledged; none if that cannot happen."""
        block = self._open_block()
        if block is None:
            return ()
        for volume_id in block.volumes:
            volume = self._volumes.get(volume_id)
            if volume is not None and volume_id not in self._bad:
                return (volume.meta_path(block.id, block.generation),)
        return ()

    def replicas(self) -> Iterator[tuple[str, memoryview]]:
        """Yield the acknowledged bytes of an open segment on each volume, in place.

        A volume that does not have them all is skipped: the writer may be leaving it right now.
        """
        block = self._open_block()
        if block is None or len(self._file.blocks) > 1:
            return
        for volume_id in block.volumes:
            try:
                view = self._mapped_from(volume_id, block)
            except (OSError, DataDamaged, VolumeUnusable):
                continue
            yield volume_id, view

    def refresh_from_volumes(self) -> bool:
        """Return whether there is more than before; ask the volumes, the journal only if needed."""
        block = self._open_block()
        if block is None:
            return not self.final and self.refresh()
        volumes = [self._volumes[each] for each in block.volumes if each in self._volumes]
        if not volumes:
            return self.refresh()
        length = block.start + reader.visible_length(
            block,
            volumes,
            disk=volumes[0].disk,
            boot_id=uuid.UUID(boot_id()).bytes,
            written_elsewhere=self._file.written_elsewhere,
        )
        if length > self._length:
            self._length = length
            self._map()
            return True
        # Without its name it was recovered, or is being recovered, or was deleted.
        there = any(volumes[0].disk.exists(path) for path in self.watched())
        return not there and self.refresh()

    def refresh(self) -> bool:
        """Do the same by the journal, which also knows of a close or of dropped volumes."""
        was_final = self.final
        length = self._file.refresh()
        if length > self._length:
            self._length = length
            self._map()
            return True
        return self.final and not was_final

    def repair(self, damage: DataDamaged) -> None:
        """Continue with another volume: the mapped bytes are damaged."""
        if not self._volume:  # pieced together from all volumes already
            raise DataDamaged(f"{self.entry.path}: {damage}") from damage
        self._bad.add(self._volume)
        self._segment = None
        self._map()

    def _open_block(self) -> Block | None:
        blocks = self._file.blocks
        if blocks and blocks[-1].state is BlockState.OPEN and not self.final:
            return blocks[-1]
        return None

    def _map(self) -> None:
        """Bring the view up to the length that is known."""
        while self._length >= SEGMENT_HEADER_BYTES:
            view = self._mapped()
            try:
                self._show(view)
            except DataDamaged as damage:
                if not self._volume:
                    raise DataDamaged(f"{self.entry.path}: {damage}") from damage
                self._bad.add(self._volume)
            else:
                return

    def _show(self, view: memoryview) -> None:
        self._view = view
        if self._segment is not None:
            self._segment.extend(view)
            return
        segment = Segment(view)
        if segment.header.base_sequence != self.entry.base:
            raise DataDamaged(
                f"the header says that it begins with event {segment.header.base_sequence}, the "
                f"name says {self.entry.base}"
            )
        self._segment = segment

    def _mapped(self) -> memoryview:
        """Return all that is acknowledged, from a volume that is not known to be bad."""
        blocks = self._file.blocks
        if len(blocks) == 1:
            for volume_id in blocks[0].volumes:
                if volume_id in self._bad:
                    continue
                try:
                    view = self._mapped_from(volume_id, blocks[0])
                except (OSError, DataDamaged, VolumeUnusable):
                    continue  # another one has it too, or the slow way below raises the error
                self._volume = volume_id
                return view
        # Piece by piece, each from a volume that has it whole.
        self._volume = ""
        self._length = max(self._length, self._file.refresh())
        return memoryview(self._file.read_at(0, self._length))

    def _mapped_from(self, volume_id: str, block: Block) -> memoryview:
        if volume_id not in self._volumes:
            raise VolumeUnusable(f"volume {volume_id} was added since")
        volume = self._volumes[volume_id]
        if volume_id not in self._sound:  # the disk of another volume may be mounted there
            found = Volume.found(volume.root, disk=volume.disk)
            if found is None or found.volume != volume_id:
                raise VolumeUnusable(f"{volume.root} is not volume {volume_id}")
            self._sound.add(volume_id)
        return reader.map_block(block, volume, self._length)
