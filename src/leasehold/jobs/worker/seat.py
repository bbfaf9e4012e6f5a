"""A job as one worker knows it: what it does with it, and what it has said of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.model import Position

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from leasehold.jobs.orders import Order
    from leasehold.jobs.worker.definition import Job
    from leasehold.model import Checkpoint

log = logging.getLogger("leasehold.jobs")

_BY = " by "
_LONGEST_SCHEDULE = 200


class Kind(Enum):
    """Why a job is to be reserved."""

    BIRTH = "birth"  # the schedule is new to the store: nothing is run
    SCHEDULED = "scheduled"
    SERVICE = "service"
    BY_HAND = "by hand"  # an operator wants a run of a job that has a schedule
    START = "start"  # the worker has started


@dataclass(slots=True, kw_only=True)
class Seat:
    """One job of this worker.

    Attributes:
        number: its place among the jobs of the worker.
        busy: it runs here, or its end is not settled yet.
        starts: it has still to be run because the worker has started.
        rival: the epoch in which somebody else had it then: if that is a run, it is ours too.
        over: a service that has ended here and is not run again.
        barred: the store holds something else under its name, so it can not be run.
        epoch: of its last reservation here.
        failures: of a service, in a row.
        not_before_s: by the clock since boot: nothing is run before.
    """

    number: int
    job: Job
    busy: bool = False
    starts: bool = False
    rival: int | None = None
    over: bool = False
    barred: bool = False
    epoch: int = -1
    failures: int = 0
    not_before_s: float = 0.0
    _late: datetime | None = None
    _ahead: datetime | None = None
    _others: set[str] = field(default_factory=set)

    def signed(self, position: Position) -> Position:
        """The mark with the schedule it was made by."""
        offset = f"{position.offset}{_BY}{_short(self.job.words)}"
        return Position(sequence_number=position.sequence_number, offset=offset)

    def compare(self, checkpoint: Checkpoint) -> None:
        """Warn once if another node runs this job by another schedule."""
        theirs = checkpoint.position.offset.partition(_BY)[2]
        if theirs and theirs != _short(self.job.words) and theirs not in self._others:
            self._others.add(theirs)
            log.warning(
                "job %s has two schedules: %r here, and %r at another node; give both the same",
                self.job.name,
                self.job.words,
                theirs,
            )

    def note_ahead(self, done: datetime, now: datetime, tolerance: timedelta) -> None:
        """Warn once if all is done up to a moment that is still to come."""
        if done == self._ahead or done - now <= tolerance:
            return
        self._ahead = done
        log.warning(
            "job %s is marked as done up to %s, which is %.0f s from now: a clock was wrong; "
            "nothing of its schedule is run before",
            self.job.name,
            done.isoformat(),
            (done - now).total_seconds(),
        )

    def note_late(self, occurrence: datetime, now: datetime, tolerance: timedelta) -> None:
        """Warn once if nobody has run an occurrence for a while after its time."""
        if occurrence == self._late or now - occurrence - self.job.shift <= tolerance:
            return
        self._late = occurrence
        log.warning(
            "job %s is late: nobody has run the occurrence of %s, which was due %.0f s ago",
            self.job.name,
            occurrence.isoformat(),
            (now - occurrence - self.job.shift).total_seconds(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job is to be reserved for.

    Attributes:
        occurrence: the moment it is the run of.
        done: all up to here is done, as was read.
        again: that run was started before.
        wish: the order of an operator that is to be taken with it.
    """

    seat: Seat
    kind: Kind
    occurrence: datetime | None = None
    done: datetime | None = None
    again: bool = False
    wish: Order | None = None

    @property
    def key(self) -> str:
        """What is to be reserved."""
        return self.seat.job.key

    @property
    def due(self) -> datetime | None:
        """When its occurrence is to be run; None if it has none."""
        return None if self.occurrence is None else self.occurrence + self.seat.job.shift


def _short(words: str) -> str:
    return words[:_LONGEST_SCHEDULE]
