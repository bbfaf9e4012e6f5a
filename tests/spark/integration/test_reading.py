"""Reading ranges as Arrow, as a task of Spark does it, from a real log and without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.spark_streams import STREAM, Stream, numbered, opened_stream

from leasehold.errors import BeyondEnd, DataDamaged, Trimmed, UnknownStream, UsageError
from leasehold.spark import reading
from leasehold.spark.reading import Range, close_stream, open_stream, read_events
from leasehold.spark.schema import EVENTS, arrow_schema, select_columns


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with opened_stream(tmp_path) as made:
        yield made
        close_stream(STREAM, made.url)


def whole(*ranges: tuple[str, int, int]) -> list[Range]:
    return [Range(partition=name, start=start, end=end) for name, start, end in ranges]


def numbers(batches: Iterator[pa.RecordBatch]) -> list[tuple[str, int]]:
    return [
        (row["partition"], row["sequence_number"])
        for batch in batches
        for row in batch.select(["partition", "sequence_number"]).to_pylist()
    ]


@pytest.mark.spec("S2")
def test_ranges_come_whole_in_order_and_with_the_schema_of_spark(stream: Stream) -> None:
    stream.send(0, numbered(0, 5), numbered(5, 5))
    stream.send(2, numbered(0, 4))
    ranges = whole(("2", 1, 3), ("0", 3, 9))

    batches = list(read_events(STREAM, stream.url, ranges, EVENTS.fieldNames()))

    assert all(batch.schema == arrow_schema(EVENTS) for batch in batches)
    assert numbers(iter(batches)) == [("2", 1), ("2", 2), *(("0", n) for n in range(3, 9))]
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies[2] == b'{"n": 3, "name": "e3"}'


def test_columns_come_in_the_order_and_with_the_nullability_that_is_asked_for(
    stream: Stream,
) -> None:
    stream.send(1, numbered(0, 4))
    schema = pa.schema([pa.field("body", pa.binary()), pa.field("key", pa.utf8())])

    [batch] = read_events(f"log:{STREAM}", stream.url, whole(("1", 0, 4)), schema)

    assert batch.schema == schema
    assert batch.column("key").to_pylist() == [None, "k1", "k2", None]


def test_small_frames_are_joined_and_large_ones_sent_in_parts(stream: Stream) -> None:
    stream.send(0, *(numbered(10 * each, 10) for each in range(20)))
    stream.send(1, numbered(0, 100))
    ranges = whole(("0", 0, 200), ("1", 0, 100))

    batches = list(
        read_events(
            STREAM,
            stream.url,
            ranges,
            ["partition", "sequence_number"],
            min_rows=64,
            min_bytes=0,
            max_rows=80,
        )
    )

    assert [batch.num_rows for batch in batches] == [70, 70, 140, 20]
    assert numbers(iter(batches)) == [
        *(("0", n) for n in range(200)),
        *(("1", n) for n in range(100)),
    ]


def test_a_large_frame_is_not_copied(stream: Stream) -> None:
    stream.send(0, numbered(0, 2000))

    [batch] = read_events(STREAM, stream.url, whole(("0", 0, 2000)), ["body"])

    [source] = open_stream(STREAM, stream.url).read("0", 0, 2000)
    assert batch.num_rows == 2000
    before = pa.total_allocated_bytes()
    [again] = read_events(STREAM, stream.url, whole(("0", 0, 2000)), ["body"])
    assert again.equals(batch)
    assert pa.total_allocated_bytes() - before < source.arrow.nbytes // 10


def test_large_events_are_bounded_by_their_bytes(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 1 << 10)
    stream.send(0, numbered(0, 200))

    batches = list(read_events(STREAM, stream.url, whole(("0", 0, 200)), ["body"]))

    assert sum(batch.num_rows for batch in batches) == 200
    assert max(batch.nbytes for batch in batches) < 3 << 10


def test_short_cuts_of_large_frames_are_joined_by_what_they_are_and_not_by_their_frames(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Arrow tells the bytes of the whole frame much faster than those of a part of it.
    monkeypatch.setattr(reading, "MAX_BYTES", 32 << 10)
    stream.send(0, numbered(0, 2000), numbered(2000, 2000))
    ranges = whole(*(("0", first, first + 10) for first in range(0, 4000, 400)))

    [batch] = read_events(STREAM, stream.url, ranges, ["sequence_number", "body"])

    assert batch.num_rows == 100


@pytest.mark.process
def test_a_stream_is_opened_once_for_a_process_and_anew_after_a_fork(stream: Stream) -> None:
    first = open_stream(STREAM, stream.url)

    assert open_stream(STREAM, stream.url) is first
    child = os.fork()
    if not child:
        os._exit(0 if open_stream(STREAM, stream.url) is not first else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    close_stream(STREAM, stream.url)
    assert open_stream(STREAM, stream.url) is not first


def test_an_unknown_column_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(UsageError, match="no column 'size'"):
        read_events(STREAM, "sqlite:////nowhere/log.db", [], ["size"])


def test_damage_is_told_with_partition_and_range(stream: Stream) -> None:
    stream.send(0, numbered(0, 50))
    for path in stream.files():
        data = bytearray(path.read_bytes())
        at = data.find(b'"name": "e30"')
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)

    with pytest.raises(DataDamaged, match=r"events 0\[10, 40\) of 'orders' can not be read"):
        list(read_events(STREAM, stream.url, whole(("0", 10, 40)), ["key"]))


def test_an_end_that_can_not_be_told_is_an_error_and_not_an_earlier_end(stream: Stream) -> None:
    stream.send(0, numbered(0, 5))
    for path in stream.files():
        data = path.read_bytes()
        if data.startswith(b"LHSEGMNT"):
            path.write_bytes(b"\0" * 64 + data[64:])

    source = open_stream(STREAM, stream.url)

    assert source.ends(["1"])["1"].next == 0
    with pytest.raises(DataDamaged):
        source.ends(["0"])


def test_what_is_not_there_yet_is_told_with_partition_and_range(stream: Stream) -> None:
    stream.send(0, numbered(0, 5))

    with pytest.raises(BeyondEnd, match=r"events 0\[0, 9\) of 'orders' can not be read") as caught:
        list(read_events(STREAM, stream.url, whole(("0", 0, 9)), ["key"]))

    assert caught.value.end == 5


def test_what_retention_has_removed_is_told_with_partition_and_range(tmp_path: Path) -> None:
    with opened_stream(tmp_path, segment_bytes=65536) as stream:
        for first in range(0, 4000, 500):
            stream.send(0, numbered(first, 500))
        stream.log.trim(STREAM, execute=True, keep_bytes=1)

        with pytest.raises(Trimmed, match=r"events 0\[0, 100\) of 'orders'"):
            list(read_events(STREAM, stream.url, whole(("0", 0, 100)), ["key"]))
        close_stream(STREAM, stream.url)


def test_a_stream_that_was_deleted_is_told(stream: Stream) -> None:
    stream.send(0, numbered(0, 5))
    open_stream(STREAM, stream.url)
    stream.log.delete(STREAM)

    with pytest.raises(UnknownStream, match=r"events 0\[0, 5\)"):
        list(read_events(STREAM, stream.url, whole(("0", 0, 5)), ["key"]))


@pytest.mark.process
def test_reading_does_not_load_pandas(stream: Stream) -> None:
    # It takes a second of each worker, and Arrow loads it wherever it can.
    stream.send(1, numbered(0, 4))
    program = (
        "import sys; from leasehold.spark import source; from leasehold.spark.schema import EVENTS;"
        "from leasehold.spark.reading import Range, read_events;"
        "rows = [Range(partition='1', start=0, end=4)];"
        f"[batch] = read_events({STREAM!r}, {stream.url!r}, rows, EVENTS.fieldNames());"
        "print(batch.num_rows, 'pandas' in sys.modules)"
    )

    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert output.stdout.split() == ["4", "False"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "frozen"), [("pyspark.daemon", "True"), ("my_program", "False")]
)
def test_only_in_a_worker_of_spark_modules_are_kept_out_of_collections(
    module: str, frozen: str
) -> None:
    # Its main module tells a worker; what a program of somebody else collects is not our matter.
    program = (
        "import gc, sys; from importlib.machinery import ModuleSpec;"
        f"sys.modules['__main__'].__spec__ = ModuleSpec({module!r}, None);"
        "from leasehold.spark.reading import freeze_garbage_collection as freeze;"
        "freeze(); first = gc.get_freeze_count();"
        "kept = [[] for _ in range(1000)]; freeze();"
        "print(first > 10_000, gc.get_freeze_count() == first)"
    )

    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert output.stdout.split() == [frozen, "True"]


def test_no_ranges_give_no_batches(stream: Stream) -> None:
    assert list(read_events(STREAM, stream.url, [], select_columns(["key"]).fieldNames())) == []
    assert list(read_events(STREAM, stream.url, whole(("0", 0, 0)), ["key"])) == []
