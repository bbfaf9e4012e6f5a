"""Decides which occurrence of a schedule to run now, and when to check again.

Guarantees, whatever the clocks of the nodes show:

- An occurrence that is done is never run again: progress is counted from the store, never from a
  clock. A clock that jumps back runs nothing twice.
- The identity of an occurrence is its scheduled time. Jitter moves the run, never the identity.
- A decision considers 1,000 occurrences at most, however long no node was running.

Skipped occurrences need no write of their own: the progress of the next run is past them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from leasehold.core.cron import Schedule

MAX_MISSED = 1000
ON_TIME = timedelta(seconds=60)
_ALL_PARTS = 2**64
_TICK = timedelta(microseconds=1)


class OnCrash(Enum):
    """What to do about an occurrence whose run was started and whose holder crashed."""

    RERUN = "rerun"  # at least once
    ABANDON = "abandon"  # at most once


class CatchUp(Enum):
    """Which occurrences to run that passed while no node could run them."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


class Overlap(Enum):
    """What to do about an occurrence that comes while the previous run has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"  # the run is stopped


class RunLocation(Enum):
    """Where the job runs now, as far as is known."""

    NOWHERE = "nowhere"
    HERE = "here"
    ELSEWHERE = "elsewhere"


class RunRules(Protocol):
    """The part of a policy that decides what is run."""

    @property
    def on_crash(self) -> OnCrash:
        """What to do about a run that was started and never ended."""
        ...

    @property
    def catch_up(self) -> CatchUp:
        """Which of the missed occurrences are run."""
        ...

    @property
    def max_age(self) -> timedelta | None:
        """An occurrence that is older is never run."""
        ...

    @property
    def overlap(self) -> Overlap:
        """What to do if the previous run has not ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDecision:
    """What to do about one schedule at one time.

    Attributes:
        run: the occurrence to run now.
        again: its run was started before, and did not end.
        waiting: the occurrence that would be run if the job did not run elsewhere.
        stop: the current run here is to be replaced.
        check_at: when to decide again; None: only the end of a run can change anything, or the
            schedule is over.
    """

    run: datetime | None = None
    again: bool = False
    waiting: datetime | None = None
    stop: bool = False
    check_at: datetime | None = None


def shift_of(name: str, jitter: timedelta) -> timedelta:
    """Return how much later than scheduled this job starts: the same on every node, always."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return jitter * (int.from_bytes(digest[:8], "big") / _ALL_PARTS)


def decide(
    schedule: Schedule,
    *,
    done: datetime,
    started: datetime | None,
    now: datetime,
    rules: RunRules,
    location: RunLocation = RunLocation.NOWHERE,
    shift: timedelta = timedelta(0),
) -> RunDecision:
    """Decide what to do now. ``done`` and ``started`` are the progress in the store.

    ``location`` is where the job runs; a run that was started and runs nowhere has crashed.
    """
    if location is RunLocation.HERE:
        return _while_running(schedule, max(done, started or done), now, rules, shift)
    settled = done
    if started is not None:
        waiting = location is RunLocation.ELSEWHERE
        if waiting or (
            rules.on_crash is OnCrash.RERUN and _young_enough(started, now, rules, shift)
        ):
            # The other node may still crash, so it is checked even with ABANDON.
            return _decision_for(started, location, again=True)
        settled = started
    first = schedule.next(settled)
    if first is None or first + shift > now:
        return RunDecision(check_at=None if first is None else first + shift)
    found = _due(schedule, first, now, rules, shift)
    if found is None:
        following = schedule.next(max(settled, now - shift))
        return RunDecision(check_at=None if following is None else following + shift)
    return _decision_for(found, location, again=False)


def settled_by(
    schedule: Schedule,
    occurrence: datetime,
    *,
    began: datetime,
    ended: datetime,
    rules: RunRules,
    shift: timedelta = timedelta(0),
) -> datetime:
    """Return the time up to which the schedule is done when the run of ``occurrence`` has ended.

    With ``SKIP`` that includes occurrences that came while it ran, unless an older one is still
    waiting: then that one is run first.
    """
    if rules.overlap is not Overlap.SKIP:
        return occurrence
    following = schedule.next(occurrence)
    if following is None or following + shift > ended or following + shift <= began:
        return occurrence
    return schedule.previous(ended - shift + _TICK) or occurrence


def _decision_for(occurrence: datetime, location: RunLocation, *, again: bool) -> RunDecision:
    if location is RunLocation.ELSEWHERE:
        return RunDecision(waiting=occurrence)
    return RunDecision(run=occurrence, again=again)


def _while_running(
    schedule: Schedule, running: datetime, now: datetime, rules: RunRules, shift: timedelta
) -> RunDecision:
    """Decide for a job that runs here: only ``REPLACE`` changes anything before it ends."""
    if rules.overlap is not Overlap.REPLACE:
        return RunDecision()
    following = schedule.next(running)
    if following is None:
        return RunDecision()
    if following + shift <= now:
        return RunDecision(stop=True)
    return RunDecision(check_at=following + shift)


def _due(
    schedule: Schedule, first: datetime, now: datetime, rules: RunRules, shift: timedelta
) -> datetime | None:
    """Return which of the occurrences from ``first`` to now to run; None: all are skipped."""
    last = schedule.previous(now - shift + _TICK) or first
    if not _young_enough(last, now, rules, shift):
        return None
    if rules.catch_up is CatchUp.NONE:
        return last if now - last - shift <= ON_TIME else None
    if rules.catch_up is CatchUp.LATEST or first == last:
        return last
    return _oldest(schedule, first, last, now, rules, shift)


def _oldest(
    schedule: Schedule,
    first: datetime,
    last: datetime,
    now: datetime,
    rules: RunRules,
    shift: timedelta,
) -> datetime:
    """Return the oldest that is young enough and among the last thousand."""
    if rules.max_age is not None and not _young_enough(first, now, rules, shift):
        first = schedule.next(now - shift - rules.max_age - _TICK) or last
    count = sum(1 for _ in zip(range(MAX_MISSED), schedule.occurrences(first, last), strict=False))
    if count < MAX_MISSED:  # behind the first one
        return first
    found = last
    for _ in range(MAX_MISSED - 1):
        found = schedule.previous(found) or found
    return found


def _young_enough(occurrence: datetime, now: datetime, rules: RunRules, shift: timedelta) -> bool:
    return rules.max_age is None or now - occurrence - shift <= rules.max_age
