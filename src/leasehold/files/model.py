"""The records of the files room: frozen, without I/O.

A **file** is a list of **blocks**; only the last one may be open. A block lies on each of its
**volumes** as one replica. An **epoch** is drawn from one counter for the whole namespace each time
a file is opened for writing or recovered; a block's **generation** is the epoch it was last written
or recovered under.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class FileState(Enum):
    """Whether a file can still change."""

    OPEN = "open"
    RECOVERING = "recovering"
    CLOSED = "closed"


class BlockState(Enum):
    """Whether a block can still change."""

    OPEN = "open"
    COMPLETE = "complete"


class Why(Enum):
    """Who started a recovery."""

    ASKED = "asked"  # somebody called recover(): no limit is looked at
    SOFT = "soft limit"  # another client wants the file
    HARD = "hard limit"  # the monitor
    CLOSE = "close"  # the writer itself, after a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One incarnation of one client; its lease covers all the files it has open."""

    id: str
    token: str = field(repr=False)
    host: str
    pid: int
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The times of the lease. After ``soft_s`` without renewal others may take a file over, after
    ``hard_s`` the monitor recovers it unasked. An attempt to recover may take ``attempt_s``; only
    then may another begin. Seconds by the clock of the store.
    """  # noqa: D205

    soft_s: float = 60.0
    hard_s: float = 1200.0
    attempt_s: float = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block as the journal knows it. ``length`` and ``checksum`` count when it is complete."""

    id: int
    file_id: int
    index: int
    generation: int
    state: BlockState
    start: int
    length: int
    checksum: int
    volumes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """A file as anybody may see it. ``length`` is that of its complete blocks.

    The fields from ``holder`` on are those of an open file: who writes it, since when, how long
    ago that holder was last heard of (by the store's clock), and how recovery went so far.
    """

    id: int
    path: str
    state: FileState
    epoch: int
    length: int
    replication: int
    block_size: int
    created_at: str
    modified_at: str
    holder: str = ""
    host: str = ""
    address: str = ""
    opened_at: str = ""
    silent_s: float = 0.0
    attempts: int = 0
    next_attempt_s: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A writer's proof: every journal step of an open file shows it."""

    file_id: int
    path: str
    epoch: int
    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A file opened for writing, and the block to write to."""

    ticket: Ticket
    block: Block
    block_size: int
    replication: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The end of a block: how long it is, its checksum, and the volumes that have all of it."""

    block_id: int
    length: int
    checksum: int
    volumes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A recovery that was begun; its id is the new epoch. ``block``: the open one, if any."""

    file_id: int
    path: str
    id: int
    block: Block | None
    attempt: int
    was_held_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStatus:
    """A holder as anybody may see it."""

    id: str
    host: str
    pid: int
    since: str
    silent_s: float
    open_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the journal: what was done to a file, when, by whom, under which epoch."""

    number: int
    at: str
    step: str
    file_id: int
    path: str
    epoch: int
    holder: str
    detail: str
