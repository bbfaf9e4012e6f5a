"""Schedules: the truth table of clock changes and dialects, what is refused, and the words."""

from __future__ import annotations

import copy
import pickle
import struct
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from leasehold.core.cron import Dialect, Schedule, parse_schedule
from leasehold.errors import InvalidSchedule, UsageError

NEW_YORK = "America/New_York"
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def of_day(schedule: Schedule, day: str) -> list[str]:
    """The times of a local day, with their offsets."""
    first = datetime.combine(date.fromisoformat(day), datetime.min.time(), schedule.tz)
    last = first + timedelta(days=1)
    second = timedelta(seconds=1)
    found = schedule.occurrences(first.astimezone(UTC) - second, last.astimezone(UTC) - second)
    return [each.astimezone(schedule.tz).strftime("%H:%M:%S%z")[:-2] for each in found]


def days(text: str, count: int = 5, *, after: datetime = START - timedelta(seconds=1)) -> list[str]:
    found = islice(parse_schedule(text).occurrences(after, after + timedelta(days=4_000)), count)
    return [each.date().isoformat() for each in found]


# ------------------------------------------------------------------ clock changes


@pytest.mark.spec("J6")
@pytest.mark.parametrize(
    ("text", "zone", "day", "due"),
    [
        # A fixed time in the gap: once, at the first moment after it.
        ("0 30 2 * * *", NEW_YORK, "2026-03-08", ["03:00:00-04"]),
        ("30 2 * * *", NEW_YORK, "2026-03-08", ["03:00:00-04"]),
        ("0,15,30,45 2 * * *", NEW_YORK, "2026-03-08", ["03:00:00-04"]),
        ("0 0 0 * * *", "America/Santiago", "2026-09-06", ["01:00:00-03"]),
        ("0 30 0 * * *", "Africa/Cairo", "2026-04-24", ["01:00:00+03"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", ["02:30:00+11"]),
        # The moment after the gap is due anyway: once.
        ("0 0 2,3 * * *", NEW_YORK, "2026-03-08", ["03:00:00-04"]),
        ("0 0 1-4 * * *", NEW_YORK, "2026-03-08", ["01:00:00-05", "03:00:00-04", "04:00:00-04"]),
        # A fixed time that comes twice: the first.
        ("0 30 1 * * *", NEW_YORK, "2026-11-01", ["01:30:00-04"]),
        ("30 1 * * *", NEW_YORK, "2026-11-01", ["01:30:00-04"]),
        ("0 1,2 * * *", NEW_YORK, "2026-11-01", ["01:00:00-04", "02:00:00-05"]),
        ("0 30 23 * * *", "America/Santiago", "2026-04-04", ["23:30:00-03"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05", ["01:45:00+11"]),
        # Wildcards: elapsed time, through the gap and through both folds.
        ("0 */30 1-2 * * *", NEW_YORK, "2026-03-08", ["01:00:00-05", "01:30:00-05"]),
        (
            "0 */30 1 * * *",
            NEW_YORK,
            "2026-11-01",
            ["01:00:00-04", "01:30:00-04", "01:00:00-05", "01:30:00-05"],
        ),
        ("* 2 * * *", NEW_YORK, "2026-03-08", []),
        # Other days are as they are; the day of a change is not lost, nor the one after.
        ("0 0 0 * * *", NEW_YORK, "2026-03-08", ["00:00:00-05"]),
        ("0 0 0 * * *", NEW_YORK, "2026-03-09", ["00:00:00-04"]),
        ("0 0 0 * * *", "America/Los_Angeles", "2026-03-09", ["00:00:00-07"]),
        ("0 0 0 * * *", "Europe/Berlin", "2026-03-30", ["00:00:00+02"]),
        # A whole day is left out: its times come once, as the next day begins.
        ("0 0 2 * * *", "Pacific/Apia", "2011-12-31", ["00:00:00+14", "02:00:00+14"]),
    ],
)
def test_clock_changes(text: str, zone: str, day: str, due: list[str]) -> None:
    assert of_day(parse_schedule(text, tz=zone), day) == due


@pytest.mark.spec("J6")
def test_seconds_go_on_into_the_hour_that_comes_again() -> None:
    schedule = parse_schedule("*/20 * * * * *", tz=NEW_YORK)
    due = schedule.occurrences(at("2026-11-01T05:59:20"), at("2026-11-01T06:00:20"))
    shown = [each.astimezone(schedule.tz).strftime("%H:%M:%S%z") for each in due]
    assert shown == ["01:59:40-0400", "01:00:00-0500", "01:00:20-0500"]


def test_a_moment_in_the_second_fold_looks_back_to_the_first() -> None:
    schedule = parse_schedule("30 1 * * *", tz=NEW_YORK)
    second_fold = datetime(2026, 11, 1, 1, 10, tzinfo=schedule.tz, fold=1)
    assert schedule.previous(second_fold) == at("2026-11-01T05:30")
    assert schedule.next(second_fold) == at("2026-11-02T06:30")


def test_a_rare_wildcard_is_found_in_both_folds_from_either() -> None:
    schedule = parse_schedule("*/30 30 1 1 11 *", tz=NEW_YORK)
    times = ("05:30:00", "05:30:30", "06:30:00", "06:30:30")
    folds = [at(f"2026-11-01T{each}") for each in times]
    assert [schedule.next(each - timedelta(seconds=20)) for each in folds] == folds
    assert [schedule.previous(each + timedelta(seconds=20)) for each in folds] == folds
    assert schedule.next(at("2026-11-01T05:50")) == folds[2]
    assert schedule.previous(at("2026-11-01T06:10")) == folds[1]
    assert [schedule.previous(each) for each in folds[1:]] == folds[:-1]


# The offset is kept in blocks of 97 days: a moment at which one of them begins.
BLOCK = datetime.fromtimestamp(213 << 23, UTC)


def zone_with(changes: dict[datetime, timedelta], *, key: str = "Test/Zone") -> ZoneInfo:
    """A zone an hour ahead of UTC, and from these moments on as said."""
    times = [int(moment.timestamp()) for moment in changes]
    offsets = [timedelta(hours=1), *changes.values()]
    count = len(times)
    types = [struct.pack(">iBB", int(each.total_seconds()), 0, 0) for each in offsets]
    data = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, count, count + 1, 4)
    data += struct.pack(f">{count}l", *times) + bytes(range(1, count + 1)) + b"".join(types)
    return ZoneInfo.from_file(BytesIO(data + b"XXX\0"), key=key)


@pytest.mark.parametrize("minutes", [-61, -59, -10, 0, 10])
def test_a_wall_time_comes_once_wherever_the_clock_goes_back(minutes: int) -> None:
    change = BLOCK.replace(second=0) + timedelta(minutes=minutes)
    tz = zone_with({change: timedelta(0)})
    schedule = parse_schedule("0-59 0-23 * * *", tz=tz)
    around = timedelta(minutes=200)
    due = list(schedule.occurrences(change - around, change + around))
    # All but the hour that comes again.
    wanted = [change - around + timedelta(minutes=each) for each in range(1, 401)]
    wanted = [each for each in wanted if not change <= each < change + timedelta(hours=1)]
    assert due == wanted
    assert [schedule.previous(each) for each in due[1:]] == due[:-1]


@pytest.mark.parametrize("minutes", [-20, -10, -5, 0, 10])
def test_a_clock_that_goes_back_and_forward_within_the_hour_shows_nothing_twice(
    minutes: int,
) -> None:
    back = BLOCK.replace(second=0) + timedelta(minutes=minutes)
    forward = back + timedelta(minutes=15)
    tz = zone_with({back: timedelta(0), forward: timedelta(minutes=50)})
    schedule = parse_schedule("0-59 0-23 * * *", tz=tz)
    around = timedelta(minutes=100)
    due = list(schedule.occurrences(back - around, back + around))
    # What the clock showed in the quarter of an hour it had shown before; what it then left out
    # comes at once when it goes forward.
    wanted = [back - around + timedelta(minutes=each) for each in range(1, 201)]
    assert due == [each for each in wanted if not back <= each < forward]
    assert [schedule.previous(each) for each in due[1:]] == due[:-1]


# ------------------------------------------------------------------ fields


@pytest.mark.spec("J6")
@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("0 0 * * 7", ["2026-01-04", "2026-01-11"]),
        ("0 0 * * 0", ["2026-01-04", "2026-01-11"]),
        ("0 0 * * 0-7", ["2026-01-01", "2026-01-02"]),
        ("0 0 * * fri-MON", ["2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05", "2026-01-09"]),
        ("0 0 * * 5-1", ["2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05", "2026-01-09"]),
        ("0 0 * * 7-2", ["2026-01-04", "2026-01-05", "2026-01-06", "2026-01-11"]),
        ("0 0 * * FRI-MON/2", ["2026-01-02", "2026-01-04", "2026-01-09"]),
        ("0 0 * * 5L", ["2026-01-30", "2026-02-27"]),
        ("0 0 ? * FRIL", ["2026-01-30", "2026-02-27"]),
        ("0 0 * * FRI#3", ["2026-01-16", "2026-02-20"]),
        ("0 0 L * *", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("0 0 L-3 * ?", ["2026-01-28", "2026-02-25", "2026-03-28"]),
        ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 0 15W * *", ["2026-01-15", "2026-02-16", "2026-03-16"]),
        ("0 0 2W 5 *", ["2026-05-01", "2027-05-03"]),
        ("0 0 1W 8 *", ["2026-08-03", "2027-08-02"]),
        ("0 0 31W * *", ["2026-01-30", "2026-03-31", "2026-05-29"]),
        ("0 0 13 * FRI", ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]),
        ("0 0 */2 * MON", ["2026-01-05", "2026-01-19", "2026-02-09"]),
        (
            "0 0 30 2 MON",
            ["2026-02-02", "2026-02-09", "2026-02-16", "2026-02-23", "2027-02-01"],
        ),
        ("0 0 L-30 * *", ["2026-01-01", "2026-03-01", "2026-05-01"]),
        ("0 0 29 feb *", ["2028-02-29", "2032-02-29"]),
        ("0 0 5,1-3 * *", ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-05"]),
        ("0 0 20/5 * *", ["2026-01-20", "2026-01-25", "2026-01-30", "2026-02-20"]),
        ("@weekly", ["2026-01-04", "2026-01-11"]),
        ("@Monthly", ["2026-01-01", "2026-02-01"]),
        ("@yearly", ["2026-01-01", "2027-01-01"]),
        ("@annually", ["2026-01-01", "2027-01-01"]),
        ("@daily", ["2026-01-01", "2026-01-02"]),
        ("@midnight", ["2026-01-01", "2026-01-02"]),
    ],
)
def test_days(text: str, due: list[str]) -> None:
    assert days(text, len(due)) == due


def test_a_step_from_a_number_goes_to_the_end_of_the_field() -> None:
    assert of_day(parse_schedule("59/15 5,6 * * *"), "2026-01-01") == ["05:59:00+00", "06:59:00+00"]
    assert of_day(parse_schedule("40/10 7 5 * * *"), "2026-01-01") == [
        "05:07:40+00",
        "05:07:50+00",
    ]
    assert of_day(parse_schedule("0 21-21/2 * * *"), "2026-01-01") == ["21:00:00+00"]


def test_the_number_of_fields_decides_unless_a_dialect_is_named() -> None:
    five, six = "30 2 * * *", "0 30 2 * * *"
    assert parse_schedule(five).next(START) == parse_schedule(six).next(START)
    assert parse_schedule(five, dialect=Dialect.VIXIE).text == five
    assert parse_schedule(six, dialect=Dialect.SECONDS_FIRST).text == six
    with pytest.raises(InvalidSchedule, match="seconds-first has 6: write the second in front"):
        parse_schedule(five, dialect=Dialect.SECONDS_FIRST)
    with pytest.raises(InvalidSchedule, match="vixie has 5: leave the second out"):
        parse_schedule(six, dialect=Dialect.VIXIE)


# ------------------------------------------------------------------ intervals


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("every 30s", "2026-01-01T00:00:30"),
        ("every  5m", "2026-01-01T00:05"),
        ("EVERY 2H", "2026-01-01T02:00"),
        ("every 1d", "2026-01-02"),
        # 2026-01-01 is day 20,454 since 1970, and 7 * 2,922 of them are whole weeks.
        ("every 7d", "2026-01-01"),
    ],
)
def test_intervals_count_from_1970(text: str, due: str) -> None:
    schedule = parse_schedule(text)
    before = START - timedelta(days=1) if text.endswith("7d") else START
    assert schedule.next(before) == at(due)
    assert schedule.previous(at(due) + timedelta(microseconds=1)) == at(due)


