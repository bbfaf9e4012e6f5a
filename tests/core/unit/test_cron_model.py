"""Schedules beside a model that looks at each quarter of an hour of a year, in eight zones."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, product
from zoneinfo import ZoneInfo

import pytest
from tests.core.unit.cron_model import EPOCH, LINES, ZONES, Model

from leasehold.core.cron import Schedule, parse_schedule

FIRST, LAST = date(2026, 1, 1), date(2027, 1, 1)
SECOND = timedelta(seconds=1)


def _between(schedule: Schedule, tz: ZoneInfo) -> list[datetime]:
    begin = datetime(FIRST.year, 1, 1, tzinfo=tz).astimezone(UTC)
    end = datetime(LAST.year, 1, 1, tzinfo=tz).astimezone(UTC)
    return list(schedule.occurrences(begin - SECOND, end - SECOND))


@pytest.mark.spec("J6")
@pytest.mark.parametrize("zone", ZONES)
def test_each_moment_of_a_year_is_that_of_the_model(zone: str) -> None:
    tz = ZoneInfo(zone)
    model = Model(tz, first=FIRST, last=LAST)
    for line in LINES:
        due = model.due(line)
        schedule = parse_schedule(line.text, tz=tz)
        assert (line.text, _between(schedule, tz)) == (line.text, due)
        # And backwards, in the months in which clocks change.
        for earlier, later in pairwise(due):
            if later.year == LAST.year - 1 and later.month in {2, 3, 4, 9, 10, 11}:
                assert (line.text, schedule.previous(later)) == (line.text, earlier)


# Whether it is due when the clock shows this.
_BY_SECOND: dict[str, Callable[[datetime], bool]] = {
    "*/20 * * * * *": lambda wall: wall.second % 20 == 0,
    "7 */30 * * * *": lambda wall: wall.second == 7 and wall.minute % 30 == 0,
    "* 59 1 * * *": lambda wall: wall.minute == 59 and wall.hour == 1,
}
_CHANGES = {
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00"),
    "Australia/Lord_Howe": ("2026-04-04T15:00", "2026-10-03T15:30"),
    "America/Santiago": ("2026-04-05T03:00", "2026-09-06T04:00"),
    "Africa/Cairo": ("2026-04-23T22:00", "2026-10-29T21:00"),
    "Africa/Casablanca": ("2026-02-15T02:00", "2026-03-22T02:00"),
    # The day that was left out.
    "Pacific/Apia": ("2011-12-30T10:00",),
}


@pytest.mark.spec("J6")
@pytest.mark.parametrize(
    ("zone", "change"),
    [(zone, each) for zone, changes in _CHANGES.items() for each in changes],
)
def test_wildcards_follow_each_second_around_a_change(zone: str, change: str) -> None:
    tz = ZoneInfo(zone)
    middle = datetime.fromisoformat(f"{change}+00:00")
    before, after = (middle - SECOND).astimezone(tz), middle.astimezone(tz)
    assert before.utcoffset() != after.utcoffset()
    begin, end = middle - timedelta(minutes=100), middle + timedelta(minutes=100)
    seconds = [begin + timedelta(seconds=each) for each in range(1, 200 * 60 + 1)]
    shown = [each.astimezone(tz) for each in seconds]
    for text, is_due in _BY_SECOND.items():
        wanted = [each for each, wall in zip(seconds, shown, strict=True) if is_due(wall)]
        schedule = parse_schedule(text, tz=zone)
        assert (text, list(schedule.occurrences(begin, end))) == (text, wanted)
        backwards = []
        found = schedule.previous(end + SECOND)
        while found is not None and found > begin:
            backwards.append(found)
            found = schedule.previous(found)
        assert (text, backwards) == (text, wanted[::-1])


@pytest.mark.parametrize("zone", _CHANGES)
def test_from_any_moment_the_next_and_the_previous_are_neighbours(zone: str) -> None:
    for text, change in product((line.text for line in LINES), _CHANGES[zone]):
        schedule = parse_schedule(text, tz=zone)
        middle = datetime.fromisoformat(f"{change}+00:00")
        due = list(schedule.occurrences(middle - timedelta(days=70), middle + timedelta(days=70)))
        for minutes in range(-200, 200, 7):
            moment = middle + timedelta(minutes=minutes, microseconds=1)
            at = bisect(due, moment)
            if 0 < at < len(due):
                assert schedule.previous(moment) == schedule.previous(due[at]) == due[at - 1]
                assert schedule.next(moment) == schedule.next(due[at - 1]) == due[at]


def test_the_model_begins_where_it_says() -> None:
    model = Model(ZoneInfo("UTC"), first=date(2026, 1, 1), last=date(2026, 1, 3))
    assert model.due(LINES[0]) == [
        EPOCH.replace(year=2026, month=1, day=1),
        EPOCH.replace(year=2026, month=1, day=2),
    ]
