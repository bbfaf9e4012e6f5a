"""``leasehold run`` on machines with wrong clocks: the store's clock decides what is due."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.command_wrappers import JOB, log_of, plan
from tests.support.postgres import database

from leasehold.clock import SystemClock
from leasehold.core.cron import parse_schedule
from leasehold.errors import OccurrenceNotDue
from leasehold.jobs.command.exit_status import ExitReason, ExitStatus
from leasehold.jobs.command.one_shot import Wrapper
from leasehold.jobs.command.signal_queue import SignalQueue

pytestmark = pytest.mark.server

HOURLY = parse_schedule("0 * * * *")


class SkewedClock(SystemClock):
    """The clock of a machine that is ``skew`` wrong."""

    def __init__(self, skew: timedelta) -> None:
        super().__init__()
        self.skew = skew

    def utc_now(self) -> datetime:
        return super().utc_now() + self.skew


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


def latest(clock: SystemClock) -> datetime:
    found = HOURLY.previous(clock.utc_now())
    assert found is not None
    return found


def run(url: str, clock: SystemClock, occurrence: datetime, *, follow: bool = True) -> ExitStatus:
    said: list[str] = []
    signals = SignalQueue()
    try:
        wrapper = Wrapper(
            plan(url, "true", occurrence=occurrence),
            signals=signals,
            clock=clock,
            rng=random.Random(1),
            echo=said.append,
            schedule=HOURLY if follow else None,
        )
        return wrapper.run()
    finally:
        signals.close()


@pytest.mark.spec("J6")
def test_a_node_that_is_two_hours_ahead_runs_what_is_due_and_silences_nothing(url: str) -> None:
    right, ahead = SystemClock(), SkewedClock(timedelta(hours=2))
    due = latest(right)
    found = run(url, ahead, latest(ahead))
    assert found.reason is ExitReason.ENDED
    assert found.occurrence in {due, latest(right)}  # an hour may have ended meanwhile
    again = run(url, right, found.occurrence)
    assert again.reason is ExitReason.DONE
    assert [each.note.occurrence for each in log_of(url) if each.ran] == [found.occurrence]


@pytest.mark.spec("J6")
def test_an_occurrence_that_is_named_and_not_due_is_refused(url: str) -> None:
    clock = SystemClock()
    future = (clock.utc_now() + timedelta(hours=3)).astimezone(UTC).replace(microsecond=0)
    with pytest.raises(OccurrenceNotDue, match=f"of '{JOB}' is not due: .* clock agrees"):
        run(url, clock, future, follow=False)
    assert not [each for each in log_of(url) if each.ran]
    assert run(url, clock, latest(clock)).reason is ExitReason.ENDED
