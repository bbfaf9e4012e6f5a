"""Schedules: what they promise, and how their text is read.

A text that could be meant in another dialect is refused, never guessed.

Intervals: ``every 30s``, counted from 1970, so that all machines agree without talking.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo

from leasehold.core.cron.line import line_of
from leasehold.core.cron.zone import FIRST_S, LAST_S, at_s, ceil_s, floor_s, zone_of
from leasehold.errors import BadSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

_WORDS = re.compile(r"every\s+([0-9]{1,9})\s*([smhd])", re.IGNORECASE)
_UNITS = {"s": (1, "second"), "m": (60, "minute"), "h": (3_600, "hour"), "d": (86_400, "day")}
_LONGEST_S = 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Each multiple of a length of time since 1970-01-01 00:00:00 UTC. Clock changes do nothing."""

    text: str
    tz: ZoneInfo
    length_s: int

    def next(self, after: datetime) -> datetime | None:
        """The first moment after this one; None if the calendar ends before."""
        start_s = max(floor_s(after), FIRST_S)
        found_s = start_s - start_s % self.length_s + self.length_s
        return at_s(found_s) if found_s <= LAST_S else None

    def previous(self, before: datetime) -> datetime | None:
        """The last moment before this one; None if the calendar begins after."""
        end_s = min(ceil_s(before), LAST_S) - 1
        found_s = end_s - end_s % self.length_s
        return at_s(found_s) if found_s >= FIRST_S else None

    def occurrences(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """All moments after the first and up to the second."""
        start_s = max(floor_s(after), FIRST_S)
        first_s = start_s - start_s % self.length_s + self.length_s
        return map(at_s, range(first_s, min(floor_s(until), LAST_S) + 1, self.length_s))

    def explain(self) -> str:
        """The schedule in words."""
        for size_s, name in reversed(_UNITS.values()):
            count, rest_s = divmod(self.length_s, size_s)
            if not rest_s:
                length = f"{count} {name}s" if count > 1 else name
                return f"every {length}, counted from 1970-01-01 00:00:00 UTC"
        raise AssertionError(self.length_s)


def every_of(text: str, *, tz: ZoneInfo) -> Every:
    """``every 30s``, ``every 5m``, ``every 2h``, ``every 1d``.

    Raises:
        BadSchedule: it is written in another way, or not 1 s to 366 d long.
    """
    match = _WORDS.fullmatch(text)
    if match is None:
        raise BadSchedule(
            "it is no interval: write 'every', a whole number and s, m, h or d, such as every 30s"
        )
    length_s = int(match[1]) * _UNITS[match[2].lower()][0]
    if not 1 <= length_s <= _LONGEST_S:
        raise BadSchedule("the interval must be 1 s to 366 d long: choose another")
    return Every(text=text, tz=tz, length_s=length_s)


_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LONGEST_TEXT = 1_000


class Dialect(Enum):
    """How many fields a cron line has, and which is first."""

    VIXIE = "vixie"
    SECONDS_FIRST = "seconds-first"

    @property
    def fields(self) -> int:
        """How many fields it has."""
        return 5 if self is Dialect.VIXIE else 6


class Schedule(Protocol):
    """Moments that come again and again. All that it returns is in UTC, in whole seconds.

    A moment that is given must have a time zone, else it is a ``UsageError``.
    """

    @property
    def text(self) -> str:
        """The text, with single spaces."""
        ...

    @property
    def tz(self) -> ZoneInfo:
        """The zone in which its times are meant."""
        ...

    def next(self, after: datetime) -> datetime | None:
        """The first moment after this one; None if the calendar ends before."""
        ...

    def previous(self, before: datetime) -> datetime | None:
        """The last moment before this one; None if the calendar begins after."""
        ...

    def occurrences(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """All moments after the first and up to the second."""
        ...

    def explain(self) -> str:
        """The schedule in words."""
        ...


def parse_schedule(
    text: str, *, tz: str | ZoneInfo = "UTC", dialect: Dialect | None = None
) -> Schedule:
    """Read a cron line of five or six fields, a word such as ``@daily``, or ``every 30s``.

    Without a dialect the number of fields decides: five begin with the minute, six with the second.

    Raises:
        BadSchedule: it can not be read, never happens, or there is no such time zone, or not the
            same on all machines; the message names the field and says what to write.
    """
    if not isinstance(text, str):
        raise BadSchedule(f"a schedule must be text, not {text!r}: write '0 2 * * *'")
    if len(text) > _LONGEST_TEXT:
        raise BadSchedule(f"a schedule has {_LONGEST_TEXT} characters at most: write a shorter one")
    zone = _zone_of(tz)
    text = " ".join(text.split())
    try:
        return _read(text, zone, dialect)
    except BadSchedule as error:
        raise BadSchedule(f"schedule {text!r}: {error}") from None


def _read(text: str, tz: ZoneInfo, dialect: Dialect | None) -> Schedule:
    if text.lower().startswith("every"):
        return every_of(text, tz=tz)
    fields = (_spelled_out(text) if text.startswith("@") else text).split()
    if not text.startswith("@"):
        _check_count(fields, dialect)
    if len(fields) == Dialect.VIXIE.fields:
        fields.insert(0, "0")
    return line_of(text, fields, tz=tz)


def _spelled_out(text: str) -> str:
    line = _SHORT.get(text.lower())
    if line is None:
        why = f"it is not one of {', '.join(_SHORT)}"
        if text.lower().startswith("@every"):
            why += "; for an interval write 'every 30s'"
        if text.lower() == "@reboot":
            why += "; a start-up is no moment of a schedule"
        raise BadSchedule(why)
    return line


def _check_count(fields: list[str], dialect: Dialect | None) -> None:
    count = len(fields)
    if fields and "TZ=" in fields[0].upper():
        raise BadSchedule("a time zone is no part of the text: leave it out and give it as tz")
    if count == Dialect.SECONDS_FIRST.fields + 1:
        raise BadSchedule(
            "it has 7 fields, as Quartz has with a year at the end: leave the year out, and write "
            "days of the week by name"
        )
    if count not in {each.fields for each in Dialect}:
        had = "1 field" if count == 1 else f"{count} fields"
        raise BadSchedule(
            f"it has {had}: write 5 (minute hour day-of-month month day-of-week), "
            "6 with the second in front, a word such as @daily, or 'every 30s'"
        )
    if dialect is not None and count != dialect.fields:
        raise BadSchedule(
            f"it has {count} fields, and a line in the dialect {dialect.value} has "
            f"{dialect.fields}: "
            + (
                "leave the second out"
                if dialect is Dialect.VIXIE
                else "write the second in front, such as 0"
            )
        )


def _zone_of(tz: str | ZoneInfo) -> ZoneInfo:
    found = tz if isinstance(tz, ZoneInfo) else _named(tz)
    zone_of(found, once=True)  # refuses what is another zone on another machine
    return found


def _named(tz: str) -> ZoneInfo:
    try:
        return ZoneInfo(tz)
    except (ValueError, OSError, KeyError, TypeError, AttributeError):
        raise BadSchedule(
            f"there is no time zone {tz!r}: write a name of the IANA list, such as Europe/Berlin "
            "or UTC"
        ) from None
