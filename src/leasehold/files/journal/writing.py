"""Steps of a writer, each shown a ticket: next block, drop volumes, complete.

The refusals come in one order: the file is gone; it is closed, being recovered, or under another
epoch. A step that finds itself done already gives the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import UsageError
from leasehold.files.journal import blocks, path_steps, refusals

if TYPE_CHECKING:
    from leasehold.files.journal.blocks import Held
    from leasehold.files.journal.unit_of_work import Books
    from leasehold.files.model import Block, FileStatus, Sealed, Ticket


def check(books: Books, ticket: Ticket) -> None:
    """Return if the file is still the ticket's.

    Raises:
        UnknownFile: it was deleted.
        FencedWrite: it is closed, being recovered, or under another epoch.
    """
    found = blocks.held(books, ticket.file_id)
    refusal = refusals.of_ticket(None if found is None else found.row, ticket)
    if refusal is not None:
        books.count_refusal()
        raise refusal


def discard(books: Books, ticket: Ticket) -> None:
    """Delete the file of the ticket, while it is the ticket's.

    Raises:
        UnknownFile: it was deleted already.
        FencedWrite: it is closed, being recovered, or under another epoch.
    """
    held, _ = _mine(books, ticket)
    path_steps.remove_one(books, held.row, by="")


def next_block(books: Books, ticket: Ticket, sealed: Sealed, *, volumes: tuple[str, ...]) -> Block:
    """Seal the open block and begin the next one.

    Raises:
        UnknownFile: the file was deleted.
        FencedWrite: the file is closed, being recovered, or under another epoch.
        UsageError: the seal is not that of the open block.
    """
    held, block = _mine(books, ticket)
    if block.id != sealed.block_id:
        before = blocks.block_by_id(books, sealed.block_id)
        follows = before is not None and before.index + 1 == block.index
        if follows and blocks.is_sealed_so(before, sealed, generation=ticket.epoch):
            return block
    blocks.check_sealed(block, sealed)
    blocks.seal(books, block, sealed, generation=ticket.epoch)
    books.tx.run("file_grow", id=ticket.file_id, grown=sealed.length, wall=books.wall)
    begun = blocks.begin(
        books,
        file_id=ticket.file_id,
        index=block.index + 1,
        epoch=ticket.epoch,
        start=block.start + sealed.length,
        volumes=volumes,
    )
    _note(
        books,
        "next block",
        held,
        f"block {block.id:#x} has {sealed.length} bytes; block {begun.id:#x} on "
        f"{', '.join(volumes)}",
    )
    return begun


def drop_volumes(books: Books, ticket: Ticket, block_id: int, *, keep: tuple[str, ...]) -> None:
    """Leave the open block on these volumes alone.

    Raises:
        UnknownFile: the file was deleted.
        FencedWrite: the file is closed, being recovered, or under another epoch.
        UsageError: it is not the open block, or is not on one of these volumes.
    """
    held, block = _mine(books, ticket)
    if block.id != block_id:
        raise UsageError(f"block {block_id:#x} is not the open one, which is {block.id}")
    blocks.check_keep(block, keep)
    dropped = sorted(set(block.volumes) - set(keep))
    if dropped:
        blocks.keep_only(books, block, keep)
        _note(books, "drop volumes", held, f"block {block.id:#x} lost {', '.join(dropped)}")


def complete(books: Books, ticket: Ticket, sealed: Sealed | None) -> FileStatus:
    """Close the file. A tail of no bytes is dropped.

    Raises:
        UnknownFile: the file was deleted.
        FencedWrite: the file is closed, being recovered, or under another epoch.
        UsageError: the seal is not that of the open block.
    """
    found = blocks.held(books, ticket.file_id)
    if found is not None and _completed_before(books, found, ticket, sealed):
        return found.row.status(books.now)
    held, block = _mine(books, ticket, found=found, looked=True)
    tail = sealed if sealed is not None and sealed.length else None
    if tail is not None and tail.block_id != block.id:
        # Its answer was lost: the block was sealed by a next_block, and nothing was written after.
        before = blocks.block_by_id(books, tail.block_id)
        follows = before is not None and before.index + 1 == block.index
        if follows and blocks.is_sealed_so(before, tail, generation=ticket.epoch):
            tail = None
    return close(books, held, block, tail, generation=ticket.epoch, step="close")


def close(
    books: Books,
    held: Held,
    block: Block | None,
    tail: Sealed | None,
    *,
    generation: int,
    step: str,
) -> FileStatus:
    """The file is closed, with ``tail`` as the end of its open block or without that block."""
    row = held.row
    if block is not None and tail is not None:
        blocks.check_sealed(block, tail)
        blocks.seal(books, block, tail, generation=generation)
    elif block is not None:
        blocks.drop(books, block)
    grown = 0 if tail is None else tail.length
    recovered = row.recovered if step == "close" else generation
    books.later("file_close", id=row.id, grown=grown, wall=books.wall, recovered=recovered)
    books.drop_idle(row.holder)
    length = row.length + grown
    words = f"{length} bytes"
    if block is not None and tail is None:
        words += f"; block {block.id:#x} dropped"
    _note(books, step, held, words)
    return row.closed_status(length=length, modified_at=books.wall)


def _completed_before(books: Books, held: Held, ticket: Ticket, sealed: Sealed | None) -> bool:
    row = held.row
    ours = row.epoch == ticket.epoch and row.holder == ticket.holder.id
    if row.epoch == ticket.epoch and not row.closed:
        return False
    if sealed is None or not sealed.length:
        return ours
    if row.recovered > ticket.epoch:
        return False
    block = blocks.block_by_id(books, sealed.block_id)
    return blocks.is_sealed_so(block, sealed, generation=ticket.epoch)


def _mine(
    books: Books, ticket: Ticket, *, found: Held | None = None, looked: bool = False
) -> tuple[Held, Block]:
    if not looked:
        found = blocks.held(books, ticket.file_id)
    refusal = refusals.of_ticket(None if found is None else found.row, ticket)
    if refusal is not None:
        books.count_refusal()
        raise refusal
    if found is None or found.block is None:
        raise UsageError(f"{ticket.path} has no open block: recover it")
    return found, found.block


def _note(books: Books, step: str, held: Held, detail: str) -> None:
    row = held.row
    books.note(
        step, file_id=row.id, path=row.path, epoch=row.epoch, holder=row.holder, detail=detail
    )
