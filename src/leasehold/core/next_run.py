"""Which occurrence of a schedule is to be run now, and when to look again.

Guarantees, whatever the clocks of the nodes show:

- An occurrence that is done is never run again: what is done is counted from the mark in the store,
  and never from a clock. A clock that jumps back runs nothing twice.
- The identity of an occurrence is its scheduled moment. Jitter moves the run, never the identity.
- A decision looks at 1,000 occurrences at most, however long nobody was there.

What is passed over needs no mark of its own: the mark of the next run lies behind it.
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
    """An occurrence whose run was started, and whose holder died before its end."""

    RERUN = "rerun"  # at least once
    ABANDON = "abandon"  # at most once


class CatchUp(Enum):
    """Occurrences that passed while nobody could run them."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


class Overlap(Enum):
    """An occurrence that comes while the run before it has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"  # the run is stopped


class RunPlace(Enum):
    """Where the job runs at this moment, as far as is known."""

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
        """What is later than that is never run."""
        ...

    @property
    def overlap(self) -> Overlap:
        """What to do if the run before has not ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDecision:
    """What is to be done about one schedule at one moment.

    Attributes:
        run: the occurrence to be run now.
        again: its run was started before, and nobody has ended it.
        waits: the occurrence that would be run, if the job did not run elsewhere.
        stop: the run that is under way here is to make room.
        look_at: when there may be something new to decide; None: only the end of a run can change
            anything, or the schedule is over.
    """

    run: datetime | None = None
    again: bool = False
    waits: datetime | None = None
    stop: bool = False
    look_at: datetime | None = None


def shift_of(name: str, jitter: timedelta) -> timedelta:
    """How much later than scheduled this job begins: the same on every node, and for ever."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return jitter * (int.from_bytes(digest[:8], "big") / _ALL_PARTS)


def decide(
    schedule: Schedule,
    *,
    done: datetime,
    started: datetime | None,
    now: datetime,
    rules: RunRules,
    place: RunPlace = RunPlace.NOWHERE,
    shift: timedelta = timedelta(0),
) -> RunDecision:
    """What to do now. ``done`` and ``started`` are what the store says of the schedule.

    ``place`` is where the job runs; what is started and runs nowhere has crashed.
    """
    if place is RunPlace.HERE:
        return _beside(schedule, max(done, started or done), now, rules, shift)
    settled = done
    if started is not None:
        waits = place is RunPlace.ELSEWHERE
        if waits or (rules.on_crash is OnCrash.RERUN and _fresh(started, now, rules, shift)):
            # The other one may crash yet, so even with ABANDON it has to be looked after.
            return _found(started, place, again=True)
        settled = started
    first = schedule.next(settled)
    if first is None or first + shift > now:
        return RunDecision(look_at=None if first is None else first + shift)
    found = _due(schedule, first, now, rules, shift)
    if found is None:
        following = schedule.next(max(settled, now - shift))
        return RunDecision(look_at=None if following is None else following + shift)
    return _found(found, place, again=False)


def settled_by(
    schedule: Schedule,
    occurrence: datetime,
    *,
    began: datetime,
    ended: datetime,
    rules: RunRules,
    shift: timedelta = timedelta(0),
) -> datetime:
    """Up to where the schedule is done when the run of ``occurrence`` has ended.

    With ``SKIP`` that includes what came while it ran, unless something older still waits: then
    that has its turn first, and what came meanwhile waits behind it.
    """
    if rules.overlap is not Overlap.SKIP:
        return occurrence
    following = schedule.next(occurrence)
    if following is None or following + shift > ended or following + shift <= began:
        return occurrence
    return schedule.previous(ended - shift + _TICK) or occurrence


def _found(occurrence: datetime, place: RunPlace, *, again: bool) -> RunDecision:
    if place is RunPlace.ELSEWHERE:
        return RunDecision(waits=occurrence)
    return RunDecision(run=occurrence, again=again)


def _beside(
    schedule: Schedule, running: datetime, now: datetime, rules: RunRules, shift: timedelta
) -> RunDecision:
    """The job runs here: only ``REPLACE`` has something to say before it ends."""
    if rules.overlap is not Overlap.REPLACE:
        return RunDecision()
    following = schedule.next(running)
    if following is None:
        return RunDecision()
    if following + shift <= now:
        return RunDecision(stop=True)
    return RunDecision(look_at=following + shift)


def _due(
    schedule: Schedule, first: datetime, now: datetime, rules: RunRules, shift: timedelta
) -> datetime | None:
    """Which of the occurrences from ``first`` to now is to be run; None: all are passed over."""
    last = schedule.previous(now - shift + _TICK) or first
    if not _fresh(last, now, rules, shift):
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
    """The oldest that is young enough, and among the last thousand."""
    if rules.max_age is not None and not _fresh(first, now, rules, shift):
        first = schedule.next(now - shift - rules.max_age - _TICK) or last
    count = sum(1 for _ in zip(range(MAX_MISSED), schedule.occurrences(first, last), strict=False))
    if count < MAX_MISSED:  # behind the first one
        return first
    found = last
    for _ in range(MAX_MISSED - 1):
        found = schedule.previous(found) or found
    return found


def _fresh(occurrence: datetime, now: datetime, rules: RunRules, shift: timedelta) -> bool:
    return rules.max_age is None or now - occurrence - shift <= rules.max_age
