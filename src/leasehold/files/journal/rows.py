"""Rows of the journal's tables as records, and the errors of refused steps.

Each error names the holder of the file, the reason of the refusal, and what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from leasehold.errors import (
    FencedWrite,
    FileExists,
    FileHeld,
    RecoveryInProgress,
    UnknownFile,
)
from leasehold.files.model import (
    Block,
    BlockState,
    FileLoss,
    FileState,
    FileStatus,
    HolderStatus,
    JournalEntry,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasehold.errors import LeaseholdError
    from leasehold.files.model import FileHolder, FileRecovery, WriteTicket


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row of the view ``fs_seen``, its columns in order."""

    id: int
    path: str
    state: str
    epoch: int
    holder: str
    length: int
    replication: int
    block_bytes: int
    created_at: str
    modified_at: str
    opened_at: str
    request: str
    recovered: int
    attempts: int
    attempt_until_s: float
    next_attempt_s: float
    trouble: str
    token: str
    host: str
    pid: int
    address: str
    renewed_s: float

    @property
    def closed(self) -> bool:
        """Whether it is neither written nor recovered."""
        return self.state == FileState.CLOSED.value

    @property
    def recovering(self) -> bool:
        """Whether a recovery was begun and not committed."""
        return self.state == FileState.RECOVERING.value

    def silent_s(self, now: float) -> float:
        """Return the seconds since its holder last renewed."""
        return max(0.0, now - self.renewed_s)

    def attempt_left_s(self, now: float) -> float:
        """Return the seconds that the running attempt has left; 0 if none runs."""
        return max(0.0, self.attempt_until_s - now) if self.recovering else 0.0

    def status(self, now: float) -> FileStatus:
        """Return the file as shown to callers; ``next_attempt_s`` is counted from now."""
        closed = self.closed
        return FileStatus(
            id=self.id,
            path=self.path,
            state=FileState(self.state),
            epoch=self.epoch,
            length=self.length,
            replication=self.replication,
            block_bytes=self.block_bytes,
            created_at=self.created_at,
            modified_at=self.modified_at,
            holder="" if closed else self.holder,
            host="" if closed else self.host,
            address="" if closed else self.address,
            opened_at="" if closed else self.opened_at,
            idle_s=0.0 if closed else self.silent_s(now),
            attempts=self.attempts,
            next_attempt_s=max(0.0, self.next_attempt_s - now) if self.recovering else 0.0,
            trouble=self.trouble,
        )

    def closed_status(self, *, length: int, modified_at: str) -> FileStatus:
        """Return the status of the file once it is closed with this length."""
        return FileStatus(
            id=self.id,
            path=self.path,
            state=FileState.CLOSED,
            epoch=self.epoch,
            length=length,
            replication=self.replication,
            block_bytes=self.block_bytes,
            created_at=self.created_at,
            modified_at=modified_at,
        )


FILE_COLUMNS = len(fields(FileRow))


def blocks_of(rows: Iterable[tuple[Any, ...]]) -> tuple[Block, ...]:
    """Return the blocks of rows that have one replica each; rows of a block are adjacent."""
    found: dict[int, Block] = {}
    replicas: dict[int, dict[str, int]] = {}
    for *columns, volume, copy_epoch in rows:
        block_id = columns[0]
        if block_id is None:
            continue
        replicas.setdefault(block_id, {}).update({} if volume is None else {volume: copy_epoch})
        found[block_id] = block_of(columns, replicas[block_id])
    return tuple(found.values())


def block_of(columns: Iterable[Any], replicas: Mapping[str, int]) -> Block:
    """Build one block from the columns of its table, and its replicas: volume and copy epoch."""
    block_id, file_id, index, generation, state, start, length, checksum = columns
    return Block(
        id=block_id,
        file_id=file_id,
        index=index,
        generation=generation,
        state=BlockState(state),
        start=start,
        length=length,
        checksum=checksum,
        volumes=tuple(replicas),
        copies=tuple(each for each in replicas.items() if each[1]),
    )


def holder_of(row: tuple[Any, ...], now: float) -> HolderStatus:
    """Convert a row of the query ``holders``."""
    holder_id, host, pid, since, renewed_s, open_files = row
    return HolderStatus(
        id=holder_id,
        host=host,
        pid=pid,
        since=since,
        idle_s=max(0.0, now - renewed_s),
        open_files=open_files,
    )


def entry_of(row: tuple[Any, ...]) -> JournalEntry:
    """Convert a row of the query ``history``."""
    number, at, step, file_id, path, epoch, holder, detail = row
    return JournalEntry(
        number=number,
        at=at,
        step=step,
        file_id=file_id,
        path=path,
        epoch=epoch,
        holder=holder,
        detail=detail,
    )


