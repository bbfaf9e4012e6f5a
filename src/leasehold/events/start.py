"""Where a reader begins: at one end of a partition, at a number, or at a time.

A ``Start`` is resolved by the reader: the same ``Start`` may mean different events at different
times.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Self

from leasehold.errors import UsageError

_MAX = 2**63 - 1
_EPOCH_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HOW = "write earliest, latest, seq:<number>, offset:<number>, or a time as 2026-01-01T00:00:00Z"


class StartKind(Enum):
    """What the number of a ``Start`` counts."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SEQUENCE = "seq"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Made by one of its class methods. ``value``: a number, or microseconds since 1970 in UTC."""

    kind: StartKind
    value: int = 0

    @classmethod
    def earliest(cls) -> Self:
        """Return the first event that is kept."""
        return cls(kind=StartKind.EARLIEST)

    @classmethod
    def latest(cls) -> Self:
        """After the last event there is: only what comes from now on."""
        return cls(kind=StartKind.LATEST)

    @classmethod
    def sequence(cls, number: int) -> Self:
        """Return the event with this sequence number.

        Raises:
            UsageError: it is not a valid number of an event.
        """
        return cls(kind=StartKind.SEQUENCE, value=_checked(number, what="a sequence number"))

    @classmethod
    def offset(cls, number: int) -> Self:
        """Return the first event at or after this offset.

        Raises:
            UsageError: it is not a valid number of an event.
        """
        return cls(kind=StartKind.OFFSET, value=_checked(number, what="an offset"))

    @classmethod
    def time(cls, at: datetime) -> Self:
        """Return the first event that was enqueued at this time or later.

        Raises:
            UsageError: the time has no time zone.
        """
        if not isinstance(at, datetime):
            raise UsageError(f"a time is a datetime with a zone, not {at!r}")
        if at.utcoffset() is None:
            raise UsageError(
                f"{at.isoformat()} does not say its time zone: add one, such as tzinfo=UTC, or a Z "
                "at the end of the text"
            )
        return cls(kind=StartKind.TIME, value=(at - _EPOCH_BEGAN) // _MICROSECOND)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` writes, and any time in ISO 8601 with a time zone.

        Raises:
            UsageError: it is none of them; the message explains the format.
        """
        word = text.strip()
        if word in {StartKind.EARLIEST.value, StartKind.LATEST.value}:
            return cls(kind=StartKind(word))
        before, colon, number = word.partition(":")
        if colon and before in {StartKind.SEQUENCE.value, StartKind.OFFSET.value}:
            if not (number.isascii() and number.isdigit()):
                raise UsageError(f"{text!r} has no whole number after {before}: {_HOW}")
            kind = StartKind(before)
            return cls(kind=kind, value=_checked(int(number), what=f"the number in {text!r}"))
        try:
            at = datetime.fromisoformat(word)
        except ValueError as error:
            raise UsageError(f"{text!r} is no place to start at: {_HOW}") from error
        return cls.time(at)

    def __str__(self) -> str:
        match self.kind:
            case StartKind.SEQUENCE | StartKind.OFFSET:
                return f"{self.kind.value}:{self.value}"
            case StartKind.TIME:
                at = _EPOCH_BEGAN + timedelta(microseconds=self.value)
                return at.isoformat().replace("+00:00", "Z")
            case _:
                return str(self.kind.value)


def _checked(number: object, *, what: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX:
        raise UsageError(f"{what} is a whole number from 0 to 2^63-1, not {number!r}")
    return number
