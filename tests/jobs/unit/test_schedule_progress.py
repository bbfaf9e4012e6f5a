"""Which occurrences were started and done: the arithmetic of the checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import UsageError
from leasehold.jobs.run_log import (
    ScheduleProgress,
    created_position,
    done_position,
    read_progress,
    started_position,
)
from leasehold.model import Checkpoint, Position

AT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def kept(position: Position) -> Checkpoint:
    return Checkpoint(key="job/nightly", epoch=1, position=position, updated_at=AT)


def test_a_run_is_started_and_then_done() -> None:
    assert read_progress(kept(started_position(AT))) == ScheduleProgress(
        done=AT - SECOND, started=AT
    )
    assert read_progress(kept(done_position(AT))) == ScheduleProgress(done=AT)


def test_a_schedule_is_new_or_begins_at_a_moment() -> None:
    assert read_progress(None) is None
    assert read_progress(kept(created_position(AT))) == ScheduleProgress(done=AT)


@given(st.integers(0, 4 * 10**9), st.integers(1, 10**6))
def test_later_steps_lie_after_earlier_ones_whatever_the_moments(second: int, more: int) -> None:
    one = datetime.fromtimestamp(second, UTC)
    two = datetime.fromtimestamp(second + more, UTC)
    steps = [started_position(one), done_position(one), started_position(two), done_position(two)]
    assert steps == sorted(steps)
    assert len({step.sequence_number for step in steps}) == 4


def test_the_same_moment_in_another_zone_is_the_same_occurrence() -> None:
    # The hour that comes twice in Berlin: two moments, and two occurrences.
    first = datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert started_position(first) == started_position(first.astimezone(UTC))
    assert done_position(first) < started_position(second)
    assert started_position(first).offset == "occurrence 2026-10-25T00:30:00+00:00"


def test_a_job_with_positions_of_its_own_can_have_no_schedule() -> None:
    with pytest.raises(UsageError, match=r"job/nightly has a position of its own \(7, 'file-3'\)"):
        read_progress(kept(Position(sequence_number=7, offset="file-3")))
