"""What each step of the journal does, inside one transaction.

In this order: files with their open blocks; holders and volumes (a renewal changes one row); paths
(files are known by id, so writers are not disturbed); writers, each with a ticket; opening, with
all checks before the first write; recovery.

Refusals come in one order: the file is gone; it is closed, being recovered, or under another epoch.
A step that finds itself done already gives the same answer.

To begin a recovery draws a new epoch, the recovery id, and shuts out the former writer. Only the
newest id can commit. The times of this attempt and the next one are stored with the file, so a file
that fails neither delays others nor is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import FileExists, InvalidOptions, LeaseLost, StoreUnusable, UsageError
from leasehold.files import model
from leasehold.files.journal import rows
from leasehold.files.journal.rows import FILE_COLUMNS, FileRow, blocks_of, holder_of
from leasehold.files.journal.unit_of_work import as_json
from leasehold.files.model import (
    NO_MARK,
    Block,
    BlockState,
    FileRecovery,
    OpenedFile,
    RecoveryReason,
    VolumeMark,
    WriteTicket,
)
from leasehold.names import stream_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from leasehold.files.journal.unit_of_work import JournalWork
    from leasehold.files.model import FileHolder, FileStatus, HolderStatus, SealedBlock


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file and its open block, if it has one."""

    row: FileRow
    block: Block | None


def held_file(work: JournalWork, file_id: int) -> HeldFile | None:
    """Return the file of this id, in one query."""
    rows = work.held(file_id)
    if not rows:
        return None
    found = blocks_of(row[FILE_COLUMNS:] for row in rows)
    return HeldFile(FileRow(*rows[0][:FILE_COLUMNS]), found[0] if found else None)


def block_by_id(work: JournalWork, block_id: int) -> Block | None:
    """Return the block of this id, open or complete."""
    found = blocks_of(work.tx.all("block", id=block_id))
    return found[0] if found else None


def check_volumes(volumes: Collection[str]) -> tuple[str, ...]:
    """Return the volumes of a block, each once, in the order of their ids."""
    if not volumes or len(set(volumes)) != len(volumes):
        raise InvalidOptions(
            f"a block needs one or more volumes, each once, not {tuple(volumes)!r}"
        )
    return tuple(sorted(volumes))


def check_sealed(block: Block, sealed: SealedBlock) -> None:
    """Check that the seal fits the open block."""
    if sealed.block_id != block.id:
        raise UsageError(
            f"block {sealed.block_id:#x} is not the open one, which is {block.id:#x}: read the "
            "file again"
        )
    check_keep(block, sealed.volumes)
    if sealed.length < 0:
        raise UsageError(f"a block can not have {sealed.length} bytes")


def check_keep(block: Block, keep: Collection[str]) -> None:
    """Check that the block can be kept on these volumes alone."""
    if not keep or not set(keep) <= set(block.volumes):
        raise UsageError(
            f"block {block.id:#x} lies on {', '.join(block.volumes)}: one or more of these can be "
            f"kept, not {', '.join(keep) or 'none'}"
        )


def is_sealed_so(block: Block | None, sealed: SealedBlock, *, generation: int) -> bool:
    """Return whether the block was sealed so before: the call is a repetition."""
    return (
        block is not None
        and block.state is BlockState.COMPLETE
        and block.generation == generation
        and (block.length, block.checksum) == (sealed.length, sealed.checksum)
    )


def begin_block(
    work: JournalWork,
    *,
    file_id: int,
    index: int,
    epoch: int,
    start: int,
    volumes: tuple[str, ...],
) -> Block:
    """Add a new open block at the end of a file."""
    block = Block(
        id=work.draw_block_id(),
        file_id=file_id,
        index=index,
        generation=epoch,
        state=BlockState.OPEN,
        start=start,
        length=0,
        checksum=0,
        volumes=volumes,
    )
    work.defer("block_add", id=block.id, file_id=file_id, idx=index, generation=epoch, start=start)
    work.defer("replicas_add", block_id=block.id, volumes=as_json(volumes))
    return block


