"""A cron line in plain English."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from leasehold.core.cron.days import (
    ALL_DATES,
    ALL_WEEKDAYS,
    WEEK,
    Dates,
    DayRule,
    Weekdays,
    numbers_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
