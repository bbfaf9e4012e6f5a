"""A Delta table that somebody else has changed: what is refused, what passes, what is swept."""

from __future__ import annotations

import os
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from tests.support.delta_tables import (
    ARROW,
    GROUP,
    batch,
    data_files,
    numbers,
    opened,
    put,
    staged,
)

from leasehold.clock import SystemClock
from leasehold.errors import InvalidDuration, SinkChanged, SinkUnfit
from leasehold.spark import SinkPosition

RETENTION = {"delta.setTransactionRetentionDuration": "interval 1 days"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """With ten rows of partition 0."""
    made = tmp_path / "delays"
    put(opened(made), made, ("0", 0, 10, 1))
    return made


def test_a_table_that_was_deleted_is_not_made_again(table: Path) -> None:
    sink = opened(table)
    shutil.rmtree(table)
    with pytest.raises(SinkChanged, match="is gone"):
        put(sink, table, ("0", 10, 20, 1))


@pytest.mark.parametrize("versions", [1, 9])
def test_a_table_that_was_made_anew_is_told_from_the_old_one(table: Path, versions: int) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 2})
    shutil.rmtree(table)
    for _ in range(versions):
        write_deltalake(table, pa.table({"partition": ["0"], "number": [1]}), mode="append")
    with pytest.raises(SinkChanged, match="another table"):
        put(sink, table, ("0", 10, 20, 2))
    assert DeltaTable(table).version() == versions - 1


def test_a_table_put_back_from_an_old_copy_is_refused(table: Path, tmp_path: Path) -> None:
    shutil.copytree(table, tmp_path / "copy")
    sink = opened(table)
    put(sink, table, ("0", 10, 20, 1))
    sink.fence(GROUP, {"0": 1})
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "copy", table)
    with pytest.raises(SinkChanged, match="old copy"):
        put(sink, table, ("0", 20, 30, 1))
    assert numbers(table) == list(range(10))


def replace(table: Path, how: str) -> None:
    made = DeltaTable(table)
    if how == "restore":
        made.restore(0)
    elif how == "overwrite":
        write_deltalake(table, pa.table({"partition": ["0"], "number": [1]}), mode="overwrite")
    else:
        DeltaTable.create(table, ARROW, mode="overwrite")


@pytest.mark.parametrize("how", ["restore", "overwrite", "create or replace"])
def test_rows_replaced_as_a_whole_stop_the_group_until_its_positions_are_moved(
    table: Path, how: str
) -> None:
    running = opened(table)
    running.fence(GROUP, {"0": 2})
    replace(table, how)
    for sink in (running, running, opened(table)):
        with pytest.raises(SinkChanged):
            put(sink, table, ("0", 10, 20, 2))
        with pytest.raises(SinkChanged):
            sink.fence(GROUP, {"0": 3, "never seen": 1})
    assert opened(table).fence("partition/flights/new", {"0": 1}) == {"0": SinkPosition()}
    after = opened(table)
    after.move(GROUP, {"0": SinkPosition(position=0, epoch=3)})
    put(after, table, ("0", 0, 4, 3))
    put(opened(table), table, ("0", 4, 6, 3))


def test_rows_replaced_while_a_commit_was_under_way_refuse_it(table: Path) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 2})
    each = batch(("0", 10, 20, 2))
    rows = staged(table, each)
    refresh = sink._log.refresh
    refresh()
    replace(table, "overwrite")
    calls = iter([True])
    # It was judged before the rows were replaced.
    sink._log.refresh = lambda: next(calls, False) or refresh()  # type: ignore[method-assign]
    with pytest.raises(SinkChanged, match="mode Overwrite"):
        sink.commit(rows, each)
    sink.discard(rows)
    assert numbers(table) == [1]
    assert not (table / rows.inside.files[0].path).exists()


def test_rows_may_be_added_deleted_and_compacted_by_others(table: Path) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 2})
    write_deltalake(table, pa.table({"partition": ["x"], "number": [1]}), mode="append")
    DeltaTable(table).delete("number < 3")
    DeltaTable(table).optimize.compact()
    replaced = pa.table({"partition": ["x"], "number": [2]})
    write_deltalake(table, replaced, mode="overwrite", predicate="partition = 'x'")
    put(sink, table, ("0", 10, 12, 2))
    assert numbers(table) == list(range(3, 12))