def seal(work: JournalWork, block: Block, sealed: SealedBlock, *, generation: int) -> None:
    """Complete the open block; volumes that do not have all of it lose their replica."""
    keep_only(work, block, sealed.volumes)
    work.defer(
        "block_seal",
        id=block.id,
        generation=generation,
        length=sealed.length,
        checksum=sealed.checksum,
    )


def keep_only(work: JournalWork, block: Block, keep: Collection[str]) -> None:
    """Move replicas on other volumes to the trash."""
    if set(keep) == set(block.volumes):
        return
    work.tx.run("replicas_trash", block_id=block.id, keep=as_json(keep))
    work.tx.run("replicas_drop", block_id=block.id, keep=as_json(keep))


def drop(work: JournalWork, block: Block) -> None:
    """Take a block out of its file, all its replicas to the trash."""
    keep_only(work, block, ())
    work.tx.run("block_drop", id=block.id)


def renew(work: JournalWork, holder: FileHolder) -> None:
    """Extend the lease, also a late one, as long as it was not ended."""
    if work.tx.run("holder_renew", id=holder.id, token=holder.token_digest, now=work.now):
        return
    found = work.tx.one("holder_token", id=holder.id)
    reason = "unknown" if found is None else "holder_id_in_use"
    what = "has no lease" if found is None else "is used by another incarnation"
    raise LeaseLost(
        f"the holder {holder.id} {what}: it closed all its files, or they were taken over; "
        "check each file, and open anew what is still needed",
        key=holder.id,
        reason=reason,
    )


def leave(work: JournalWork, holder: FileHolder) -> None:
    """End the lease, unless it still covers an open file. A missing lease is not an error."""
    if work.tx.one("holder_token", id=holder.id) == (holder.token_digest,):
        work.drop_idle(holder.id)


def holders(work: JournalWork, limit: int) -> list[HolderStatus]:
    """Return all holders, the one that has been silent longest first."""
    return [holder_of(row, work.now) for row in work.tx.all("holders", limit=limit)]


def idle(work: JournalWork, limit: int) -> list[str]:
    """Return holders without files that are past the hard limit."""
    before = work.now - work.limits.hard_s
    return [each for (each,) in work.tx.all("holders_idle", before=before, limit=limit)]


def drop_idle(work: JournalWork, ids: Iterable[str]) -> None:
    """End the leases of those that are still idle."""
    before = work.now - work.limits.hard_s
    work.tx.run("holders_drop_idle", ids=as_json(ids), before=before)


def namespace_id(work: JournalWork, new_id: str) -> str:
    """Return the id of the namespace, which its volumes store; it never changes."""
    work.tx.run("namespace_write", namespace=new_id)
    return str((work.tx.one("namespace") or ("",))[0])


def register_volume(work: JournalWork, volume_id: str, path: str) -> None:
    """Store the path of a volume."""
    work.tx.run("volume_write", id=volume_id, path=path, wall=work.wall)


