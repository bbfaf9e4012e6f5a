"""Opening a new segment at the end of a partition: the way to become its owner.

The owner of a partition is who has its last segment open for writing. The files room lets only one
in, and shuts out the one before. What is left to make sure here is that our segment really is the
last: nobody else's may lie at or after its place. A former look at the list may be old, so the list
is read again once our segment is there. Retention never removes the newest segment; so if others
went on in the meantime, we see it.

A segment is created for events that wait to be stored, and its header is written with them: one
without bytes is what a crash in between leaves. It is opened again by the next owner.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.errors import (
    DataDamaged,
    FileExists,
    FileHeld,
    LeaseLost,
    RecoveryInProgress,
    UnknownFile,
)
from leasehold.files.model import FileState
from leasehold.log.ledger import Ledger
from leasehold.log.mapped import MappedSegment
from leasehold.log.parcel import Moved
from leasehold.log.shelf import Place
from leasehold.log.streams import base_of, segment_path, segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace
    from leasehold.files.writer import FileWriter
    from leasehold.log.parcel import Partition
    from leasehold.log.streams import StreamSettings

_RECOVERY_LIMIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A segment without bytes, open for writing at the end of a partition, and what led to it."""

    writer: FileWriter
    ledger: Ledger


def newest(files: Namespace, partition: Partition, *, from_base: int = 0) -> FileStatus | None:
    """The last segment of a partition, if there is one. ``from_base``: where to begin to look."""
    found = _listed(files, partition, from_base=from_base)
    return found[-1] if found else None


def take(
    files: Namespace, partition: Partition, settings: StreamSettings, *, from_base: int
) -> Opening:
    """Open the next segment of a partition.

    Raises:
        Moved: somebody else did, or has its last segment open; look again.
        DataDamaged: the end of the partition can not be read.
        LeaseholdError: the files room can not serve.
    """
    found = _listed(files, partition, from_base=from_base)
    if found and found[-1].state is not FileState.CLOSED:
        raise Moved(f"{found[-1].path} is being written by {found[-1].holder}")
    _clear(files, found[:-1])
    if found and not found[-1].length:
        return _again(files, partition, found[-1].path)
    if not found:
        return Opening(writer=begin(files, partition, settings, base=0), ledger=Ledger())
    ledger = _end_of(files, found[-1])
    if ledger.next_sequence == base_of(found[-1].path):
        _discard(files, found[-1])
        raise Moved(f"{found[-1].path} had no whole event and was removed")
    return Opening(
        writer=begin(files, partition, settings, base=ledger.next_sequence), ledger=ledger
    )


def begin(
    files: Namespace, partition: Partition, settings: StreamSettings, *, base: int
) -> FileWriter:
    """Create the segment that begins at ``base``, if it is the last one then.

    Raises:
        Moved: somebody else has created it, or a later one.
    """
    path = segment_path(partition.stream, partition.number, base)
    try:
        writer = files.create(
            path, replication=settings.replication or None, block_size=settings.block_size
        )
    except (FileExists, FileHeld, RecoveryInProgress) as error:
        raise Moved(f"{path} was created by somebody else: {error}") from error
    _check_last(files, partition, writer, base)
    return writer


def _again(files: Namespace, partition: Partition, path: str) -> Opening:
    """Open a last segment that has no bytes; what leads to it is in the one before."""
    base = base_of(path) or 0
    before = [each for each in _listed(files, partition) if each.length and each.path < path]
    ledger = Ledger(next_sequence=base)
    if before:
        ledger = _end_of(files, before[-1])
    if ledger.next_sequence != base:
        raise DataDamaged(
            f"{path} should follow event {ledger.next_sequence - 1}, which is the last one in "
            f"{before[-1].path}: verify the stream"
        )
    try:
        writer = files.append(path)
    except (FileHeld, RecoveryInProgress, UnknownFile) as error:
        raise Moved(f"{path} was opened by somebody else: {error}") from error
    if writer.length:
        writer.close()
        raise Moved(f"{path} was written by somebody else")
    _check_last(files, partition, writer, base)
    return Opening(writer=writer, ledger=ledger)


def _end_of(files: Namespace, status: FileStatus) -> Ledger:
    """What is known after a segment, from a volume on which it is sound."""
    mapped = MappedSegment(Place(base=base_of(status.path) or 0, path=status.path), files)
    while True:
        try:
            return Ledger.after(mapped.whole)
        except DataDamaged as damage:
            mapped.repair(damage)


def _check_last(files: Namespace, partition: Partition, writer: FileWriter, base: int) -> None:
    """Give our new segment up if a later one is there: it is too late for it."""
    found = segments(files, partition.stream, partition.number, from_base=base + 1)
    later = [each.path for each in found]
    if later:
        with suppress(LeaseLost, UnknownFile):
            writer.discard()
        raise Moved(f"the partition has gone on: {later[-1]}")


def _clear(files: Namespace, earlier: Sequence[FileStatus]) -> None:
    """Close what is open before the last segment: somebody was too late for it, and died."""
    for each in earlier:
        if each.state is not FileState.CLOSED:
            with suppress(UnknownFile):
                status = files.recover(each.path, timeout=_RECOVERY_LIMIT)
                if not status.length:
                    files.delete(each.path)


def _discard(files: Namespace, status: FileStatus) -> None:
    """Remove a last segment that has bytes and no event: a first batch that was cut short."""
    with suppress(FileHeld, RecoveryInProgress, LeaseLost, UnknownFile):
        writer = files.append(status.path)
        if writer.length == status.length:
            writer.discard()
        else:
            writer.close()


def _listed(files: Namespace, partition: Partition, *, from_base: int = 0) -> list[FileStatus]:
    found = segments(files, partition.stream, partition.number, from_base=from_base)
    if from_base and not found:  # the stream was deleted, and perhaps made anew
        return _listed(files, partition)
    return found
