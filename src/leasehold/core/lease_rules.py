"""The rules of the lease, in one table.

``_TABLE`` below decides what each request does to a lease. The memory store uses it; the SQL stores
implement the same in SQL, and the contract suite tests every cell of the table on every store, so
that they cannot diverge. The diagram in ``docs/lease-states.md`` is generated from it. A refusal
changes nothing.

The table is that of Azure Blob leases, cell by cell, because it is the best known and the
strictest: a resource is *available*, *leased*, *breaking* (a break was ordered and its time is
not over), *broken*, or *expired*. ``A`` is the lease that was last granted, ``B`` any other.

One thing is stricter here: an expired blob lease may be renewed as long as the blob is unchanged
(``RENEW`` in ``EXPIRED``). Leasehold's stores never do that (they use ``RENEW_TOUCHED``): another
process may have *seen* that the lease has ended, so it must not become valid again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from leasehold.model import State

if TYPE_CHECKING:
    from collections.abc import Mapping


class Move(Enum):
    """A request, with how its proof relates to the lease last granted (A)."""

    ACQUIRE_NEW = "acquire, no id"
    ACQUIRE_SAME = "acquire (A)"
    ACQUIRE_OTHER = "acquire (B)"
    RENEW = "renew (A)"
    RENEW_TOUCHED = "renew (A), changed since"
    RENEW_OTHER = "renew (B)"
    CHANGE = "change A to B"
    CHANGE_AGAIN = "change B to A"
    CHANGE_OTHER = "change B to C"
    RELEASE = "release (A)"
    RELEASE_OTHER = "release (B)"
    BREAK_NOW = "break, period 0"
    BREAK_AFTER = "break, period n"
    BREAK_AT_END = "break, no period"
    BREAK_ENDLESS = "break endless, no period"
    TIME = "time passes"
    WRITE = "write with (A)"
    WRITE_OTHER = "write with (B)"
    WRITE_BARE = "write, no id"
    READ = "read with (A)"
    READ_BARE = "read, no id"


class RequestRefusal(Enum):
    """Why a request was refused: the error code of the blob service, with its status."""

    ALREADY_PRESENT = (409, "LeaseAlreadyPresent")
    BREAKING_NOT_ACQUIRED = (409, "LeaseIsBreakingAndCannotBeAcquired")
    BREAKING_NOT_CHANGED = (409, "LeaseIsBreakingAndCannotBeChanged")
    BROKEN_NOT_RENEWED = (409, "LeaseIsBrokenAndCannotBeRenewed")
    MISMATCH = (409, "LeaseIdMismatchWithLeaseOperation")
    NOT_PRESENT = (409, "LeaseNotPresentWithLeaseOperation")
    WRITE_MISMATCH = (412, "LeaseIdMismatchWithBlobOperation")
    WRITE_MISSING = (412, "LeaseIdMissing")
    WRITE_NOT_PRESENT = (412, "LeaseNotPresentWithBlobOperation")

    @property
    def status(self) -> int:
        """The HTTP status of the blob service: 409 for lease operations, 412 for the rest."""
        return self.value[0]

    @property
    def code(self) -> str:
        """The error code of the blob service."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """What a request does: the state afterwards, or the refusal; never both."""

    to: State | None = None
    refusal: RequestRefusal | None = None

    @property
    def granted(self) -> bool:
        """Whether the request is granted."""
        return self.refusal is None


COLUMNS = (State.AVAILABLE, State.LEASED, State.BREAKING, State.BROKEN, State.EXPIRED)

_FREE, _HELD, _BREAKING, _BROKEN, _EXPIRED = COLUMNS
_PRESENT = RequestRefusal.ALREADY_PRESENT
_MISMATCH = RequestRefusal.MISMATCH
_ABSENT = RequestRefusal.NOT_PRESENT
_NO_RENEWAL = RequestRefusal.BROKEN_NOT_RENEWED
_DEAD = RequestRefusal.WRITE_NOT_PRESENT
_NOT_YOURS = RequestRefusal.WRITE_MISMATCH
_BARE = RequestRefusal.WRITE_MISSING
_NOT_ACQUIRED = RequestRefusal.BREAKING_NOT_ACQUIRED
_NOT_CHANGED = RequestRefusal.BREAKING_NOT_CHANGED

# fmt: off
_TABLE: Mapping[Move, tuple[State | RequestRefusal, ...]] = MappingProxyType({
    #                    available  leased      breaking       broken       expired
    Move.ACQUIRE_NEW:   (_HELD,     _PRESENT,   _PRESENT,      _HELD,       _HELD),
    Move.ACQUIRE_SAME:  (_HELD,     _HELD,      _NOT_ACQUIRED, _HELD,       _HELD),
    Move.ACQUIRE_OTHER: (_HELD,     _PRESENT,   _PRESENT,      _HELD,       _HELD),
    Move.RENEW:         (_MISMATCH, _HELD,      _NO_RENEWAL,   _NO_RENEWAL, _HELD),
    Move.RENEW_TOUCHED: (_MISMATCH, _HELD,      _NO_RENEWAL,   _NO_RENEWAL, _MISMATCH),
    Move.RENEW_OTHER:   (_MISMATCH, _MISMATCH,  _MISMATCH,     _MISMATCH,   _MISMATCH),
    Move.CHANGE:        (_ABSENT,   _HELD,      _NOT_CHANGED,  _ABSENT,     _ABSENT),
    Move.CHANGE_AGAIN:  (_ABSENT,   _HELD,      _MISMATCH,     _ABSENT,     _ABSENT),
    Move.CHANGE_OTHER:  (_ABSENT,   _MISMATCH,  _MISMATCH,     _ABSENT,     _ABSENT),
    Move.RELEASE:       (_MISMATCH, _FREE,      _FREE,         _FREE,       _FREE),
    Move.RELEASE_OTHER: (_MISMATCH, _MISMATCH,  _MISMATCH,     _MISMATCH,   _MISMATCH),
    Move.BREAK_NOW:     (_ABSENT,   _BROKEN,    _BROKEN,       _BROKEN,     _BROKEN),
    Move.BREAK_AFTER:   (_ABSENT,   _BREAKING,  _BREAKING,     _BROKEN,     _BROKEN),
    Move.BREAK_AT_END:  (_ABSENT,   _BREAKING,  _BREAKING,     _BROKEN,     _BROKEN),
    Move.BREAK_ENDLESS: (_ABSENT,   _BROKEN,    _BREAKING,     _BROKEN,     _BROKEN),
    Move.TIME:          (_FREE,     _EXPIRED,   _BROKEN,       _BROKEN,     _EXPIRED),
    Move.WRITE:         (_DEAD,     _HELD,      _BREAKING,     _DEAD,       _DEAD),
    Move.WRITE_OTHER:   (_DEAD,     _NOT_YOURS, _NOT_YOURS,    _DEAD,       _DEAD),
    Move.WRITE_BARE:    (_FREE,     _BARE,      _BARE,         _FREE,       _FREE),
    Move.READ:          (_DEAD,     _HELD,      _BREAKING,     _DEAD,       _DEAD),
    Move.READ_BARE:     (_FREE,     _HELD,      _BREAKING,     _BROKEN,     _EXPIRED),
})
# fmt: on


def evaluate(state: State, move: Move) -> RuleOutcome:
    """Return what ``move`` does to a lease in ``state``."""
    cell = _TABLE[move][COLUMNS.index(state)]
    return RuleOutcome(refusal=cell) if isinstance(cell, RequestRefusal) else RuleOutcome(to=cell)


def state_of(*, held: bool, lease_ends_at: float, break_at: float | None, now: float) -> State:
    """Return the state of a resource by the store's clock.

    An end is inclusive: at that time the lease has ended, so that no instant belongs to two
    holders. A break that falls due before the lease ends leaves it *broken*.
    """
    if not held:
        return State.AVAILABLE
    if break_at is not None and break_at <= min(now, lease_ends_at):
        return State.BROKEN
    if lease_ends_at <= now:
        return State.EXPIRED
    return State.LEASED if break_at is None else State.BREAKING


def break_time(
    *, now: float, after_s: float, lease_ends_at: float, break_at: float | None
) -> float:
    """Return when a break takes effect: it can only shorten the remaining time."""
    ends = (now + after_s, lease_ends_at) if break_at is None else (now + after_s, break_at)
    return min(ends)


def mermaid() -> str:
    """Return the state diagram of all granted moves, as Mermaid text."""
    edges: dict[tuple[State, State], list[str]] = {}
    for move, cells in _TABLE.items():
        for start, cell in zip(COLUMNS, cells, strict=True):
            if isinstance(cell, State) and cell is not start:
                edges.setdefault((start, cell), []).append(move.value)
    lines = ["stateDiagram-v2", f"    [*] --> {State.AVAILABLE.value}"]
    lines += [
        f"    {start.value} --> {end.value}: {'<br/>'.join(moves)}"
        for (start, end), moves in edges.items()
    ]
    return "\n".join(lines) + "\n"


def markdown() -> str:
    """Return the whole table, refusals included, as Markdown."""
    lines = [
        "| request | " + " | ".join(state.value for state in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for move, cells in _TABLE.items():
        shown = [
            f"{cell.status} {cell.code}"
            if isinstance(cell, RequestRefusal)
            else f"**{cell.value}**"
            for cell in cells
        ]
        lines.append(f"| {move.value} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"
