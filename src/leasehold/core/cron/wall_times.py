"""Wall times that a cron line names, one after the other: the dial of a clock without a zone.

A wall time is the seconds since 1970 that a clock on the wall shows. No zone and no clock change
is known here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from datetime import MAXYEAR, MINYEAR, date
from typing import TYPE_CHECKING, Protocol

from leasehold.core.cron.days import WEEK, DayRule
from leasehold.core.cron.zone import DAY_S, EPOCH_ORDINAL, FIRST_S, LAST_S

if TYPE_CHECKING:
    from collections.abc import Sequence

# Wall times beyond any that can be asked for.
BEFORE_ALL_S = FIRST_S - 2 * DAY_S
AFTER_ALL_S = LAST_S + 2 * DAY_S
_FIRST_DAY = BEFORE_ALL_S // DAY_S
_LAST_DAY = AFTER_ALL_S // DAY_S
_THURSDAY = 4  # the first day of 1970
_MOST_KEPT = 1_200


class Days(Protocol):
    """Days since 1970 that match."""

    def from_day(self, day: int) -> int:
        """The first that is this day or later; one after all days if there is none."""
        ...

    def to_day(self, day: int) -> int:
        """The last that is this day or earlier; one before all days if there is none."""
        ...


class Weekly:
    """Days of the week, in each week."""

    __slots__ = ("_ahead", "_behind")

    def __init__(self, bits: int) -> None:
        from_first = [(day + _THURSDAY) % WEEK for day in range(WEEK)]
        steps = range(WEEK)
        self._ahead = [
            next(step for step in steps if bits >> (weekday + step) % WEEK & 1)
            for weekday in from_first
        ]
        self._behind = [
            next(step for step in steps if bits >> (weekday - step) % WEEK & 1)
            for weekday in from_first
        ]

    def from_day(self, day: int) -> int:
        """The first that is this day or later."""
        return day + self._ahead[day % WEEK]

    def to_day(self, day: int) -> int:
        """The last that is this day or earlier."""
        return day - self._behind[day % WEEK]


class Monthly:
    """Days that a rule finds month by month; the months that were asked for last are kept."""

    __slots__ = ("_kept", "_rule")

    def __init__(self, rule: DayRule) -> None:
        self._rule = rule
        self._kept: dict[int, int] = {}

    def from_day(self, day: int) -> int:
        """The first that is this day or later; one after all days if there is none."""
        day = max(day, _FIRST_DAY)
        while day <= _LAST_DAY:
            begin = date.fromordinal(day + EPOCH_ORDINAL)
            month, number = begin.year * 12 + begin.month - 1, begin.day
            days = self._kept.get(month)
            if days is None:
                days = self._of_month(month, first_day=day - number + 1)
            ahead = days >> number
            if ahead:
                return day + (ahead & -ahead).bit_length() - 1
            day = _first_of(self._month_after(month))
        return _LAST_DAY + 1

    def to_day(self, day: int) -> int:
        """The last that is this day or earlier; one before all days if there is none."""
        day = min(day, _LAST_DAY)
        while day >= _FIRST_DAY:
            end = date.fromordinal(day + EPOCH_ORDINAL)
            month, number = end.year * 12 + end.month - 1, end.day
            days = self._kept.get(month)
            if days is None:
                days = self._of_month(month, first_day=day - number + 1)
            behind = days & (2 << number) - 1
            if behind:
                return day - number + behind.bit_length() - 1
            day = _first_of(self._month_before(month) + 1) - 1
        return _FIRST_DAY - 1

    def _month_after(self, month: int) -> int:
        """The next month of the rule."""
        year, index = divmod(month, 12)
        for number in self._rule.months:
            if number > index + 1:
                return year * 12 + number - 1
        return year * 12 + 11 + self._rule.months[0]

    def _month_before(self, month: int) -> int:
        """The month of the rule before this one."""
        year, index = divmod(month, 12)
        for number in reversed(self._rule.months):
            if number <= index:
                return year * 12 + number - 1
        return year * 12 - 13 + self._rule.months[-1]

    def _of_month(self, month: int, *, first_day: int) -> int:
        year, index = divmod(month, 12)
        days = 0
        if index + 1 in self._rule.months:
            length = monthrange(year, index + 1)[1]
            days = self._rule.of_month(length, (first_day + _THURSDAY) % WEEK)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[month] = days
        return days


class Walls:
    """Times of the day on days: which wall time comes after another, and which before."""

    __slots__ = ("_days", "_first_s", "_last_s", "_minutes", "_seconds")

    def __init__(
        self,
        *,
        seconds: Sequence[int],
        minutes: Sequence[int],
        hours: Sequence[int],
        rule: DayRule,
    ) -> None:
        self._seconds = seconds
        # As seconds since midnight.
        self._minutes = [(hour * 60 + minute) * 60 for hour in hours for minute in minutes]
        self._first_s = self._minutes[0] + seconds[0]
        self._last_s = self._minutes[-1] + seconds[-1]
        self._days: Days = Weekly(rule.weekdays.bits) if rule.weekly else Monthly(rule)

    def after(self, wall_s: int) -> int:
        """The first that is later."""
        day, time_s = divmod(wall_s + 1, DAY_S)
        days = self._days
        found = days.from_day(day)
        if found != day or time_s > self._last_s:
            if found == day:
                found = days.from_day(day + 1)
            return found * DAY_S + self._first_s
        minutes, seconds = self._minutes, self._seconds
        second = time_s % 60
        if second > seconds[-1]:
            at = minutes[bisect_left(minutes, time_s)]
        else:
            at = minutes[bisect_left(minutes, time_s - second)]
            if at < time_s:
                return found * DAY_S + at + seconds[bisect_left(seconds, second)]
        return found * DAY_S + at + seconds[0]

    def before(self, wall_s: int) -> int:
        """The last that is earlier."""
        day, time_s = divmod(wall_s - 1, DAY_S)
        days = self._days
        found = days.to_day(day)
        if found != day or time_s < self._first_s:
            if found == day:
                found = days.to_day(day - 1)
            return found * DAY_S + self._last_s
        minutes, seconds = self._minutes, self._seconds
        second = time_s % 60
        minute_s = time_s - second
        if second < seconds[0]:
            at = minutes[bisect_left(minutes, minute_s) - 1]
        else:
            at = minutes[bisect_right(minutes, minute_s) - 1]
            if at == minute_s:
                return found * DAY_S + at + seconds[bisect_right(seconds, second) - 1]
        return found * DAY_S + at + seconds[-1]


def _first_of(month: int) -> int:
    year, number = divmod(month, 12)
    if year > MAXYEAR:
        return _LAST_DAY + 1
    if year < MINYEAR:
        return _FIRST_DAY
    return date(year, number + 1, 1).toordinal() - EPOCH_ORDINAL
