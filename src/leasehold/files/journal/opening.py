"""Steps that open a file: create and append. All is checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnusable
from leasehold.files.journal import blocks, path_steps, refusals
from leasehold.files.model import Opened, Ticket

if TYPE_CHECKING:
    from leasehold.files.journal.rows import FileRow
    from leasehold.files.journal.unit_of_work import Books
    from leasehold.files.model import Block, Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to open, and how. ``request`` is the caller's own name for the call."""

    path: str
    holder: Holder
    volumes: tuple[str, ...]
    request: str
    replication: int = 0
    block_size: int = 0
    overwrite: bool = False


def create(books: Books, wish: Wish) -> Opened:
    """A new file, open, with its first block.

    Raises:
        FileExists: the path, or a part of it, is taken.
        FileHeld: somebody is writing the file.
        RecoveryInProgress: the file is being recovered.
        LeaseLost: the holder's id is used by another.
    """
    found = path_steps.look(books, wish.path)
    found.check_free()
    row = found.row
    if row is not None:
        if _is_repetition(row, wish):
            return _opened_before(books, row, wish)
        if not wish.overwrite:
            _check_closed(books, row, wish.holder)
            raise refusals.exists(wish.path)
    books.enlist(wish.holder)
    if row is not None:
        path_steps.remove_one(books, row, by=wish.holder.id)
    file_id, epoch = books.draw_file_id(), books.draw_epoch()
    books.add_file(
        wish.path,
        id=file_id,
        epoch=epoch,
        holder=wish.holder.id,
        replication=wish.replication,
        block_size=wish.block_size,
        wall=books.wall,
        request=wish.request,
    )
    block = blocks.begin(
        books, file_id=file_id, index=0, epoch=epoch, start=0, volumes=wish.volumes
    )
    _note(books, "create", wish, block)
    return _opened(wish, block, block_size=wish.block_size, replication=wish.replication)


def append(books: Books, wish: Wish) -> Opened:
    """A closed file, open again, with a new block at its end.

    Raises:
        UnknownFile: there is no file at the path.
        FileHeld: somebody is writing the file.
        RecoveryInProgress: the file is being recovered.
        LeaseLost: the holder's id is used by another.
    """
    row = path_steps.file_at(books, wish.path)
    if _is_repetition(row, wish):
        return _opened_before(books, row, wish)
    _check_closed(books, row, wish.holder)
    books.enlist(wish.holder)
    epoch = books.draw_epoch()
    books.tx.run(
        "file_open",
        id=row.id,
        epoch=epoch,
        holder=wish.holder.id,
        wall=books.wall,
        request=wish.request,
    )
    (index,) = books.tx.one("next_index", file_id=row.id) or (0,)
    block = blocks.begin(
        books, file_id=row.id, index=index, epoch=epoch, start=row.length, volumes=wish.volumes
    )
    _note(books, "append", wish, block)
    return _opened(wish, block, block_size=row.block_size, replication=row.replication)


def _is_repetition(row: FileRow, wish: Wish) -> bool:
    mine = row.holder == wish.holder.id and row.token == wish.holder.token
    return mine and row.state == "open" and row.request == wish.request != ""


def _opened_before(books: Books, row: FileRow, wish: Wish) -> Opened:
    held = blocks.held(books, row.id)
    if held is None or held.block is None:
        raise StoreUnusable(f"the open file {row.path} has no open block: recover it")
    return _opened(wish, held.block, block_size=row.block_size, replication=row.replication)


def _check_closed(books: Books, row: FileRow, holder: Holder) -> None:
    if row.recovering:
        raise refusals.recovering(row, retry_after_s=row.attempt_left_s(books.now))
    if not row.closed:
        raise refusals.held(row, by=holder, now=books.now, limit_s=books.limits.soft_s)


def _opened(wish: Wish, block: Block, *, block_size: int, replication: int) -> Opened:
    ticket = Ticket(
        file_id=block.file_id, path=wish.path, epoch=block.generation, holder=wish.holder
    )
    return Opened(ticket=ticket, block=block, block_size=block_size, replication=replication)


def _note(books: Books, step: str, wish: Wish, block: Block) -> None:
    books.note(
        step,
        file_id=block.file_id,
        path=wish.path,
        epoch=block.generation,
        holder=wish.holder.id,
        detail=f"block {block.id:#x} on {', '.join(block.volumes)}",
    )
