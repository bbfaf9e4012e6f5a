"""One signal that is heard twice is one request; a later one is another."""

from __future__ import annotations

import os
import queue
import signal
from typing import Any

import pytest

from leasehold.runtime.stop_signals import StopAsked, StopRequests
from leasehold.spark import Pipeline
from leasehold.spark.standby_query import standby
from leasehold.testing.clock import ManualClock

LATER = [(0.0, []), (0.9, []), (1.0, [143]), (60.0, [143])]


def test_the_first_is_obeyed_its_echo_is_not_and_a_later_one_is_another() -> None:
    requests = StopRequests()
    heard = [requests.heard(now_s) for now_s in (5.0, 5.0, 5.9, 6.0, 7.0)]
    assert heard == [
        StopAsked.FIRST,
        StopAsked.SAME,
        StopAsked.SAME,
        StopAsked.AGAIN,
        StopAsked.AGAIN,
    ]


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes with which the process would have ended."""
    found: list[int] = []
    monkeypatch.setattr(os, "_exit", found.append)
    monkeypatch.setattr(standby, "kill_java", lambda: None)
    return found


def hear_a_sigterm() -> None:
    handler: Any = signal.getsignal(signal.SIGTERM)
    handler(signal.SIGTERM, None)


@pytest.mark.parametrize(("later_s", "left"), LATER)
def test_a_pipeline_leaves_at_once_only_if_it_is_asked_later(
    codes: list[int], later_s: float, left: list[int]
) -> None:
    clock = ManualClock()
    spark: Any = None
    made = Pipeline(spark, "log:orders", "memory://", "totals", clock=clock)
    with made._signals():
        hear_a_sigterm()
        clock.advance(later_s)
        hear_a_sigterm()
    assert codes == left


@pytest.mark.parametrize(("later_s", "left"), LATER)
def test_a_standby_leaves_at_once_only_if_it_is_asked_later(
    codes: list[int], later_s: float, left: list[int]
) -> None:
    clock, stopped = ManualClock(), queue.SimpleQueue[bool]()
    with standby.stopped_by_signals(lambda: stopped.put(True), clock=clock):
        hear_a_sigterm()
        assert stopped.get(timeout=60)
        clock.advance(later_s)
        hear_a_sigterm()
    assert codes == left
    assert stopped.empty()
