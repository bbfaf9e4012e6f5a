"""``spark.readStream.format("leasehold")``: whole queries; the reader has its own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark_streams import STREAM, Stream, numbered, opened_stream

SOON_S = 300
Batches = dict[int, list[tuple[str, int]]]


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with opened_stream(tmp_path, partitions=2) as made:
        yield made


class Query:
    """One query that ends when it has read everything, started as often as one likes."""

    def __init__(self, spark: SparkSession, stream: Stream, checkpoint: Path) -> None:
        self._spark, self._stream, self._checkpoint = spark, stream, checkpoint
        self.batches: Batches = {}

    def run(self, **options: str) -> StreamingQuery:
        frame = (
            self._spark.readStream.format("leasehold")
            .schema("partition string, sequence_number long")
            .options(store=self._stream.url, **options)
            .load(STREAM)
        )
        query = (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SOON_S)
        return query

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        self.batches[number] = sorted((row.partition, row.sequence_number) for row in rows)

    @property
    def rows(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


@pytest.mark.spec("S1", "S2")
def test_a_query_reads_in_bounded_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    stream.send(0, numbered(0, 30))
    stream.send(1, numbered(0, 10))
    query = Query(spark, stream, tmp_path / "checkpoint")

    done = query.run(maxEventsPerTrigger="16", starts='{"1": 6}')

    expected = [*(("0", n) for n in range(30)), *(("1", n) for n in range(6, 10))]
    assert [len(query.batches[number]) for number in range(3)] == [16, 16, 2]
    assert query.rows == expected
    progress = done.lastProgress
    assert progress is not None
    assert progress.sources[0].latestOffset == '{"0": 30, "1": 10}'

    stream.send(0, numbered(30, 2))
    stream.log.grow(STREAM, partitions=3)
    stream.send(2, numbered(0, 3))
    query.run(maxEventsPerTrigger="16", starts='{"1": 6}')

    assert query.batches[3] == [("0", 30), ("0", 31), ("2", 0), ("2", 1), ("2", 2)]
    assert query.rows == sorted([*expected, *query.batches[3]])


def test_a_checkpoint_beyond_the_end_stops_the_query_with_partition_and_range(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    stream.send(1, numbered(0, 9))
    query = Query(spark, stream, tmp_path / "checkpoint")
    query.run()
    stream.log.delete(STREAM)
    stream.log.create(STREAM, partitions=2, segment_bytes=1 << 20)
    stream.send(1, numbered(0, 4))

    with pytest.raises(
        StreamingQueryException, match=r"event 9 of partition 1 of 'orders'.*\[0, 4\)"
    ):
        query.run()

    assert query.rows == [("1", n) for n in range(9)]