def test_a_column_added_while_a_batch_was_written_refuses_the_batch(table: Path) -> None:
    sink = opened(table)
    each = batch(("0", 10, 20, 1))
    rows = staged(table, each)
    DeltaTable(table).alter.add_columns([Field("carrier", PrimitiveType("string"))])
    with pytest.raises(SinkChanged, match="column carrier \\(string\\) is missing"):
        sink.commit(rows, each)
    sink.discard(rows)
    assert numbers(table) == list(range(10))
    assert len(data_files(table)) == 1


def test_a_table_that_forgets_transactions_is_refused(table: Path) -> None:
    sink = opened(table)
    DeltaTable(table).alter.set_table_properties(RETENTION, raise_if_not_exists=False)
    with pytest.raises(SinkUnfit, match="rows would come twice"):
        opened(table)
    with pytest.raises(SinkChanged, match="setTransactionRetentionDuration"):
        put(sink, table, ("0", 10, 20, 1))


def test_a_table_with_rules_for_rows_is_refused(table: Path) -> None:
    DeltaTable(table).alter.add_constraint({"positive": "number >= 0"})
    with pytest.raises(SinkUnfit, match=r"delta\.constraints\.positive"):
        opened(table)


def test_a_table_cut_by_other_columns_is_refused(table: Path) -> None:
    with pytest.raises(SinkUnfit, match="partitioned by"):
        opened(table, partition_by=["partition"])


@pytest.mark.parametrize("kind", ["binary", "timestamp", "double", "decimal(10,2)"])
def test_a_table_cut_by_values_that_names_of_directories_do_not_keep_is_refused(
    tmp_path: Path, kind: str
) -> None:
    fields = [Field("word", PrimitiveType(kind)), Field("number", PrimitiveType("long"))]
    DeltaTable.create(tmp_path / "cut", Schema(fields), partition_by=["word"])
    with pytest.raises(SinkUnfit, match=rf"partitioned by word, which is {re.escape(kind)}: this"):
        opened(tmp_path / "cut")


def test_a_table_that_was_made_by_hand_is_taken(tmp_path: Path) -> None:
    columns = Schema(
        [
            Field("number", PrimitiveType("long"), nullable=False),
            Field("partition", PrimitiveType("string")),
        ]
    )
    made = tmp_path / "by-hand"
    early = opened(made)
    early.fence(GROUP, {"0": 5})
    DeltaTable.create(made, columns)
    assert opened(made).fence(GROUP, {"0": 6}) == {"0": SinkPosition(epoch=5)}
    put(opened(made), made, ("0", 0, 3, 6))
    assert numbers(made) == [0, 1, 2]


def test_partition_values_of_every_kind_are_read_back(tmp_path: Path) -> None:
    from tests.support.delta_tables import staged_rows

    made = tmp_path / "cut"
    sink = opened(made, partition_by=["partition"])
    names = ["plain", "a b/c:d%20=é", "..", None]
    rows = [{"partition": name, "number": i} for i, name in enumerate(names)]
    each = batch(("0", 0, 4, 1))
    sink.commit(staged_rows(made, rows, by=["partition"]), each)
    found = DeltaTable(made).to_pyarrow_table().sort_by("number").to_pylist()
    assert [row["partition"] for row in found] == names


def test_the_log_remembers_what_each_file_holds(table: Path) -> None:
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    (only,) = actions
    assert (only["num_records"], only["min.number"], only["max.number"]) == (10, 0, 9)
    assert only["null_count.partition"] == 0


def test_a_sweep_deletes_old_orphans_and_nothing_else(table: Path) -> None:
    sink = opened(table)
    old = staged(table, batch(("0", 10, 20, 1)), name="part-leasehold-old")
    staged(table, batch(("0", 10, 20, 1)), name="part-leasehold-young")
    pq.write_table(pa.table({"a": [1]}), table / "part-of-a-stranger.parquet")
    DeltaTable(table).delete()  # the rows can still be read in the version before
    two_days_ago_s = (SystemClock().utc_now() - timedelta(days=2)).timestamp()
    for each in table.glob("*.parquet"):
        if "young" not in each.name:
            os.utime(each, (two_days_ago_s, two_days_ago_s))
    before = {each.name for each in table.glob("*.parquet")}
    assert sink.sweep() == [old.inside.files[0].path]
    assert before - {each.name for each in table.glob("*.parquet")} == {old.inside.files[0].path}
    assert sink.sweep() == []
    with pytest.raises(InvalidDuration):
        sink.sweep(timedelta(minutes=1))
