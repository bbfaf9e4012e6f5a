"""Recovery of the last block of a file: the steps of ``docs/design/files.md``, in their order.

Running it again, from any point at which an earlier run ended, leads to the same file. It begins
with a journal step that shuts the old writer out and ends with one that only the newest recovery
can take; between them nothing is destroyed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.block_agreement import agree
from leasehold.errors import RecoveryInProgress, VolumeUnusable
from leasehold.files import fence as sealing
from leasehold.files.fence import Superseded, examine, fence
from leasehold.files.model import SealedBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.core.block_agreement import ReplicaAnswer
    from leasehold.files.disk import Disk
    from leasehold.files.fence import FenceEvidence
    from leasehold.files.journal import Journal
    from leasehold.files.model import Block, FileRecovery, FileStatus
    from leasehold.files.volumes import Volumes

log = logging.getLogger("leasehold.files")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProgress:
    """The progress of a recovery, for the caller that waits for it."""

    path: str
    step: str
    attempt: int
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """What a recovery works with."""

    journal: Journal
    volumes: Volumes
    disk: Disk
    boot_id: bytes


def run_recovery(
    recovery: FileRecovery,
    context: RecoveryContext,
    *,
    accept_loss: bool = False,
    progress: Callable[[RecoveryProgress], None] = lambda _: None,
) -> FileStatus:
    """Bring the file to its end and close it.

    ``accept_loss``: an operator has decided that volumes which do not answer are lost for good.
    """
    block = recovery.block
    if block is None:
        return context.journal.commit_recovery(recovery, None)

    def report(step: str, bytes_read: int = 0) -> None:
        progress(
            RecoveryProgress(
                path=recovery.path, step=step, attempt=recovery.attempt, bytes_read=bytes_read
            )
        )

    report(f"asking {len(block.volumes)} volumes")
    evidence, answers, read = _fence_replicas(recovery, block, context)
    report("agreeing on the length", read)
    agreement = agree(block.volumes, answers, accept_loss=accept_loss)
    if not agreement.length:
        status = context.journal.commit_recovery(recovery, None)
    else:
        report(f"sealing at {agreement.length:,} bytes", read)
        source = evidence[agreement.volumes[0]]
        sealed = _seal_replicas(
            recovery, block, agreement.length, agreement.volumes, source, context
        )
        status = context.journal.commit_recovery(recovery, sealed)
    _tidy_replicas(recovery, block, agreement.length, agreement.volumes, context)
    report("closed", read)
    log.info(
        "recovered %s at %d bytes (epoch %d, was held by %s)",
        status.path,
        status.length,
        recovery.id,
        recovery.was_held_by or "nobody",
    )
    return status


def _fence_replicas(
    recovery: FileRecovery, block: Block, context: RecoveryContext
) -> tuple[Mapping[str, FenceEvidence], Mapping[str, ReplicaAnswer], int]:
    """Fence and examine every replica; skip volumes that do not answer."""
    evidence: dict[str, FenceEvidence] = {}
    answers: dict[str, ReplicaAnswer] = {}
    read = 0
    for volume_id in block.volumes:
        try:
            volume = context.volumes.usable(volume_id)
            found = fence(volume, block, recovery.id, disk=context.disk)
            answer = examine(volume, block, found, disk=context.disk)
        except Superseded as error:
            raise _overtaken(recovery, context, error) from error
        except (OSError, VolumeUnusable) as error:
            log.warning("%s: volume %s does not answer: %s", recovery.path, volume_id, error)
            continue
        evidence[volume_id], answers[volume_id] = found, answer
        read += answer.bytes_read
    return evidence, answers, read


def _seal_replicas(
    recovery: FileRecovery,
    block: Block,
    length: int,
    volume_ids: tuple[str, ...],
    source: FenceEvidence,
    context: RecoveryContext,
) -> SealedBlock:
    """Give each volume that takes part the same records and the seal; one is enough."""
    done: list[str] = []
    errors: list[str] = []
    checksum = 0
    for volume_id in volume_ids:
        try:
            checksum = sealing.seal(
                context.volumes.usable(volume_id),
                block,
                recovery.id,
                source.records,
                length,
                boot_id=context.boot_id,
                disk=context.disk,
            )
        except Superseded as error:
            raise _overtaken(recovery, context, error) from error
        except (OSError, VolumeUnusable) as error:
            errors.append(f"{volume_id}: {error}")
        else:
            done.append(volume_id)
    if not done:
        raise VolumeUnusable(
            f"{recovery.path} could not be sealed on any volume ({'; '.join(errors)}): nothing "
            "is lost; make room or repair a volume and recover again"
        )
    return SealedBlock(block_id=block.id, length=length, checksum=checksum, volumes=tuple(done))


def _overtaken(
    recovery: FileRecovery, context: RecoveryContext, error: Superseded
) -> RecoveryInProgress:
    return RecoveryInProgress(
        f"{recovery.path}: {error}",
        path=recovery.path,
        attempt=recovery.attempt,
        retry_after_s=context.journal.limits.attempt_s,
    )


def _tidy_replicas(
    recovery: FileRecovery,
    block: Block,
    length: int,
    volume_ids: tuple[str, ...],
    context: RecoveryContext,
) -> None:
    """Remove what is no longer needed. A failure here only wastes space."""
    for volume_id in volume_ids:
        with suppress(OSError, VolumeUnusable):
            volume = context.volumes.usable(volume_id)
            sealing.tidy(volume, block, recovery.id, length, disk=context.disk)
