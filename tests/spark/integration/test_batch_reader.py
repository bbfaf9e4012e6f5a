"""The batch reader as Spark calls it, on a real log and without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.spark_streams import STREAM, Stream, numbered, opened_stream

from leasehold.errors import BeyondEnd, UsageError
from leasehold.spark.reading import Range, close_stream
from leasehold.spark.schema import EVENTS, select_columns
from leasehold.spark.source.options import parse
from leasehold.spark.source.read import EventReader, FilteringReader, batch_reader, plan_tasks

PLACES = select_columns(["partition", "sequence_number"])


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    with opened_stream(tmp_path_factory.mktemp("log")) as made:
        made.send(0, numbered(0, 20), numbered(20, 20))
        made.send(1, numbered(0, 25))
        yield made
        close_stream(STREAM, made.url)


def said(stream: Stream, **options: str) -> dict[str, str]:
    return {"store": stream.url, "path": STREAM} | options


def read(reader: EventReader) -> list[tuple[str, int]]:
    """All rows, read by copies of the reader as the tasks have them."""
    found = []
    for task in reader.partitions():
        copy, part = pickle.loads(pickle.dumps((reader, task)))
        for batch in copy.read(part):
            rows = batch.select(["partition", "sequence_number"]).to_pylist()
            found += [(row["partition"], row["sequence_number"]) for row in rows]
    return found


def planned(reader: EventReader) -> list[str]:
    return [str(each) for task in reader.partitions() for each in task.ranges]


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({}, ["0[0, 40)", "1[0, 25)"]),
        ({"partitions": "1"}, ["1[0, 25)"]),
        ({"partitions": "1,0", "start": "seq:20"}, ["1[20, 25)", "0[20, 40)"]),
        ({"partitions": "0,1", "end": "seq:5"}, ["0[0, 5)", "1[0, 5)"]),
        ({"starts": '{"0": 38, "1": "latest"}'}, ["0[38, 40)"]),
        ({"start": "2000-01-01T00:00:00Z", "end": "2000-01-02T00:00:00Z"}, []),
        ({"start": "2000-01-01T00:00:00Z"}, ["0[0, 40)", "1[0, 25)"]),
        ({"partitions": "0", "start": "seq:9", "end": "seq:3"}, []),
        ({"ranges": '[["1", 3, 5], ["0", 0, 1]]'}, ["1[3, 5)", "0[0, 1)"]),
    ],
)
def test_options_say_which_ranges(
    stream: Stream, options: dict[str, str], ranges: list[str]
) -> None:
    assert planned(EventReader(PLACES, parse(said(stream, **options)))) == ranges


def test_filters_make_the_ranges_shorter_and_the_rows_exact(stream: Stream) -> None:
    reader = FilteringReader(EVENTS, parse(said(stream)))
    given: list[Filter] = [
        EqualTo(("partition",), "0"),
        GreaterThanOrEqual(("sequence_number",), 10),
        LessThan(("sequence_number",), 30),
        EqualTo(("key",), "k1"),
        LessThan(("offset",), 5),
    ]

    assert list(reader.pushFilters(given)) == given[-1:]
    assert planned(reader) == ["0[10, 30)"]
    assert read(reader) == [("0", n) for n in range(10, 30) if n % 3 == 1]


def test_spark_gets_a_reader_that_takes_no_filters(stream: Stream) -> None:
    """Spark uses a reader again that has taken filters: see tests/spark/session/test_read.py."""
    assert type(batch_reader(EVENTS, parse(said(stream)))) is EventReader


def test_fields_of_the_body_stand_where_the_schema_has_them(stream: Stream) -> None:
    wanted = StructType(
        [
            StructField("name", StringType()),
            StructField("sequence_number", LongType()),
            StructField("n", LongType()),
            StructField("key", StringType()),
        ]
    )
    options = parse(said(stream, json="true", ranges='[["1", 3, 5]]'))
    reader = EventReader(wanted, options)

    [task] = reader.partitions()
    [batch] = reader.read(task)

    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        ("e3", 3, 3, None),
        ("e4", 4, 4, "k1"),
    ]


def test_few_events_are_read_by_one_task_and_many_by_as_many_as_allowed() -> None:
    few, many = (Range(partition="0", start=0, end=end) for end in (3000, 50_000))

    assert len(plan_tasks([few], 8)) == 1
    assert len(plan_tasks([many], 8)) == 8
    assert plan_tasks([], 8) == []


def test_no_events_are_no_rows(stream: Stream) -> None:
    reader = EventReader(EVENTS, parse(said(stream, partitions="2")))

    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitions": "9"}, "'orders' has no partition 9: it has 0 to 2"),
        ({"starts": '{"x": 1}'}, "'orders' has no partition x"),
        ({"ranges": '[["7", 0, 1]]'}, "'orders' has no partition 7"),
    ],
)
def test_a_partition_that_is_not_there_is_refused(
    stream: Stream, options: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        EventReader(EVENTS, parse(said(stream, **options))).partitions()


@pytest.mark.parametrize("option", ["start", "end"])
def test_a_place_beyond_the_end_is_refused_with_its_partition(stream: Stream, option: str) -> None:
    reader = EventReader(EVENTS, parse(said(stream, **{option: "seq:30"})))

    with pytest.raises(BeyondEnd, match="seq:30 of partition 1 of 'orders'"):
        reader.partitions()


def test_a_schema_without_columns_is_refused(stream: Stream) -> None:
    with pytest.raises(UsageError, match="the schema has no column"):
        EventReader(StructType([]), parse(said(stream)))


def test_a_field_with_the_name_of_a_column_is_refused(stream: Stream) -> None:
    doubled = StructType([*EVENTS.fields, StructField("key", StringType())])

    with pytest.raises(UsageError, match="the columns key are there twice"):
        EventReader(doubled, parse(said(stream, json="key string")))
    with pytest.raises(UsageError, match="no column 'n': it has"):
        EventReader(StructType([StructField("n", LongType())]), parse(said(stream)))
