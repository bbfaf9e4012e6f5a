"""Event Hubs by Spark: the same rows through the endpoint as out of the log behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.hub import KEY, RunningHub, running_hub
from tests.support.memory_sink import MemorySink
from tests.support.spark_logs import QUICK

from leasehold.events import Event
from leasehold.spark import Pipeline, PipelineOptions
from leasehold.spark.reading import close_stream

EACH = 120


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path, partitions=3) as made:
        send(made, 0)
        yield made


def send(hub: RunningHub, first: int) -> None:
    with hub.log.producer("hub") as producer:
        for partition in range(3):
            events = [
                Event(
                    body=b"%d-%d" % (partition, number),
                    key=f"k{number % 7}",
                    properties={"n": str(number)} if number % 2 else {},
                )
                for number in range(first, first + EACH)
            ]
            producer.send(events, partition=partition).result(60)


def address(hub: RunningHub, consumers: str = "$Default") -> str:
    connection = quote(hub.url(), safe="")
    return f"eventhubs:///hub?connection={connection}&consumer_group={quote(consumers)}"


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.drop("epoch").collect()]
    return sorted(found, key=lambda row: (row["partition"], row["sequence_number"]))


def names(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.collect())


@pytest.mark.spec("S1", "S2", "B8")
def test_a_hub_has_the_rows_of_the_log_behind_it(
    spark: SparkSession, hub: RunningHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path / 'hub.db'}"
    reader = spark.read.format("leasehold")
    behind = rows(reader.option("store", store).load("hub"))
    through = spark.read.format("leasehold").load(address(hub))
    assert rows(through) == behind
    assert len(behind) == 3 * EACH
    keys = spark.read.format("leasehold").schema("key string").load(address(hub))
    assert sorted(row.key for row in keys.collect()) == sorted(row["key"] for row in behind)
    through.explain(mode="extended")
    result = capfd.readouterr()
    assert KEY not in result.out + result.err


@pytest.mark.spec("S3", "B8")
def test_a_stream_of_a_hub_goes_on_where_it_was(
    spark: SparkSession, hub: RunningHub, tmp_path: Path
) -> None:
    got: list[str] = []

    def run() -> None:
        stream = spark.readStream.format("leasehold").option("maxEventsPerTrigger", "100")
        query = (
            stream.load(address(hub))
            .writeStream.foreachBatch(lambda frame, _number: got.extend(names(frame)))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert len(got) == len(set(got)) == 3 * EACH
    send(hub, EACH)
    run()
    assert len(got) == len(set(got)) == 6 * EACH


@pytest.mark.spec("S4", "B8")
def test_a_pipeline_takes_each_event_of_a_hub_once(
    spark: SparkSession, hub: RunningHub, tmp_path: Path
) -> None:
    sink, store = MemorySink(), f"sqlite:///{tmp_path / 'leases.db'}"

    def run() -> int:
        line = Pipeline(
            spark,
            address(hub),
            store,
            "sums",
            options=PipelineOptions(batch_events=200, timing=QUICK),
        )
        return line.write_to(sink).run(until_caught_up=True).rows

    assert run() == 3 * EACH
    send(hub, EACH)
    assert run() == 3 * EACH
    bodies = [bytes(row["body"]) for row in sink.rows]
    assert len(bodies) == len(set(bodies)) == 6 * EACH
    close_stream(address(hub), store)  # the process keeps it open for the next batch
