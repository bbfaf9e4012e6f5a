"""``spark.read.format("leasehold")``: nobody has registered it here, Spark finds it by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from tests.support.spark_streams import STREAM, Stream, numbered, opened_stream

from leasehold.events import Event
from leasehold.spark.schema import EVENTS

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COUNTS = {0: 40, 1: 25}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """Forty events, twenty-five, and none. For all tests that only read."""
    with opened_stream(tmp_path_factory.mktemp("log")) as made:
        for partition, count in COUNTS.items():
            half = count // 2
            made.send(partition, numbered(0, half), numbered(half, count - half))
        yield made


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before or "")


def reader(spark: SparkSession, stream: Stream, **options: str) -> DataFrameReader:
    return spark.read.format("leasehold").option("store", stream.url).options(**options)


def places(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.select("partition", "sequence_number").collect()
    return sorted((row.partition, row.sequence_number) for row in rows)


@pytest.mark.spec("S1", "S2")
def test_all_events_are_read_with_all_their_columns(spark: SparkSession, stream: Stream) -> None:
    frame = reader(spark, stream).load(STREAM)

    rows = sorted(frame.collect(), key=lambda row: (row.partition, row.sequence_number))

    assert frame.schema == EVENTS
    assert [(row.partition, row.sequence_number) for row in rows] == [
        (str(partition), n) for partition, count in COUNTS.items() for n in range(count)
    ]
    assert rows[4].asDict() == {
        "partition": "0",
        "sequence_number": 4,
        "offset": rows[3].offset + 1,
        "enqueued_at": rows[4].enqueued_at,
        "key": "k1",
        "body": bytearray(b'{"n": 4, "name": "e4"}'),
        "properties": None,
        "epoch": rows[4].epoch,
    }
    assert rows[5].properties == {"n": "5"}
    assert rows[3].key is None


@pytest.mark.spec("S2")
def test_a_schema_cuts_the_columns_in_any_order(spark: SparkSession, stream: Stream) -> None:
    frame = reader(spark, stream, partitions="1").schema("key string, partition string")

    rows = frame.load(f"log:{STREAM}").collect()

    assert [tuple(row) for row in rows[:3]] == [(None, "1"), ("k1", "1"), ("k2", "1")]
    assert len(rows) == 25


@pytest.mark.spec("S2")
def test_options_say_which_events(spark: SparkSession, stream: Stream) -> None:
    frame = reader(spark, stream, STARTS='{"0": 38, "1": "latest"}', tasks="1").load(STREAM)

    assert places(frame) == [("0", 38), ("0", 39)]


@pytest.mark.spec("S2")
@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_leave_the_right_rows_with_and_without_push_down(
    spark: SparkSession, stream: Stream, pushdown: str
) -> None:
    with setting(spark, PUSHDOWN, pushdown):
        frame = reader(spark, stream).load(STREAM)
        ago, ever = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
        few = frame.where(
            (frame.sequence_number >= 10)
            & (frame.sequence_number < 20)
            & (frame.partition == "1")
            & (frame.enqueued_at > ago)
            & (frame.enqueued_at <= ever)
            & frame.key.isin("k1", "k7")
            & (frame.sequence_number % 2 == 0)
        )

        assert places(few) == [("1", 10), ("1", 16)]


@pytest.mark.spec("S2")
@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_the_filters_of_one_query_do_not_reach_another_query(
    spark: SparkSession, stream: Stream, pushdown: str
) -> None:
    """Spark shares the data source between the queries of one DataFrame."""
    with setting(spark, PUSHDOWN, pushdown):
        frame = reader(spark, stream).load(STREAM)
        zero, one = frame.where("partition = '0'"), frame.where("partition = '1'")
        late = frame.where("sequence_number >= 20")

        assert zero.count() == 40
        assert frame.count() == 65  # used again without the filter
        assert one.count() == 25
        union = Counter(row.partition for row in zero.union(one).collect())
        assert union == {"0": 40, "1": 25}
        assert sorted(row[0] for row in zero.union(late).select("sequence_number").collect()) == (
            sorted([*range(40), *range(20, 40), *range(20, 25)])
        )
        pairs = zero.alias("z").join(one.alias("o"), "sequence_number")
        assert pairs.count() == 25
        frame.createOrReplaceTempView("events_view")
        assert spark.sql("select * from events_view where key = 'k1'").count() < 65
        assert spark.sql("select * from events_view").count() == 65
        both = spark.sql(
            "select (select count(*) from events_view where partition = '0') as zero, "
            "(select count(*) from events_view where partition = '1') as one, count(*) as all "
            "from events_view"
        )
        assert [tuple(row) for row in both.collect()] == [(40, 25, 65)]


def test_our_session_leaves_push_down_off(spark: SparkSession) -> None:
    assert spark.conf.get(PUSHDOWN) == "false"


@pytest.mark.spec("S2")
def test_bodies_are_decoded_in_the_source(spark: SparkSession, stream: Stream) -> None:
    frame = reader(spark, stream, json="n long, name string").load(STREAM)

    [row] = frame.groupBy().agg({"n": "sum", "name": "max", "*": "count"}).collect()

    assert frame.columns[-2:] == ["n", "name"]
    assert "body" not in frame.columns
    assert (row["sum(n)"], row["max(name)"], row["count(1)"]) == (
        sum(range(40)) + sum(range(25)),
        "e9",
        65,
    )


def test_a_malformed_body_is_named_or_null(spark: SparkSession, tmp_path: Path) -> None:
    with opened_stream(tmp_path) as made:
        made.send(2, [Event(body=b'{"n": 1}'), Event(body=b"null"), Event(body=b'{"n":\n3}')])
        decoding = reader(spark, made, json="true").schema("body binary, n int")

        with pytest.raises(
            PySparkException, match="body of event 1 of partition 2 is not the JSON"
        ):
            decoding.load(STREAM).collect()

        rows = decoding.option("json.mode", "null").load(STREAM).collect()
    assert [(bytes(row.body), row.n) for row in rows] == [
        (b'{"n": 1}', 1),
        (b"null", None),
        (b'{"n":\n3}', 3),
    ]


def test_times_do_not_depend_on_the_zone_of_the_session(
    spark: SparkSession, stream: Stream
) -> None:
    def first_s() -> Any:
        frame = reader(spark, stream, ranges='[["0", 0, 1]]').load(STREAM)
        return frame.selectExpr("unix_micros(enqueued_at)").collect()[0][0]

    here = first_s()
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        assert first_s() == here

    at = stream.log.info(STREAM).parts[0].last_enqueued_at
    assert at is not None
    assert abs(here / 1e6 - at.timestamp()) < 3600


def test_the_session_reads_arrow_without_asking_for_bounds_at_each_value_but_for_nulls(
    spark: SparkSession,
) -> None:
    arrow = spark.sparkContext._jvm.org.apache.arrow  # type: ignore[union-attr]

    assert not arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_an_empty_stream_has_no_rows(spark: SparkSession, stream: Stream) -> None:
    assert reader(spark, stream, partitions="2").load(STREAM).collect() == []


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"partition": "0"}, None, "no option 'partition': did you mean partitions"),
        ({}, "keys string", "no column 'keys': did you mean key"),
        ({"ranges": '[["0", 30, 50]]'}, None, r"events 0\[30, 50\) of 'orders' can not be read"),
    ],
)
def test_what_can_not_be_read_is_refused_in_words(
    spark: SparkSession, stream: Stream, options: dict[str, str], schema: str | None, message: str
) -> None:
    asked = reader(spark, stream, **options)
    if schema is not None:
        asked = asked.schema(schema)

    with pytest.raises(PySparkException, match=message):
        asked.load(STREAM).collect()


def test_an_unreadable_segment_and_a_deleted_stream_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened_stream(tmp_path) as made:
        made.send(1, numbered(0, 50))
        for path in made.files():
            data = path.read_bytes()
            path.write_bytes(data.replace(b'"name": "e30"', b'"name": "e31"'))
        frame = reader(spark, made).load(STREAM)

        with pytest.raises(
            PySparkException, match=r"events 1\[0, 50\) of 'orders' can not be read"
        ):
            frame.collect()

        made.log.delete(STREAM)
        with pytest.raises(PySparkException, match="orders"):
            reader(spark, made).load(STREAM).collect()
