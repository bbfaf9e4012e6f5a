"""Days that a cron line names, by date and by day of the week.

Which days of a month match depends on two things only: how many days it has, and the day of the
week on which it begins. Days of the week count from Sunday, which is 0.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.cron.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    Field,
    is_number,
    number_of,
    parts_of,
    span_of,
    wrong,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

WEEK = 7
_SATURDAY, _SUNDAY = 6, 0
_MOST_WEEKS = 5
_MOST_BACK = 30
_LEAP_YEAR = 2000
# Sets of days are bits of an integer: that of day n is 1 << n.
ALL_DATES = (1 << 32) - 2
ALL_WEEKDAYS = (1 << WEEK) - 1
# One bit in each of five weeks.
_EACH_WEEK = sum(1 << WEEK * week for week in range(5))


def numbers_in(bits: int) -> list[int]:
    """The numbers of a set of days, in order."""
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dates:
    """Days of a month: by number, ``L-n`` as n, ``nW`` as n, and whether ``LW`` is among them."""

    bits: int
    from_last: frozenset[int]
    nearest: frozenset[int]
    last_working: bool
    star: bool

    def of_month(self, length: int, first: int) -> int:
        """Those of a month of this length, whose first day is this day of the week."""
        found = self.bits
        for back in self.from_last:
            if back < length:
                found |= 1 << length - back
        for day in self.nearest:
            if day <= length:
                found |= 1 << _nearest(day, length, first)
        if self.last_working:
            found |= 1 << _nearest(length, length, first)
        return found & (2 << length) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekdays:
    """Days of the week: all of them, the nth of a month, the last of a month."""

    bits: int
    nth: frozenset[tuple[int, int]]
    last: frozenset[int]
    star: bool

    def of_month(self, length: int, first: int) -> int:
        """Those of a month of this length, whose first day is this day of the week."""
        # The week as it lies in this month, and then five times.
        week = (self.bits >> first | self.bits << WEEK - first) & ALL_WEEKDAYS
        found = week * _EACH_WEEK << 1
        for weekday, n in self.nth:
            found |= 2 << (weekday - first) % WEEK + (n - 1) * WEEK
        for weekday in self.last:
            found |= 1 << length - (first + length - 1 - weekday) % WEEK
        return found & (2 << length) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRule:
    """The days of the year: in these months, by date and by day of the week.

    If both are given, a day that is either matches; if one of them begins with a star, a day has
    to be both. So it is in the cron of Vixie.
    """

    months: tuple[int, ...]
    dates: Dates
    weekdays: Weekdays

    @property
    def both(self) -> bool:
        """Whether a day must match by date and by day of the week."""
        return self.dates.star or self.weekdays.star

    @property
    def weekly(self) -> bool:
        """Whether the day of the week alone decides."""
        return (
            len(self.months) == 12  # noqa: PLR2004 - of a year
            and self.both
            and self.dates.bits == ALL_DATES
            and not self.weekdays.nth
            and not self.weekdays.last
        )

    def of_month(self, length: int, first: int) -> int:
        """The days of a month of this length, whose first day is this day of the week."""
        dates = self.dates.of_month(length, first)
        weekdays = self.weekdays.of_month(length, first)
        return dates & weekdays if self.both else dates | weekdays

    def ever(self) -> bool:
        """Whether there is such a day. In 400 years each month begins on each day of the week."""
        lengths = {monthrange(_LEAP_YEAR, month)[1] for month in self.months}
        return any(self.of_month(length, first) for length in lengths for first in range(WEEK))


def dates_of(text: str) -> Dates:
    """The field day of month.

    Raises:
        BadSchedule: it can not be read.
    """
    bits = 0
    from_last: set[int] = set()
    nearest: set[int] = set()
    last_working = False
    for part in parts_of("*" if text == "?" else text, DAY_OF_MONTH):
        if part == "LW":
            last_working = True
        elif part[0] == "L":
            from_last.add(_back(part))
        elif part[-1] == "W":
            nearest.add(_only_number(part, DAY_OF_MONTH, "15W"))
        else:
            bits |= _bits(span_of(part, DAY_OF_MONTH))
    return Dates(
        bits=bits,
        from_last=frozenset(from_last),
        nearest=frozenset(nearest),
        last_working=last_working,
        star=text[0] in "*?",
    )


def weekdays_of(text: str) -> Weekdays:
    """The field day of week.

    Raises:
        BadSchedule: it can not be read.
    """
    bits = 0
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    for part in parts_of("*" if text == "?" else text, DAY_OF_WEEK):
        if "#" in part:
            nth.add(_nth(part))
        elif part[-1] == "L":
            last.add(_only_number(part, DAY_OF_WEEK, "FRIL") % WEEK)
        else:
            bits |= _bits(number % WEEK for number in span_of(part, DAY_OF_WEEK))
    return Weekdays(bits=bits, nth=frozenset(nth), last=frozenset(last), star=text[0] in "*?")


def check_together(dates: str, weekdays: str) -> None:
    """Refuse lines that look as if Quartz had to read them.

    Raises:
        BadSchedule: both fields are ``?``, or one is and the days of the week are numbers.
    """
    if dates == weekdays == "?":
        raise wrong(DAY_OF_WEEK, weekdays, "is '?' as is the day of month", "write * for both")
    if dates == "?" and any(
        is_number(number)
        for part in weekdays.upper().removesuffix("L").split(",")
        for number in part.removesuffix("L").partition("/")[0].partition("#")[0].split("-")
    ):
        raise wrong(
            DAY_OF_WEEK,
            weekdays,
            "has days as numbers beside a '?': for Quartz and AWS 1 is Sunday, here it is Monday",
            "write the days by name, such as MON-FRI",
        )


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def _nearest(day: int, length: int, first: int) -> int:
    """The working day that is nearest to the day, in the same month."""
    weekday = (first + day - 1) % WEEK
    if weekday == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == _SUNDAY:
        return day + 1 if day < length else day - 2
    return day


def _back(part: str) -> int:
    back = part[2:]
    if part == "L":
        return 0
    if part[1] == "-" and is_number(back) and 1 <= int(back) <= _MOST_BACK:
        return int(back)
    raise wrong(
        DAY_OF_MONTH,
        part,
        "is no day before the last",
        f"write L, LW, or L-1 to L-{_MOST_BACK}",
    )


def _only_number(part: str, field: Field, such_as: str) -> int:
    if len(part) == 1 or not part[:-1].isalnum():
        raise wrong(field, part, "does not say which day", f"write one day, such as {such_as}")
    return number_of(part[:-1], field)


def _nth(part: str) -> tuple[int, int]:
    day, _, n = part.partition("#")
    if not is_number(n) or not 1 <= int(n) <= _MOST_WEEKS:
        raise wrong(
            DAY_OF_WEEK, part, "is no day of a month", f"write FRI#1 to FRI#{_MOST_WEEKS}, or FRIL"
        )
    return number_of(day, DAY_OF_WEEK) % WEEK, int(n)