def loss_of(row: tuple[Any, ...]) -> FileLoss:
    """Convert a row of the query ``losses``."""
    epoch, at, start, lost_bytes, detail = row
    return FileLoss(epoch=epoch, at=at, start=start, lost_bytes=lost_bytes, detail=detail)


def unknown(path: str) -> UnknownFile:
    """Build the error: there is no file at the path."""
    return UnknownFile(f"there is no file {path}: look for the right path with list")


def deleted(ticket: WriteTicket) -> UnknownFile:
    """Build the error: the file of the ticket is gone, under whatever path."""
    return UnknownFile(
        f"{ticket.path} (file {ticket.file_id}) was deleted or overwritten while it was open "
        f"under epoch {ticket.epoch}: nothing more can be written to it"
    )


def gone(recovery: FileRecovery) -> UnknownFile:
    """Build the error: the file was deleted while it was being recovered."""
    return UnknownFile(
        f"{recovery.path} (file {recovery.file_id}) was deleted while it was being recovered: "
        "there is nothing left to recover"
    )


def exists(path: str) -> FileExists:
    """Build the error: a closed file exists."""
    return FileExists(
        f"{path} is there already: append to it, overwrite it, or choose another path"
    )


def is_directory(path: str, example: str) -> FileExists:
    """Build the error: a file is below the path."""
    return FileExists(
        f"{path} is a directory: {example} lies below it; choose another path, or delete the "
        "directory first"
    )


def below_file(path: str, ancestor: str) -> FileExists:
    """Build the error: a part of the path is a file."""
    return FileExists(
        f"{path} can not be made: {ancestor} is a file, and nothing can lie below a file; "
        "choose another path"
    )


def held(row: FileRow, *, by: FileHolder, now: float, limit_s: float) -> FileHeld:
    """Build the error: a holder writes the file, perhaps the caller itself."""
    silent_s = row.silent_s(now)
    retry_after_s = max(0.0, limit_s - silent_s)
    if row.holder == by.id:
        message = (
            f"{row.path} is open already by this very holder {row.holder}, under epoch {row.epoch} "
            f"since {row.opened_at}: close it first, or recover it"
        )
    else:
        when = f"in {retry_after_s:.1f} s" if retry_after_s else "now"
        message = (
            f"{row.path} is being written by {row.holder} on {row.host} (process {row.pid}) under "
            f"epoch {row.epoch} since {row.opened_at}, last heard of {silent_s:.1f} s ago: if it "
            f"stays silent the file can be taken over {when}; recover() does not wait"
        )
    return FileHeld(
        message,
        path=row.path,
        holder=row.holder,
        host=row.host,
        since=row.opened_at,
        epoch=row.epoch,
        retry_after_s=retry_after_s,
        address=row.address,
    )


def recovering(row: FileRow, *, retry_after_s: float) -> RecoveryInProgress:
    """Build the error: a recovery is in progress, or the next attempt is not due."""
    trouble = f" (last trouble: {row.trouble})" if row.trouble else ""
    when = f"ask again in {retry_after_s:.1f} s" if retry_after_s else "recover it now"
    return RecoveryInProgress(
        f"{row.path} is being recovered by {row.holder} under epoch {row.epoch}, attempt "
        f"{row.attempts}{trouble}: {when}",
        path=row.path,
        attempt=row.attempts,
        retry_after_s=retry_after_s,
    )


def fenced(row: FileRow, *, path: str, epoch: int) -> FencedWrite:
    """Build the error: the file has another epoch or holder, or is closed."""
    now_held_by = None if row.closed else row.holder
    if row.recovering:
        reason, what = "recovered", f"is being recovered by {row.holder} under epoch {row.epoch}"
    elif row.recovered > epoch:
        reason = "recovered"
        what = f"was recovered under epoch {row.recovered}"
        if row.epoch > row.recovered:
            what += f", then written by {row.holder} under epoch {row.epoch}"
        elif row.closed:
            what += f" by {row.holder} and closed"
    elif row.epoch == epoch and row.closed:
        reason, what = "closed", f"is closed since {row.modified_at}"
    else:
        reason, what = "taken over", f"was taken over by {row.holder} under epoch {row.epoch}"
    return FencedWrite(
        f"the step under epoch {epoch} was refused: {row.path} {what}; stop writing, and open the "
        "file anew if you still need it",
        key=path,
        epoch=epoch,
        reason=reason,
        now_held_by=now_held_by,
    )


def of_ticket(row: FileRow | None, ticket: WriteTicket) -> LeaseholdError | None:
    """Return why a step is refused; None if the file is the ticket's."""
    if row is None:
        return deleted(ticket)
    mine = row.holder == ticket.holder.id and row.token == ticket.holder.token_digest
    if row.closed or row.recovering or row.epoch != ticket.epoch or not mine:
        return fenced(row, path=ticket.path, epoch=ticket.epoch)
    return None
