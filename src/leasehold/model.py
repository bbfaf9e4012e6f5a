"""The records that all modules share: frozen, comparable, without I/O.

================  =========================================================================
record            meaning
================  =========================================================================
``Lease``         a holder is alive while its lease lasts; one lease covers all that it owns
``Resource``      a key as any process sees it: its epoch, its owner, pending requests
``Ownership``     a key as its owner holds it: the proof that goes with every write
``KeyClaim``      a key to claim, with the epoch at which it was seen
``MemberRecord``  a member as the others see it
``Changes``       the answer to a renewal: what changed since the known version
``Checkpoint``    a position in a partition, written under an ownership
``Term``          one ownership from start to end, with the reason of the end: the history
``Note``          an owner's note on its term, written under the ownership
================  =========================================================================

An **epoch** rises by one at every change of owner and is never reset. A **version** is the
store's own counter of changes; it orders what members see and has no other meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


LONGEST_OFFSET = 1024
LONGEST_NOTE = 1024
LONGEST_STREAM_ID = 128
_LONGEST_SHOWN = 80
_STREAM_MARK = "\x1fstream="  # in the text that stores keep, before the identity of the stream


class State(Enum):
    """The state of a resource, by the store's clock (L1)."""

    AVAILABLE = "available"
    LEASED = "leased"
    BREAKING = "breaking"
    BROKEN = "broken"
    EXPIRED = "expired"


class EndReason(Enum):
    """Why a term ended.

    ``LAPSED``: its holder gave it up after its local deadline, so the work had been stopped by
    force. All but ``RELEASED``, ``HANDED_OVER`` and ``RESET`` mean that work may have been done
    without a checkpoint.
    """

    RELEASED = "released"
    LAPSED = "lapsed"
    HANDED_OVER = "handed_over"
    EXPIRED = "expired"
    STOLEN = "stolen"
    BROKEN = "broken"
    RESET = "reset"

    @property
    def stored(self) -> str:
        """The word that stores keep for it: every store has "handed over" in its records."""
        return _STORED_REASONS.get(self.value, self.value)

    @classmethod
    def _missing_(cls, value: object) -> EndReason | None:
        return next((each for each in cls if each.stored == value), None)


