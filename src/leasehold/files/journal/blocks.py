"""Parts of steps: a file with its open block in one look, and how blocks and replicas change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import InvalidOptions, UsageError
from leasehold.files.journal.rows import FILE_COLUMNS, FileRow, blocks_of
from leasehold.files.journal.unit_of_work import listed
from leasehold.files.model import Block, BlockState

if TYPE_CHECKING:
    from collections.abc import Collection

    from leasehold.files.journal.unit_of_work import Books
    from leasehold.files.model import Sealed


@dataclass(frozen=True, slots=True)
class Held:
    """A file and its open block, if it has one."""

    row: FileRow
    block: Block | None


def held(books: Books, file_id: int) -> Held | None:
    """The file of this id, in one question."""
    rows = books.held(file_id)
    if not rows:
        return None
    found = blocks_of(row[FILE_COLUMNS:] for row in rows)
    return Held(FileRow(*rows[0][:FILE_COLUMNS]), found[0] if found else None)


def block_by_id(books: Books, block_id: int) -> Block | None:
    """The block of this id, open or complete."""
    found = blocks_of(books.tx.all("block", id=block_id))
    return found[0] if found else None


def check_volumes(volumes: Collection[str]) -> tuple[str, ...]:
    """The volumes of a block, each once, in the order of their ids.

    Raises:
        InvalidOptions: there is none, or one twice.
    """
    if not volumes or len(set(volumes)) != len(volumes):
        raise InvalidOptions(
            f"a block needs one or more volumes, each once, not {tuple(volumes)!r}"
        )
    return tuple(sorted(volumes))


def check_sealed(block: Block, sealed: Sealed) -> None:
    """Look whether the seal can be that of the open block.

    Raises:
        UsageError: it is of another block, or names volumes the block is not on.
    """
    if sealed.block_id != block.id:
        raise UsageError(
            f"block {sealed.block_id:#x} is not the open one, which is {block.id:#x}: read the "
            "file again"
        )
    check_keep(block, sealed.volumes)
    if sealed.length < 0:
        raise UsageError(f"a block can not have {sealed.length} bytes")


def check_keep(block: Block, keep: Collection[str]) -> None:
    """Look whether the block can be left on these volumes alone.

    Raises:
        UsageError: there is none, or one the block is not on.
    """
    if not keep or not set(keep) <= set(block.volumes):
        raise UsageError(
            f"block {block.id:#x} lies on {', '.join(block.volumes)}: one or more of these can be "
            f"kept, not {', '.join(keep) or 'none'}"
        )


def is_sealed_so(block: Block | None, sealed: Sealed, *, generation: int) -> bool:
    """Whether the block was sealed so before: the call is a repetition."""
    return (
        block is not None
        and block.state is BlockState.COMPLETE
        and block.generation == generation
        and (block.length, block.checksum) == (sealed.length, sealed.checksum)
    )


def begin(
    books: Books, *, file_id: int, index: int, epoch: int, start: int, volumes: tuple[str, ...]
) -> Block:
    """A new open block at the end of a file."""
    block = Block(
        id=books.draw_block_id(),
        file_id=file_id,
        index=index,
        generation=epoch,
        state=BlockState.OPEN,
        start=start,
        length=0,
        checksum=0,
        volumes=volumes,
    )
    books.later("block_add", id=block.id, file_id=file_id, idx=index, generation=epoch, start=start)
    books.later("replicas_add", block_id=block.id, volumes=listed(volumes))
    return block


def seal(books: Books, block: Block, sealed: Sealed, *, generation: int) -> None:
    """Complete the open block; volumes that do not have all of it lose their replica."""
    keep_only(books, block, sealed.volumes)
    books.later(
        "block_seal",
        id=block.id,
        generation=generation,
        length=sealed.length,
        checksum=sealed.checksum,
    )


def keep_only(books: Books, block: Block, keep: Collection[str]) -> None:
    """Replicas on other volumes go to the trash."""
    if set(keep) == set(block.volumes):
        return
    books.tx.run("replicas_trash", block_id=block.id, keep=listed(keep))
    books.tx.run("replicas_drop", block_id=block.id, keep=listed(keep))


def drop(books: Books, block: Block) -> None:
    """Take a block out of its file, all its replicas to the trash."""
    keep_only(books, block, ())
    books.tx.run("block_drop", id=block.id)
