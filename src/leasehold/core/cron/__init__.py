"""Schedules: cron lines and intervals, and the moments at which they are due.

``parse_schedule(text, tz=…)`` gives a ``Schedule``. It is pure: all that are given the same text
and the same zone name the same moments, in any process, on any machine. See docs/schedules.md.
A text that could be meant in another dialect is refused, never guessed.

An interval (``every 30s``) is counted from 1970, so that all machines agree without talking.

A *wildcard* line, whose second, minute or hour begins with a star, follows elapsed time: it is due
at each instant at which the clock shows a matching time. A *fixed* line is due exactly once for
each matching wall time: if the clock leaves it out, at the first instant after the gap; if the
clock shows it twice, the first time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo

from leasehold.core.cron.fields import (
    ALL_DATES,
    ALL_WEEKDAYS,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    WEEK,
    Dates,
    DayRule,
    Weekdays,
    check_together,
    dates_of,
    numbers_in,
    numbers_of,
    weekdays_of,
)
from leasehold.core.cron.wall_times import (
    AFTER_ALL_S,
    BEFORE_ALL_S,
    DAY_S,
    FIRST_S,
    LAST_S,
    WallTimes,
    Zone,
    at_s,
    ceil_s,
    floor_s,
    zone_of,
)
from leasehold.errors import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

__all__ = ["Dialect", "Schedule", "parse_schedule"]


_MAX_TIMES = 6
_HOURS = 24
_SIXTY = 60
_SHORTEST_RUN = 3
_SHORTEST_ROW = 5
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


def explained(
    *, seconds: Sequence[int], minutes: Sequence[int], hours: Sequence[int], rule: DayRule
) -> str:
    """When the line is due, without its zone: ``at 02:00:00 every day``."""
    if len(seconds) * len(minutes) * len(hours) <= _MAX_TIMES:
        times = [
            f"{hour:02}:{minute:02}:{second:02}"
            for hour in hours
            for minute in minutes
            for second in seconds
        ]
        said = f"at {_listed(times)}"
    else:
        said = _often(seconds, minutes, hours)
    days = _days(rule)
    if not days and said.startswith("at ") and " of every " not in said:
        days = "every day"
    return f"{said} {days}".rstrip()


def _often(seconds: Sequence[int], minutes: Sequence[int], hours: Sequence[int]) -> str:
    """Times of the day that are too many to list."""
    words = []
    every_minute, every_hour = len(minutes) == _SIXTY, len(hours) == _HOURS
    if tuple(seconds) != (0,):
        words.append(_repeated(seconds, "second"))
        if not every_minute:
            words.append(f"in {_named(minutes, 'minute')}")
        elif words[0].startswith("at"):
            words.append("of every minute")
    else:
        words.append(_repeated(minutes, "minute"))
    if not every_hour:
        words.append(f"in {_named(hours, 'hour')}")
    elif not every_minute and (len(words) > 1 or words[0].startswith("at")):
        words.append("of every hour")
    return " ".join(words)


def _repeated(numbers: Sequence[int], unit: str) -> str:
    """``every 5 minutes`` if they are so, through the hour and beyond it; else a list."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else _SIXTY
    if _SIXTY % step == 0 and tuple(numbers) == tuple(range(0, _SIXTY, step)) and step < _SIXTY:
        return f"every {step} {unit}s" if step > 1 else f"every {unit}"
    return f"at {_named(numbers, unit)}"


def _named(numbers: Sequence[int], unit: str) -> str:
    return f"{unit}{'s' if len(numbers) > 1 else ''} {_runs(numbers, str)}"


def _days(rule: DayRule) -> str:
    """The days; nothing if they are all."""
    dates, weekdays = _dates(rule.dates), _weekdays(rule.weekdays)
    if dates and weekdays:
        found = (
            f"on {weekdays}, but only on {dates}" if rule.both else f"on {dates} or on {weekdays}"
        )
    elif rule.both and (dates or weekdays):
        found = f"on {dates or weekdays}"
    else:
        found = ""
    if len(rule.months) == len(_MONTHS):
        return found
    months = _runs(rule.months, lambda month: _MONTHS[month - 1])
    return f"{found or 'every day'} in {months}"


def _dates(dates: Dates) -> str:
    if dates.bits == ALL_DATES:
        return ""
    words = []
    numbers = numbers_in(dates.bits)
    if numbers:
        words.append(f"day{'s' if len(numbers) > 1 else ''} {_runs(numbers, str)}")
    words += [f"the working day nearest to day {day}" for day in sorted(dates.nearest)]
    for back in sorted(dates.from_last, reverse=True):
        days = f"{back} day{'s' if back > 1 else ''} before the last day"
        words.append(days if back else "the last day")
    if dates.last_working:
        words.append("the last working day")
    return f"{_listed(words)} of the month"


