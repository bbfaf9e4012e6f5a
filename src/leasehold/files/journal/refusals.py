"""The refusals of the journal, in words: who has the file, why not you, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import (
    FencedWrite,
    FileExists,
    FileHeld,
    RecoveryInProgress,
    UnknownFile,
)

if TYPE_CHECKING:
    from leasehold.errors import LeaseholdError
    from leasehold.files.journal.rows import FileRow
    from leasehold.files.model import Holder, Recovery, Ticket


def unknown(path: str) -> UnknownFile:
    """There is no file at the path."""
    return UnknownFile(f"there is no file {path}: look for the right path with list")


def deleted(ticket: Ticket) -> UnknownFile:
    """The file of the ticket is gone, under whatever path."""
    return UnknownFile(
        f"{ticket.path} (file {ticket.file_id}) was deleted or overwritten while it was open "
        f"under epoch {ticket.epoch}: nothing more can be written to it"
    )


def gone(recovery: Recovery) -> UnknownFile:
    """The file was deleted while it was being recovered."""
    return UnknownFile(
        f"{recovery.path} (file {recovery.file_id}) was deleted while it was being recovered: "
        "there is nothing left to recover"
    )


def exists(path: str) -> FileExists:
    """A file is there, and closed."""
    return FileExists(
        f"{path} is there already: append to it, overwrite it, or choose another path"
    )


def is_directory(path: str, example: str) -> FileExists:
    """A file lies below the path."""
    return FileExists(
        f"{path} is a directory: {example} lies below it; choose another path, or delete the "
        "directory first"
    )


def below_file(path: str, ancestor: str) -> FileExists:
    """A part of the path is a file."""
    return FileExists(
        f"{path} can not be made: {ancestor} is a file, and nothing can lie below a file; "
        "choose another path"
    )


def held(row: FileRow, *, by: Holder, now: float, limit_s: float) -> FileHeld:
    """Somebody writes the file, perhaps the asker itself."""
    silent_s = row.silent_s(now)
    retry_after_s = max(0.0, limit_s - silent_s)
    if row.holder == by.id:
        words = (
            f"{row.path} is open already by this very holder {row.holder}, under epoch {row.epoch} "
            f"since {row.opened_at}: close it first, or recover it"
        )
    else:
        when = f"in {retry_after_s:.1f} s" if retry_after_s else "now"
        words = (
            f"{row.path} is being written by {row.holder} on {row.host} (process {row.pid}) under "
            f"epoch {row.epoch} since {row.opened_at}, last heard of {silent_s:.1f} s ago: if it "
            f"stays silent the file can be taken over {when}; recover() does not wait"
        )
    return FileHeld(
        words,
        path=row.path,
        holder=row.holder,
        host=row.host,
        since=row.opened_at,
        epoch=row.epoch,
        retry_after_s=retry_after_s,
        address=row.address,
    )


def recovering(row: FileRow, *, retry_after_s: float) -> RecoveryInProgress:
    """A recovery is under way, or the next attempt is not due."""
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
    """The file has gone on under another epoch or holder, or is closed."""
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


def of_ticket(row: FileRow | None, ticket: Ticket) -> LeaseholdError | None:
    """Why a ticketed step is refused; None if the file is the ticket's."""
    if row is None:
        return deleted(ticket)
    mine = row.holder == ticket.holder.id and row.token == ticket.holder.token
    if row.closed or row.recovering or row.epoch != ticket.epoch or not mine:
        return fenced(row, path=ticket.path, epoch=ticket.epoch)
    return None
