"""Bugs in files and their recovery, each put into the real code by replacing a part of it.

The fault runs must find every one of them, each for what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from tests.support.replaced import Replacement, replaces

from leasehold.core.block_agreement import Agreement, ReplicaAnswer
from leasehold.errors import DataDamaged
from leasehold.files import Block, FileStatus, FileWriter, Namespace
from leasehold.files.block_meta import BlockRecord
from leasehold.files.block_writer import BlockWriter, OpenReplica
from leasehold.files.disk import Disk
from leasehold.files.journal import Journal, steps
from leasehold.files.journal.unit_of_work import JournalWork
from leasehold.files.model import (
    FileHolder,
    FileRecovery,
    RecoveryReason,
    SealedBlock,
    VolumeMark,
    WriteTicket,
)
from leasehold.files.open_files import OpenFiles, _SharedFile
from leasehold.files.reader import FileReader, read, read_records
from leasehold.files.recovery import RecoveryContext
from leasehold.files.verify import Fault
from leasehold.files.volumes import Volume, Volumes
from leasehold.log.partition_owner import AppendState, PartitionOwner
from leasehold.log.producer_batch import ProducerBatch, StoredPart, StoreOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesMutant:
    """A bug: what it is called, as what it has to be found, and the parts that have it."""

    name: str
    found_as: str
    parts: tuple[Replacement, ...]


# ------------------------------------------------------------------- the writer


@replaces("leasehold.files.writer:FileWriter._confirm_ownership")
def confirms_one_block(original: Any) -> Any:
    """Only the first block is confirmed by the journal: a later one may be recovered by then."""
    confirmed: WeakSet[FileWriter] = WeakSet()

    def confirm_ownership(self: FileWriter) -> None:
        if self not in confirmed:
            original(self)
            confirmed.add(self)

    return confirm_ownership


@replaces("leasehold.files.block_writer:BlockWriter._make_durable")
def acknowledges_before_sync(_original: Any) -> Any:
    """What was written counts as durable, and nothing waits for the volumes."""

    def make_durable(self: BlockWriter) -> None:
        self._durable = self._length

    return make_durable


@replaces("leasehold.files.block_writer:OpenReplica.check")
def does_not_check(_original: Any) -> Any:
    """A former writer does not look whether it was fenced."""

    def check(self: OpenReplica) -> None:
        del self

    return check


@replaces("leasehold.files.block_writer:OpenReplica.check")
def compares_the_name_only(_original: Any) -> Any:
    """A file of the same name counts as the one that is written."""

    def check(self: OpenReplica) -> None:
        for path, _ in self._files:
            if not self._disk.exists(path):
                raise FileNotFoundError(2, "the file is gone", path)

    return check


@replaces("leasehold.files.block_writer:OpenReplica.sync_directory")
def forgets_the_names(_original: Any) -> Any:
    """The contents of a block are synced, and the names of its files are not."""

    def sync_directory(self: OpenReplica) -> None:
        del self

    return sync_directory


@replaces("leasehold.files.writer:FileWriter._drop_failed_volumes")
def drops_in_secret(_original: Any) -> Any:
    """A volume that failed is left without telling the journal."""

    def drop_failed_volumes(
        self: FileWriter, block_id: int, failed: Mapping[str, OSError], left: tuple[str, ...]
    ) -> None:
        del self, block_id, failed, left

    return drop_failed_volumes


@replaces("leasehold.files.open_files:OpenFiles._sync_without_lock")
def forgets_a_failed_sync(original: Any) -> Any:
    """A sync that fails before a file is closed for another is not reported later."""

    def sync_without_lock(self: OpenFiles, file: _SharedFile) -> None:
        original(self, file)
        file.error = None

    return sync_without_lock


@replaces("leasehold.files.open_files:translated")
def exhaustion_is_a_fault_of_the_volume(_original: Any) -> Any:
    """No free descriptor counts as a failure of the volume."""

    def translated(error: OSError) -> Exception:
        return error

    return translated


# ------------------------------------------------------------------- recovery


@replaces("leasehold.files.fence:rewrite_pieces")
def keeps_the_cache(_original: Any) -> Any:
    """Bytes that can be read count as durable after one more sync."""

    def rewrite_pieces(
        volume: Volume,
        block: Block,
        data: int,
        records: Sequence[BlockRecord],
        *,
        recovery_id: int,
        trusted: Collection[int],
        others: Sequence[Volume],
        disk: Disk,
    ) -> None:
        del volume, block, data, records, recovery_id, trusted, others, disk

    return rewrite_pieces


@replaces("leasehold.files.recovery:agree")
def shortest_wins(original: Any) -> Any:
    """The shortest copy decides, whatever the others know to be acknowledged."""

    def agree(
        members: Sequence[str],
        answers: Mapping[str, ReplicaAnswer],
        *,
        together: int = 0,
        accept_loss: bool = False,
    ) -> Agreement:
        blind = {
            volume: replace(answer, acknowledged=0, durable=0) for volume, answer in answers.items()
        }
        found: Agreement = original(members, blind, together=together, accept_loss=accept_loss)
        return found

    return agree


@replaces("leasehold.files.recovery:agree")
def does_not_wait(original: Any) -> Any:
    """Volumes that do not answer are taken for gone."""

    def agree(
        members: Sequence[str],
        answers: Mapping[str, ReplicaAnswer],
        *,
        together: int = 0,
        accept_loss: bool = False,
    ) -> Agreement:
        del accept_loss
        found: Agreement = original(members, answers, together=together, accept_loss=True)
        return found

    return agree


@replaces("leasehold.files.fence:sound_pieces")
def keeps_torn_records(_original: Any) -> Any:
    """A record counts, whether its bytes are there or not."""

    def sound_pieces(
        volume: Volume, block: Block, records: Sequence[BlockRecord], *, durable: int, disk: Disk
    ) -> tuple[frozenset[int], int]:
        del volume, block, durable, disk
        return frozenset(range(len(records))), 0

    return sound_pieces


@replaces("leasehold.files.journal.steps:seal")
def keeps_the_generation(original: Any) -> Any:
    """A recovered block keeps the generation of its writer."""

    def seal(work: JournalWork, block: Block, sealed: SealedBlock, *, generation: int) -> None:
        del generation
        original(work, block, sealed, generation=block.generation)

    return seal


@replaces("leasehold.files.journal.steps:_current")
def late_recoveries_commit(_original: Any) -> Any:
    """A recovery that another one has overtaken commits all the same."""

    def current(work: JournalWork, recovery: FileRecovery) -> steps.HeldFile | None:
        held = steps._file(work, recovery)
        return None if held.row.closed else held

    return current


@replaces("leasehold.files.journal.steps:begin_recovery")
def recovers_under_the_old_epoch(original: Any) -> Any:
    """Recovery draws no epoch of its own."""

    def begin_recovery(
        work: JournalWork,
        path: str,
        holder: FileHolder,
        reason: RecoveryReason,
        ticket: WriteTicket | None = None,
    ) -> FileRecovery | None:
        begun: FileRecovery | None = original(work, path, holder, reason, ticket)
        if begun is not None:
            work._draw(2, -1)
        return begun

    return begin_recovery


@replaces("leasehold.files.journal.journal:Journal.commit_recovery")
def hides_the_loss(original: Any) -> Any:
    """A recovery that loses acknowledged bytes does not say so."""

    def commit_recovery(
        self: Journal,
        recovery: FileRecovery,
        sealed: SealedBlock | None,
        *,
        lost_bytes: int = 0,
        lost_detail: str = "",
    ) -> FileStatus:
        del lost_bytes
        status: FileStatus = original(self, recovery, sealed, lost_detail=lost_detail)
        return status

    return commit_recovery


@replaces("leasehold.files.fence:_claim")
def does_not_fence(original: Any) -> Any:
    """The names of the writer's files stay, so that it does not notice."""

    def claim(paths: Any, recovery_id: int, *, disk: Disk) -> Any:
        found = original(paths, recovery_id, disk=disk)
        if found.fenced and not disk.exists(paths.meta):
            disk.link(paths.fenced(recovery_id), paths.meta, what="fence")
        return found

    return claim


