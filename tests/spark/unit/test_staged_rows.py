"""Rows on their way into the log: what a task stages, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.errors import SinkUnfit, VolumeUnusable
from leasehold.events import SENT_SCHEMA, partition_of
from leasehold.log import StreamInfo, StreamSettings
from leasehold.spark.log_writer import staged_rows
from leasehold.spark.log_writer.staged_rows import (
    StagingPlan,
    check_columns,
    size_and_checksum,
    stage,
    staged_batches,
)


def plan_in(directory: Path, *, partitions: int = 4, segment_bytes: int = 64 << 20) -> StagingPlan:
    settings_ = StreamSettings(partitions=partitions, segment_bytes=segment_bytes)
    stream = StreamInfo(name="orders", settings=settings_, created_at="")
    return StagingPlan.of(stream, str(directory))


def rows(keys: list[str | None], *, first: int = 0) -> pa.RecordBatch:
    bodies = [str(first + path).encode() for path in range(len(keys))]
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string()), "body": bodies})


@settings(max_examples=60)
@given(
    batches=st.lists(st.lists(st.sampled_from([None, "a", "b", "c", "ä"]), max_size=8), max_size=6),
    partitions=st.integers(1, 5),
    frame_bytes=st.sampled_from([1, 60, 1 << 20]),
)
def test_every_row_is_staged_once_for_the_partition_of_its_key_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[str | None]],
    partitions: int,
    frame_bytes: int,
) -> None:
    plan = plan_in(tmp_path_factory.getbasetemp(), partitions=partitions)
    plan = replace(plan, frame_bytes=frame_bytes)
    given_, number = [], 0
    for keys in batches:
        given_.append(rows(keys, first=number))
        number += len(keys)
    file = stage(iter(given_), plan, task=3, token="t")
    if not number:
        assert file is None
        assert not list(Path(plan.directory).glob("*.arrow"))
        return
    assert file is not None
    assert (file.rows, file.task, file.partitions) == (number, 3, partitions)
    assert size_and_checksum(Path(file.path)) == (file.bytes, file.checksum)
    seen: list[int] = []
    last: dict[int, int] = {}
    for partition, batch in staged_batches(file.path):
        assert batch.schema == SENT_SCHEMA
        for row in batch.to_pylist():
            path = int(row["body"])
            assert last.get(partition, -1) < path
            last[partition] = path
            seen.append(path)
            if row["key"] is not None:
                assert partition == partition_of(row["key"], partitions)
    Path(file.path).unlink()
    assert sorted(seen) == list(range(number))


def test_batches_are_of_the_size_of_a_frame(tmp_path: Path) -> None:
    plan = replace(plan_in(tmp_path, partitions=2), frame_bytes=1000)
    file = stage((rows(["a", "b"] * 50, first=n * 100) for n in range(20)), plan, task=0, token="t")
    assert file is not None
    sizes = [batch.nbytes for _, batch in staged_batches(file.path)]
    assert max(sizes) <= 1000
    assert sum(size < 400 for size in sizes) <= 4  # the rest of each partition, and halves of it


def test_memory_is_bounded_with_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_rows, "_MAX_BUFFERED_BYTES", 5000)
    plan = plan_in(tmp_path, partitions=50)
    keys: list[str | None] = [f"k{number}" for number in range(100)]
    file = stage((rows(keys) for _ in range(20)), plan, task=0, token="t")
    assert file is not None
    assert len(list(staged_batches(file.path))) > 2 * 50


def test_what_the_log_could_not_store_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, segment_bytes=4096)
    big = pa.RecordBatch.from_pydict({"body": [b"x", b"x" * 5000]})
    with pytest.raises(SinkUnfit, match="one of 'orders' may have 4096"):
        stage([big], plan, task=0, token="t")
    null = pa.RecordBatch.from_pydict({"body": pa.array([b"x", None], pa.binary())})
    with pytest.raises(SinkUnfit, match="body is 1 nulls"):
        stage([null], plan, task=0, token="t")

    def broken() -> object:
        yield rows(["a"])
        raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's"):
        stage(broken(), plan, task=0, token="t")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_executor_that_does_not_see_the_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(VolumeUnusable, match="option staging"):
        stage([rows(["a"])], plan_in(tmp_path / "elsewhere"), task=0, token="t")
    assert not (tmp_path / "elsewhere").exists()


def test_only_the_columns_of_events_are_taken() -> None:
    check_columns(pa.schema([("body", pa.string())]))
    check_columns(pa.schema([("properties", pa.map_(pa.utf8(), pa.utf8())), ("body", pa.binary())]))
    for columns, message in (
        ([("key", pa.utf8())], "body is missing"),
        ([("body", pa.int64())], "column body is int64"),
        ([("body", pa.utf8()), ("a", pa.utf8()), ("b", pa.utf8())], "columns a, b"),
        ([("body", pa.utf8()), ("key", pa.int32())], "column key is int32"),
        (
            [("body", pa.utf8()), ("properties", pa.map_(pa.utf8(), pa.int32()))],
            "column properties is map",
        ),
    ):
        with pytest.raises(SinkUnfit, match=message):
            check_columns(pa.schema(columns))
