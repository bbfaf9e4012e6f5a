"""Where a reader may begin, as objects and as words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import UsageError
from leasehold.events import Start
from leasehold.events.start import StartKind


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start.earliest()),
        ("latest", Start.latest()),
        ("seq:123", Start.sequence(123)),
        ("offset:0", Start.offset(0)),
        (" seq:7 ", Start.sequence(7)),
        ("2026-01-01T00:00:00Z", Start.time(datetime(2026, 1, 1, tzinfo=UTC))),
        ("2026-01-01T02:00:00+02:00", Start.time(datetime(2026, 1, 1, tzinfo=UTC))),
    ],
)
def test_a_start_is_read_from_words(text: str, start: Start) -> None:
    assert Start.parse(text) == start


def test_a_time_counts_microseconds_since_1970_in_any_zone() -> None:
    at = datetime(1970, 1, 1, 2, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))

    assert Start.time(at).value == 5


@pytest.mark.parametrize(
    "text", ["", "first", "seq:", "seq:-1", "seq:1.5", "offset:x", "seq:٣", "2026-13-01", "12:61"]
)
def test_words_that_are_no_start_are_refused_and_the_message_says_how_to_write_one(
    text: str,
) -> None:
    with pytest.raises(UsageError, match="earliest, latest, seq:<number>"):
        Start.parse(text)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="time zone"):
        Start.parse("2026-01-01T00:00:00")


@pytest.mark.parametrize("number", [-1, 2**63, True, 1.0])
def test_a_number_that_no_event_can_have_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match="whole number"):
        Start.sequence(number)
    with pytest.raises(UsageError, match="whole number"):
        Start.offset(number)


@given(
    kind=st.sampled_from([StartKind.SEQUENCE, StartKind.OFFSET, StartKind.TIME]),
    value=st.integers(0, 4_000_000_000_000_000),
)
def test_what_a_start_writes_is_read_back(kind: StartKind, value: int) -> None:
    start = Start(kind=kind, value=value)

    assert Start.parse(str(start)) == start