def test_an_interval_takes_no_notice_of_clock_changes() -> None:
    schedule = parse_schedule("every 20m", tz=NEW_YORK)
    due = list(schedule.occurrences(at("2026-11-01T05:00"), at("2026-11-01T07:00")))
    assert due == [at("2026-11-01T05:00") + timedelta(minutes=20 * each) for each in range(1, 7)]


# ------------------------------------------------------------------ what is refused


@pytest.mark.spec("J6")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 22-2 * * *", r"field hour, '22-2', goes down: write 22-23,0-2"),
        ("0 23-0 * * *", r"write 23,0"),
        ("0 20-4/2 * * *", r"field hour, '20-4/2', goes down: write 20-23/2,0-4/2$"),
        ("50-10/7 * * * *", r"write 50-59/7,4$"),
        ("0 0 28-3/2 * *", r"write 28-31/2,1-3/2$"),
        ("0 0 31-2/5 * *", r"write 31$"),
        ("0 0 * NOV-MAR/2 *", r"write NOV,JAN-MAR/2$"),
        ("0 22-1/70 * * *", r"has a step that does not fit"),
        ("0 0 * NOV-FEB *", r"write NOV-DEC,JAN-FEB"),
        ("0 0 30 2 *", r"never happen"),
        ("0 0 31 4,6,9,11 *", r"never happen"),
        ("0 0 30W 2 *", r"never happen"),
        ("61 * * * *", r"field minute, '61', is not one of 0 to 59"),
        ("0 24 * * *", r"field hour, '24', is not one of 0 to 23"),
        ("0 0 0 * *", r"field day of month, '0', is not one of 1 to 31"),
        ("0 0 * 13 *", r"field month, '13', is not one of 1 to 12 or JAN to DEC"),
        ("0 0 * * 8", r"field day of week, '8', is not one of 0 to 7 or SUN to SAT"),
        ("0 0 * * MONDAY", r"write MON$"),
        ("* * * *", r"it has 4 fields: write 5"),
        ("", r"it has 0 fields"),
        ("bad", r"it has 1 field: write 5"),
        ("0 0 12 * * ? 2026", r"7 fields, as Quartz has"),
        ("0 0 12 * * 2026", r"looks like a year"),
        ("0 12 * * ? *", r"year-last lines of AWS do not fit"),
        ("0 0 12 ? * 2-6", r"for Quartz and AWS 1 is Sunday, here it is Monday: write the days by"),
        ("0 12 ? * 6L", r"for Quartz"),
        ("0 12 ? * MON,6#3", r"for Quartz"),
        ("0 12 ? * ?", r"write \* for both"),
        ("? 12 * * *", r"'\?' stands for a day only"),
        ("*/90 * * * *", r"'\*/90', has a step that does not fit: .* 'every 90m'"),
        ("*/0 * * * *", r"write a step of 1 to 60"),
        ("*/5/5 * * * *", r"step"),
        ("1,,2 * * * *", r"empty part"),
        ("-1 * * * *", r"field minute"),
        ("1-2-3 * * * *", r"field minute"),
        ("٣ * * * *", r"field minute"),
        ("H * * * *", r"field minute"),
        ("L * * * *", r"L and W belong to the day of month"),
        ("0 0 L-31 * *", r"write L, LW, or L-1 to L-30"),
        ("0 0 L-3W * *", r"write L, LW"),
        ("0 0 W * *", r"such as 15W"),
        ("0 0 1-5W * *", r"such as 15W"),
        ("0 0 * * L", r"such as FRIL"),
        ("0 0 * * FRI#6", r"write FRI#1 to FRI#5, or FRIL"),
        ("0 0 * * FRI#", r"write FRI#1"),
        ("0 0 * * MON-FRI#2", r"field day of week, 'MON-FRI'"),
        ("CRON_TZ=UTC 0 0 * * *", r"give it as tz"),
        ("@reboot", r"a start-up is no moment"),
        ("@every 5m", r"write 'every 30s'"),
        ("@", r"not one of @yearly"),
        ("every 1.5h", r"a whole number"),
        ("every 5", r"a whole number"),
        ("every -5s", r"a whole number"),
        ("every 0s", r"1 s to 366 d"),
        ("every 367d", r"1 s to 366 d"),
        ("0 0 * * *" * 200, r"characters at most"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        parse_schedule(text)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", "/etc/passwd", "../UTC", "", "a\0b"])
def test_a_zone_that_does_not_exist_is_said(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"no time zone .* such as Europe/Berlin"):
        parse_schedule("@daily", tz=zone)


@pytest.mark.parametrize(
    "name", ["localtime", "LocalTime", "posixrules", "posix/Europe/Berlin", "right/UTC"]
)
@pytest.mark.parametrize("text", ["@daily", "30 2 * * *", "0 * * * * *", "every 5m"])
def test_a_zone_that_is_another_one_on_other_machines_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidSchedule, match="such as Europe/Berlin"):
        parse_schedule(text, tz=name)
    here = zone_with({BLOCK: timedelta(0)}, key=name)
    for _ in range(2):  # the refusal does not wear off
        with pytest.raises(InvalidSchedule, match=f"{name}' is not the same on all machines"):
            parse_schedule(text, tz=here)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="must be text"):
        parse_schedule(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidSchedule, match="no time zone"):
        parse_schedule("@daily", tz=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["@daily", "every 5m"])
