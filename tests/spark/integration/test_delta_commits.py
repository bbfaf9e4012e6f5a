"""A Delta table takes rows and positions in one step, and refuses whoever was fenced."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.delta_tables import (
    BEGAN_AT,
    GROUP,
    batch,
    data_files,
    numbers,
    opened,
    put,
    staged,
    staged_rows,
)
from tests.support.local_frames import local_frame

from leasehold.clock import SystemClock
from leasehold.errors import BatchFailed, FencedWrite, SinkChanged, SinkUnfit, StoreUnavailable
from leasehold.spark import DeltaSink, SinkPosition
from leasehold.spark.sinks.delta.table_log import DeltaLog


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "delays"


@pytest.mark.spec("S4")
def test_a_commit_adds_the_rows_and_moves_the_positions(table: Path) -> None:
    sink = opened(table)
    assert sink.fence(GROUP, {"0": 1, "1": 4}) == {"0": SinkPosition(), "1": SinkPosition()}
    put(sink, table, ("0", 0, 10, 1), ("1", 5, 8, 4))
    assert numbers(table, "0") == list(range(10))
    assert numbers(table, "1") == [5, 6, 7]
    assert opened(table).fence(GROUP, {"0": 2, "1": 5}) == {
        "0": SinkPosition(position=10, epoch=1),
        "1": SinkPosition(position=8, epoch=4),
    }


@pytest.mark.spec("S4")
def test_a_batch_without_output_rows_moves_the_positions(table: Path) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 1})
    each = batch(("0", 0, 10, 1))
    assert sink.commit(staged_rows(table, []), each).rows == 0
    assert sink.fence(GROUP, {"0": 1}) == {"0": SinkPosition(position=10, epoch=1)}
    put(sink, table, ("0", 10, 12, 1))
    assert numbers(table) == [10, 11]


@pytest.mark.spec("S4")
def test_the_same_commit_again_is_harmless(table: Path) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 1})
    each = batch(("0", 0, 10, 1))
    rows = staged(table, each)
    first = sink.commit(rows, each)
    version = DeltaTable(table).version()
    assert sink.commit(rows, each) == first
    assert opened(table).commit(staged(table, each), each) == first
    assert DeltaTable(table).version() == version
    sink.discard(rows)
    assert numbers(table) == list(range(10))
    assert len(data_files(table)) == 1


@pytest.mark.spec("S4")
@pytest.mark.parametrize("left_bytes", [None, 0, 100])
def test_a_staged_file_that_is_missing_or_short_is_not_committed(
    table: Path, left_bytes: int | None
) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 1})
    put(sink, table, ("0", 0, 10, 1))
    each, version = batch(("0", 10, 20, 1)), DeltaTable(table).version()
    before = data_files(table)
    rows = staged(table, each)
    (file,) = data_files(table) - before
    if left_bytes is None:
        (table / file).unlink()
    else:
        os.truncate(table / file, left_bytes)
    with pytest.raises(BatchFailed, match=r"staged file .* (is missing|bytes)") as refused:
        sink.commit(rows, each)
    assert refused.value.ranges == ("0[10, 20)",)
    sink.discard(rows)
    assert data_files(table) == before
    assert DeltaTable(table).version() == version
    sink.commit(staged(table, each), each)
    assert numbers(table) == list(range(20))


@pytest.mark.spec("S4")
def test_a_commit_that_was_done_is_reported_done_though_its_files_are_gone(table: Path) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 1})
    each = batch(("0", 0, 10, 1))
    rows = staged(table, each)
    first = sink.commit(rows, each)
    for file in data_files(table):
        (table / file).unlink()
    assert sink.commit(rows, each) == first


@pytest.mark.spec("B5", "S4")
def test_a_zombie_with_an_old_snapshot_is_refused(table: Path) -> None:
    old, new = opened(table), opened(table)
    old.fence(GROUP, {"0": 1})
    put(old, table, ("0", 0, 10, 1))
    each = batch(("0", 10, 20, 1))
    rows = staged(table, each)
    refresh = old._log.refresh
    refresh()
    new.fence(GROUP, {"0": 2})
    calls = iter([True])
    # It was judged before the fence, and slept until now.
    old._log.refresh = lambda: next(calls, False) or refresh()  # type: ignore[method-assign]
    with pytest.raises(FencedWrite) as refused:
        old.commit(rows, each)
    assert (refused.value.key, refused.value.epoch) == ("0", 1)
    old.discard(rows)
    assert numbers(table) == list(range(10))
    assert len(data_files(table)) == 1


def between_judgement_and_write(sink: DeltaSink, work: Callable[[], object]) -> None:
    """Let this happen to the next commit when it is judged and not yet written."""
    looked = sink._refuse_other_columns

    def slept(*given: object) -> None:
        sink._refuse_other_columns = looked  # type: ignore[method-assign]
        looked(*given)  # type: ignore[arg-type]
        work()

    sink._refuse_other_columns = slept  # type: ignore[assignment, method-assign]


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.mark.spec("B5", "S4")
def test_a_zombie_that_stages_its_next_batch_meanwhile_is_refused(table: Path) -> None:
    old, new = opened(table), opened(table)
    old.fence(GROUP, {"0": 1})
    each = batch(("0", 0, 5, 1))
    rows = staged(table, each)

    def stages() -> None:
        # Columns that do not fit what is known, so that it looks at the table.
        with pytest.raises(SinkUnfit, match="partition"):
            old.stage(local_frame("number bigint", [(5,)]), batch(("0", 5, 6, 1)))

    def taken_over() -> None:
        new.fence(GROUP, {"0": 2})
        put(new, table, ("0", 0, 5, 2))
        in_thread(stages)

    between_judgement_and_write(old, taken_over)
    with pytest.raises(FencedWrite, match="epoch 2"):
        old.commit(rows, each)
    assert numbers(table) == list(range(5))


@pytest.mark.spec("B5", "S4")
def test_a_zombie_whose_table_has_gone_on_since_it_was_judged_is_refused(table: Path) -> None:
    old, new = opened(table), opened(table)
    put(old, table, ("0", 0, 5, 1))

    def gone_on() -> None:
        new.fence(GROUP, {"0": 2})
        old._log.refresh()

    between_judgement_and_write(old, gone_on)
    with pytest.raises(FencedWrite, match="epoch 2"):
        put(old, table, ("0", 5, 10, 1))
    assert numbers(table) == list(range(5))


@pytest.mark.spec("S4")
@pytest.mark.parametrize("how", ["commit", "fence", "move"])
def test_nobody_else_uses_what_is_judged_until_it_is_written(
    table: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(table)
    put(sink, table, ("0", 0, 5, 1))
    write, free = DeltaLog.write, []

    def watched(*given: object, **named: object) -> None:
        in_thread(lambda: free.append(sink._lock.acquire(blocking=False)))
        write(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaLog, "write", watched)
    if how == "commit":
        put(sink, table, ("0", 5, 10, 1))
    elif how == "fence":
        sink.fence(GROUP, {"0": 2})
    else:
        sink.move(GROUP, {"0": SinkPosition(position=0, epoch=1)})
    assert free == [False]
    assert not sink._lock.locked()


@pytest.mark.spec("B5", "S4")
def test_a_sweep_and_the_history_do_not_move_what_is_being_judged(table: Path) -> None:
    old, new = opened(table), opened(table)
    put(old, table, ("0", 0, 5, 1))
    versions: list[int] = []

    def looks() -> None:
        new.fence(GROUP, {"0": 2})
        before = old._log.version
        in_thread(lambda: (old.sweep(), list(old.commits(GROUP))))
        versions.append(old._log.version - before)

    between_judgement_and_write(old, looks)
    with pytest.raises(FencedWrite, match="epoch 2"):
        put(old, table, ("0", 5, 10, 1))
    assert versions == [0]


@pytest.mark.spec("B5", "S4")
def test_a_zombie_that_reads_the_table_again_is_refused(table: Path) -> None:
    put(opened(table), table, ("0", 0, 10, 1))
    opened(table).fence(GROUP, {"0": 2})
    with pytest.raises(FencedWrite, match="epoch 2"):
        put(opened(table), table, ("0", 10, 20, 1))
    assert numbers(table) == list(range(10))


@pytest.mark.spec("B5", "S4")
def test_a_lower_epoch_fences_nothing_and_is_told_the_higher_one(table: Path) -> None:
    put(opened(table), table, ("0", 0, 10, 5))
    version = DeltaTable(table).version()
    assert opened(table).fence(GROUP, {"0": 3}) == {"0": SinkPosition(position=10, epoch=5)}
    assert DeltaTable(table).version() == version
    put(opened(table), table, ("0", 10, 11, 5))


@pytest.mark.spec("B5", "S4")
def test_one_fenced_partition_refuses_the_whole_batch(table: Path) -> None:
    sink = opened(table)
    put(sink, table, ("0", 0, 10, 1), ("1", 0, 10, 1))
    opened(table).fence(GROUP, {"1": 2})
    with pytest.raises(FencedWrite) as refused:
        put(sink, table, ("0", 10, 20, 1), ("1", 10, 20, 1))
    assert refused.value.key == "1"
    assert numbers(table, "0") == list(range(10))
    put(sink, table, ("0", 10, 20, 1))


@pytest.mark.spec("S4")
def test_drivers_with_different_partitions_do_not_hinder_each_other(table: Path) -> None:
    one, two = opened(table), opened(table)
    put(one, table, ("0", 0, 5, 1))
    two.fence(GROUP, {"1": 1})
    each = batch(("1", 0, 5, 1))
    rows = staged(table, each)
    two._log.refresh()
    put(one, table, ("0", 5, 9, 1))
    two._log.refresh = lambda: True  # type: ignore[method-assign]  # judged before that commit
    two.commit(rows, each)
    assert (numbers(table, "0"), numbers(table, "1")) == (list(range(9)), list(range(5)))


@pytest.mark.spec("B5", "S4")
def test_a_fence_holds_before_there_is_a_table(table: Path) -> None:
    old, new = opened(table), opened(table)
    old.fence(GROUP, {"0": 1})
    assert new.fence(GROUP, {"0": 2}) == {"0": SinkPosition(epoch=1)}
    with pytest.raises(FencedWrite):
        put(old, table, ("0", 0, 10, 1))
    put(new, table, ("0", 0, 10, 2))
    assert numbers(table) == list(range(10))


@pytest.mark.spec("B5", "S4")
def test_a_fence_and_the_creation_of_the_table_may_come_in_any_order(table: Path) -> None:
    old, new = opened(table), opened(table)
    old.fence(GROUP, {"0": 1})
    write = new._fences.write

    def made_meanwhile(*given: object) -> None:
        put(old, table, ("0", 0, 10, 1))
        write(*given)  # type: ignore[arg-type]

    new._fences.write = made_meanwhile  # type: ignore[assignment, method-assign]
    assert new.fence(GROUP, {"0": 2})["0"].position == 10
    with pytest.raises(FencedWrite):
        put(old, table, ("0", 10, 20, 1))
    put(new, table, ("0", 10, 20, 2))
    assert numbers(table) == list(range(20))


@pytest.mark.spec("S4")
def test_a_commit_whose_answer_was_lost_is_found_and_its_files_are_kept(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(table)
    put(sink, table, ("0", 0, 10, 1))
    each = batch(("0", 10, 20, 1))
    rows = staged(table, each)
    real = DeltaTable.create_write_transaction

    def lost(*given: object, **named: object) -> None:
        real(*given, **named)  # type: ignore[arg-type]
        raise OSError("the connection was cut")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", lost)
        with pytest.raises(StoreUnavailable):
            sink.commit(rows, each)
    sink.discard(rows)  # a driver that gives up must not take the rows with it
    assert numbers(table) == list(range(20))
    assert sink.commit(rows, each).rows == 10
    assert numbers(table) == list(range(20))


def answered_by_the_layers_own_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit lands, its answer is lost, and the storage layer finds the version taken."""
    real = DeltaTable.create_write_transaction

    def twice(table: DeltaTable, *given: object, **named: object) -> None:
        real(DeltaTable(table.table_uri, table.version()), *given, **named)  # type: ignore[arg-type]
        real(table, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "create_write_transaction", twice)


