"""What an audit reads of a PostgreSQL table and of a stream: all rows of one moment, or why not."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from tests.support.local_frames import local_frame
from tests.support.log_publisher import (
    STREAM,
    batch_part,
    commit_request,
    make_log,
    publisher,
    staged,
)
from tests.support.postgres import database, execute
from tests.support.sink_contract import GROUP, batch_of

from leasehold.errors import StoreUnavailable, StoreUnusable, Trimmed, UnknownResource
from leasehold.events import Event
from leasehold.log import Log
from leasehold.spark import PostgresSink
from leasehold.spark.audit.gather import _read_sink
from leasehold.spark.audit.rows import (
    TableSnapshot,
    names_its_event,
    stream_snapshot,
    table_snapshot,
)
from leasehold.stores.postgres.address import DatabaseAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK = cast("SparkSession", None)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database(migrated=False) as made:
        yield made


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def table(url: str, name: str, columns: str) -> DatabaseAddress:
    execute(url, f"drop table if exists {name} cascade")
    execute(url, f"create table {name} ({columns})")
    return DatabaseAddress.of(url)


def read(moment: TableSnapshot, shares: list[tuple[str, str] | None]) -> list[tuple[str, int]]:
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(shares)))})
    batches = moment.reader(shares)([numbers])
    return [(row["partition"], row["sequence_number"]) for b in batches for row in b.to_pylist()]


@pytest.mark.server
@pytest.mark.spec("S4")
def test_tasks_read_every_row_once_as_it_was_when_the_driver_looked(
    url: str, held: ExitStack
) -> None:
    address = table(url, "wide", "partition int, sequence_number bigint, word text")
    fill = (
        "insert into wide select 3, n, repeat('x', 500) from generate_series(%s::int, %s::int) as n"
    )
    execute(url, fill, 0, 999)
    moment = table_snapshot(address, "public", "wide", until=held)
    execute(url, fill, 1000, 1099)
    execute(url, "delete from wide where sequence_number < 10")
    shares = moment.page_ranges(task_pages=7)
    assert moment.numbered
    assert len(shares) > 5
    assert sorted(read(moment, shares)) == [("3", number) for number in range(1000)]
    assert moment.count() == 1000


@pytest.mark.server
@pytest.mark.spec("S4")
def test_an_empty_table_and_a_view_are_read_too(url: str, held: ExitStack) -> None:
    address = table(url, "narrow", "partition text, sequence_number int")
    moment = table_snapshot(address, "public", "narrow", until=held)
    assert (read(moment, moment.page_ranges()), moment.count()) == ([], 0)
    held.close()
    execute(url, "insert into narrow values ('0', 1), (null, 2), ('0', 1)")
    execute(url, "create view seen as select * from narrow where partition = '0'")
    moment = table_snapshot(address, "public", "seen", until=held)
    assert moment.page_ranges() == [None]
    assert read(moment, moment.page_ranges()) == [("0", 1), ("0", 1)]


@pytest.mark.server
@pytest.mark.parametrize(
    ("columns", "replaced"),
    [
        ("partition text, sequence_number bigint", False),
        ("partition text, sequence_number bigint, primary key (sequence_number, partition)", False),
        ("id bigserial primary key, partition text, sequence_number bigint", False),
        ("id bigint generated always as identity primary key, word text", False),
        ("carrier text primary key, flights bigint", True),
        ("carrier text, flights bigint, unique (carrier) deferrable", False),
    ],
)
def test_a_key_by_which_rows_are_replaced_is_noticed(
    url: str, held: ExitStack, columns: str, *, replaced: bool
) -> None:
    address = table(url, "keyed", columns)
    message = table_snapshot(address, "public", "keyed", until=held).replaced
    assert bool(message) is replaced
    assert not message or "(carrier)" in message


@pytest.mark.server
@pytest.mark.spec("S4")
def test_a_table_that_may_not_be_read_whole_is_told_without_secrets(
    url: str, held: ExitStack
) -> None:
    table(url, "private", "partition text, sequence_number bigint")
    role = f"audit_reader_{os.getpid()}"
    execute(url, f"create role {role}")
    held.callback(execute, url, f"drop role {role}")
    held.callback(execute, url, f"drop owned by {role}")
    reader = DatabaseAddress.of(f"{url}&options=-c%20role%3D{role}&password=pa55word")
    with pytest.raises(StoreUnusable, match="permission denied for table private") as refused:
        table_snapshot(reader, "public", "private", until=held)
    assert "right to read" in str(refused.value)
    assert "pa55word" not in str(refused.value)
    execute(url, f"grant select on private to {role}")
    table_snapshot(reader, "public", "private", until=held)


@pytest.mark.server
@pytest.mark.spec("S4")
def test_rows_that_a_policy_hides_are_not_taken_for_lost_ones(url: str, held: ExitStack) -> None:
    table(url, "hidden", "partition text, sequence_number bigint")
    role = f"audit_half_blind_{os.getpid()}"
    execute(url, f"create role {role}")
    held.callback(execute, url, f"drop role {role}")
    held.callback(execute, url, f"drop owned by {role}")
    execute(url, f"grant select on hidden to {role}")
    execute(url, "alter table hidden enable row level security")
    reader = DatabaseAddress.of(f"{url}&options=-c%20role%3D{role}")
    with pytest.raises(StoreUnusable, match="row-level security"):
        table_snapshot(reader, "public", "hidden", until=held)


@pytest.mark.server
@pytest.mark.spec("S4")
def test_a_table_that_is_gone_leaves_its_commits_and_the_reason(url: str, held: ExitStack) -> None:
    sink = PostgresSink(url, "gone", create=True)
    sink.open()
    held.callback(sink.close)
    early = _read_sink(NO_SPARK, sink, GROUP, "", until=held.enter_context(ExitStack()))
    assert (early.commits, early.trouble) == ((), "")
    batch = batch_of(("0", 0, 1, 1))
    frame = local_frame("partition string, sequence_number bigint", [("0", 0)])
    sink.commit(sink.stage(frame, batch), batch)
    execute(url, "drop table gone")
    late = _read_sink(NO_SPARK, sink, GROUP, "", until=held.enter_context(ExitStack()))
    assert (len(late.commits or ()), late.rows) == (1, None)
    assert 'there is no table "public"."gone"' in late.trouble


def sent(url: str, *events: Event) -> None:
    with Log.open(url) as log, log.producer(STREAM) as producer:
        for number, event in enumerate(events):
            producer.send(event, partition=number % 3).result()


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    make_log(url, tmp_path)
    return url


@pytest.mark.spec("S4")
def test_the_events_of_a_stream_say_whether_they_tell_of_which_event_they_are(store: str) -> None:
    nothing = stream_snapshot(STREAM, store)
    assert (nothing.numbered, sum(map(len, nothing.ranges))) == (False, 0)
    sent(store, Event(body=b"plain"), Event(body=b'{"partition": 0}'))
    assert not stream_snapshot(STREAM, store).numbered
    sent(store, *[Event(body=b"x")] * 2, Event(body=b'{"partition": 0, "sequence_number": 7}'))
    found = stream_snapshot(STREAM, store)
    assert (found.numbered, sum(map(len, found.ranges))) == (True, 5)


@pytest.mark.parametrize(
    ("properties", "body", "result"),
    [
        ({"partition": "0", "sequence_number": "7"}, b"\xff", True),
        ([("partition", "0"), ("sequence_number", "7")], b"", True),
        ({"partition": "0"}, b'{"sequence_number": 0}', True),
        (None, b'{"partition": null, "sequence_number": 0}', False),
        (None, b"[" * 100_000, False),
        (None, b"[1]", False),
    ],
)
def test_an_event_tells_in_its_properties_or_in_its_body(
    properties: dict[str, str] | None, body: bytes, *, result: bool
) -> None:
    assert names_its_event(properties, body) is result


@pytest.mark.spec("S4")
def test_a_batch_that_is_not_published_yet_is_waited_for(store: str) -> None:
    with ExitStack() as stack:
        made = publisher(store)
        stack.callback(made.close)
        files = staged(made.plan(), "a", 10)
        with Log.open(store) as log:
            entered = made.ledger.commit(
                commit_request(batch_part("0", 0, 10)), files, log.stream(STREAM)
            )
        with pytest.raises(StoreUnavailable, match="not published yet"):
            stream_snapshot(STREAM, store)
        assert entered.record is not None
        made.ledger.publish(entered.record, forget=False)
        assert stream_snapshot(STREAM, store).stream == STREAM


@pytest.mark.spec("S4")
def test_a_stream_whose_first_events_retention_has_removed_is_no_proof(tmp_path: Path) -> None:
    url, dice = f"sqlite:///{tmp_path}/store.db", random.Random(1)
    with Log.open(url, volumes=[tmp_path / "volume"]) as log:
        log.create(STREAM, partitions=1, segment_bytes=4096, retention_bytes=4096)
        with log.producer(STREAM) as producer:
            for _ in range(8):
                producer.send(Event(body=dice.randbytes(3000)), partition=0).result()
        log.trim(STREAM, execute=True)
    with pytest.raises(Trimmed, match="retention has removed"):
        stream_snapshot(STREAM, url)


def test_a_stream_that_is_gone_is_named(store: str) -> None:
    with pytest.raises(UnknownResource, match="'nosuch'"):
        stream_snapshot("nosuch", store)