def test_a_moment_without_a_zone_is_refused(text: str) -> None:
    schedule = parse_schedule(text)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    for ask in (
        schedule.next,
        schedule.previous,
        lambda moment: schedule.occurrences(moment, START),
        lambda moment: schedule.occurrences(START, moment),
    ):
        with pytest.raises(UsageError, match="a datetime that has a time zone"):
            ask(naive)


# ------------------------------------------------------------------ ends


@pytest.mark.parametrize("text", ["* * * * * *", "0 0 29 2 *", "0 2 * * MON", "every 30s"])
@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Pacific/Kiritimati"])
def test_the_calendar_ends(text: str, zone: str) -> None:
    schedule = parse_schedule(text, tz=zone)
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert schedule.next(last) is None
    assert schedule.previous(first) is None
    earliest, latest = schedule.next(first), schedule.previous(last)
    assert earliest is not None
    assert latest is not None
    assert (earliest.year, latest.year) in {(1, 9999), (4, 9996)}
    assert list(schedule.occurrences(last, first)) == []


def test_moments_are_whole_seconds_in_utc() -> None:
    schedule = parse_schedule("* * * * * *", tz="Asia/Kolkata")
    moment = START + timedelta(microseconds=1)
    assert schedule.next(moment) == START + timedelta(seconds=1)
    assert schedule.previous(moment) == START
    assert schedule.previous(START) == START - timedelta(seconds=1)
    found = schedule.next(moment.astimezone(ZoneInfo("Asia/Tokyo")))
    assert found is not None
    assert found.tzinfo is UTC


