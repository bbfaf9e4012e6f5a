"""Compare every byte of a file, on every volume, with its checksums and with the journal.

Bytes that were acknowledged and lost are a fault for as long as the file exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import VolumeUnusable
from leasehold.files import reader
from leasehold.files.model import BlockState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.files.model import Block
    from leasehold.files.recovery import RecoveryContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is not as it should be."""

    path: str
    volume: str
    what: str


def verify(
    path: str,
    context: RecoveryContext,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Sequence[Fault]:
    """Return what is wrong with a file; nothing if all its replicas are whole.

    ``progress`` gets the number of bytes compared since its last call. The open block of a file
    that is being written is skipped: it has no end yet.
    """
    status, blocks = context.journal.view(path)
    found = [
        Fault(path=status.path, volume="-", what=loss.message)
        for loss in context.journal.losses(status.id)
    ]
    known = {volume.id for volume in context.volumes.all()}
    for block in blocks:
        if block.state is not BlockState.COMPLETE:
            continue
        for volume_id in block.volumes:
            found += (
                Fault(path=status.path, volume=volume_id, what=what)
                for what in _faults(block, volume_id, context)
            )
            progress(block.length)
        have = len(known.intersection(block.volumes))
        wanted = min(status.replication, len(known))
        if have < wanted:
            what = f"block {block.id:#x} is on {have} of {wanted} volumes"
            found.append(Fault(path=status.path, volume="-", what=what))
    return found


def _faults(block: Block, volume_id: str, context: RecoveryContext) -> Sequence[str]:
    try:
        volume = context.volumes.readable(volume_id)
        return reader.verify(block, volume, disk=context.disk)
    except (OSError, VolumeUnusable) as error:
        return [f"block {block.id:#x} can not be read: {error}"]
