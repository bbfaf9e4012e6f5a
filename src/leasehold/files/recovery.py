"""Recovery of the last block of a file: the steps of ``docs/design/files.md``, in their order.

Running it again, from any point at which an earlier run ended, leads to the same file. It begins
with a journal step that shuts the old writer out and ends with one that only the newest recovery
can take; between them nothing is destroyed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from leasehold.core.block_agreement import agree
from leasehold.errors import (
    ProcessExhausted,
    RecoveryInProgress,
    TailUncertain,
    VolumeUnusable,
)
from leasehold.files import fence as sealing
from leasehold.files import reader
from leasehold.files.block_pieces import merge_records, missing_bytes, read_pieces
from leasehold.files.fence import Superseded, examine, fence
from leasehold.files.model import BlockState, SealedBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from leasehold.core.block_agreement import ReplicaAnswer
    from leasehold.files.block_meta import BlockRecord
    from leasehold.files.disk import Disk
    from leasehold.files.fence import FenceEvidence
    from leasehold.files.journal import Journal
    from leasehold.files.model import Block, FileRecovery, FileStatus
    from leasehold.files.volumes import Volume, Volumes

log = logging.getLogger("leasehold.files")

# A volume that needs more of the block than this is left out: copies that are missing as a whole
# are not made again while others wait for the file.
_MAX_COPIED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProgress:
    """The progress of a recovery, for the caller that waits for it."""

    path: str
    step: str
    attempt: int
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """What a recovery works with.

    ``up_s`` is how long this machine has been up, or less: a holder that has renewed within that
    time under another boot id runs on another machine.
    """

    journal: Journal
    volumes: Volumes
    disk: Disk
    boot_id: bytes
    up_s: float = 0.0


def run_recovery(
    recovery: FileRecovery,
    context: RecoveryContext,
    *,
    accept_loss: bool = False,
    lost_detail: str = "",
    progress: Callable[[RecoveryProgress], None] = lambda _: None,
) -> FileStatus:
    """Bring the file to its end and close it.

    ``accept_loss``: an operator has decided that what no volume has, or only volumes which do not
    answer, is lost for good. ``lost_detail`` is kept with a loss.
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
    found = _fence_replicas(recovery, block, context)
    report("agreeing on the length", found.bytes_read)
    agreement = agree(
        block.volumes, found.answers, together=found.together, accept_loss=accept_loss
    )
    sealed = None
    if agreement.length:
        report(f"sealing at {agreement.length:,} bytes", found.bytes_read)
        sealed = _seal_replicas(recovery, block, agreement.length, found, context)
    given_up = _given_up(block, found) if accept_loss else ()
    lost = [lost_detail] if agreement.lost and lost_detail else []
    lost += (f"volume {each} did not answer and may have had more" for each in given_up)
    status = context.journal.commit_recovery(
        recovery, sealed, lost_bytes=agreement.lost, lost_detail="; ".join(lost)
    )
    if sealed is not None:
        _tidy_replicas(recovery, block, sealed, context)
    report("closed", found.bytes_read)
    log.info(
        "recovered %s at %d bytes (epoch %d, was held by %s)",
        status.path,
        status.length,
        recovery.id,
        recovery.was_held_by or "nobody",
    )
    if agreement.lost:
        log.error(
            "%s: %d bytes after byte %d had been acknowledged and are lost: no volume has them. "
            "Restore them from elsewhere",
            status.path,
            agreement.lost,
            status.length,
        )
    if given_up:
        log.error(
            "%s: what %s had after byte %d is given up. Restore it from elsewhere",
            status.path,
            ", ".join(given_up),
            status.length,
        )
    return status


@dataclass(frozen=True, slots=True, kw_only=True)
class _FencedBlock:
    """What the volumes that answered have of a block: each by itself, and all together."""

    evidence: Mapping[str, FenceEvidence]
    answers: Mapping[str, ReplicaAnswer]
    records: tuple[BlockRecord, ...]

    @property
    def bytes_read(self) -> int:
        return sum(answer.bytes_read for answer in self.answers.values())

    @property
    def together(self) -> int:
        """The length up to which each piece is sound on one volume or another."""
        end = 0
        for position, record in enumerate(self.records):
            if not any(position in answer.pieces for answer in self.answers.values()):
                break
            end = record.end
        return end

    def trusted(self, volume_id: str) -> frozenset[int]:
        """Return the pieces that are sound on a volume and were synced there."""
        answer = self.answers[volume_id]
        return frozenset(
            position for position in answer.pieces if self.records[position].end <= answer.durable
        )


def _fence_replicas(recovery: FileRecovery, block: Block, context: RecoveryContext) -> _FencedBlock:
    """Fence and examine every replica; skip volumes that do not answer."""
    evidence: dict[str, FenceEvidence] = {}
    for volume_id in block.volumes:
        try:
            volume = context.volumes.usable(volume_id)
            evidence[volume_id] = fence(volume, block, recovery.id, disk=context.disk)
        except Superseded as error:
            raise _overtaken(recovery, context, error) from error
        except (OSError, VolumeUnusable) as error:
            log.warning("%s: volume %s does not answer: %s", recovery.path, volume_id, error)
    return _examine_replicas(recovery.path, block, evidence, context)