def test_after_is_left_out_and_until_is_not() -> None:
    hourly = parse_schedule("@hourly")
    until = START + timedelta(hours=2)
    assert list(hourly.occurrences(START, until)) == [START + timedelta(hours=1), until]


@pytest.mark.parametrize("text", ["0  2 * *   *", "every 30s"])
def test_schedules_are_equal_by_what_they_say_and_can_be_copied(text: str) -> None:
    schedule = parse_schedule(text, tz="Europe/Berlin")
    assert schedule.text == " ".join(text.split())
    assert schedule.tz.key == "Europe/Berlin"
    assert schedule == parse_schedule(text, tz=ZoneInfo("Europe/Berlin"))
    assert schedule != parse_schedule(text, tz="UTC")
    for other in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
        assert other.next(START) == schedule.next(START)


# ------------------------------------------------------------------ words


@pytest.mark.spec("J6")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 2 * * *", "at 02:00:00 every day"),
        ("30 0 2,14 * * MON-FRI", "at 02:00:30 and 14:00:30 on Monday to Friday"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 9-17 * * *", "at minutes 0, 7, … 56 in hours 9 to 17 every day"),
        ("* * * * *", "every minute"),
        ("* * * * * *", "every second"),
        ("*/15 * * * * *", "every 15 seconds"),
        ("30 * * * * *", "at second 30 of every minute"),
        ("30 5 * * * *", "at second 30 in minute 5 of every hour"),
        ("*/20 5 */2 * * *", "every 20 seconds in minute 5 in hours 0, 2, … 22"),
        ("@hourly", "at minute 0 of every hour"),
        ("*/5 * * * 1-5", "every 5 minutes on Monday to Friday"),
        ("0 0 * * SAT,0", "at 00:00:00 on Saturday and Sunday"),
        ("0 0 13 * FRI", "at 00:00:00 on day 13 of the month or on Friday"),
        (
            "0 0 */2 * MON",
            "at 00:00:00 on Monday, but only on days 1, 3, … 31 of the month",
        ),
        (
            "0 0 LW,L-1 * *",
            "at 00:00:00 on 1 day before the last day and the last working day of the month",
        ),
        (
            "0 0 15W 1,5 *",
            "at 00:00:00 on the working day nearest to day 15 of the month in January and May",
        ),
        ("0 0 * * FRI#3,MONL", "at 00:00:00 on the third Friday and the last Monday of the month"),
        ("0 0 * 2 *", "at 00:00:00 every day in February"),
    ],
)
def test_a_line_is_explained(text: str, words: str) -> None:
    assert parse_schedule(text, tz="Europe/Berlin").explain() == f"{words}, Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("every 1s", "every second"),
        ("every 90m", "every 90 minutes"),
        ("every 120m", "every 2 hours"),
        ("every 1d", "every day"),
    ],
)
def test_an_interval_is_explained(text: str, words: str) -> None:
    assert parse_schedule(text).explain() == f"{words}, counted from 1970-01-01 00:00:00 UTC"
