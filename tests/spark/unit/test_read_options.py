"""The options of a read: what they mean, and how they are refused."""

from __future__ import annotations

import pickle

import pytest

from leasehold.errors import InvalidOptions, UsageError
from leasehold.events import Start
from leasehold.spark.reading import Range
from leasehold.spark.source.options import check_kind, parse

STORE = "postgresql://me:secret@db/leases"


def parsed(**given: str) -> dict[str, str]:
    return {"store": STORE, "path": "orders"} | given


def test_without_more_words_everything_is_read() -> None:
    options = parse(parsed())

    assert (options.source, options.store) == ("orders", STORE)
    assert options.partitions is None
    assert (options.start, options.end) == (Start.earliest(), Start.latest())
    assert options.tasks >= 1
    assert not options.json
    assert options.max_events is None


def test_each_option_is_read() -> None:
    options = parse(
        parsed(
            partitions="0, 3",
            start="2026-01-01T00:00:00Z",
            starts='{"0": 5, "3": "latest"}',
            end="seq:90",
            tasks="7",
            json="n int",
            maxEventsPerTrigger="1000",
            onTrimmed="earliest",
        )
        | {"json.mode": "null"}
    )

    assert options.partitions == ("0", "3")
    assert options.start_of("0") == Start.sequence(5)
    assert options.start_of("3") == Start.latest()
    assert options.start_of("1") == Start.parse("2026-01-01T00:00:00Z")
    assert options.end == Start.sequence(90)
    assert (options.tasks, options.max_events) == (7, 1000)
    assert options.json == "n int"
    assert options.null_malformed
    assert options.skip_trimmed


def test_names_may_be_written_in_any_case() -> None:
    assert parse(parsed(MAXEVENTSPERTRIGGER="9")).max_events == 9
    assert parse(parsed(maxeventspertrigger="9")).max_events == 9


def test_exact_ranges_are_read() -> None:
    options = parse(parsed(ranges='[["0", 5, 9]]'))

    assert options.ranges == (Range(partition="0", start=5, end=9),)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no option 'maxevents': did you mean maxEventsPerTrigger"):
        parse(parsed(maxevents="5"))
    with pytest.raises(UsageError, match="no option 'starting': did you mean start"):
        parse(parsed(starting="latest"))
    with pytest.raises(UsageError, match="no option 'zzz': there are store, stream"):
        parse(parsed(zzz=""))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"store": ""}, "no store is named"),
        ({"path": ""}, "no stream is named"),
        ({"path": "log:"}, "names no stream"),
        ({"partitions": "0,,1"}, "does not name partitions"),
        ({"partitions": "1,1"}, "does not name partitions"),
        ({"start": "yesterday"}, "no place to start at"),
        ({"start": "2026-01-01T00:00:00"}, "does not say its time zone"),
        ({"starts": "[1]"}, "not a place for each partition"),
        ({"starts": "{"}, "starts is no JSON"),
        ({"starts": '{"0": true}'}, "no place to start at"),
        ({"tasks": "0"}, "tasks is a whole number from 1 on"),
        ({"maxEventsPerTrigger": "many"}, "maxEventsPerTrigger is a whole number"),
        ({"onTrimmed": "ignore"}, "onTrimmed is fail or earliest"),
        ({"json": "n int", "json.mode": "drop"}, "json.mode is fail or null"),
        ({"json": " "}, "json names no fields"),
        ({"ranges": "0-5"}, "holds no ranges"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        parse(parsed(**given))

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"ranges": "[]", "start": "latest"},
        {"ranges": "[]", "partitions": "0"},
        {"stream": "invoices"},
        {"json.mode": "null"},
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOptions):
        parse(parsed(**given))


def test_a_stream_may_be_named_twice_if_it_is_the_same() -> None:
    assert parse(parsed(stream="log:orders")).source == "log:orders"


def test_an_option_of_the_other_kind_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="end is for a batch"):
        check_kind(parsed(end="latest"), streaming=True)
    with pytest.raises(InvalidOptions, match="onTrimmed is for a stream"):
        check_kind(parsed(ontrimmed="fail"), streaming=False)
    check_kind(parsed(start="latest"), streaming=True)
    check_kind(parsed(end="latest"), streaming=False)


def test_a_password_is_not_shown_and_all_goes_to_the_tasks() -> None:
    options = parse(parsed())

    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