_STORED_REASONS = {"handed_over": "handed over"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """What a member publishes about itself.

    ``weight`` scales its share, ``most`` limits the number of keys it takes, ``draining`` means
    that it hands all its keys over, ``loads`` are the loads it measured on the keys it owns.
    ``failing`` says of keys whose work fails where it does, for people: ``at 901, attempt 3``.
    """

    host: str = ""
    pid: int = 0
    weight: float = 1.0
    most: int | None = None
    draining: bool = False
    loads: Mapping[str, float] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A granted lease. A caller with ``token`` acts for ``holder``; it is never printed."""

    holder: str
    token: str = field(repr=False)
    group: str
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A key as the store knows it; without the token, so it may be shown to any process.

    ``handed_to`` is the holder that a free key is reserved for, until it claims it or the limit is
    over. ``asked_by`` is the holder that asked for it. ``breaking_s`` is the time until a break
    takes effect, by the store's clock at the time of the answer. A ``forgotten`` key is no longer
    assigned; only its epoch is kept.
    """

    key: str
    epoch: int
    state: State
    version: int
    holder: str | None = None
    handed_to: str | None = None
    asked_by: str | None = None
    breaking_s: float | None = None
    forgotten: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The proof of owning ``key`` in ``epoch``; fenced writes carry it."""

    key: str
    epoch: int
    holder: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaim:
    """A key to claim, and the epoch at which it was seen: claimed only if that is unchanged.

    ``note`` is the note at the start of the term.

    Raises:
        UsageError: the note is not a valid ``Note``.
    """

    key: str
    seen_epoch: int
    note: str = ""

    def __post_init__(self) -> None:
        """Check the text: every store must be able to keep it."""
        if self.note != "":  # nearly all have none, and there may be thousands
            _check_note(self.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """An ownership to hand over, and the holder that gets it.

    ``note`` is the note at the end of the term; None leaves it unchanged.

    Raises:
        UsageError: the note is not a valid ``Note``.
    """

    ownership: Ownership
    to: str
    note: str | None = None

    def __post_init__(self) -> None:
        """Check the text: every store must be able to keep it."""
        if self.note is not None:
            _check_note(self.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member as the others see it. ``alive`` is decided by the store, not by a local clock.

    ``duration_s`` is the length of its lease, so it renewed ``duration_s - remaining_s`` ago.
    ``leave_requested`` means that an operator has asked it to leave.
    """

    holder: str
    group: str
    info: MemberInfo
    alive: bool
    version: int
    remaining_s: float = 0.0
    duration_s: float = 0.0
    leave_requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One ownership from its start to its end; ``ended_at`` is None while it lasts.

    ``note`` is the last note of its holder; empty if there is none. A reset of the checkpoint is a
    term too, without duration: its holder is ``operator``.
    """

    key: str
    epoch: int
    holder: str
    started_at: datetime
    ended_at: datetime | None = None
    reason: EndReason | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An owner's note on its term, with the ownership that allows it.

    Raises:
        UsageError: it is not text that every store can keep: at most 1,024 characters, without
            NUL and lone surrogates.
    """

    ownership: Ownership
    text: str

    def __post_init__(self) -> None:
        """Check the text: every store must be able to keep it."""
        _check_note(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The answer to a renewal; all lists are empty if nothing changed.

    ``version`` is the ``since`` of the next renewal. ``resources`` and ``members`` are those of
    the watched group (and the caller's own) that changed; ``ended`` are the caller's own terms
    that ended, with the reason.

    ``next_end_s`` is the time, by the store's clock at the time of the answer, until something in
    the watched group can end: the lease of another holder, if it is not renewed, a break, or the
    limit of a hand-over. None: nothing can end.
    """

    version: int
    resources: tuple[Resource, ...] = ()
    members: tuple[MemberRecord, ...] = ()
    ended: tuple[Term, ...] = ()
    next_end_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """A position in a partition. Positions are ordered by ``sequence_number`` alone.

    -1 is the position before the first event. ``stream`` is the identity of the stream: another one
    of the same name has another identity. Empty: it is not known.

    Raises:
        UsageError: the sequence number is not a whole number from -1 up.
    """

    sequence_number: int
    offset: str = field(default="", compare=False)
    stream: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check that it can be compared with other positions."""
        number: object = self.sequence_number
        if not isinstance(number, int) or isinstance(number, bool) or number < -1:
            raise UsageError(f"sequence_number must be a whole number from -1 up, not {number!r}")

    @property
    def stored_offset(self) -> str:
        """The text that stores keep: the offset, followed by the stream if that is known."""
        if not self.stream and _STREAM_MARK not in self.offset:
            return self.offset
        return f"{self.offset}{_STREAM_MARK}{self.stream}"

    @classmethod
    def from_stored(cls, sequence_number: int, text: str) -> Self:
        """Return the position with this ``stored_offset``; an older one has no stream."""
        offset, mark, stream = text.rpartition(_STREAM_MARK)
        return cls(
            sequence_number=sequence_number,
            offset=offset if mark else text,
            stream=stream if mark else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The last position known to be done."""

    key: str
    epoch: int
    position: Position
    updated_at: datetime

    @property
    def resumes_at(self) -> int:
        """The sequence number of the first event to process: the one after the checkpoint."""
        return self.position.sequence_number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWrite:
    """A checkpoint to be written, with the ownership that allows it.

    Raises:
        UsageError: the position is not a ``Position``, or its offset or stream is not text that
            every store can keep: at most 1,024 and 128 characters, without NUL and lone surrogates.
    """

    ownership: Ownership
    position: Position

    def __post_init__(self) -> None:
        """Check the text: every store must be able to keep it."""
        position: object = self.position
        if not isinstance(position, Position):
            raise UsageError(f"a position is Position(sequence_number=…), not {position!r}")
        _check_text(
            position.offset,
            what="offset",
            longest=LONGEST_OFFSET,
            advice="leave it out if it has no use",
        )
        _check_text(
            position.stream,
            what="stream",
            longest=LONGEST_STREAM_ID,
            advice="leave it out if the stream has no identity",
        )


class Refusal(Enum):
    """Why a checkpoint was not written; nothing changed for that key."""

    FENCED = "fenced"
    BEHIND = "behind"


def _check_note(note: object) -> None:
    _check_text(
        note, what="note", longest=LONGEST_NOTE, advice="shorten it, or keep the rest elsewhere"
    )


def _check_text(text: object, *, what: str, longest: int, advice: str) -> None:
    if not isinstance(text, str) or not _can_be_kept(text, longest):
        shown = ascii(text)
        raise UsageError(
            f"{what} must be text of at most {longest:,} characters without NUL and "
            f"lone surrogates, not {shown[:_LONGEST_SHOWN]}: {advice}"
        )


def _can_be_kept(text: str, longest: int) -> bool:
    if len(text) > longest or "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)
