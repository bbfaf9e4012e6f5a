"""Steps of a recovery: begin, commit, fail, and which files are due for one.

To begin draws a new epoch, the recovery id, and shuts out whoever was there. Only the newest id can
commit. The time of an attempt and the time of the next one are kept with the file, not with the
one that tries: a file that fails does not hold up others, nor is it forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import UsageError
from leasehold.files.journal import blocks, path_steps, refusals, writing
from leasehold.files.model import Recovery, Why

if TYPE_CHECKING:
    from leasehold.files.journal.blocks import Held
    from leasehold.files.journal.rows import FileRow
    from leasehold.files.journal.unit_of_work import Books
    from leasehold.files.model import FileStatus, Holder, Sealed, Ticket


def begin(
    books: Books, path: str, holder: Holder, why: Why, ticket: Ticket | None = None
) -> Recovery | None:
    """Take the file from whoever has it; None if it is closed already.

    With a ticket only the file of the ticket is meant, and only while it is the holder's own.

    Raises:
        UnknownFile: there is no file at the path.
        FileHeld: its writer was heard of within the limit.
        RecoveryInProgress: another attempt has time left, or the next is not due.
        LeaseLost: the recoverer's id is used by another.
    """
    row = path_steps.file_at(books, path)
    if ticket is not None and row.id != ticket.file_id:
        raise refusals.deleted(ticket)
    if row.closed:
        return None
    if ticket is not None and (
        row.holder != holder.id or (not row.recovering and row.epoch != ticket.epoch)
    ):
        raise refusals.fenced(row, path=path, epoch=ticket.epoch)
    _check_may_begin(books, row, holder, why)
    held = blocks.held(books, row.id)
    books.enlist(holder)
    epoch = books.draw_epoch()
    until_s = books.now + books.limits.attempt_s
    books.tx.run("file_recovering", id=row.id, epoch=epoch, holder=holder.id, until_s=until_s)
    if row.holder != holder.id:
        books.drop_idle(row.holder)
    books.note(
        "recovery begun",
        file_id=row.id,
        path=path,
        epoch=epoch,
        holder=holder.id,
        detail=f"{why.value}; was held by {row.holder} under epoch {row.epoch}",
    )
    return Recovery(
        file_id=row.id,
        path=path,
        id=epoch,
        block=None if held is None else held.block,
        attempt=row.attempts + 1,
        was_held_by=row.holder,
    )


def _check_may_begin(books: Books, row: FileRow, holder: Holder, why: Why) -> None:
    if row.recovering:
        left_s = row.attempt_left_s(books.now)
        if left_s and row.holder != holder.id:
            raise refusals.recovering(row, retry_after_s=left_s)
        if why is Why.HARD and books.now < row.next_attempt_s:
            raise refusals.recovering(row, retry_after_s=row.next_attempt_s - books.now)
        return
    limit_s = {Why.SOFT: books.limits.soft_s, Why.HARD: books.limits.hard_s}.get(why)
    if limit_s is not None and row.silent_s(books.now) <= limit_s:
        raise refusals.held(row, by=holder, now=books.now, limit_s=limit_s)


def commit(books: Books, recovery: Recovery, sealed: Sealed | None) -> FileStatus:
    """Close the file with the end that recovery found; without a seal the tail is dropped.

    Raises:
        UnknownFile: the file was deleted meanwhile.
        FencedWrite: another recovery has begun.
        UsageError: the seal is not that of the open block.
    """
    held = _current(books, recovery)
    if held is None:
        return _file(books, recovery).row.status(books.now)
    tail = sealed if sealed is not None and sealed.length else None
    if tail is not None and held.block is None:
        raise UsageError(f"{recovery.path} has no open block that could be sealed")
    dropped = held.block is not None and tail is None
    step = "tail dropped" if dropped else "recovered"
    return writing.close(books, held, held.block, tail, generation=recovery.id, step=step)


def fail(books: Books, recovery: Recovery, *, trouble: str, pause_s: float) -> None:
    """The attempt is over; the next is due after a pause.

    Raises:
        UnknownFile: the file was deleted meanwhile.
        FencedWrite: another recovery has begun.
    """
    held = _current(books, recovery)
    if held is None:
        return
    row = held.row
    over = row.attempt_until_s <= books.now < row.next_attempt_s
    if over and row.trouble == trouble:
        return  # said before
    books.tx.run(
        "file_failed", id=row.id, now=books.now, next_s=books.now + pause_s, trouble=trouble
    )
    books.note(
        "recovery failed",
        file_id=row.id,
        path=row.path,
        epoch=row.epoch,
        holder=row.holder,
        detail=trouble,
    )


def due(books: Books, limit: int) -> list[str]:
    """Paths to recover now: of holders past the hard limit, the oldest first, and failed ones.

    Of the two kinds neither can crowd out the other.
    """
    before = books.now - books.limits.hard_s
    held = [path for (path,) in books.tx.all("due_held", before=before, most=limit)]
    again = [path for (path,) in books.tx.all("due_again", now=books.now, most=limit)]
    room = max(limit - len(again), (limit + 1) // 2)
    return [*held[:room], *again][:limit]


def _file(books: Books, recovery: Recovery) -> Held:
    held = blocks.held(books, recovery.file_id)
    if held is None:
        books.count_refusal()
        raise refusals.gone(recovery)
    return held


def _current(books: Books, recovery: Recovery) -> Held | None:
    """The file, if this recovery is the newest; None if it was committed before."""
    held = _file(books, recovery)
    if held.row.recovered == recovery.id:
        return None
    if not held.row.recovering or held.row.epoch != recovery.id:
        books.count_refusal()
        raise refusals.fenced(held.row, path=recovery.path, epoch=recovery.id)
    return held