def _weekdays(weekdays: Weekdays) -> str:
    if weekdays.bits == ALL_WEEKDAYS:
        return ""
    words = []
    if weekdays.bits:
        # The week begins on Monday, so that the weekend is one run.
        monday_first = sorted((day - 1) % WEEK for day in numbers_in(weekdays.bits))
        words.append(_runs(monday_first, lambda day: _WEEKDAYS[(day + 1) % WEEK]))
    in_month = [
        f"the {_ORDINALS[n - 1]} {_WEEKDAYS[day]}"
        for day, n in sorted(weekdays.nth, key=lambda each: each[::-1])
    ]
    in_month += [f"the last {_WEEKDAYS[day]}" for day in sorted(weekdays.last)]
    if in_month:
        words.append(f"{_listed(in_month)} of the month")
    return _listed(words)


def _runs(numbers: Sequence[int], name: Callable[[int], str]) -> str:
    """Numbers in order as words; three or more in a row are ``9 to 17``, many ``0, 2, … 22``."""
    steps = {later - number for number, later in pairwise(numbers)}
    if len(numbers) >= _SHORTEST_ROW and len(steps) == 1 and steps != {1}:
        return f"{name(numbers[0])}, {name(numbers[1])}, … {name(numbers[-1])}"
    words: list[str] = []
    start = 0
    for index, number in enumerate(numbers):
        if index + 1 < len(numbers) and numbers[index + 1] == number + 1:
            continue
        run = numbers[start : index + 1]
        if len(run) >= _SHORTEST_RUN:
            words.append(f"{name(run[0])} to {name(run[-1])}")
        else:
            words += [name(each) for each in run]
        start = index + 1
    return _listed(words)


def _listed(words: Iterable[str]) -> str:
    *max_value, last = words
    return f"{', '.join(max_value)} and {last}" if max_value else last


