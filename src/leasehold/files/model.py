"""The records, paths and settings of the file layer: frozen, without I/O.

A **file** is a list of **blocks**; only the last one may be open. A block is on each of its
**volumes** as one replica. An **epoch** is drawn from one counter for the whole namespace each time
a file is opened for writing or recovered; a block's **generation** is the epoch it was last written
or recovered under.

Directories are implicit: one exists while a file is below it. All paths below a directory form one
range in the order of their code points, because ``0`` is the character after ``/``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from leasehold.core.token_digest import token_digest
from leasehold.errors import InvalidName, InvalidOptions, VolumeNewer
from leasehold.names import seconds_of

LONGEST_PATH = 1024
# An index entry of PostgreSQL has room for a third of a page.
_LONGEST_PATH_BYTES = 2048
_LONGEST_SHOWN = 80


def check_path(path: object) -> str:
    """Return ``path`` as it is."""
    why = _fault(path)
    if why is not None or not isinstance(path, str):
        raise InvalidName(
            f"{_short(path)} is no path of a file: {why}; write it from the root and without a "
            f"slash at its end, such as /logs/today, in {LONGEST_PATH} printable characters at most"
        )
    return path


def check_directory(path: object) -> str:
    """Return the path of a directory, without the slash that may stand at its end."""
    if path == "/":
        return "/"
    bare = path.removesuffix("/") if isinstance(path, str) else path
    why = _fault(bare)
    if why is not None or not isinstance(bare, str):
        raise InvalidName(
            f"{_short(path)} is no directory: {why}; write it from the root, such as / or /logs, "
            f"in {LONGEST_PATH} printable characters at most"
        )
    return bare


def ancestors(path: str) -> list[str]:
    """Return the directories above ``path`` without the root, the nearest first."""
    found = []
    parent = path.rpartition("/")[0]
    while parent:
        found.append(parent)
        parent = parent.rpartition("/")[0]
    return found


def below(directory: str) -> tuple[str, str]:
    """Return the range of all paths below a directory, without its second value."""
    bare = directory.removesuffix("/")
    return f"{bare}/", f"{bare}0"


def only(path: str) -> tuple[str, str]:
    """Return the range that holds only this path: other values in it are not printable."""
    return path, f"{path}\x01"


def _fault(path: object) -> str | None:
    if not isinstance(path, str):
        return "it must be text"
    parts = path[1:].split("/")
    faults = {
        "it does not begin with a slash": not path.startswith("/"),
        "it has characters that can not be shown": not path.isprintable(),
        f"it has {len(path)} characters": len(path) > LONGEST_PATH,
        # A text that cannot be encoded is not printable either: refused above.
        f"it takes more than {_LONGEST_PATH_BYTES} bytes in UTF-8": (
            len(path.encode(errors="replace")) > _LONGEST_PATH_BYTES
        ),
        "it has an empty part, or a slash at its end": "" in parts,
        "a part of it is . or ..": "." in parts or ".." in parts,
    }
    return next((fault for fault, found in faults.items() if found), None)


def _short(path: object) -> str:
    shown = repr(path)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


class FileState(Enum):
    """Whether a file can still change."""

    OPEN = "open"
    RECOVERING = "recovering"
    CLOSED = "closed"


class BlockState(Enum):
    """Whether a block can still change."""

    OPEN = "open"
    COMPLETE = "complete"


class RecoveryReason(Enum):
    """What started a recovery."""

    ASKED = "asked"  # a call of recover(): no limit applies
    SOFT = "soft limit"  # another client wants the file
    HARD = "hard limit"  # the monitor
    CLOSE = "close"  # the writer itself, after a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHolder:
    """One incarnation of one client; its lease covers all the files it has open."""

    id: str
    token: str = field(repr=False)
    host: str
    pid: int
    address: str = ""

    @property
    def token_digest(self) -> str:
        """What the journal keeps of the token."""
        return token_digest(self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLeaseLimits:
    """The times of the lease. After ``soft_s`` without renewal others may take a file over, after
    ``hard_s`` the monitor recovers it unasked. An attempt to recover may take ``attempt_s``; only
    then may another begin. Seconds by the clock of the store.
    """  # noqa: D205

    soft_s: float = 60.0
    hard_s: float = 1200.0
    attempt_s: float = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMark:
    """The highest block id and epoch that were ever used: on a volume, or in the journal."""

    block: int = 0
    epoch: int = 0

    def is_above(self, other: VolumeMark) -> bool:
        """Return whether one of the two numbers is higher than in ``other``."""
        return self.block > other.block or self.epoch > other.epoch

    def joined(self, other: VolumeMark) -> VolumeMark:
        """Return the higher of each number."""
        return VolumeMark(block=max(self.block, other.block), epoch=max(self.epoch, other.epoch))


NO_MARK = VolumeMark()


def newer_volume(volume: str, mark: VolumeMark, known: VolumeMark) -> VolumeNewer:
    """Build the error: the volume has numbers that the journal has not drawn yet."""
    return VolumeNewer(
        f"{volume} is newer than the database: it has block {mark.block:#x} and epoch "
        f"{mark.epoch}, the database is at block {known.block:#x} and epoch {known.epoch}. The "
        "database was replaced by an older one, such as a backup. Nothing was written or removed. "
        "Restore the newer database; or, to go on with this one and keep all blocks of the newer "
        "one on the volumes, run `leasehold files adopt --execute`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block as the journal knows it. ``length`` and ``checksum`` count when it is complete.

    ``copies`` are those volumes whose replica was copied from others once the block was complete,
    each with the epoch of the copy; it is in the names of its files.
    """

    id: int
    file_id: int
    index: int
    generation: int
    state: BlockState
    start: int
    length: int
    checksum: int
    volumes: tuple[str, ...]
    copies: tuple[tuple[str, int], ...] = ()

    def copy_on(self, volume_id: str) -> int:
        """Return the epoch of the copy on a volume; 0 if the replica is the writer's own."""
        return dict(self.copies).get(volume_id, 0) if self.copies else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """A copy that is being made; the claim to it ends by the store's clock, unless renewed.

    ``epoch`` is drawn for it alone. Only the journal's current claim can be committed.
    """

    block: Block
    volume: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """A file as shown to callers. ``length`` is that of its complete blocks.

    The fields from ``holder`` on are those of an open file: who writes it, since when, how long
    ago that holder last renewed (by the store's clock), and the attempts to recover it.
    """

    id: int
    path: str
    state: FileState
    epoch: int
    length: int
    replication: int
    block_bytes: int
    created_at: str
    modified_at: str
    holder: str = ""
    host: str = ""
    address: str = ""
    opened_at: str = ""
    idle_s: float = 0.0
    attempts: int = 0
    next_attempt_s: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTicket:
    """A writer's proof: every journal step of an open file shows it."""

    file_id: int
    path: str
    epoch: int
    holder: FileHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A file opened for writing, and the block to write to."""

    ticket: WriteTicket
    block: Block
    block_bytes: int
    replication: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBlock:
    """The end of a block: how long it is, its checksum, and the volumes that have all of it."""

    block_id: int
    length: int
    checksum: int
    volumes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecovery:
    """A recovery that was begun; its id is the new epoch. ``block``: the open one, if any."""

    file_id: int
    path: str
    id: int
    block: Block | None
    attempt: int
    was_held_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStatus:
    """A holder as shown to callers."""

    id: str
    host: str
    pid: int
    since: str
    idle_s: float
    open_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One line of the journal: what was done to a file, when, by whom, under which epoch."""

    number: int
    at: str
    step: str
    file_id: int
    path: str
    epoch: int
    holder: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLoss:
    """Acknowledged bytes that no volume had any more in a recovery: those after ``start``.

    ``lost_bytes`` are those that were known; if it is 0, only volumes that were given up, named in
    ``detail``, may have had some.
    """

    epoch: int
    at: str
    start: int
    lost_bytes: int
    detail: str = ""

    @property
    def message(self) -> str:
        """The loss as one sentence."""
        detail = f" ({self.detail})" if self.detail else ""
        known = self.lost_bytes or "an unknown number of"
        lost = "were lost" if self.lost_bytes else "may have been lost"
        return (
            f"{known} acknowledged bytes{detail} after byte {self.start} {lost} before the "
            f"recovery of {self.at}, under epoch {self.epoch}"
        )


