"""What a task writes: statistics never too narrow, files of a bounded size, nothing left over."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leasehold.spark.sinks.delta import files as files_of_delta
from leasehold.spark.sinks.delta.files import TaskWriter, parse_results, stats_of
from leasehold.spark.sinks.delta.storage import storage_at
from leasehold.spark.sinks.delta.table_log import parse_version

MOMENT = datetime(2013, 1, 1, 5, 0, 0, 1001, UTC)


def stats(table: pa.Table, **options: Any) -> dict[str, Any]:
    out = io.BytesIO()
    pq.write_table(table, out, store_schema=False, **options)
    results = json.loads(stats_of(pq.read_metadata(io.BytesIO(out.getvalue()))))
    assert isinstance(results, dict)
    return results


def writer(path: Path, *by: str, required: tuple[str, ...] = ()) -> TaskWriter:
    return TaskWriter(
        storage=storage_at(path, None), token="test", partition_by=by, required=required
    )


def test_bounds_are_of_all_row_groups_and_moments_are_rounded_outwards() -> None:
    table = pa.table(
        {
            "n": [3, None, -2],
            "text": ["b", "ä", "c"],
            "day": [date(2013, 1, 2)] * 3,
            "at": pa.array([MOMENT] * 3, pa.timestamp("us", "UTC")),
        }
    )
    results = stats(table, row_group_size=1)
    assert results["numRecords"] == 3
    assert results["minValues"] == {
        "n": -2,
        "text": "b",
        "day": "2013-01-02",
        "at": "2013-01-01T05:00:00.001Z",
    }
    assert results["maxValues"] == {
        "n": 3,
        "text": "ä",
        "day": "2013-01-02",
        "at": "2013-01-01T05:00:00.002Z",
    }
    assert results["nullCount"] == {"n": 1, "text": 0, "day": 0, "at": 0}


def test_what_has_no_safe_bound_has_none() -> None:
    results = stats(
        pa.table(
            {
                "fraction": [1.0, float("nan")],
                "long": ["x" * 65, "y"],
                "nothing": pa.array([None, None], pa.int64()),
                "many": [[1], [2]],
            }
        )
    )
    assert (results["minValues"], results["maxValues"]) == ({}, {})
    assert results["nullCount"] == {"fraction": 0, "long": 0, "nothing": 2}


def test_a_file_that_is_large_enough_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_of_delta, "_GROUP_BYTES", 1)
    monkeypatch.setattr(files_of_delta, "_FILE_BYTES", 1)
    batches = [pa.record_batch({"n": [i]}) for i in range(3)]
    files, refused = parse_results([writer(tmp_path).write("part", iter(batches))])
    assert (len(files), refused) == (3, [])
    assert [pq.read_table(tmp_path / each.path)["n"].to_pylist() for each in files] == [
        [0],
        [1],
        [2],
    ]


def test_only_so_many_files_are_open_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_of_delta, "_MAX_OPEN", 2)
    rows = pa.record_batch({"k": [1, 2, 3, 1], "n": [0, 1, 2, 3]})
    files, _ = parse_results([writer(tmp_path, "k").write("part", iter([rows]))])
    assert sorted(each.cut for each in files) == [(("k", "1"),), (("k", "2"),), (("k", "3"),)]
    assert sum(each.rows for each in files) == 4


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_of_delta, "_GROUP_BYTES", 1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise ValueError("a bad row")

    with pytest.raises(ValueError, match="a bad row"):
        writer(tmp_path).write("part", failing())
    assert list(tmp_path.iterdir()) == []


def test_a_null_in_a_column_that_takes_none_is_named(tmp_path: Path) -> None:
    rows = pa.record_batch({"n": pa.array([1, None], pa.int64())})
    assert parse_results([writer(tmp_path, required=("n",)).write("part", iter([rows]))]) == (
        (),
        ["n"],
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parameters", "whole"),
    [
        ({"mode": "Overwrite"}, True),
        ({"mode": "Overwrite", "predicate": "[]"}, True),
        ({"mode": "Overwrite", "predicate": "day = '2013-01-01'"}, False),
        ({"mode": "Overwrite", "partitionOverwriteMode": "dynamic"}, False),
        ({"mode": "Append"}, False),
    ],
)
def test_an_overwrite_of_a_part_is_told_from_one_of_the_whole(
    parameters: dict[str, str], whole: bool
) -> None:
    info = {"commitInfo": {"operation": "WRITE", "operationParameters": parameters}}
    assert bool(parse_version(1, json.dumps(info)).replaces) is whole


def test_a_bucket_is_named_without_its_secrets() -> None:
    path = storage_at("s3://key:secret@bucket/delays?token=1", {"AWS_SECRET_ACCESS_KEY": "hidden"})
    assert path.name == "s3://bucket/delays"
    assert "hidden" not in repr(path)
    assert storage_at("file:///data/a%20b", None).uri == "/data/a b"