@pytest.mark.spec("S4")
@pytest.mark.parametrize("by", [[], ["partition"]])
def test_a_commit_that_meets_itself_keeps_its_files(
    table: Path, monkeypatch: pytest.MonkeyPatch, by: list[str]
) -> None:
    sink = opened(table, partition_by=by)
    first, second = batch(("a b", 0, 10, 1)), batch(("a b", 10, 20, 1))
    sink.commit(staged(table, first, by=by), first)
    rows = staged(table, second, by=by)
    answered_by_the_layers_own_retry(monkeypatch)
    assert sink.commit(rows, second).rows == 10
    sink.discard(rows)
    assert numbers(table, "a b") == list(range(20))


@pytest.mark.spec("S4")
def test_a_commit_that_meets_a_version_that_can_not_be_read_keeps_its_files(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(table)
    put(sink, table, ("0", 0, 10, 1))
    each = batch(("0", 10, 20, 1))
    rows = staged(table, each)
    sink._log.refresh()

    def away(*_: object) -> None:
        raise OSError("the connection was cut")

    answered_by_the_layers_own_retry(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr("leasehold.spark.sinks.delta.table_log.read_version", away)
        with pytest.raises(StoreUnavailable):
            sink.commit(rows, each)
    sink.discard(rows)
    assert sink.commit(rows, each).rows == 10
    assert numbers(table) == list(range(20))


@pytest.mark.spec("S4")
def test_a_disk_that_does_not_take_the_log_is_asked_again_before_the_commit_is_done(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(table)
    put(sink, table, ("0", 0, 10, 1))
    each = batch(("0", 10, 20, 1))
    rows = staged(table, each)
    synced: list[Path] = []

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("leasehold.spark.sinks.delta.storage._sync", broken)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"to the disk .*Input/output error"):
                sink.commit(rows, each)
    monkeypatch.setattr("leasehold.spark.sinks.delta.storage._sync", synced.append)
    assert sink.commit(rows, each).rows == 10
    assert table / "_delta_log" / f"{DeltaTable(table).version():020d}.json" in synced
    assert numbers(table) == list(range(20))


@pytest.mark.spec("S4")
def test_positions_and_epochs_outlive_a_checkpoint_of_the_log(table: Path) -> None:
    sink = opened(table)
    put(sink, table, ("0", 0, 10, 3))
    DeltaTable(table).create_checkpoint()
    assert opened(table).fence(GROUP, {"0": 4}) == {"0": SinkPosition(position=10, epoch=3)}


def test_positions_can_be_moved_by_whoever_fenced_them(table: Path) -> None:
    sink = opened(table)
    sink.fence(GROUP, {"0": 1})
    sink.move(GROUP, {"0": SinkPosition(position=7, epoch=1)})
    assert opened(table).fence(GROUP, {"0": 1})["0"].position == 7
    with pytest.raises(SinkChanged, match="starts at 0"):
        put(sink, table, ("0", 0, 10, 1))
    put(sink, table, ("0", 7, 10, 1))
    sink.move(GROUP, {"0": SinkPosition(position=2, epoch=1)})
    put(sink, table, ("0", 2, 3, 1))
    sink.move(GROUP, {"0": SinkPosition(position=None, epoch=1)})
    assert opened(table).fence(GROUP, {"0": 2}) == {"0": SinkPosition(position=None, epoch=1)}
    with pytest.raises(FencedWrite):
        sink.move(GROUP, {"0": SinkPosition(position=0, epoch=1)})


def test_the_history_tells_every_commit_oldest_first(table: Path) -> None:
    sink = opened(table)
    before = SystemClock().utc_now().replace(microsecond=0)
    put(sink, table, ("0", 0, 10, 1), ("1", 0, 2, 3))
    sink.fence("partition/flights/other", {"0": 9})
    put(sink, table, ("0", 10, 15, 1))
    found = list(opened(table).commits(GROUP))
    assert [(str(each.range), each.epoch, each.rows) for each in found] == [
        ("0[0, 10)", 1, 12),
        ("1[0, 2)", 3, 12),
        ("0[10, 15)", 1, 5),
    ]
    assert found[0].commit == found[1].commit != found[2].commit
    assert {each.holder for each in found} == {"driver-a"}
    assert {each.began_at for each in found} == {BEGAN_AT}
    assert all(before <= each.committed_at for each in found)
    assert list(sink.commits("partition/flights/nobody")) == []


@pytest.mark.spec("S4")
def test_groups_of_one_table_have_their_own_positions(table: Path) -> None:
    sink = opened(table)
    put(sink, table, ("0", 0, 10, 1))
    assert sink.fence("partition/flights/other", {"0": 1}) == {"0": SinkPosition()}


def test_a_crowded_table_is_said_to_be_so(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leasehold.spark.sinks.delta.table_log import Conflict

    sink = opened(table)
    put(sink, table, ("0", 0, 10, 1))

    def never(*_: object, **__: object) -> None:
        raise Conflict("Concurrent transaction failed", certain=True)

    monkeypatch.setattr(DeltaLog, "write", never)
    with pytest.raises(StoreUnavailable, match="20 times in a row"):
        sink.fence(GROUP, {"0": 2})
    each = batch(("0", 10, 11, 1))
    rows = staged(table, each)
    with pytest.raises(StoreUnavailable):
        sink.commit(rows, each)
    sink.discard(rows)
    assert len(data_files(table)) == 1
