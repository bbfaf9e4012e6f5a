"""Rows of the journal's tables, and the records they stand for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from leasehold.files.model import Block, BlockState, Entry, FileState, FileStatus, HolderStatus

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    block_size: int
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
        """Whether nobody writes or recovers it."""
        return self.state == FileState.CLOSED.value

    @property
    def recovering(self) -> bool:
        """Whether a recovery was begun and not committed."""
        return self.state == FileState.RECOVERING.value

    def silent_s(self, now: float) -> float:
        """How long ago its holder was last heard of."""
        return max(0.0, now - self.renewed_s)

    def attempt_left_s(self, now: float) -> float:
        """What the running attempt has left of its time; 0 if none runs."""
        return max(0.0, self.attempt_until_s - now) if self.recovering else 0.0

    def status(self, now: float) -> FileStatus:
        """The file as anybody may see it; ``next_attempt_s`` is counted from now."""
        closed = self.closed
        return FileStatus(
            id=self.id,
            path=self.path,
            state=FileState(self.state),
            epoch=self.epoch,
            length=self.length,
            replication=self.replication,
            block_size=self.block_size,
            created_at=self.created_at,
            modified_at=self.modified_at,
            holder="" if closed else self.holder,
            host="" if closed else self.host,
            address="" if closed else self.address,
            opened_at="" if closed else self.opened_at,
            silent_s=0.0 if closed else self.silent_s(now),
            attempts=self.attempts,
            next_attempt_s=max(0.0, self.next_attempt_s - now) if self.recovering else 0.0,
            trouble=self.trouble,
        )

    def closed_status(self, *, length: int, modified_at: str) -> FileStatus:
        """What the file is once it is closed with this length."""
        return FileStatus(
            id=self.id,
            path=self.path,
            state=FileState.CLOSED,
            epoch=self.epoch,
            length=length,
            replication=self.replication,
            block_size=self.block_size,
            created_at=self.created_at,
            modified_at=modified_at,
        )


FILE_COLUMNS = len(fields(FileRow))


def blocks_of(rows: Iterable[tuple[Any, ...]]) -> tuple[Block, ...]:
    """The blocks of rows that have one volume each; those of a block stand together."""
    found: dict[int, Block] = {}
    volumes: dict[int, list[str]] = {}
    for *columns, volume in rows:
        block_id = columns[0]
        if block_id is None:
            continue
        volumes.setdefault(block_id, []).extend(() if volume is None else (volume,))
        found[block_id] = block_of(columns, tuple(volumes[block_id]))
    return tuple(found.values())


def block_of(columns: Iterable[Any], volumes: tuple[str, ...]) -> Block:
    """One block from the columns of its table."""
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
        volumes=volumes,
    )


def holder_of(row: tuple[Any, ...], now: float) -> HolderStatus:
    """A row of the query ``holders``."""
    holder_id, host, pid, since, renewed_s, open_files = row
    return HolderStatus(
        id=holder_id,
        host=host,
        pid=pid,
        since=since,
        silent_s=max(0.0, now - renewed_s),
        open_files=open_files,
    )


def entry_of(row: tuple[Any, ...]) -> Entry:
    """A row of the query ``history``."""
    number, at, step, file_id, path, epoch, holder, detail = row
    return Entry(
        number=number,
        at=at,
        step=step,
        file_id=file_id,
        path=path,
        epoch=epoch,
        holder=holder,
        detail=detail,
    )
