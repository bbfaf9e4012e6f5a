"""What every atomic sink does, as functions of a setup that opens sinks: ``CASES``.

A setup gives sinks over one and the same target, frames for them, and the rows that a reader sees.
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


class SinkSetup(Protocol):
    def sink(self) -> Sink:
        """A new one, open, over the same target; the setup closes it."""
        ...

    def frame(self, rows: Sequence[Row], *, names: Sequence[str] = ("id", "word")) -> DataFrame:
        """Rows of a whole number and a text; with other names they do not fit the place."""
        ...

    def rows(self) -> list[Row]:
        """What a reader sees, sorted."""
        ...


Case = Callable[[SinkSetup], None]


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


def put(setup: SinkSetup, sink: Sink, batch: Batch, rows: Sequence[Row]) -> int:
    return sink.commit(sink.stage(setup.frame(rows), batch), batch).rows


def known(sink: Sink, partition: str = "0", *, group: str = GROUP) -> SinkPosition:
    """What the sink knows, without changing it: no epoch is lower than 0."""
    return sink.fence(group, {partition: 0})[partition]


def a_new_sink_knows_nothing(setup: SinkSetup) -> None:
    sink = setup.sink()
    assert sink.fence(GROUP, {"0": 3, "1": 4}) == {"0": SinkPosition(), "1": SinkPosition()}
    assert sink.atomic
    assert list(sink.commits(GROUP)) == []


def a_commit_shows_the_rows_and_moves_the_position(setup: SinkSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 5, 1))
    sink.fence(GROUP, {"0": 1})
    written = sink.commit(sink.stage(setup.frame(rows_of(0, 5)), batch), batch)
    assert written.rows == 5
    assert setup.rows() == rows_of(0, 5)
    assert known(sink) == SinkPosition(position=5, epoch=1)


def a_second_sink_of_the_same_place_goes_on(setup: SinkSetup) -> None:
    first = setup.sink()
    first.fence(GROUP, {"0": 1})
    put(setup, first, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    first.close()
    first.close()
    second = setup.sink()
    assert second.fence(GROUP, {"0": 2}) == {"0": SinkPosition(position=5, epoch=1)}
    put(setup, second, batch_of(("0", 5, 8, 2)), rows_of(5, 8))
    assert setup.rows() == rows_of(0, 8)


def the_first_batch_may_start_anywhere(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1})
    put(setup, sink, batch_of(("0", 100, 103, 1)), rows_of(100, 103))
    assert known(sink) == SinkPosition(position=103, epoch=1)


def staged_rows_are_not_seen(setup: SinkSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 5, 1))
    sink.fence(GROUP, {"0": 1})
    put(setup, sink, batch, rows_of(0, 5))
    staged = sink.stage(setup.frame(rows_of(5, 8)), batch_of(("0", 5, 8, 1)))
    assert setup.rows() == rows_of(0, 5)
    sink.discard(staged)
    sink.discard(staged)
    assert setup.rows() == rows_of(0, 5)
    assert known(sink) == SinkPosition(position=5, epoch=1)


def the_same_commit_again_is_harmless(setup: SinkSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 5, 1), ("1", 7, 9, 1))
    sink.fence(GROUP, {"0": 1, "1": 1})
    staged = sink.stage(setup.frame(rows_of(0, 7)), batch)
    assert sink.commit(staged, batch).rows == 7
    assert sink.commit(staged, batch).rows == 7
    sink.discard(staged)
    assert setup.rows() == rows_of(0, 7)
    assert len(list(sink.commits(GROUP))) == 2


def a_batch_that_is_staged_again_after_its_commit_is_not_doubled(setup: SinkSetup) -> None:
    sink, batch = setup.sink(), batch_of(("0", 0, 5, 1))
    sink.fence(GROUP, {"0": 1})
    put(setup, sink, batch, rows_of(0, 5))
    again = setup.sink()
    assert put(setup, again, batch, rows_of(0, 5)) == 5
    assert setup.rows() == rows_of(0, 5)
    put(setup, again, batch_of(("0", 5, 6, 1)), rows_of(5, 6))
    assert setup.rows() == rows_of(0, 6)


def a_driver_that_wakes_up_late_commits_nothing(setup: SinkSetup) -> None:
    zombie, batch = setup.sink(), batch_of(("0", 0, 5, 1))
    zombie.fence(GROUP, {"0": 1})
    staged = zombie.stage(setup.frame(rows_of(0, 5)), batch)
    heir = setup.sink()
    assert heir.fence(GROUP, {"0": 2}) == {"0": SinkPosition(epoch=1)}
    with pytest.raises(FencedWrite) as refused:
        zombie.commit(staged, batch)
    assert (refused.value.key, refused.value.epoch) == ("0", 1)
    assert setup.rows() == []
    put(setup, heir, batch_of(("0", 0, 5, 2)), rows_of(0, 5))
    with pytest.raises(FencedWrite):
        put(setup, zombie, batch, rows_of(0, 5))
    with pytest.raises(FencedWrite):
        put(setup, zombie, batch_of(("0", 5, 9, 1)), rows_of(5, 9))
    assert setup.rows() == rows_of(0, 5)
    assert known(heir) == SinkPosition(position=5, epoch=2)


def one_lost_partition_refuses_the_whole_batch(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1, "1": 1})
    batch = batch_of(("0", 0, 5, 1), ("1", 0, 5, 1))
    staged = sink.stage(setup.frame(rows_of(0, 10)), batch)
    setup.sink().fence(GROUP, {"1": 2})
    with pytest.raises(FencedWrite) as refused:
        sink.commit(staged, batch)
    assert refused.value.key == "1"
    assert setup.rows() == []
    assert known(sink, "0") == SinkPosition(epoch=1)


def an_epoch_never_falls(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 7})
    assert sink.fence(GROUP, {"0": 7}) == {"0": SinkPosition(epoch=7)}
    assert sink.fence(GROUP, {"0": 3}) == {"0": SinkPosition(epoch=7)}
    assert known(sink) == SinkPosition(epoch=7)


def a_commit_under_a_higher_epoch_raises_it(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1})
    put(setup, sink, batch_of(("0", 0, 2, 4)), rows_of(0, 2))
    assert known(sink) == SinkPosition(position=2, epoch=4)


def a_gap_and_an_overlap_are_refused(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1})
    put(setup, sink, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    for start, end in ((6, 9), (4, 9), (0, 4)):
        with pytest.raises(SinkChanged, match="0"):
            put(setup, sink, batch_of(("0", start, end, 1)), rows_of(start, end))
    assert setup.rows() == rows_of(0, 5)
    assert known(sink) == SinkPosition(position=5, epoch=1)


def a_batch_of_which_a_part_is_done_is_refused(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1, "1": 1})
    put(setup, sink, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    put(setup, sink, batch_of(("1", 0, 2, 1)), rows_of(5, 7))
    with pytest.raises(SinkChanged):
        put(setup, sink, batch_of(("0", 0, 5, 1), ("1", 2, 4, 1)), rows_of(20, 25))
    assert setup.rows() == rows_of(0, 7)


def a_batch_without_rows_moves_the_positions(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1})
    put(setup, sink, batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    assert put(setup, sink, batch_of(("0", 2, 50, 1)), []) == 0
    assert setup.rows() == rows_of(0, 2)
    assert known(sink) == SinkPosition(position=50, epoch=1)
    assert [each.rows for each in sink.commits(GROUP)] == [2, 0]


def groups_do_not_know_each_other(setup: SinkSetup) -> None:
    sink, other = setup.sink(), "partition/orders/shipping"
    sink.fence(GROUP, {"0": 5})
    put(setup, sink, batch_of(("0", 0, 2, 5)), rows_of(0, 2))
    assert sink.fence(other, {"0": 1}) == {"0": SinkPosition()}
    put(setup, sink, batch_of(("0", 0, 2, 1), group=other), rows_of(10, 12))
    assert setup.rows() == rows_of(0, 2) + rows_of(10, 12)
    assert [each.epoch for each in sink.commits(other)] == [1]


def an_operator_moves_positions_under_its_own_epoch(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1, "1": 9})
    put(setup, sink, batch_of(("0", 0, 5, 1)), rows_of(0, 5))
    with pytest.raises(FencedWrite) as refused:
        sink.move(
            GROUP, {"0": SinkPosition(position=2, epoch=1), "1": SinkPosition(position=2, epoch=8)}
        )
    assert refused.value.key == "1"
    assert known(sink) == SinkPosition(position=5, epoch=1)
    sink.fence(GROUP, {"0": 2})
    sink.move(GROUP, {"0": SinkPosition(position=2, epoch=2)})
    assert known(sink) == SinkPosition(position=2, epoch=2)
    put(setup, sink, batch_of(("0", 2, 4, 2)), rows_of(12, 14))
    assert setup.rows() == rows_of(0, 5) + rows_of(12, 14)


def the_history_tells_who_committed_what(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1, "1": 2})
    put(setup, sink, batch_of(("0", 0, 5, 1), ("1", 3, 4, 2)), rows_of(0, 6))
    put(setup, sink, batch_of(("0", 5, 6, 1), holder="bob"), rows_of(6, 7))
    first, second, third = sink.commits(GROUP)
    shares = sorted((str(each.range), each.epoch, each.rows) for each in (first, second))
    assert shares == [("0[0, 5)", 1, 6), ("1[3, 4)", 2, 6)]
    assert first.commit == second.commit != third.commit
    assert [each.holder for each in (first, second, third)] == ["ann", "ann", "bob"]
    assert {each.began_at for each in (first, second, third)} == {BEGAN}
    assert first.committed_at <= third.committed_at
    assert third.committed_at.tzinfo is not None


def rows_that_do_not_fit_are_refused_before_anything_is_written(setup: SinkSetup) -> None:
    sink = setup.sink()
    sink.fence(GROUP, {"0": 1})
    put(setup, sink, batch_of(("0", 0, 2, 1)), rows_of(0, 2))
    with pytest.raises(SinkUnfit, match="noun"):
        sink.stage(setup.frame(rows_of(2, 4), names=("id", "noun")), batch_of(("0", 2, 4, 1)))
    assert setup.rows() == rows_of(0, 2)
    put(setup, sink, batch_of(("0", 2, 4, 1)), rows_of(2, 4))
    assert setup.rows() == rows_of(0, 4)


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
