"""The Parquet sink without Spark: its files, its manifest, its pointer, its sweep, its schema."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.local_frames import local_frame
from tests.support.postgres import database, execute
from tests.support.sink_contract import GROUP, batch_of, known, put, rows_of
from tests.support.sink_setups import ParquetSetup

from leasehold.errors import BatchFailed, InvalidUrl, SinkChanged, SinkUnfit, UsageError
from leasehold.spark import ParquetSink, SinkPosition, committed_files
from leasehold.spark.sinks.parquet.files import batch_of as batch_in
from leasehold.spark.sinks.parquet.files import split, write_files
from leasehold.stores.postgres.migrations import migrations as postgres_migrations
from leasehold.stores.postgres.migrations import queries as postgres_queries
from leasehold.stores.sqlite.migrations import APPLICATION_ID
from leasehold.stores.sqlite.migrations import migrations as sqlite_migrations

NOW = timedelta(0)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[ParquetSetup]:
    made = ParquetSetup(tmp_path / "words", f"sqlite:///{tmp_path}/leases.db")
    yield made
    made.close()


def _files(setup: ParquetSetup) -> set[str]:
    return {str(path) for path in setup.directory.rglob("*.parquet")}


@pytest.mark.spec("S4")
@pytest.mark.parametrize("left_bytes", [None, 0, 100])
def test_a_staged_file_that_is_missing_or_short_is_not_committed(
    setup: ParquetSetup, left_bytes: int | None
) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 4, 1))
    staged = sink.stage(setup.frame(rows_of(0, 4)), batch)
    file = Path(max(_files(setup)))
    if left_bytes is None:
        file.unlink()
    else:
        os.truncate(file, left_bytes)
    with pytest.raises(BatchFailed, match=r"staged file .* (is missing|bytes)") as refused:
        sink.commit(staged, batch)
    assert refused.value.ranges == ("0[0, 4)",)
    sink.discard(staged)
    assert not _files(setup)
    put(setup, sink, batch, rows_of(0, 4))
    assert setup.rows() == rows_of(0, 4)


def test_a_sweep_removes_what_was_never_committed(setup: ParquetSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 2, 4, 1))
    put(setup, sink, batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    staged = sink.stage(setup.frame(rows_of(2, 4)), batch)
    assert sink.sweep().files == 0, "it is younger than a day: its driver may be at work"
    assert len(_files(setup)) == 4
    swept = sink.sweep(older_than=NOW)
    assert swept.files == 2
    assert swept.bytes > 0
    assert _files(setup) == set(committed_files(setup.directory))
    with pytest.raises(BatchFailed, match="swept away") as refused:
        sink.commit(staged, batch)
    assert refused.value.ranges == ("0[2, 4)",)
    assert known(sink) == SinkPosition(position=2, epoch=1)
    put(setup, sink, batch, rows_of(2, 4))
    assert sink.sweep(older_than=NOW).files == 0
    assert setup.rows() == rows_of(0, 4)


def test_a_sweep_removes_files_that_a_failed_task_left_of_a_committed_batch(
    setup: ParquetSetup,
) -> None:
    sink = setup.sink()
    put(setup, sink, batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    some = Path(committed_files(setup.directory)[0])
    left = some.with_name(some.name.replace("-0.parquet", "-9.parquet"))
    shutil.copy(some, left)
    (setup.directory / "of-a-stranger.parquet").write_bytes(b"")
    assert sink.sweep(older_than=NOW).files == 1
    assert not left.exists()
    assert (setup.directory / "of-a-stranger.parquet").exists()
    assert setup.rows() == rows_of(0, 2)


def test_discarded_files_are_gone_and_committed_ones_stay(setup: ParquetSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 2, 1))
    staged = sink.stage(setup.frame(rows_of(0, 2)), batch)
    sink.discard(staged)
    assert _files(setup) == set()
    with pytest.raises(BatchFailed):
        sink.commit(staged, batch)
    staged = sink.stage(setup.frame(rows_of(0, 2)), batch)
    sink.commit(staged, batch)
    sink.discard(staged)
    assert setup.rows() == rows_of(0, 2)
    sink.close()
    sink.discard(staged)
    assert setup.rows() == rows_of(0, 2)


def test_files_of_a_batch_that_was_done_before_are_removed(setup: ParquetSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 2, 1))
    put(setup, sink, batch, rows_of(0, 2))
    before = _files(setup)
    put(setup, sink, batch, rows_of(0, 2))
    assert _files(setup) == before


def test_a_task_that_fails_leaves_no_files(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"]})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_files(failing(), directory=str(tmp_path), batch="f", attempt="a", partition_by=["b"])
    assert list(tmp_path.rglob("*.parquet")) == []


def test_rows_are_laid_in_directories_and_no_value_is_lost(tmp_path: Path) -> None:
    odd = ["a/b", "", None, "..", "x=y", "ü" * 300, "a/b", "100%"]
    batch = pa.RecordBatch.from_pydict({"id": list(range(8)), "word": odd, "day": [1] * 8})
    batches = [batch, batch.slice(0, 0), batch.slice(2, 3)]
    options = {"batch": "f00", "attempt": "a", "partition_by": ["day", "word"]}
    files = write_files(batches, directory=str(tmp_path), **options)  # type: ignore[arg-type]
    assert {str(Path(each.path).parent)[:40] for each in files} == {
        "day=1/word=a%2Fb",
        "day=1/word=__HIVE_DEFAULT_PARTITION__",
        "day=1/word=..",
        "day=1/word=x%3Dy",
        "day=1/word=100%25",
        "day=1/word=" + "%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC"[:29],
    }
    found = [
        row for each in files for row in pq.ParquetFile(tmp_path / each.path).read().to_pylist()
    ]
    whole = batch.to_pylist() + batch.slice(2, 3).to_pylist()
    assert sorted(map(str, found)) == sorted(map(str, whole))
    assert sum(each.rows for each in files) == 11
    assert all((tmp_path / each.path).stat().st_size == each.bytes for each in files)
    assert {batch_in(Path(each.path).name) for each in files} == {"f00"}


def test_more_directories_than_files_may_be_open_are_written(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"id": list(range(100))})
    parts = list(split(batch, ["id"]))
    assert [part.column(0).to_pylist() for _, part in parts] == [[n] for n in range(100)]
    options = {"batch": "f", "attempt": "a", "partition_by": ["id"]}
    files = write_files([batch, batch], directory=str(tmp_path), **options)  # type: ignore[arg-type]
    assert sum(each.rows for each in files) == 200


def test_columns_may_come_in_another_order_and_not_with_other_types(setup: ParquetSetup) -> None:
    sink = setup.sink()
    put(setup, sink, batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    batch = batch_of(("0", 2, 3, 1))
    turned = local_frame("word string, id bigint", [("word 2", 2)])
    sink.commit(sink.stage(turned, batch), batch)
    assert setup.rows() == rows_of(0, 3)
    with pytest.raises(SinkUnfit) as refused:
        sink.stage(local_frame("word string, id int, more double", []), batch)
    assert "'id' is bigint there and int here; 'more' (double) is new" in str(refused.value)


def test_columns_that_could_not_be_read_again_are_refused(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    sink = ParquetSink(tmp_path / "words", store=store, partition_by=["tags", "day"])
    sink.open()
    with pytest.raises(SinkUnfit) as refused:
        sink.stage(
            local_frame("pause interval, tags array, Id bigint, id bigint", []),
            batch_of(("0", 0, 1, 1)),
        )
    text = str(refused.value)
    assert "'pause' holds interval" in text
    assert "'tags' is in partition_by and of many values" in text
    assert "'day' is in partition_by and no column" in text
    assert "'Id' is there twice" in text
    sink.close()


def test_two_first_batches_with_other_columns_do_not_both_win(setup: ParquetSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 1, 1))
    late = sink.stage(local_frame("noun string", [("a",)]), batch)
    put(setup, setup.sink(), batch_of(("1", 0, 2, 1)), rows_of(0, 2))
    with pytest.raises(SinkUnfit, match="'noun'"):
        sink.commit(late, batch)
    assert setup.rows() == rows_of(0, 2)
    assert known(sink).position is None


def test_a_directory_that_was_emptied_is_noticed(setup: ParquetSetup) -> None:
    put(setup, setup.sink(), batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    setup.close()
    shutil.rmtree(setup.directory)
    with pytest.raises(SinkChanged, match="emptied or made anew"):
        setup.sink()


def test_a_directory_that_was_moved_is_the_same_sink(setup: ParquetSetup) -> None:
    put(setup, setup.sink(), batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    setup.close()
    setup.directory = setup.directory.rename(setup.directory.with_name("moved"))
    put(setup, setup.sink(), batch_of(("0", 2, 3, 1)), rows_of(2, 3))
    assert setup.rows() == rows_of(0, 3)


def test_a_store_that_does_not_know_the_directory_is_refused(
    setup: ParquetSetup, tmp_path: Path
) -> None:
    setup.sink()
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(SinkChanged, match="does not know it"):
        ParquetSink(setup.directory, store=other).open()
    with pytest.raises(SinkChanged, match="does not know it"):
        committed_files(setup.directory, other)
    (setup.directory / "_leasehold.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SinkChanged, match="can not be read"):
        setup.sink()


@pytest.mark.server
def test_the_pointer_names_the_store_without_secrets_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = ParquetSink("words", store="sqlite:///leases.db")
    sink.open()
    sink.close()
    monkeypatch.chdir("/")
    assert committed_files(tmp_path / "words") == []
    with database() as url:
        sink = ParquetSink(tmp_path / "others", store=f"{url}&password=hunter2")
        sink.open()
        sink.close()
        text = (tmp_path / "others" / "_leasehold.json").read_text(encoding="utf-8")
        assert "hunter2" not in text
        assert json.loads(text)["store"].startswith("postgresql://")
        assert committed_files(tmp_path / "others") == []


def test_what_can_not_work_is_said_at_once(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    with pytest.raises(UsageError, match=r"partition_by=\['day'\]"):
        ParquetSink(tmp_path, store=store, partition_by="day")
    with pytest.raises(UsageError, match="is no directory"):
        ParquetSink("s3://bucket/words", store=store)
    with pytest.raises(UsageError, match="not open"):
        ParquetSink(tmp_path, store=store).fence(GROUP, {"0": 1})
    with pytest.raises(InvalidUrl):
        ParquetSink(tmp_path, store="memory://").open()
    with pytest.raises(UsageError, match="is no Parquet sink"):
        committed_files(tmp_path)


# --------------------------------------------------------------- older databases


def test_a_sqlite_file_of_the_last_version_is_taken_on(setup: ParquetSetup) -> None:
    path = setup.directory.parent / "leases.db"
    with closing(sqlite3.connect(path)) as connection:
        for number in (1, 2, 3, 4):
            connection.executescript(sqlite_migrations()[number])
        connection.execute("INSERT INTO log_stream VALUES ('orders', 4, 1, 1.0, 1, 1.0, 1, '')")
        connection.execute("PRAGMA user_version = 4")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
    put(setup, setup.sink(), batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    assert setup.rows() == rows_of(0, 2)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM log_stream").fetchall() == [("orders",)]


@pytest.mark.server
def test_a_postgres_database_of_the_last_version_is_taken_on(tmp_path: Path) -> None:
    with database(migrated=False) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for step in postgres_migrations()[:8]:
                with connection.transaction():
                    connection.execute(step.text)
                    connection.execute(
                        postgres_queries()["migration_done"],
                        {"number": step.number, "name": step.name},
                    )
        setup = ParquetSetup(tmp_path / "words", url)
        put(setup, setup.sink(), batch_of(("0", 0, 2, 1)), rows_of(0, 2))
        assert setup.rows() == rows_of(0, 2)
        last = execute(url, "select max(number) from leasehold.migration")
        assert last == [(len(postgres_migrations()),)]
        setup.close()