# ------------------------------------------------------------------- readers


@replaces("leasehold.files.reader:visible_length")
def shows_what_was_written(original: Any) -> Any:
    """A reader sees all records of an open block, acknowledged or not."""

    def visible_length(
        block: Block,
        volumes: Sequence[Volume],
        *,
        disk: Disk,
        boot_id: bytes,
        written_elsewhere: bool = False,
    ) -> int:
        seen: int = original(
            block, volumes, disk=disk, boot_id=boot_id, written_elsewhere=written_elsewhere
        )
        for volume in volumes:
            try:
                parsed = read_records(volume, block, disk=disk)
            except OSError:
                continue
            seen = max(seen, 0 if parsed is None else parsed.length)
        return seen

    return visible_length


@replaces("leasehold.files.reader:FileReader._checked")
def reads_without_checksums(_original: Any) -> Any:
    """The first volume that has enough bytes is believed."""

    def checked(self: FileReader, block: Block, volume: Volume, start: int, end: int) -> bytes:
        found = read(block, volume, start, end - start, disk=self._context.disk)
        if len(found) < end - start:
            raise DataDamaged(f"block {block.id:#x} is short on {volume.id}")
        return found

    return checked


@replaces("leasehold.files.verify:_faults")
def verifies_one_volume(original: Any) -> Any:
    """Only the first replica of each block is compared."""

    def faults(block: Block, volume_id: str, context: RecoveryContext) -> Sequence[str]:
        found: Sequence[str] = original(block, volume_id, context)
        return found if volume_id == block.volumes[0] else ()

    return faults


