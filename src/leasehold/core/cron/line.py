"""A cron line and its moments, through clock changes.

A *wildcard* line, whose second, minute or hour begins with a star, follows elapsed time: it is due
at each instant at which the clock shows a matching time. A *fixed* line is due exactly once for
each matching wall time: if the clock leaves it out, at the first instant after the gap; if the
clock shows it twice, the first time.

A cron line in plain English.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from leasehold.core.cron.days import (
    ALL_DATES,
    ALL_WEEKDAYS,
    WEEK,
    Dates,
    DayRule,
    Weekdays,
    check_together,
    dates_of,
    numbers_in,
    weekdays_of,
)
from leasehold.core.cron.fields import HOUR, MINUTE, MONTH, SECOND, numbers_of
from leasehold.core.cron.wall_times import AFTER_ALL_S, BEFORE_ALL_S, Walls
from leasehold.core.cron.zone import DAY_S, FIRST_S, LAST_S, Zone, at_s, ceil_s, floor_s, zone_of
from leasehold.errors import BadSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime
    from zoneinfo import ZoneInfo

_MOST_TIMES = 6
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
    if len(seconds) * len(minutes) * len(hours) <= _MOST_TIMES:
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
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# More than a clock change and an offset together can move a wall time: so far from the moment that
# was asked for, stretches in which no wall time matches can be passed over.
_REACH_S = 4 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A cron line in a time zone."""

    text: str
    tz: ZoneInfo
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    rule: DayRule
    wildcard: bool
    _walls: Walls = field(init=False, repr=False, compare=False)
    _zone: Zone = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        walls = Walls(seconds=self.seconds, minutes=self.minutes, hours=self.hours, rule=self.rule)
        object.__setattr__(self, "_walls", walls)
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
        wall_s = self._walls.after(max(instant_s + offset_s, low_s - 1))
        while wall_s >= high_s:
            if wall_s >= AFTER_ALL_S or end_s > LAST_S:
                return None
            had_s = high_s
            far = end_s - instant_s > _REACH_S
            start_s, end_s, offset_s, low_s, high_s = self._zone.at(
                max(end_s, wall_s - _REACH_S) if far else end_s
            )
            if low_s != had_s:
                wall_s = self._walls.after(low_s - 1)
        found_s = max(wall_s - offset_s, start_s)
        return found_s if found_s <= LAST_S else None

    def _before(self, instant_s: int) -> int | None:
        start_s, _, offset_s, low_s, _ = self._zone.at(instant_s - 1)
        wall_s = self._walls.before(max(instant_s + offset_s, low_s))
        while wall_s < low_s:
            if wall_s <= BEFORE_ALL_S or start_s < FIRST_S:
                return None
            had_s = low_s
            far = instant_s - start_s > _REACH_S
            start_s, _, offset_s, low_s, high_s = self._zone.at(
                min(start_s - 1, wall_s + _REACH_S) if far else start_s - 1
            )
            if high_s != had_s:
                wall_s = self._walls.before(high_s)
        found_s = max(wall_s - offset_s, start_s)
        return found_s if found_s >= FIRST_S else None


def line_of(text: str, fields: Sequence[str], *, tz: ZoneInfo) -> Line:
    """The line of six fields, the second first.

    Raises:
        BadSchedule: a field can not be read, or there is no such day.
    """
    second, minute, hour, date, month, weekday = fields
    seconds, minutes = numbers_of(second, SECOND), numbers_of(minute, MINUTE)
    hours, months = numbers_of(hour, HOUR), numbers_of(month, MONTH)
    check_together(date, weekday)
    rule = DayRule(months=months, dates=dates_of(date), weekdays=weekdays_of(weekday))
    if not rule.ever():
        raise BadSchedule(
            f"the fields day of month, {date!r}, and month, {month!r}, name a day that no year has:"
            " it would never happen; choose another day"
        )
    return Line(
        text=text,
        tz=tz,
        seconds=seconds,
        minutes=minutes,
        hours=hours,
        rule=rule,
        wildcard=any(each[0] == "*" for each in (second, minute, hour)),
    )
