"""The contract of a sink, for the log, over frames of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.local_frames import local_frame
from tests.support.log_publisher import STREAM, make_log
from tests.support.sink_contract import CASES, Case, Row, batch_of

from leasehold.errors import SinkUnfit
from leasehold.log import Log
from leasehold.spark import LogSink
from leasehold.spark.source.write import batch_writer, stream_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LogSetup:
    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory}/store.db"
        self.stack = ExitStack()
        make_log(self.url, directory)

    def sink(self) -> LogSink:
        sink = LogSink(STREAM, store=self.url)
        sink.open()
        self.stack.callback(sink.close)
        return sink

    def frame(self, rows: Sequence[Row], *, names: Sequence[str] = ("id", "word")) -> DataFrame:
        """The number is the key, and the word is the body."""
        body = {"word": "body"}.get(names[1], names[1])
        return local_frame(
            f"key string, {body} string", [(str(number), word) for number, word in rows]
        )

    def rows(self) -> list[Row]:
        found: list[Row] = []
        with Log.open(self.url) as log:
            for number in range(log.stream(STREAM).partitions):
                with log.reader(STREAM, number) as reader:
                    events = [event for batch in reader.batches() for event in batch]
                found += [(int(event.key or 0), event.body.decode()) for event in events]
        return sorted(found)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[LogSetup]:
    made = LogSetup(tmp_path)
    yield made
    made.stack.close()


def test_a_log_sink_tells_where_it_writes_before_it_is_opened(tmp_path: Path) -> None:
    sink = LogSink(f"log:{STREAM}", store=f"sqlite:///{tmp_path}/store.db", name="copies")
    assert (sink.stream, sink.store) == (STREAM, f"sqlite:///{tmp_path}/store.db")


def test_a_column_of_times_is_refused_by_its_name(setup: LogSetup) -> None:
    """The type of a time needs a zone: without one Spark gives no words at all."""
    frame = local_frame("key string, body string, at timestamp", [])
    with pytest.raises(SinkUnfit, match=r"can not be sent to the log: columns at can not be sent"):
        setup.sink().stage(frame, batch_of(("0", 0, 1, 1)))


@pytest.mark.parametrize("writer", [batch_writer, stream_writer])
def test_a_writer_refuses_a_column_of_times_by_its_name(
    setup: LogSetup, writer: Callable[..., object]
) -> None:
    columns = local_frame("key string, body string, at timestamp", []).schema
    options = {"store": setup.url, "stream": STREAM, "name": "copies"}
    if writer is batch_writer:
        del options["name"]
    with pytest.raises(SinkUnfit, match=r"can not be sent to the log: columns at can not be sent"):
        writer(options, columns, overwrite=False)


@pytest.mark.spec("S4", "B5")
@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_the_log_keeps_the_contract_of_a_sink(case: Case, setup: LogSetup) -> None:
    case(setup)