@replaces("leasehold.files.namespace:verify")
def verify_forgets_losses(original: Any) -> Any:
    """What was lost in a recovery is not a fault of the file."""

    def verify(path: str, context: RecoveryContext, *, progress: Any = lambda _: None) -> Any:
        found: Sequence[Fault] = original(path, context, progress=progress)
        return [each for each in found if "acknowledged bytes" not in each.what]

    return verify


# ------------------------------------------------------------------- an older database


@replaces("leasehold.files.volumes:Volumes._newer")
def trusts_an_older_database(_original: Any) -> Any:
    """A volume is not compared with the numbers of the database."""

    def newer(self: Volumes, volumes: Any) -> dict[str, Any]:
        del self, volumes
        return {}

    return newer


@replaces("leasehold.files.journal.unit_of_work:JournalWork.refuse_newer")
def draws_used_numbers(_original: Any) -> Any:
    """Blocks are numbered on by the database, whatever the volumes have."""

    def refuse_newer(self: JournalWork, mark: VolumeMark) -> None:
        del self, mark

    return refuse_newer


# ------------------------------------------------------------------- the log


@replaces("leasehold.log.partition_owner:AppendState.parts_of")
def stores_resends_again(_original: Any) -> Any:
    """What was sent again is stored again."""

    def parts_of(self: AppendState, producer_batch: ProducerBatch) -> list[StoredPart]:
        del self
        return [StoredPart(count=producer_batch.end - producer_batch.stamp.sequence)]

    return parts_of


@replaces("leasehold.log.partition_owner:AppendState.parts_of")
def receipts_gaps(original: Any) -> Any:
    """Whatever is below the highest number counts as stored, gaps too."""

    def parts_of(self: AppendState, producer_batch: ProducerBatch) -> list[StoredPart]:
        parts: list[StoredPart] = original(self, producer_batch)
        known = self.producers.get(producer_batch.stamp.producer)
        if known is None or producer_batch.stamp.sequence > known.last_sequence:
            return parts
        return [replace(each, outcome=StoreOutcome.DUPLICATE) for each in parts]

    return parts_of


