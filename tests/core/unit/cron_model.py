"""A slow model of schedules that is plain to see through: it looks at each quarter of an hour.

It shares no code with what it judges. The days of each line are said by a predicate in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import product
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = date(1970, 1, 1)
# In the years of the model the clocks of its zones change by whole quarters, at whole quarters.
QUARTER = timedelta(minutes=15)
DAY_QUARTERS = 96

ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Africa/Cairo",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "UTC",
)


def offset_quarters(tz: ZoneInfo, quarter: int) -> int:
    offset = (EPOCH + quarter * QUARTER).astimezone(tz).utcoffset()
    assert offset is not None
    assert offset % QUARTER == timedelta(0)
    return offset // QUARTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A cron line, and in other words when it is due."""

    text: str
    hours: frozenset[int]
    minutes: frozenset[int]
    wildcard: bool
    day: Callable[[date], bool]


class Model:
    """Each quarter from one day to another, and what the clock on the wall shows at it."""

    def __init__(self, tz: ZoneInfo, *, first: date, last: date) -> None:
        self.first, self.last = first, last
        # For each quarter on the wall all those in which the clock shows it, in order.
        self.shown: dict[int, list[int]] = {}
        begin, end = ((day - EPOCH_DAY).days * DAY_QUARTERS for day in (first, last))
        # Two days more at each end: no zone is further from UTC than that.
        for quarter in range(begin - 2 * DAY_QUARTERS, end + 2 * DAY_QUARTERS):
            wall = quarter + offset_quarters(tz, quarter)
            self.shown.setdefault(wall, []).append(quarter)

    def due(self, line: Line) -> list[datetime]:
        """All moments of the line whose wall time lies between the two days."""
        found: set[datetime] = set()
        for each in range((self.last - self.first).days):
            day = self.first + timedelta(days=each)
            if line.day(day):
                for hour, minute in product(line.hours, line.minutes):
                    wall = datetime.combine(day, time(hour, minute), UTC)
                    found.update(self._each(wall) if line.wildcard else self._once(wall))
        return sorted(found)

    def _each(self, wall: datetime) -> list[datetime]:
        """Each instant at which the clock shows it."""
        quarter, rest = divmod(wall - EPOCH, QUARTER)
        return [EPOCH + each * QUARTER + rest for each in self.shown.get(quarter, ())]

    def _once(self, wall: datetime) -> list[datetime]:
        """The first of them; if it is left out, the first instant after the gap."""
        shown = self._each(wall)
        if shown:
            return shown[:1]
        quarter = (wall - EPOCH) // QUARTER
        while quarter not in self.shown:
            quarter += 1
        return [EPOCH + self.shown[quarter][0] * QUARTER]


def _every(min_value: int, most: int, step: int = 1) -> frozenset[int]:
    return frozenset(range(min_value, most + 1, step))


def _working(day: date) -> bool:
    return day.weekday() < 5


def _last(day: date) -> bool:
    return (day + timedelta(days=1)).month != day.month


def _last_friday(day: date) -> bool:
    return day.weekday() == 4 and (day + timedelta(days=7)).month != day.month


def _last_working(day: date) -> bool:
    return _working(day) and all(
        (later := day + timedelta(days=ahead)).month != day.month or not _working(later)
        for ahead in range(1, 4)
    )


def _nearest_to(number: int) -> Callable[[date], bool]:
    """Of the working days of the month, the one nearest to its day of this number."""

    def is_it(day: date) -> bool:
        month = [
            each
            for each in (day.replace(day=1) + timedelta(days=ahead) for ahead in range(31))
            if each.month == day.month
        ]
        if number > len(month):
            return False
        working = [each for each in month if _working(each)]
        return day == min(working, key=lambda each: abs(each.day - number))

    return is_it


def _line(
    text: str,
    hours: Iterable[int],
    minutes: Iterable[int],
    day: Callable[[date], bool] = lambda _: True,
) -> Line:
    minute, hour, *_ = text.split()
    return Line(
        text=text,
        hours=frozenset(hours),
        minutes=frozenset(minutes),
        wildcard="*" in {minute[0], hour[0]},
        day=day,
    )


HOURS, MINUTES = _every(0, 23), _every(0, 59)
LINES = (
    _line("0 0 * * *", {0}, {0}),
    _line("30 0 * * *", {0}, {30}),
    _line("30 1 * * *", {1}, {30}),
    _line("15,30 2 * * *", {2}, {15, 30}),
    _line("59/15 2-3 * * *", {2, 3}, {59}),
    _line("0,30 23,0-3 * * *", {23, 0, 1, 2, 3}, {0, 30}),
    _line("5 1-23/2 * * *", _every(1, 23, 2), {5}),
    _line("30 * * * *", HOURS, {30}),
    _line("*/20 0-3 * * *", {0, 1, 2, 3}, {0, 20, 40}),
    _line("20 */2 * * *", _every(0, 23, 2), {20}),
    _line("*/20 0-1 * * 0,5", {0, 1}, {0, 20, 40}, lambda day: day.weekday() in {6, 4}),
    _line("* 2 * * SUN", {2}, MINUTES, lambda day: day.weekday() == 6),
    _line("30 2 * * 7", {2}, {30}, lambda day: day.weekday() == 6),
    _line("30 2 * * FRI-MON", {2}, {30}, lambda day: day.weekday() in {4, 5, 6, 0}),
    _line("30 2 13 * FRI", {2}, {30}, lambda day: day.day == 13 or day.weekday() == 4),
    _line("0 3 */2 * MON", {3}, {0}, lambda day: day.day % 2 == 1 and day.weekday() == 0),
    _line("0 2 L * *", {2}, {0}, _last),
    _line("0 2 L-3 * *", {2}, {0}, lambda day: _last(day + timedelta(days=3))),
    _line("0 2 LW * *", {2}, {0}, _last_working),
    _line("0 2 15W * *", {2}, {0}, _nearest_to(15)),
    _line("0 2 1W,31W * ?", {2}, {0}, lambda day: _nearest_to(1)(day) or _nearest_to(31)(day)),
    _line("0 2 ? * FRI#3", {2}, {0}, lambda day: day.weekday() == 4 and 15 <= day.day <= 21),
    _line("0 2 * * 0#5", {2}, {0}, lambda day: day.weekday() == 6 and day.day >= 29),
    _line("0 2 * * 5L", {2}, {0}, _last_friday),
    _line("0 0 29 2,mar *", {0}, {0}, lambda day: day.day == 29 and day.month in {2, 3}),
)
