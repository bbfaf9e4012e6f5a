"""Looking at the end of a replica: which of its records have their bytes.

Only what was not yet durable is read: the pieces after the last ``durable`` mark. Nothing is
changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from leasehold.core.block_agreement import Answer, Condition
from leasehold.files.block_meta import checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.files.block_meta import Record
    from leasehold.files.disk import Disk
    from leasehold.files.fence import Evidence
    from leasehold.files.model import Block
    from leasehold.files.volumes import Volume


def examine(volume: Volume, block: Block, evidence: Evidence, *, disk: Disk) -> Answer:
    """Say in which condition a replica is, and how much of it is sound.

    A replica that has a seal is ``SEALED`` only if its tail has the bytes and the seal fits. One
    that once had more than it has, by its own acknowledged length or by records that stand after
    a bad one, is ``CUT``; one that lost something durable is ``DAMAGED``.

    Raises:
        OSError: the volume failed; it has not answered.
    """
    if not evidence.present:
        return Answer(volume=volume.id, condition=Condition.ABSENT, length=0, checksum=0)
    try:
        data = disk.open(volume.data_path(block.id))
    except FileNotFoundError:
        sound, bytes_read = 0, 0
    else:
        try:
            sound, bytes_read = _sound(data, evidence.records, evidence.durable, disk=disk)
        finally:
            disk.close(data)
    records = evidence.records[:sound]
    length = records[-1].end if records else 0
    found = checksum(records)
    return Answer(
        volume=volume.id,
        condition=_condition(evidence, length, found),
        length=length,
        checksum=found,
        bytes_read=bytes_read,
    )


def _condition(evidence: Evidence, length: int, found: int) -> Condition:
    if length < max(evidence.durable, evidence.lost_durable):
        return Condition.DAMAGED
    whole = length == evidence.length
    if evidence.sealed and whole:
        return Condition.SEALED if evidence.seal_checksum == found else Condition.DAMAGED
    if not whole or length < max(evidence.acknowledged, evidence.lost):
        return Condition.CUT
    return Condition.WHOLE if length else Condition.EMPTY


def _sound(data: int, records: Sequence[Record], durable: int, *, disk: Disk) -> tuple[int, int]:
    """How many records, from the first, have their bytes; and how many bytes were read."""
    size = disk.size(data)
    start = sound = bytes_read = 0
    for record in records:
        if record.end > size:
            break
        if record.end > durable:
            piece = disk.read_at(data, record.end - start, start)
            bytes_read += len(piece)
            if crc32c(piece) != record.crc:
                break
        start = record.end
        sound += 1
    return sound, bytes_read
