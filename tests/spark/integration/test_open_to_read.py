"""Sinks that are opened only to be looked at, as an audit does: nothing changes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from tests.support.local_frames import local_frame
from tests.support.log_publisher import STREAM, counted, left_over, make_log
from tests.support.postgres import database, execute
from tests.support.sink_contract import GROUP, batch_of

from leasehold.errors import StoreUnavailable, UnknownResource
from leasehold.spark import ForeachSink, LogSink, PostgresSink, Sink
from leasehold.spark.audit.rows import open_to_read, rows_of
from leasehold.spark.log_writer.publisher import Publisher

NO_SPARK = cast("SparkSession", None)
SCHEMAS = "SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold_sink'"
STAGES = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'stage\\_%'"


def seen(sink: Sink) -> list[str]:
    """What an audit reads of its commits."""
    open_to_read(sink, NO_SPARK)
    try:
        return [str(each.range) for each in sink.commits(GROUP)]
    finally:
        sink.close()


@pytest.mark.server
def test_a_database_is_left_as_it_is() -> None:
    rows, batch = local_frame("id bigint", [(1,)]), batch_of(("0", 0, 1, 1))
    with database(migrated=False) as url:
        with pytest.raises(UnknownResource, match="no pipeline has ever written to postgres:"):
            seen(PostgresSink(url, "t"))
        assert execute(url, SCHEMAS) == [(0,)]

        sink = PostgresSink(url, "t", create=True)
        sink.open()
        sink.commit(sink.stage(rows, batch), batch)
        sink.stage(rows, batch_of(("0", 1, 2, 1)))
        sink.fence(GROUP, {"0": 2})  # the next one that opens it to write drops what is staged
        sink.close()
        assert seen(PostgresSink(url, "t")) == ["0[0, 1)"]
        assert execute(url, STAGES) == [(1,)]
        sink = PostgresSink(url, "t")
        sink.open()
        sink.close()
        assert execute(url, STAGES) == [(0,)]


def test_a_batch_that_is_not_published_stays_so_and_its_rows_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    make_log(url, tmp_path)
    batch = batch_of(("0", 0, 1, 1))

    def killed(*_: object) -> None:
        raise StoreUnavailable("killed before it was published")

    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "finish", killed)
        sink = LogSink(STREAM, store=url)
        sink.open()
        with pytest.raises(StoreUnavailable):
            sink.commit(sink.stage(local_frame("body string", [("a:1",)]), batch), batch)
        sink.close()
    monkeypatch.setattr("leasehold.spark.log_writer.publication_ledger._HEARTBEAT_TIMEOUT_S", 0.0)

    sink = LogSink(STREAM, store=url)
    assert seen(sink) == ["0[0, 1)"]
    assert counted(url) == {}
    assert left_over(tmp_path)
    sink.open_to_read()
    with ExitStack() as until, pytest.raises(StoreUnavailable, match="not published yet"):
        rows_of(sink, NO_SPARK, store=url, until=until)
    sink.close()
    sink.open()
    sink.close()
    assert counted(url) == {"a": 1}


def test_a_sink_with_one_way_to_open_is_opened_that_way() -> None:
    opened: list[object] = []
    sink = ForeachSink(lambda *_: None)
    sink.open = opened.append  # type: ignore[method-assign, assignment]
    assert seen(sink) == []
    assert opened == [NO_SPARK]
