"""Fields of a cron line: numbers, names, ranges, steps and lists.

What can be read in two ways is refused, with what to write instead.

Days that a cron line names, by date and by day of the week.

Which days of a month match depends on two things only: how many days it has, and the day of the
week on which it begins. Days of the week count from Sunday, which is 0.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Iterable

WEEK = 7
_SATURDAY, _SUNDAY = 6, 0
_MAX_WEEKS = 5
_MAX_BACK = 30
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
        InvalidSchedule: it can not be read.
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
        InvalidSchedule: it can not be read.
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
        InvalidSchedule: both fields are ``?``, or one is and the days of the week are numbers.
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
    if part[1] == "-" and is_number(back) and 1 <= int(back) <= _MAX_BACK:
        return int(back)
    raise wrong(
        DAY_OF_MONTH,
        part,
        "is no day before the last",
        f"write L, LW, or L-1 to L-{_MAX_BACK}",
    )


def _only_number(part: str, field: Field, such_as: str) -> int:
    if len(part) == 1 or not part[:-1].isalnum():
        raise wrong(field, part, "does not say which day", f"write one day, such as {such_as}")
    return number_of(part[:-1], field)


def _nth(part: str) -> tuple[int, int]:
    day, _, n = part.partition("#")
    if not is_number(n) or not 1 <= int(n) <= _MAX_WEEKS:
        raise wrong(
            DAY_OF_WEEK, part, "is no day of a month", f"write FRI#1 to FRI#{_MAX_WEEKS}, or FRIL"
        )
    return number_of(day, DAY_OF_WEEK) % WEEK, int(n)


_YEAR_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: its name, its range, what its numbers are called, and whether it is a circle."""

    name: str
    min_value: int
    max_value: int
    names: tuple[str, ...] = ()
    wraps: bool = False
    unit: str = ""

    @property
    def size(self) -> int:
        """How many different numbers it has."""
        return self.max_value - self.min_value + (0 if self.wraps else 1)

    @property
    def range(self) -> str:
        """Its range, in words."""
        called = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.min_value} to {self.max_value}{called}"


SECOND = Field(name="second", min_value=0, max_value=59, unit="s")
MINUTE = Field(name="minute", min_value=0, max_value=59, unit="m")
HOUR = Field(name="hour", min_value=0, max_value=23, unit="h")
DAY_OF_MONTH = Field(name="day of month", min_value=1, max_value=31, unit="d")
MONTH = Field(
    name="month",
    min_value=1,
    max_value=12,
    names=("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
DAY_OF_WEEK = Field(
    name="day of week",
    min_value=0,
    max_value=7,
    names=("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"),
    wraps=True,
)


def parts_of(text: str, field: Field) -> list[str]:
    """The parts of a list, in capitals.

    Raises:
        InvalidSchedule: one of them is empty.
    """
    parts = text.upper().split(",")
    if not all(parts):
        raise wrong(field, text, "has an empty part", "write numbers with one comma between")
    return parts


def numbers_of(text: str, field: Field) -> tuple[int, ...]:
    """All numbers that the field matches, in order.

    Raises:
        InvalidSchedule: it is not a list of numbers, names, ranges and steps.
    """
    return tuple(
        sorted({number for part in parts_of(text, field) for number in span_of(part, field)})
    )


def span_of(part: str, field: Field) -> range:
    """The numbers of one part: ``*``, ``5``, ``1-5``, each with ``/step`` or without.

    A range that wraps goes on above the last number: 5-1 are 5, 6, 7 and 8.

    Raises:
        InvalidSchedule: it is none of these.
    """
    body, slash, step = part.partition("/")
    begin, dash, end = body.partition("-")
    if body == "*":
        first, last = field.min_value, field.max_value
    elif dash:
        first, last = number_of(begin, field), number_of(end, field)
        if last < first:
            if not field.wraps:
                hint = _two_ranges(first, last, part, field)
                raise wrong(field, part, "goes down", f"write {hint}")
            last += field.size
    else:
        first = number_of(body, field)
        last = field.max_value if slash else first
    return range(first, last + 1, _step_of(step, part, field) if slash else 1)


def number_of(text: str, field: Field) -> int:
    """One number, or its name.

    Raises:
        InvalidSchedule: it is neither, or outside the range of the field.
    """
    if text in field.names:
        return field.names.index(text) + field.min_value
    if is_number(text) and field.min_value <= int(text) <= field.max_value:
        return int(text)
    raise wrong(field, text, f"is not one of {field.range}", _instead_of(text, field))


def is_number(text: str) -> bool:
    """Whether it is digits and nothing else."""
    return text.isascii() and text.isdigit()


def wrong(field: Field, text: str, why: str, write: str) -> InvalidSchedule:
    """The error that names the field, what is wrong with it, and what to write."""
    return InvalidSchedule(f"the field {field.name}, {text!r}, {why}: {write}")


def _two_ranges(first: int, last: int, part: str, field: Field) -> str:
    """Return a range that goes down as two that go up, with its step."""
    body, slash, step_text = part.partition("/")
    step = _step_of(step_text, part, field) if slash else 1
    named = body.partition("-")[0] in field.names

    def name(number: int) -> str:
        return field.names[number - field.min_value] if named else str(number)

    def text(start: int, end: int) -> str:
        if end - start < step:
            return name(start)
        return f"{name(start)}-{name(end)}" + (f"/{step}" if slash else "")

    rest = field.min_value + (first - field.max_value - 1) % step
    halves = [text(first, field.max_value)]
    if rest <= last:
        halves.append(text(rest, last))
    return ",".join(halves)


def _step_of(text: str, part: str, field: Field) -> int:
    if is_number(text) and 1 <= int(text) <= field.size:
        return int(text)
    write = f"write a step of 1 to {field.size}"
    if field.unit and is_number(text) and int(text) > field.size:
        write += f", or the whole schedule as 'every {int(text)}{field.unit}'"
    raise wrong(field, part, "has a step that does not fit", write)


def _instead_of(text: str, field: Field) -> str:
    if text == "?":
        return (
            "'?' stands for a day only; write *, and check the order of the fields: the year-last "
            "lines of AWS do not fit"
        )
    if is_number(text) and len(text) == _YEAR_DIGITS:
        return "it looks like a year, which no field says here: leave it out"
    if text[:3] in field.names:
        return f"write {text[:3]}"
    if "#" in text or text.endswith(("L", "W")):
        return "L and W belong to the day of month, FRIL and FRI#3 to the day of week"
    return "check the order of the fields: [second] minute hour day-of-month month day-of-week"