_MIN_S = 0.01
_MAX_S = 30 * 24 * 3600.0
_MIN_BLOCK_BYTES = 4096
_MAX_BLOCK_BYTES = 1 << 40
_MAX_REPLICATION = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How files are written, and when those of a silent holder are taken over.

    Attributes:
        soft_limit: after this time without renewal another client may take a file over.
        hard_limit: after this time the monitor recovers it unasked.
        check_interval: how often the renewer runs; it renews at half the soft limit.
        monitor_interval: how often the monitor runs.
        monitor_budget: after this time a pass of the monitor begins no further recovery.
        recovery_timeout: how long one recovery may take before another may begin.
        repair_interval: how often some blocks are checked for copies that are missing.
        repair_bytes: how many bytes of missing copies one pass copies; 0: none.
        replication: how many volumes a block is on; by default 3, or all if there are fewer.
        min_replicas: a writer whose block is on fewer volumes than this stops.
        block_bytes: how many bytes until the next block begins.

    Raises:
        InvalidDuration: a duration is outside its range.
        InvalidOptions: two settings contradict each other, or a number is out of its range.
    """

    soft_limit: timedelta = timedelta(seconds=60)
    hard_limit: timedelta = timedelta(minutes=20)
    check_interval: timedelta = timedelta(seconds=1)
    monitor_interval: timedelta = timedelta(seconds=2)
    monitor_budget: timedelta = timedelta(seconds=1)
    recovery_timeout: timedelta = timedelta(seconds=90)
    repair_interval: timedelta = timedelta(seconds=10)
    repair_bytes: int = 64 << 20
    replication: int | None = None
    min_replicas: int = 1
    block_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        """Refuse what could not work, naming the relation that is broken."""
        for what in (
            "soft_limit",
            "hard_limit",
            "check_interval",
            "monitor_interval",
            "monitor_budget",
            "recovery_timeout",
            "repair_interval",
        ):
            seconds_of(getattr(self, what), what=what, min_s=_MIN_S, max_s=_MAX_S)
        if self.hard_limit < self.soft_limit:
            raise InvalidOptions(
                f"soft_limit <= hard_limit does not hold ({self.soft_limit} > {self.hard_limit}): "
                "the monitor would take files from holders that nobody else may rob"
            )
        if self.check_interval > self.soft_limit / 2:
            raise InvalidOptions(
                f"check_interval <= soft_limit / 2 does not hold ({self.check_interval} > "
                f"{self.soft_limit / 2}): a renewal would come too late; look more often"
            )
        check_replication(self.replication)
        check_block_size(self.block_bytes)
        _check_whole(self.repair_bytes, "repair_bytes", 0, _MAX_BLOCK_BYTES)
        max_replicas = self.replication or _MAX_REPLICATION
        if not 1 <= self.min_replicas <= max_replicas:
            raise InvalidOptions(
                f"1 <= min_replicas <= replication does not hold ({self.min_replicas} and "
                f"{self.replication or 'default'}): no block could ever be written"
            )

    @property
    def limits(self) -> FileLeaseLimits:
        """The times the journal judges by."""
        return FileLeaseLimits(
            soft_s=self.soft_limit.total_seconds(),
            hard_s=self.hard_limit.total_seconds(),
            attempt_s=self.recovery_timeout.total_seconds(),
        )


def check_replication(replication: object) -> None:
    """Refuse a replication that no block could have; None is the default."""
    _check_whole(replication if replication is not None else 1, "replication", 1, _MAX_REPLICATION)


def check_block_size(block_bytes: object) -> None:
    """Refuse a size that no block could have."""
    _check_whole(block_bytes, "block_bytes", _MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES)


def _check_whole(value: object, what: str, min_value: int, max_value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not min_value <= value <= max_value:
        raise InvalidOptions(
            f"{what} is {value!r} and must lie between {min_value} and {max_value}"
        )