def volumes(work: JournalWork) -> dict[str, str]:
    """Return the path of each volume by its id."""
    return dict(work.tx.all("volumes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEntry:
    """What is at a path: a file, or a file where a directory should be, or the first file below."""

    path: str
    row: FileRow | None
    above: str | None
    below: str | None

    def check_free(self) -> None:
        """Check that a file can be at this path, apart from a file that is there now."""
        if self.above is not None:
            raise rows.below_file(self.path, self.above)
        if self.below is not None:
            raise rows.is_directory(self.path, self.below)


def path_entry(work: JournalWork, path: str) -> PathEntry:
    """Return what is at a path, in one query."""
    found = [FileRow(*row) for row in work.files_near(path)]
    return PathEntry(
        path=path,
        row=next((row for row in found if row.path == path), None),
        above=next((row.path for row in found if len(row.path) < len(path)), None),
        below=next((row.path for row in found if len(row.path) > len(path)), None),
    )


def file_at(work: JournalWork, path: str) -> FileRow:
    """Return the file at a path."""
    found = work.tx.one("file_at", path=path)
    if found is None:
        raise rows.unknown(path)
    return FileRow(*found)


def remove_one(work: JournalWork, row: FileRow, *, by: str) -> None:
    """Delete one file, open or not; its blocks go to the trash."""
    low, high = model.only(row.path)
    work.note(
        "delete",
        file_id=row.id,
        path=row.path,
        epoch=row.epoch,
        holder=row.holder,
        detail=f"overwritten by {by}" if by else "",
    )
    _remove_range(work, low, high)
    if not row.closed and row.holder != by:
        work.drop_idle(row.holder)


def check_no_stream(work: JournalWork, path: str) -> None:
    """Return if nothing at or below the path belongs to a stream of the log.

    Without its segments a stream would begin at number 0 again, and readers would skip events.
    """
    bare = path.removesuffix("/")
    for (stream,) in work.tx.all("streams"):
        directory = stream_directory(stream)
        if f"{bare}/".startswith(f"{directory}/") or f"{directory}/".startswith(f"{bare}/"):
            low, high = model.below(directory)
            (count,) = work.tx.one("files_count", low=low, high=high) or (0,)
            if count:
                raise UsageError(
                    f"{path} has files of the stream {stream!r} of the log, which only the "
                    f"log removes: use `leasehold log trim {stream}` for its oldest events, or "
                    f"`leasehold log rm {stream}` for all of the stream. Nothing was changed"
                )


def delete(work: JournalWork, path: str, *, recursive: bool, by_log: bool = False) -> int:
    """Delete a file or a directory; return how many files were deleted, 0 if repeated."""
    entry = path_entry(work, path)
    if not by_log and (entry.row is not None or entry.below is not None):
        check_no_stream(work, path)
    if entry.row is not None:
        remove_one(work, entry.row, by="")
        return 1
    if entry.below is None:
        return 0
    if not recursive:
        raise FileExists(
            f"{path} is a directory, {entry.below} lies below it: say recursive to delete all of it"
        )
    low, high = model.below(path)
    (count,) = work.tx.one("files_count", low=low, high=high) or (0,)
    work.note_range("delete", low=low, high=high, target="", cut=1, count=count)
    _remove_range(work, low, high)
    return int(count)


def rename(work: JournalWork, source: str, target: str, *, overwrite: bool) -> int:
    """Give a file or a whole directory another path; return how many files moved."""
    if target == source or target.startswith(f"{source}/"):
        raise UsageError(f"{source} can not be renamed to {target}, itself or a path below it")
    origin, entry = path_entry(work, source), path_entry(work, target)
    if origin.row is None and origin.below is None:
        count = _renamed_before(work, entry, source)
        if count:
            return count
        raise rows.unknown(source)
    for path in (source, target):
        check_no_stream(work, path)
    # A file cannot be above its own target: that was refused before.
    entry.check_free()
    if entry.row is not None and (not overwrite or origin.row is None):
        raise rows.exists(target)
    low, high = model.only(source) if origin.row is not None else model.below(source)
    (count,) = work.tx.one("files_count", low=low, high=high) or (0,)
    cut = len(source) + 1
    (longest,) = work.tx.one("files_longest", low=low, high=high) or ("",)
    model.check_path(target + str(longest)[len(source) :])
    detail = f"from {source}"
    if entry.row is not None:
        remove_one(work, entry.row, by="a rename")
    work.note_range(
        "rename", low=low, high=high, target=target, cut=cut, count=count, detail=detail
    )
    work.tx.run("files_rename", low=low, high=high, target=target, cut=cut)
    return int(count)


def _renamed_before(work: JournalWork, entry: PathEntry, source: str) -> int:
    """Return how many files this rename has moved before, if it was the last step."""
    sample = entry.row
    if sample is None and entry.below is not None:
        sample = file_at(work, entry.below)
    if sample is None:
        return 0
    work.flush_lines()
    last = work.tx.one("history", file_id=sample.id, limit=1)
    if last is None or last[2] != "rename" or last[7] != f"from {source}":
        return 0
    if entry.row is not None:
        return 1
    low, high = model.below(entry.path)
    (count,) = work.tx.one("files_count", low=low, high=high) or (0,)
    return int(count)


def _remove_range(work: JournalWork, low: str, high: str) -> None:
    work.tx.run("replicas_trash_of_range", low=low, high=high)
    work.tx.run("copies_end_of_range", low=low, high=high)
    work.tx.run("copies_of_range", low=low, high=high)
    work.tx.run("replicas_drop_of_range", low=low, high=high)
    work.tx.run("blocks_drop_of_range", low=low, high=high)
    work.tx.run("losses_drop_of_range", low=low, high=high)
    work.tx.run("files_drop", low=low, high=high)


def check(work: JournalWork, ticket: WriteTicket) -> None:
    """Return if the file is still the ticket's."""
    found = held_file(work, ticket.file_id)
    refusal = rows.of_ticket(None if found is None else found.row, ticket)
    if refusal is not None:
        work.count_refusal()
        raise refusal


def discard(work: JournalWork, ticket: WriteTicket) -> None:
    """Delete the file of the ticket, while it is the ticket's."""
    held, _ = _checked_ticket(work, ticket)
    remove_one(work, held.row, by="")


def next_block(
    work: JournalWork,
    ticket: WriteTicket,
    sealed: SealedBlock,
    *,
    volumes: tuple[str, ...],
    mark: VolumeMark,
) -> Block:
    """Seal the open block and begin the next one."""
    held, block = _checked_ticket(work, ticket)
    if block.id != sealed.block_id:
        before = block_by_id(work, sealed.block_id)
        follows = before is not None and before.index + 1 == block.index
        if follows and is_sealed_so(before, sealed, generation=ticket.epoch):
            return block
    check_sealed(block, sealed)
    work.refuse_newer(mark)
    seal(work, block, sealed, generation=ticket.epoch)
    work.tx.run("file_grow", id=ticket.file_id, grown=sealed.length, wall=work.wall)
    begun = begin_block(
        work,
        file_id=ticket.file_id,
        index=block.index + 1,
        epoch=ticket.epoch,
        start=block.start + sealed.length,
        volumes=volumes,
    )
    _note_write(
        work,
        "next block",
        held,
        f"block {block.id:#x} has {sealed.length} bytes; block {begun.id:#x} on "
        f"{', '.join(volumes)}",
    )
    return begun


def drop_volumes(
    work: JournalWork, ticket: WriteTicket, block_id: int, *, keep: tuple[str, ...]
) -> None:
    """Leave the open block on these volumes alone."""
    held, block = _checked_ticket(work, ticket)
    if block.id != block_id:
        raise UsageError(f"block {block_id:#x} is not the open one, which is {block.id}")
    check_keep(block, keep)
    dropped = sorted(set(block.volumes) - set(keep))
    if dropped:
        keep_only(work, block, keep)
        _note_write(work, "drop volumes", held, f"block {block.id:#x} lost {', '.join(dropped)}")


def complete(work: JournalWork, ticket: WriteTicket, sealed: SealedBlock | None) -> FileStatus:
    """Close the file. A tail of no bytes is dropped."""
    found = held_file(work, ticket.file_id)
    if found is not None and _completed_before(work, found, ticket, sealed):
        return found.row.status(work.now)
    held, block = _checked_ticket(work, ticket, found=found, is_read=True)
    tail = sealed if sealed is not None and sealed.length else None
    if tail is not None and tail.block_id != block.id:
        # Its answer was lost: the block was sealed by a next_block, and nothing was written after.
        before = block_by_id(work, tail.block_id)
        follows = before is not None and before.index + 1 == block.index
        if follows and is_sealed_so(before, tail, generation=ticket.epoch):
            tail = None
    return close(work, held, block, tail, generation=ticket.epoch, step="close")


def close(
    work: JournalWork,
    held: HeldFile,
    block: Block | None,
    tail: SealedBlock | None,
    *,
    generation: int,
    step: str,
) -> FileStatus:
    """Close the file, with ``tail`` as the end of its open block or without that block."""
    row = held.row
    if block is not None and tail is not None:
        check_sealed(block, tail)
        seal(work, block, tail, generation=generation)
    elif block is not None:
        drop(work, block)
    grown = 0 if tail is None else tail.length
    recovered = row.recovered if step == "close" else generation
    work.defer("file_close", id=row.id, grown=grown, wall=work.wall, recovered=recovered)
    work.drop_idle(row.holder)
    length = row.length + grown
    detail = f"{length} bytes"
    if block is not None and tail is None:
        detail += f"; block {block.id:#x} dropped"
    _note_write(work, step, held, detail)
    return row.closed_status(length=length, modified_at=work.wall)


def _completed_before(
    work: JournalWork, held: HeldFile, ticket: WriteTicket, sealed: SealedBlock | None
) -> bool:
    row = held.row
    ours = row.epoch == ticket.epoch and row.holder == ticket.holder.id
    if row.epoch == ticket.epoch and not row.closed:
        return False
    if sealed is None or not sealed.length:
        return ours
    if row.recovered > ticket.epoch:
        return False
    block = block_by_id(work, sealed.block_id)
    return is_sealed_so(block, sealed, generation=ticket.epoch)


def _checked_ticket(
    work: JournalWork,
    ticket: WriteTicket,
    *,
    found: HeldFile | None = None,
    is_read: bool = False,
) -> tuple[HeldFile, Block]:
    if not is_read:
        found = held_file(work, ticket.file_id)
    refusal = rows.of_ticket(None if found is None else found.row, ticket)
    if refusal is not None:
        work.count_refusal()
        raise refusal
    if found is None or found.block is None:
        raise UsageError(f"{ticket.path} has no open block: recover it")
    return found, found.block


def _note_write(work: JournalWork, step: str, held: HeldFile, detail: str) -> None:
    row = held.row
    work.note(
        step, file_id=row.id, path=row.path, epoch=row.epoch, holder=row.holder, detail=detail
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A file to open, and how. ``request`` is the caller's own name for the call."""

    path: str
    holder: FileHolder
    volumes: tuple[str, ...]
    request: str
    replication: int = 0
    block_bytes: int = 0
    overwrite: bool = False
    mark: VolumeMark = NO_MARK


def create(work: JournalWork, open_request: OpenRequest) -> OpenedFile:
    """Create a file, open, with its first block."""
    found = path_entry(work, open_request.path)
    found.check_free()
    row = found.row
    if row is not None:
        if _is_repetition(row, open_request):
            return _opened_before(work, row, open_request)
        if not open_request.overwrite:
            _check_closed(work, row, open_request.holder)
            raise rows.exists(open_request.path)
    if row is not None:
        check_no_stream(work, row.path)
    work.refuse_newer(open_request.mark)
    work.enlist(open_request.holder)
    if row is not None:
        remove_one(work, row, by=open_request.holder.id)
    file_id, epoch = work.draw_file_id(), work.draw_epoch()
    work.add_file(
        open_request.path,
        id=file_id,
        epoch=epoch,
        holder=open_request.holder.id,
        replication=open_request.replication,
        block_bytes=open_request.block_bytes,
        wall=work.wall,
        request=open_request.request,
    )
    block = begin_block(
        work, file_id=file_id, index=0, epoch=epoch, start=0, volumes=open_request.volumes
    )
    _note_opened(work, "create", open_request, block)
    return _opened(
        open_request,
        block,
        block_bytes=open_request.block_bytes,
        replication=open_request.replication,
    )


def append(work: JournalWork, open_request: OpenRequest) -> OpenedFile:
    """Open a closed file with a new block at its end."""
    row = file_at(work, open_request.path)
    if _is_repetition(row, open_request):
        return _opened_before(work, row, open_request)
    _check_closed(work, row, open_request.holder)
    work.refuse_newer(open_request.mark)
    work.enlist(open_request.holder)
    epoch = work.draw_epoch()
    work.tx.run(
        "file_open",
        id=row.id,
        epoch=epoch,
        holder=open_request.holder.id,
        wall=work.wall,
        request=open_request.request,
    )
    (index,) = work.tx.one("next_index", file_id=row.id) or (0,)
    block = begin_block(
        work,
        file_id=row.id,
        index=index,
        epoch=epoch,
        start=row.length,
        volumes=open_request.volumes,
    )
    _note_opened(work, "append", open_request, block)
    return _opened(open_request, block, block_bytes=row.block_bytes, replication=row.replication)


def _is_repetition(row: FileRow, open_request: OpenRequest) -> bool:
    mine = row.holder == open_request.holder.id and row.token == open_request.holder.token_digest
    return mine and row.state == "open" and row.request == open_request.request != ""


def _opened_before(work: JournalWork, row: FileRow, open_request: OpenRequest) -> OpenedFile:
    held = held_file(work, row.id)
    if held is None or held.block is None:
        raise StoreUnusable(f"the open file {row.path} has no open block: recover it")
    return _opened(
        open_request, held.block, block_bytes=row.block_bytes, replication=row.replication
    )


def _check_closed(work: JournalWork, row: FileRow, holder: FileHolder) -> None:
    if row.recovering:
        raise rows.recovering(row, retry_after_s=row.attempt_left_s(work.now))
    if not row.closed:
        raise rows.held(row, by=holder, now=work.now, limit_s=work.limits.soft_s)


def _opened(
    open_request: OpenRequest, block: Block, *, block_bytes: int, replication: int
) -> OpenedFile:
    ticket = WriteTicket(
        file_id=block.file_id,
        path=open_request.path,
        epoch=block.generation,
        holder=open_request.holder,
    )
    return OpenedFile(ticket=ticket, block=block, block_bytes=block_bytes, replication=replication)


def _note_opened(work: JournalWork, step: str, open_request: OpenRequest, block: Block) -> None:
    work.note(
        step,
        file_id=block.file_id,
        path=open_request.path,
        epoch=block.generation,
        holder=open_request.holder.id,
        detail=f"block {block.id:#x} on {', '.join(block.volumes)}",
    )


def begin_recovery(
    work: JournalWork,
    path: str,
    holder: FileHolder,
    reason: RecoveryReason,
    ticket: WriteTicket | None = None,
) -> FileRecovery | None:
    """Take the file from its holder; return None if it is closed already.

    With a ticket only the file of the ticket is meant, and only while it is the holder's own.
    """
    row = file_at(work, path)
    if ticket is not None and row.id != ticket.file_id:
        raise rows.deleted(ticket)
    if row.closed:
        return None
    if ticket is not None and (
        row.holder != holder.id or (not row.recovering and row.epoch != ticket.epoch)
    ):
        raise rows.fenced(row, path=path, epoch=ticket.epoch)
    _check_may_begin(work, row, holder, reason)
    held = held_file(work, row.id)
    work.enlist(holder)
    epoch = work.draw_epoch()
    until_s = work.now + work.limits.attempt_s
    work.tx.run("file_recovering", id=row.id, epoch=epoch, holder=holder.id, until_s=until_s)
    if row.holder != holder.id:
        work.drop_idle(row.holder)
    work.note(
        "recovery begun",
        file_id=row.id,
        path=path,
        epoch=epoch,
        holder=holder.id,
        detail=f"{reason.value}; was held by {row.holder} under epoch {row.epoch}",
    )
    return FileRecovery(
        file_id=row.id,
        path=path,
        id=epoch,
        block=None if held is None else held.block,
        attempt=row.attempts + 1,
        was_held_by=row.holder,
    )


def _check_may_begin(
    work: JournalWork, row: FileRow, holder: FileHolder, reason: RecoveryReason
) -> None:
    if row.recovering:
        left_s = row.attempt_left_s(work.now)
        if left_s and row.holder != holder.id:
            raise rows.recovering(row, retry_after_s=left_s)
        if reason is RecoveryReason.HARD and work.now < row.next_attempt_s:
            raise rows.recovering(row, retry_after_s=row.next_attempt_s - work.now)
        return
    limit_s = {
        RecoveryReason.SOFT: work.limits.soft_s,
        RecoveryReason.HARD: work.limits.hard_s,
    }.get(reason)
    if limit_s is not None and row.silent_s(work.now) <= limit_s:
        raise rows.held(row, by=holder, now=work.now, limit_s=limit_s)


def commit(
    work: JournalWork,
    recovery: FileRecovery,
    sealed: SealedBlock | None,
    *,
    lost_bytes: int = 0,
    lost_detail: str = "",
) -> FileStatus:
    """Close the file with the end that recovery found; without a seal the tail is dropped.

    ``lost_bytes`` of what followed had been acknowledged; with ``lost_detail`` alone, nobody knows.
    """
    held = _current(work, recovery)
    if held is None:
        return _file(work, recovery).row.status(work.now)
    tail = sealed if sealed is not None and sealed.length else None
    if tail is not None and held.block is None:
        raise UsageError(f"{recovery.path} has no open block that could be sealed")
    dropped = held.block is not None and tail is None
    step = "tail dropped" if dropped else "recovered"
    if lost_bytes or lost_detail:
        end = held.row.length + (0 if tail is None else tail.length)
        work.tx.run(
            "loss_add",
            file_id=held.row.id,
            epoch=recovery.id,
            at=work.wall,
            start=end,
            bytes=lost_bytes,
            detail=lost_detail,
        )
        detail = f"{lost_bytes or 'an unknown number of'} acknowledged bytes from byte {end} on"
        _note_write(work, "lost", held, f"{detail}; {lost_detail}" if lost_detail else detail)
    return close(work, held, held.block, tail, generation=recovery.id, step=step)


def fail(work: JournalWork, recovery: FileRecovery, *, trouble: str, pause_s: float) -> None:
    """End the attempt; the next is due after a pause."""
    held = _current(work, recovery)
    if held is None:
        return
    row = held.row
    over = row.attempt_until_s <= work.now < row.next_attempt_s
    if over and row.trouble == trouble:
        return  # recorded before
    work.tx.run("file_failed", id=row.id, now=work.now, next_s=work.now + pause_s, trouble=trouble)
    work.note(
        "recovery failed",
        file_id=row.id,
        path=row.path,
        epoch=row.epoch,
        holder=row.holder,
        detail=trouble,
    )


def due(work: JournalWork, limit: int) -> list[str]:
    """Return paths to recover: of holders past the hard limit, oldest first, and failed ones.

    Of the two kinds neither can crowd out the other.
    """
    before = work.now - work.limits.hard_s
    held = [path for (path,) in work.tx.all("due_held", before=before, limit=limit)]
    again = [path for (path,) in work.tx.all("due_again", now=work.now, limit=limit)]
    room = max(limit - len(again), (limit + 1) // 2)
    return [*held[:room], *again][:limit]


def _file(work: JournalWork, recovery: FileRecovery) -> HeldFile:
    held = held_file(work, recovery.file_id)
    if held is None:
        work.count_refusal()
        raise rows.gone(recovery)
    return held


def _current(work: JournalWork, recovery: FileRecovery) -> HeldFile | None:
    """Return the file, if this recovery is the newest; None if it was committed before."""
    held = _file(work, recovery)
    if held.row.recovered == recovery.id:
        return None
    if not held.row.recovering or held.row.epoch != recovery.id:
        work.count_refusal()
        raise rows.fenced(held.row, path=recovery.path, epoch=recovery.id)
    return held
