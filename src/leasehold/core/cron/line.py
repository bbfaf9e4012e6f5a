"""A cron line and its moments, through clock changes.

A *wildcard* line, whose second, minute or hour begins with a star, follows elapsed time: it is due
at each instant at which the clock shows a matching time. A *fixed* line is due exactly once for
each matching wall time: if the clock leaves it out, at the first instant after the gap; if the
clock shows it twice, the first time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.core.cron.days import DayRule, check_together, dates_of, weekdays_of
from leasehold.core.cron.fields import HOUR, MINUTE, MONTH, SECOND, numbers_of
from leasehold.core.cron.instants import DAY_S, FIRST_S, LAST_S, at_s, ceil_s, floor_s
from leasehold.core.cron.walls import AFTER_ALL_S, BEFORE_ALL_S, Walls
from leasehold.core.cron.words import explained
from leasehold.core.cron.zone import Zone, zone_of
from leasehold.errors import BadSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from zoneinfo import ZoneInfo

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
