"""What every atomic sink does, as functions of a world in which one can be opened: ``CASES``.

A world gives sinks over one and the same place, frames for them, and the rows that a reader sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import pytest

from leasehold.errors import FencedWrite, SinkChanged, SinkUnfit
from leasehold.spark import Batch, BatchPart, Sink, SinkPosition
from leasehold.spark.reading import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP = "partition/orders/billing"
BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
Row = tuple[int, str]


class World(Protocol):
    def sink(self) -> Sink:
        """A new one, open, over the same place; the world closes it."""
        ...

    def frame(self, rows: Sequence[Row], *, names: Sequence[str] = ("id", "word")) -> DataFrame:
        """Rows of a whole number and a text; with other names they do not fit the place."""
        ...

    def rows(self) -> list[Row]:
        """What a reader sees, sorted."""
        ...


Case = Callable[[World], None]


def batch_of(
    *shares: tuple[str, int, int, int], number: int = 0, group: str = GROUP, holder: str = "ann"
) -> Batch:
    """A batch of (partition, start, end, epoch)."""
    return Batch(
        group=group,
        number=number,
        shares=tuple(
            BatchPart(range=Range(partition=partition, start=start, end=end), epoch=epoch)
            for partition, start, end, epoch in shares
        ),
        holder=holder,
        began_at=BEGAN,
    )


def rows_of(start: int, end: int) -> list[Row]:
    return [(number, f"word {number}") for number in range(start, end)]


def put(world: World, sink: Sink, batch: Batch, rows: Sequence[Row]) -> int:
    return sink.commit(sink.stage(world.frame(rows), batch), batch).rows


def known(sink: Sink, partition: str = "0", *, group: str = GROUP) -> SinkPosition:
    """What the sink knows, without changing it: no epoch is lower than 0."""
    return sink.fence(group, {partition: 0})[partition]


def a_new_sink_knows_nothing(world: World) -> None:
    sink = world.sink()
    assert sink.fence(GROUP, {"0": 3, "1": 4}) == {"0": SinkPosition(), "1": SinkPosition()}
    assert sink.atomic
    assert list(sink.commits(GROUP)) == []


def a_commit_shows_the_rows_and_moves_the_position(world: World) -> None:
    sink, batch = world.sink(), batch_of(("0", 0, 5, 1))
    sink.fence(GROUP, {"0": 1})
    written = sink.commit(sink.stage(world.frame(rows_of(0, 5)), batch), batch)
    assert written.rows == 5
    assert world.rows() == rows_of(0, 5)
    assert known(sink) == SinkPosition(position=5, epoch=1)


def a_second_sink_of_the_same_place_goes_on(world: World) -> None:
    first = world.sink()
    first.fence(GROUP, {"0": 1})
    put(world, first, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    first.close()
    first.close()
    second = world.sink()
    assert second.fence(GROUP, {"0": 2}) == {"0": SinkPosition(position=5, epoch=1)}
    put(world, second, batch_of(("0", 5, 8, 2)), rows_of(5, 8))
    assert world.rows() == rows_of(0, 8)


def the_first_batch_may_start_anywhere(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1})
    put(world, sink, batch_of(("0", 100, 103, 1)), rows_of(100, 103))
    assert known(sink) == SinkPosition(position=103, epoch=1)


def staged_rows_are_not_seen(world: World) -> None:
    sink, batch = world.sink(), batch_of(("0", 0, 5, 1))
    sink.fence(GROUP, {"0": 1})
    put(world, sink, batch, rows_of(0, 5))
    staged = sink.stage(world.frame(rows_of(5, 8)), batch_of(("0", 5, 8, 1)))
    assert world.rows() == rows_of(0, 5)
    sink.discard(staged)
    sink.discard(staged)
    assert world.rows() == rows_of(0, 5)
    assert known(sink) == SinkPosition(position=5, epoch=1)


def the_same_commit_again_is_harmless(world: World) -> None:
    sink, batch = world.sink(), batch_of(("0", 0, 5, 1), ("1", 7, 9, 1))
    sink.fence(GROUP, {"0": 1, "1": 1})
    staged = sink.stage(world.frame(rows_of(0, 7)), batch)
    assert sink.commit(staged, batch).rows == 7
    assert sink.commit(staged, batch).rows == 7
    sink.discard(staged)
    assert world.rows() == rows_of(0, 7)
    assert len(list(sink.commits(GROUP))) == 2


def a_batch_that_is_staged_again_after_its_commit_is_not_doubled(world: World) -> None:
    sink, batch = world.sink(), batch_of(("0", 0, 5, 1))
    sink.fence(GROUP, {"0": 1})
    put(world, sink, batch, rows_of(0, 5))
    again = world.sink()
    assert put(world, again, batch, rows_of(0, 5)) == 5
    assert world.rows() == rows_of(0, 5)
    put(world, again, batch_of(("0", 5, 6, 1)), rows_of(5, 6))
    assert world.rows() == rows_of(0, 6)


def a_driver_that_wakes_up_late_commits_nothing(world: World) -> None:
    zombie, batch = world.sink(), batch_of(("0", 0, 5, 1))
    zombie.fence(GROUP, {"0": 1})
    staged = zombie.stage(world.frame(rows_of(0, 5)), batch)
    heir = world.sink()
    assert heir.fence(GROUP, {"0": 2}) == {"0": SinkPosition(epoch=1)}
    with pytest.raises(FencedWrite) as refused:
        zombie.commit(staged, batch)
    assert (refused.value.key, refused.value.epoch) == ("0", 1)
    assert world.rows() == []
    put(world, heir, batch_of(("0", 0, 5, 2)), rows_of(0, 5))
    with pytest.raises(FencedWrite):
        put(world, zombie, batch, rows_of(0, 5))
    with pytest.raises(FencedWrite):
        put(world, zombie, batch_of(("0", 5, 9, 1)), rows_of(5, 9))
    assert world.rows() == rows_of(0, 5)
    assert known(heir) == SinkPosition(position=5, epoch=2)


def one_lost_partition_refuses_the_whole_batch(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1, "1": 1})
    batch = batch_of(("0", 0, 5, 1), ("1", 0, 5, 1))
    staged = sink.stage(world.frame(rows_of(0, 10)), batch)
    world.sink().fence(GROUP, {"1": 2})
    with pytest.raises(FencedWrite) as refused:
        sink.commit(staged, batch)
    assert refused.value.key == "1"
    assert world.rows() == []
    assert known(sink, "0") == SinkPosition(epoch=1)


def an_epoch_never_falls(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 7})
    assert sink.fence(GROUP, {"0": 7}) == {"0": SinkPosition(epoch=7)}
    assert sink.fence(GROUP, {"0": 3}) == {"0": SinkPosition(epoch=7)}
    assert known(sink) == SinkPosition(epoch=7)


def a_commit_under_a_higher_epoch_raises_it(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1})
    put(world, sink, batch_of(("0", 0, 2, 4)), rows_of(0, 2))
    assert known(sink) == SinkPosition(position=2, epoch=4)


def a_gap_and_an_overlap_are_refused(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1})
    put(world, sink, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    for start, end in ((6, 9), (4, 9), (0, 4)):
        with pytest.raises(SinkChanged, match="0"):
            put(world, sink, batch_of(("0", start, end, 1)), rows_of(start, end))
    assert world.rows() == rows_of(0, 5)
    assert known(sink) == SinkPosition(position=5, epoch=1)


def a_batch_of_which_a_part_is_done_is_refused(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1, "1": 1})
    put(world, sink, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    put(world, sink, batch_of(("1", 0, 2, 1)), rows_of(5, 7))
    with pytest.raises(SinkChanged):
        put(world, sink, batch_of(("0", 0, 5, 1), ("1", 2, 4, 1)), rows_of(20, 25))
    assert world.rows() == rows_of(0, 7)


def a_batch_without_rows_moves_the_positions(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1})
    put(world, sink, batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    assert put(world, sink, batch_of(("0", 2, 50, 1)), []) == 0
    assert world.rows() == rows_of(0, 2)
    assert known(sink) == SinkPosition(position=50, epoch=1)
    assert [each.rows for each in sink.commits(GROUP)] == [2, 0]


def groups_do_not_know_each_other(world: World) -> None:
    sink, other = world.sink(), "partition/orders/shipping"
    sink.fence(GROUP, {"0": 5})
    put(world, sink, batch_of(("0", 0, 2, 5)), rows_of(0, 2))
    assert sink.fence(other, {"0": 1}) == {"0": SinkPosition()}
    put(world, sink, batch_of(("0", 0, 2, 1), group=other), rows_of(10, 12))
    assert world.rows() == rows_of(0, 2) + rows_of(10, 12)
    assert [each.epoch for each in sink.commits(other)] == [1]


def an_operator_moves_positions_under_its_own_epoch(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1, "1": 9})
    put(world, sink, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    with pytest.raises(FencedWrite) as refused:
        sink.move(
            GROUP, {"0": SinkPosition(position=2, epoch=1), "1": SinkPosition(position=2, epoch=8)}
        )
    assert refused.value.key == "1"
    assert known(sink) == SinkPosition(position=5, epoch=1)
    sink.fence(GROUP, {"0": 2})
    sink.move(GROUP, {"0": SinkPosition(position=2, epoch=2)})
    assert known(sink) == SinkPosition(position=2, epoch=2)
    put(world, sink, batch_of(("0", 2, 4, 2)), rows_of(12, 14))
    assert world.rows() == rows_of(0, 5) + rows_of(12, 14)


def the_history_tells_who_committed_what(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1, "1": 2})
    put(world, sink, batch_of(("0", 0, 5, 1), ("1", 3, 4, 2)), rows_of(0, 6))
    put(world, sink, batch_of(("0", 5, 6, 1), holder="bob"), rows_of(6, 7))
    first, second, third = sink.commits(GROUP)
    shares = sorted((str(each.range), each.epoch, each.rows) for each in (first, second))
    assert shares == [("0[0, 5)", 1, 6), ("1[3, 4)", 2, 6)]
    assert first.commit == second.commit != third.commit
    assert [each.holder for each in (first, second, third)] == ["ann", "ann", "bob"]
    assert {each.began_at for each in (first, second, third)} == {BEGAN}
    assert first.committed_at <= third.committed_at
    assert third.committed_at.tzinfo is not None


def rows_that_do_not_fit_are_refused_before_anything_is_written(world: World) -> None:
    sink = world.sink()
    sink.fence(GROUP, {"0": 1})
    put(world, sink, batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    with pytest.raises(SinkUnfit, match="noun"):
        sink.stage(world.frame(rows_of(2, 4), names=("id", "noun")), batch_of(("0", 2, 4, 1)))
    assert world.rows() == rows_of(0, 2)
    put(world, sink, batch_of(("0", 2, 4, 1)), rows_of(2, 4))
    assert world.rows() == rows_of(0, 4)


CASES: tuple[Case, ...] = (
    a_new_sink_knows_nothing,
    a_commit_shows_the_rows_and_moves_the_position,
    a_second_sink_of_the_same_place_goes_on,
    the_first_batch_may_start_anywhere,
    staged_rows_are_not_seen,
    the_same_commit_again_is_harmless,
    a_batch_that_is_staged_again_after_its_commit_is_not_doubled,
    a_driver_that_wakes_up_late_commits_nothing,
    one_lost_partition_refuses_the_whole_batch,
    an_epoch_never_falls,
    a_commit_under_a_higher_epoch_raises_it,
    a_gap_and_an_overlap_are_refused,
    a_batch_of_which_a_part_is_done_is_refused,
    a_batch_without_rows_moves_the_positions,
    groups_do_not_know_each_other,
    an_operator_moves_positions_under_its_own_epoch,
    the_history_tells_who_committed_what,
    rows_that_do_not_fit_are_refused_before_anything_is_written,
)