@replaces("leasehold.log.partition_owner:_state_after")
def forgets_the_producers(original: Any) -> Any:
    """A new owner does not know what the one before has stored of a producer."""

    def state_after(files: Namespace, status: FileStatus) -> AppendState:
        found: AppendState = original(files, status)
        found.producers.clear()
        return found

    return state_after


@replaces("leasehold.log.partition_owner:PartitionOwner._store_jobs")
def answers_before_it_is_stored(original: Any) -> Any:
    """An owner answers when it has the frames, before anything is on the volumes."""

    def store_jobs(self: PartitionOwner, jobs: list[Any]) -> None:
        flush, sync = self._writer.flush, self._writer.sync
        self._writer.flush = self._writer.sync = lambda: 0  # type: ignore[method-assign]
        try:
            original(self, jobs)
        finally:
            self._writer.flush, self._writer.sync = flush, sync  # type: ignore[method-assign]

    return store_jobs


MUTANTS = [
    FilesMutant(name=name, found_as=found_as, parts=parts)
    for name, found_as, parts in (
        ("confirms one block", "acknowledged to the former", (confirms_one_block,)),
        (
            "acknowledges before sync",
            "and durable|can not be read|verify reports a sound",
            (acknowledges_before_sync,),
        ),
        ("does not check", "were acknowledged|verify reports a sound", (does_not_check,)),
        (
            "compares the name only",
            "verify reports a sound|can not be read|were acknowledged",
            (compares_the_name_only,),
        ),
        (
            "forgets the names",
            "and durable|can not be read|verify reports a sound",
            (forgets_the_names,),
        ),
        ("drops in secret", "a reader sees|were acknowledged|healthy volume", (drops_in_secret,)),
        (
            "forgets a failed sync",
            "verify reports a sound|can not be read|and durable",
            (forgets_a_failed_sync,),
        ),
        (
            "exhaustion is a fault of the volume",
            "healthy volume|can not be read",
            (exhaustion_is_a_fault_of_the_volume,),
        ),
        ("keeps the cache", "can not be read|verify reports a sound", (keeps_the_cache,)),
        ("shortest wins", "were acknowledged|the journal does not know", (shortest_wins,)),
        ("does not wait", "was recovered at .* were acknowledged", (does_not_wait,)),
        ("keeps torn records", "could not be sealed", (keeps_torn_records,)),
        ("keeps the generation", "its block has generation", (keeps_the_generation,)),
        (
            "late recoveries commit",
            "acknowledged|can not be read|verify reports|has generation",
            (late_recoveries_commit,),
        ),
        ("recovers under the old epoch", "the epoch went back", (recovers_under_the_old_epoch,)),
        ("hides the loss", "the journal does not know", (hides_the_loss,)),
        ("does not fence", "was recovered at|acknowledged to the former", (does_not_fence,)),
        ("shows what was written", "a reader sees", (shows_what_was_written,)),
        ("reads without checksums", "a reader sees wrong bytes", (reads_without_checksums,)),
        ("verifies one volume", "verify does not report", (verifies_one_volume,)),
        ("verify forgets losses", "a loss is not reported", (verify_forgets_losses,)),
        (
            "an older database removes",
            "an older database has changed",
            (trusts_an_older_database, draws_used_numbers),
        ),
        ("stores resends again", "is in the log", (stores_resends_again,)),
        ("receipts gaps", "is called a duplicate|is not in the log", (receipts_gaps,)),
        ("forgets the producers", "is in the log", (forgets_the_producers,)),
        ("answers before it is stored", "is not in the log", (answers_before_it_is_stored,)),
    )
]
