"""The PostgreSQL sink on Spark: tasks copy, the driver commits."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.support.postgres import database, execute
from tests.support.sink_contract import GROUP, batch_of, known

from leasehold.errors import SinkUnfit
from leasehold.spark import PostgresSink


@pytest.mark.server
@pytest.mark.spec("S4")
def test_rows_of_spark_come_into_the_table_with_their_position(spark: SparkSession) -> None:
    with database(migrated=False) as url:
        sink = PostgresSink(url, "words", key=["id"], create=True)
        sink.open(spark)
        sink.fence(GROUP, {"0": 1, "1": 1})
        frame = spark.range(0, 500, 1, 3).selectExpr(
            "id", "concat('word \"', id) as word", "timestamp'2026-01-31 12:00:00' as at"
        )
        batch = batch_of(("0", 0, 300, 1), ("1", 0, 200, 1))
        staged = sink.stage(frame, batch)
        assert execute(url, "select count(*) from words") == [(0,)]
        assert sink.commit(staged, batch).rows == 500
        assert sink.commit(staged, batch).rows == 500
        found = execute(url, "select count(*), sum(id), max(word), min(at)::text from words")
        assert found == [(500, 124750, 'word "99', "2026-01-31 12:00:00+00")]
        assert known(sink, "1").position == 200
        execute(url, "alter table words alter column word type int using 0")
        with pytest.raises(SinkUnfit, match="invalid input syntax"):
            sink.stage(frame, batch_of(("0", 300, 301, 1)))
        assert execute(url, "select count(*) from leasehold_sink.sink_staging") == [(0,)]
        sink.close()