def _examine_replicas(
    path: str, block: Block, evidence: Mapping[str, FenceEvidence], context: RecoveryContext
) -> _FencedBlock:
    records = merge_records(each.slots for each in evidence.values())
    answers: dict[str, ReplicaAnswer] = {}
    for volume_id, found in evidence.items():
        try:
            answers[volume_id] = examine(
                context.volumes.get(volume_id),
                block,
                found,
                disk=context.disk,
                boot_id=context.boot_id,
                merged=records,
            )
        except OSError as error:
            log.warning("%s: volume %s does not answer: %s", path, volume_id, error)
    return _FencedBlock(evidence=evidence, answers=answers, records=records)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """What a recovery that accepts the loss would keep; nothing was changed.

    ``length`` is that of the file then, ``lost_bytes`` what had been acknowledged after it as far
    as the volumes know that answer, and ``silent`` are those that do not. ``uncertain`` is why a
    recovery refuses to end the file without being told; empty if it does not. ``kept`` are the
    bytes of the last block that stay, ``damaged`` what each volume has in place of the lost ones.
    """

    path: str
    length: int
    lost_bytes: int = 0
    silent: tuple[str, ...] = ()
    uncertain: str = ""
    kept: bytes = field(default=b"", repr=False)
    damaged: tuple[bytes, ...] = field(default=(), repr=False)


def plan_recovery(path: str, context: RecoveryContext) -> RecoveryPlan:
    """Return what a recovery of the file with ``accept_loss`` would keep and lose.

    Raises:
        UnknownFile: there is none.
        TailUncertain: the copies contradict each other.
    """
    status, blocks = context.journal.view(path)
    if not blocks or blocks[-1].state is not BlockState.OPEN:
        return RecoveryPlan(path=path, length=status.length)
    block = blocks[-1]
    evidence: dict[str, FenceEvidence] = {}
    for volume_id in block.volumes:
        with suppress(OSError, VolumeUnusable):
            volume = context.volumes.readable(volume_id)
            parsed = reader.read_records(volume, block, disk=context.disk)
            evidence[volume_id] = sealing.evidence_of(volume, parsed)
    found = _examine_replicas(path, block, evidence, context)
    agreement = agree(block.volumes, found.answers, together=found.together, accept_loss=True)
    uncertain = ""
    try:
        agree(block.volumes, found.answers, together=found.together)
    except TailUncertain as error:
        uncertain = str(error)
    volumes = [context.volumes.get(each) for each in found.answers]
    end = agreement.length
    return RecoveryPlan(
        path=path,
        length=block.start + end,
        lost_bytes=agreement.lost,
        silent=_silent(block, found),
        uncertain=uncertain,
        kept=read_pieces(
            block,
            [record for record in found.records if record.end <= end],
            volumes,
            disk=context.disk,
        ),
        damaged=tuple(_bytes_after(block, end, agreement.lost, volumes, context)),
    )


def _bytes_after(
    block: Block, end: int, size: int, volumes: Sequence[Volume], context: RecoveryContext
) -> Iterator[bytes]:
    for volume in volumes if size else ():
        with suppress(OSError):
            yield reader.read(block, volume, end, size, disk=context.disk)


def _given_up(block: Block, found: _FencedBlock) -> tuple[str, ...]:
    """Return the volumes that do not answer, if the end is not certain without them."""
    try:
        agree(block.volumes, found.answers, together=found.together)
    except TailUncertain:
        return _silent(block, found)
    return ()


def _silent(block: Block, found: _FencedBlock) -> tuple[str, ...]:
    return tuple(each for each in block.volumes if each not in found.answers)


def _seal_replicas(
    recovery: FileRecovery,
    block: Block,
    length: int,
    found: _FencedBlock,
    context: RecoveryContext,
) -> SealedBlock:
    """Give each volume that takes part the same bytes, records and seal; one is enough."""
    done: list[str] = []
    errors: list[str] = []
    checksum = 0
    others = [context.volumes.get(each) for each in found.answers]
    for volume_id in _to_seal(length, found):
        try:
            checksum = sealing.seal(
                context.volumes.usable(volume_id),
                block,
                recovery.id,
                found.records,
                length,
                boot_id=context.boot_id,
                disk=context.disk,
                trusted=found.trusted(volume_id),
                others=[each for each in others if each.id != volume_id],
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


def _to_seal(length: int, found: _FencedBlock) -> list[str]:
    """Return the volumes that get the end of the block: those that do not need too much of it."""
    records = [record for record in found.records if record.end <= length]
    missing = {
        volume_id: missing_bytes(records, answer.pieces)
        for volume_id, answer in found.answers.items()
        if found.evidence[volume_id].present
    }
    return [each for each in missing if missing[each] <= _MAX_COPIED_BYTES] or list(missing)


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
    recovery: FileRecovery, block: Block, sealed: SealedBlock, context: RecoveryContext
) -> None:
    """Remove what is no longer needed. A failure here only wastes space."""
    for volume_id in sealed.volumes:
        with suppress(OSError, VolumeUnusable, ProcessExhausted):
            volume = context.volumes.usable(volume_id)
            sealing.tidy(volume, block, recovery.id, sealed.length, disk=context.disk)
