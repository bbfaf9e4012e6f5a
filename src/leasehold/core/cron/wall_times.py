"""Wall times that a cron line names, one after the other: the dial of a clock without a zone.

A wall time is the seconds since 1970 that a clock on the wall shows. No zone and no clock change
is known here.

A time zone as stretches of time between clock changes, and who owns which wall times.

A clock that goes forward leaves wall times out, one that goes back shows some of them twice. There
are two readings. **Elapsed**: each stretch has the wall times that the clock shows in it; some do
not exist, some come twice. **Once**: each wall time belongs to exactly one stretch; what is left
out belongs to the stretch after the gap, at its very beginning, and what comes twice to the first.

A name that means another zone on another machine is refused: all nodes must find the same moments.

Moments as whole seconds since 1970 in UTC, and back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leasehold.core.cron.fields import WEEK, DayRule
from leasehold.errors import InvalidSchedule, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from zoneinfo import ZoneInfo

DAY_S = 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Days from 0001-01-01, which has the ordinal 1, to 1970-01-01.
EPOCH_ORDINAL = EPOCH.toordinal()


def floor_s(moment: datetime) -> int:
    """The last whole second that is not after the moment.

    Raises:
        UsageError: it has no time zone.
    """
    try:
        since = moment - EPOCH
    except TypeError:
        raise _naive(moment) from None
    return since.days * DAY_S + since.seconds


def ceil_s(moment: datetime) -> int:
    """The first whole second that is not before the moment.

    Raises:
        UsageError: it has no time zone.
    """
    return floor_s(moment) + (moment.microsecond > 0)


def at_s(instant_s: int) -> datetime:
    """The moment, in UTC."""
    return EPOCH + timedelta(0, instant_s)


# A few days from the ends of what a datetime can say: wall times of all zones fit in between.
FIRST_S = floor_s(datetime(1, 1, 8, tzinfo=UTC))
LAST_S = floor_s(datetime(9999, 12, 24, tzinfo=UTC))


def _naive(moment: object) -> UsageError:
    return UsageError(
        f"{moment!r} is no moment: give a datetime that has a time zone, such as "
        "datetime(2026, 3, 1, tzinfo=UTC)"
    )


# Changes are searched for in blocks of 97 days, in steps of 6 days. Two changes within one step
# that undo each other are not seen; no zone has had such since 1970.
_BLOCK_BITS = 23
_STEP_S = 1 << 19
_MAX_BLOCKS = 4_096
_MAX_ZONES = 1_024
# Zones can not be asked about the last hours of year 9999 and the first of year 1.
_ASKED_FROM_S = FIRST_S - 5 * 86_400
_ASKED_TO_S = LAST_S + 5 * 86_400
# Files beside the zones that are none: links that each machine sets for itself, and copies of all
# zones that not every machine has (those in right/ count leap seconds).
_LOCAL = ("localtime", "posixrules")
_COPIES = ("posix/", "right/")


class Stretch(NamedTuple):
    """From ``start_s`` to before ``end_s`` the clock is ``offset_s`` ahead of UTC.

    It has the wall times from ``low_s`` to before ``high_s``.
    """

    start_s: int
    end_s: int
    offset_s: int
    low_s: int
    high_s: int


class Zone:
    """The stretches of a zone, in one of the two readings; those that were asked for are kept."""

    __slots__ = ("_always", "_blocks", "_once", "_tz")

    def __init__(self, tz: ZoneInfo, *, once: bool) -> None:
        self._tz = tz
        self._once = once
        self._blocks: dict[int, list[Stretch]] = {}
        self._always: Stretch | None = None
        # A zone tells its offset without a moment only if it has never changed.
        fixed = tz.utcoffset(None)
        if fixed is not None:
            offset_s = _whole_s(fixed)
            start_s, end_s = 2 * FIRST_S, 2 * LAST_S
            self._always = Stretch(start_s, end_s, offset_s, start_s + offset_s, end_s + offset_s)

    def at(self, instant_s: int) -> Stretch:
        """The stretch in which the instant lies. It may end where nothing changes."""
        if self._always is not None:
            return self._always
        number = instant_s >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            block = self._keep(number)
        for stretch in block:
            if instant_s < stretch[1]:
                return stretch
        raise AssertionError(instant_s)

    def _keep(self, number: int) -> list[Stretch]:
        block = list(self._block(number))
        if len(self._blocks) >= _MAX_BLOCKS:
            self._blocks.clear()
        self._blocks[number] = block
        return block

    def _block(self, number: int) -> Iterator[Stretch]:
        begin_s = number << _BLOCK_BITS
        end_s = begin_s + (1 << _BLOCK_BITS)
        # A step before the block: no clock change reaches further than that.
        start_s = begin_s - _STEP_S
        offset_s = self._offset_s(start_s)
        shown_s = start_s + offset_s
        changes = [
            *self._changes(start_s, begin_s),
            begin_s,
            *self._changes(begin_s, end_s),
            end_s,
        ]
        for change_s in changes:
            next_shown_s = max(shown_s, change_s + offset_s)
            if change_s > begin_s:
                low_s, high_s = (
                    (shown_s, next_shown_s)
                    if self._once
                    else (start_s + offset_s, change_s + offset_s)
                )
                yield Stretch(start_s, change_s, offset_s, low_s, high_s)
            start_s, shown_s = change_s, next_shown_s
            offset_s = self._offset_s(change_s)

    def _changes(self, start_s: int, end_s: int) -> list[int]:
        """The instants after ``start_s`` and before ``end_s`` from which another offset holds."""
        found = []
        offset_s = self._offset_s(start_s)
        for step_end_s in range(start_s + _STEP_S, end_s + 1, _STEP_S):
            while offset_s != self._offset_s(step_end_s):
                start_s = self._change(start_s, step_end_s, offset_s)
                offset_s = self._offset_s(start_s)
                if start_s < end_s:
                    found.append(start_s)
            start_s = step_end_s
        return found

    def _change(self, before_s: int, after_s: int, offset_s: int) -> int:
        """The first instant of another offset, between one of this offset and one of another."""
        while after_s - before_s > 1:
            middle_s = (before_s + after_s) // 2
            if self._offset_s(middle_s) == offset_s:
                before_s = middle_s
            else:
                after_s = middle_s
        return after_s

    def _offset_s(self, instant_s: int) -> int:
        asked = at_s(min(max(instant_s, _ASKED_FROM_S), _ASKED_TO_S))
        offset = asked.astimezone(self._tz).utcoffset()
        return _whole_s(offset or timedelta(0))


@lru_cache(maxsize=_MAX_ZONES)
def zone_of(tz: ZoneInfo, *, once: bool) -> Zone:
    """The zone in this reading: one for the whole process.

    Raises:
        InvalidSchedule: its name does not mean the same zone on all machines.
    """
    name = (tz.key or "").lower()
    if name in _LOCAL or name.startswith(_COPIES):
        raise InvalidSchedule(
            f"the time zone {tz.key!r} is not the same on all machines: write a name of the IANA "
            "list, such as Europe/Berlin or UTC"
        )
    return Zone(tz, once=once)


def _whole_s(offset: timedelta) -> int:
    return offset.days * 86_400 + offset.seconds


# Wall times beyond any that can be asked for.
BEFORE_ALL_S = FIRST_S - 2 * DAY_S
AFTER_ALL_S = LAST_S + 2 * DAY_S
_FIRST_DAY = BEFORE_ALL_S // DAY_S
_LAST_DAY = AFTER_ALL_S // DAY_S
_THURSDAY = 4  # the first day of 1970
_MAX_KEPT = 1_200


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
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[month] = days
        return days


class WallTimes:
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