# More than a clock change and an offset together can move a wall time: so far from the moment that
# was asked for, stretches in which no wall time matches can be passed over.
_REACH_S = 4 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CronLine:
    """A cron line in a time zone."""

    text: str
    tz: ZoneInfo
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    rule: DayRule
    wildcard: bool
    _wall_times: WallTimes = field(init=False, repr=False, compare=False)
    _zone: Zone = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wall_times = WallTimes(
            seconds=self.seconds, minutes=self.minutes, hours=self.hours, rule=self.rule
        )
        object.__setattr__(self, "_wall_times", wall_times)
        object.__setattr__(self, "_zone", zone_of(self.tz, once=not self.wildcard))

    def next(self, after: datetime) -> datetime | None:
        """The first moment after this one; None if the calendar ends before."""
        found_s = self._after(floor_s(after))
        return None if found_s is None else at_s(found_s)

    def previous(self, before: datetime) -> datetime | None:
        """The last moment before this one; None if the calendar begins after."""
        found_s = self._before(ceil_s(before))
        return None if found_s is None else at_s(found_s)

    def occurrences(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """All moments after the first and up to the second."""
        return self._between(floor_s(after), floor_s(until))

    def explain(self) -> str:
        """The schedule in words."""
        times = explained(
            seconds=self.seconds, minutes=self.minutes, hours=self.hours, rule=self.rule
        )
        return f"{times}, {self.tz.key or self.tz}"

    def _between(self, after_s: int, until_s: int) -> Iterator[datetime]:
        found_s = self._after(after_s)
        while found_s is not None and found_s <= until_s:
            yield at_s(found_s)
            found_s = self._after(found_s)

    def _after(self, instant_s: int) -> int | None:
        start_s, end_s, offset_s, low_s, high_s = self._zone.at(instant_s)
        wall_s = self._wall_times.after(max(instant_s + offset_s, low_s - 1))
        while wall_s >= high_s:
            if wall_s >= AFTER_ALL_S or end_s > LAST_S:
                return None
            had_s = high_s
            far = end_s - instant_s > _REACH_S
            start_s, end_s, offset_s, low_s, high_s = self._zone.at(
                max(end_s, wall_s - _REACH_S) if far else end_s
            )
            if low_s != had_s:
                wall_s = self._wall_times.after(low_s - 1)
        found_s = max(wall_s - offset_s, start_s)
        return found_s if found_s <= LAST_S else None

    def _before(self, instant_s: int) -> int | None:
        start_s, _, offset_s, low_s, _ = self._zone.at(instant_s - 1)
        wall_s = self._wall_times.before(max(instant_s + offset_s, low_s))
        while wall_s < low_s:
            if wall_s <= BEFORE_ALL_S or start_s < FIRST_S:
                return None
            had_s = low_s
            far = instant_s - start_s > _REACH_S
            start_s, _, offset_s, low_s, high_s = self._zone.at(
                min(start_s - 1, wall_s + _REACH_S) if far else start_s - 1
            )
            if high_s != had_s:
                wall_s = self._wall_times.before(high_s)
        found_s = max(wall_s - offset_s, start_s)
        return found_s if found_s >= FIRST_S else None


def line_of(text: str, fields: Sequence[str], *, tz: ZoneInfo) -> CronLine:
    """The line of six fields, the second first.

    Raises:
        InvalidSchedule: a field can not be read, or there is no such day.
    """
    second, minute, hour, date, month, weekday = fields
    seconds, minutes = numbers_of(second, SECOND), numbers_of(minute, MINUTE)
    hours, months = numbers_of(hour, HOUR), numbers_of(month, MONTH)
    check_together(date, weekday)
    rule = DayRule(months=months, dates=dates_of(date), weekdays=weekdays_of(weekday))
    if not rule.ever():
        raise InvalidSchedule(
            f"the fields day of month, {date!r}, and month, {month!r}, name a day that no year has:"
            " it would never happen; choose another day"
        )
    return CronLine(
        text=text,
        tz=tz,
        seconds=seconds,
        minutes=minutes,
        hours=hours,
        rule=rule,
        wildcard=any(each[0] == "*" for each in (second, minute, hour)),
    )


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
        InvalidSchedule: it is written in another way, or not 1 s to 366 d long.
    """
    match = _WORDS.fullmatch(text)
    if match is None:
        raise InvalidSchedule(
            "it is no interval: write 'every', a whole number and s, m, h or d, such as every 30s"
        )
    length_s = int(match[1]) * _UNITS[match[2].lower()][0]
    if not 1 <= length_s <= _LONGEST_S:
        raise InvalidSchedule("the interval must be 1 s to 366 d long: choose another")
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
        InvalidSchedule: it can not be read, never happens, or there is no such time zone, or not
            the
            same on all machines; the message names the field and says what to write.
    """
    if not isinstance(text, str):
        raise InvalidSchedule(f"a schedule must be text, not {text!r}: write '0 2 * * *'")
    if len(text) > _LONGEST_TEXT:
        raise InvalidSchedule(
            f"a schedule has {_LONGEST_TEXT} characters at most: write a shorter one"
        )
    zone = _zone_of(tz)
    text = " ".join(text.split())
    try:
        return _read(text, zone, dialect)
    except InvalidSchedule as error:
        raise InvalidSchedule(f"schedule {text!r}: {error}") from None


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
        raise InvalidSchedule(why)
    return line


def _check_count(fields: list[str], dialect: Dialect | None) -> None:
    count = len(fields)
    if fields and "TZ=" in fields[0].upper():
        raise InvalidSchedule("a time zone is no part of the text: leave it out and give it as tz")
    if count == Dialect.SECONDS_FIRST.fields + 1:
        raise InvalidSchedule(
            "it has 7 fields, as Quartz has with a year at the end: leave the year out, and write "
            "days of the week by name"
        )
    if count not in {each.fields for each in Dialect}:
        had = "1 field" if count == 1 else f"{count} fields"
        raise InvalidSchedule(
            f"it has {had}: write 5 (minute hour day-of-month month day-of-week), "
            "6 with the second in front, a word such as @daily, or 'every 30s'"
        )
    if dialect is not None and count != dialect.fields:
        raise InvalidSchedule(
            f"it has {count} fields, and a line in the dialect {dialect.value} has "
            f"{dialect.fields}: "
            + (
                "leave the second out"
                if dialect is Dialect.VIXIE
                else "write the second in front, such as 0"
            )
        )


def _zone_of(tz: str | ZoneInfo) -> ZoneInfo:
    found = tz if isinstance(tz, ZoneInfo) else _zone_named(tz)
    zone_of(found, once=True)  # refuses what is another zone on another machine
    return found


def _zone_named(tz: str) -> ZoneInfo:
    try:
        return ZoneInfo(tz)
    except (ValueError, OSError, KeyError, TypeError, AttributeError):
        raise InvalidSchedule(
            f"there is no time zone {tz!r}: write a name of the IANA list, such as Europe/Berlin "
            "or UTC"
        ) from None
