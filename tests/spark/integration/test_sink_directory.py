"""Directories that a sink can not have: each is refused at open, in words, and left as it is."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from tests.support.delta_tables import GROUP, NO_SPARK, opened, put

from leasehold.errors import SinkUnfit, StoreUnavailable, VolumeUnusable
from leasehold.spark import DeltaSink, ParquetSink
from leasehold.spark.sinks.delta.files import TaskWriter
from leasehold.spark.sinks.delta.storage import Storage, storage_at
from leasehold.spark.sinks.parquet.files import write_files

Opening = Callable[[Path], None]
DISK = fs.LocalFileSystem()


@pytest.fixture(params=["delta", "parquet"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    """Opens a sink of each kind."""

    def delta(path: Path) -> None:
        DeltaSink(path).open(NO_SPARK)

    def parquet(path: Path) -> None:
        sink = ParquetSink(path, store=f"sqlite:///{tmp_path}/leases.db")
        sink.open()
        sink.close()

    return {"delta": delta, "parquet": parquet}[request.param]


def _all_in(directory: Path) -> set[str]:
    return {str(each.relative_to(directory)) for each in directory.rglob("*")}


@pytest.mark.parametrize("commits", [True, False], ids=["with-rows", "only-fenced"])
def test_a_parquet_sink_does_not_write_into_a_delta_table(tmp_path: Path, commits: bool) -> None:
    path = tmp_path / "delays"
    table = opened(path)
    table.fence(GROUP, {"0": 1})
    if commits:
        put(table, path, ("0", 0, 3, 1))
    before = _all_in(tmp_path)
    sink = ParquetSink(path, store=f"sqlite:///{tmp_path}/leases.db")
    with pytest.raises(SinkUnfit, match=r"^parquet:.*delays can not be used: a Delta table is"):
        sink.open()
    assert _all_in(tmp_path) == before, "not even a store was made"


def test_a_delta_table_is_not_made_in_the_directory_of_a_parquet_sink(tmp_path: Path) -> None:
    path = tmp_path / "delays"
    sink = ParquetSink(path, store=f"sqlite:///{tmp_path}/leases.db")
    sink.open()
    sink.close()
    with pytest.raises(SinkUnfit, match=r"^delta:.*delays can not be used: a Parquet sink is in"):
        opened(path)
    assert _all_in(path) == {"_leasehold.json"}


def test_each_opens_its_own_directory_again_and_makes_those_above_it(
    tmp_path: Path, opening: Opening
) -> None:
    path = tmp_path / "not" / "there" / "yet"
    opening(path)
    assert path.is_dir()
    opening(path)


def test_a_file_is_no_directory(tmp_path: Path, opening: Opening) -> None:
    path = tmp_path / "delays"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(SinkUnfit, match=r"delays is a file, not a directory: give"):
        opening(path)
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("above", "why"), [("file", "Not a directory"), ("/proc/nope", "No such file or directory")]
)
def test_a_directory_that_can_not_be_made_is_told_with_the_reason(
    tmp_path: Path, opening: Opening, above: str, why: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkUnfit, match=rf"can not be made: {why} .*, give a directory that this"):
        opening(tmp_path / above / "table")


def test_a_directory_that_is_there_and_takes_no_files_is_told_too(tmp_path: Path) -> None:
    sink = ParquetSink("/proc", store=f"sqlite:///{tmp_path}/leases.db")
    with pytest.raises(SinkUnfit, match=r"^parquet:/proc can not be written: No such file"):
        sink.open()
    with pytest.raises(SinkUnfit, match=r"^delta:/proc can not be written: No such file"):
        opened(Path("/proc")).fence(GROUP, {"0": 1})


def _written_by_delta(path: Path, by: tuple[str, ...], value: str) -> None:
    path.mkdir(exist_ok=True)
    rows = pa.RecordBatch.from_pydict({"name": [value], "n": [1]})
    writer = TaskWriter(storage=storage_at(path, None), token="t", partition_by=by, required=())
    writer.write("part-leasehold-0", iter([rows]))


def _written_by_parquet(path: Path, by: tuple[str, ...], value: str) -> None:
    path.mkdir(exist_ok=True)
    rows = pa.RecordBatch.from_pydict({"name": [value], "n": [1]})
    write_files([rows], directory=str(path), batch="b", attempt="a", partition_by=by)


@pytest.mark.parametrize("write", [_written_by_delta, _written_by_parquet])
def test_a_full_disk_of_a_task_is_told_as_one_and_nothing_is_left(
    tmp_path: Path, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    path = tmp_path / "delays"
    with pytest.raises(VolumeUnusable, match=r"delays on this machine \(.*No space left"):
        write(path, (), "a")
    assert _all_in(path) == set()


def test_a_value_that_is_too_long_for_a_directory_is_the_fault_of_its_row(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="name too long"):
        _written_by_delta(tmp_path / "delays", ("name",), "a" * 300)


def test_a_bucket_that_a_task_does_not_reach_is_a_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise OSError("the connection was cut")

    monkeypatch.setattr(Storage, "open_fs", lambda _: fs.SubTreeFileSystem(str(tmp_path), DISK))
    monkeypatch.setattr(Storage, "finish", cut_off)
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    storage = storage_at("s3://user:secret@bucket/delays", None)
    writer = TaskWriter(storage=storage, token="t", partition_by=(), required=())
    with pytest.raises(StoreUnavailable, match=r"s3://bucket/delays \(the connection was cut\)"):
        writer.write("part-leasehold-0", iter([rows]))
    assert _all_in(tmp_path) == set()
