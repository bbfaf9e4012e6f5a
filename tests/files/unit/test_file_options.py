"""The settings of a namespace: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from leasehold.errors import InvalidDuration, InvalidOptions
from leasehold.files import FileOptions
from leasehold.files.model import FileLeaseLimits

GOOD = FileOptions()
DURATIONS = (
    "soft_limit",
    "hard_limit",
    "check_interval",
    "monitor_interval",
    "monitor_budget",
    "recovery_timeout",
)


def _with(what: str, value: object) -> FileOptions:
    changed: dict[str, Any] = {what: value}
    return replace(GOOD, **changed)


def test_nothing_has_to_be_said() -> None:
    assert GOOD.limits == FileLeaseLimits(soft_s=60.0, hard_s=1200.0, attempt_s=90.0)
    assert (GOOD.check_interval, GOOD.monitor_interval) == (
        timedelta(seconds=1),
        timedelta(seconds=2),
    )
    assert (GOOD.replication, GOOD.min_replicas, GOOD.block_bytes) == (None, 1, 128 << 20)


def test_the_journal_judges_by_the_times_that_were_set() -> None:
    options = FileOptions(
        soft_limit=timedelta(seconds=5),
        hard_limit=timedelta(minutes=1),
        recovery_timeout=timedelta(seconds=7),
    )
    assert options.limits == FileLeaseLimits(soft_s=5.0, hard_s=60.0, attempt_s=7.0)


@pytest.mark.parametrize("what", DURATIONS)
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.009, 30 * 24 * 3600 + 1.0])
def test_a_time_out_of_its_range_is_refused_and_the_range_named(what: str, seconds: float) -> None:
    # HDFS-16408: a negative interval made the monitor spin.
    with pytest.raises(InvalidDuration, match=rf"^{what} is .* s and must lie between 0\.01 s and"):
        _with(what, timedelta(seconds=seconds))


@pytest.mark.parametrize("what", DURATIONS)
def test_a_number_is_no_duration(what: str) -> None:
    with pytest.raises(InvalidDuration, match=f"^{what} must be a timedelta, such as"):
        _with(what, 60)


def test_a_hard_limit_below_the_soft_one_is_refused() -> None:
    with pytest.raises(
        InvalidOptions,
        match=r"^soft_limit <= hard_limit does not hold \(0:01:00 > 0:00:59\): the monitor would",
    ):
        replace(GOOD, hard_limit=timedelta(seconds=59))


def test_the_two_limits_may_be_equal() -> None:
    options = replace(GOOD, hard_limit=timedelta(seconds=60))
    assert options.limits.soft_s == options.limits.hard_s


def test_a_look_that_would_come_after_the_soft_limit_is_refused() -> None:
    with pytest.raises(
        InvalidOptions, match=r"^check_interval <= soft_limit / 2 does not hold .*: a renewal would"
    ):
        replace(GOOD, check_interval=timedelta(seconds=31))
    assert replace(GOOD, check_interval=timedelta(seconds=30)).check_interval == timedelta(
        seconds=30
    )


@pytest.mark.parametrize("replication", [-1, 0, 17])
def test_a_replication_out_of_its_range_is_refused(replication: int) -> None:
    with pytest.raises(
        InvalidOptions, match=rf"^replication is {replication} and must lie between 1 and 16$"
    ):
        replace(GOOD, replication=replication)


@pytest.mark.parametrize(("replication", "least"), [(2, 3), (2, 0), (None, 17), (None, 0)])
def test_a_block_that_could_never_be_written_is_refused(
    replication: int | None, least: int
) -> None:
    with pytest.raises(
        InvalidOptions, match=r"^1 <= min_replicas <= replication does not hold .*: no block"
    ):
        FileOptions(replication=replication, min_replicas=least)


@pytest.mark.parametrize("size", [-1, 0, 4095, (1 << 40) + 1])
def test_a_block_size_out_of_its_range_is_refused(size: int) -> None:
    with pytest.raises(InvalidOptions, match=rf"^block_bytes is {size} and must lie between 4096"):
        replace(GOOD, block_bytes=size)
