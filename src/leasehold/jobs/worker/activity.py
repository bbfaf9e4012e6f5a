"""One reservation that is at work: its attempts, why it was told to stop, and what comes of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.next_run import settled_by
from leasehold.errors import LeaseLost
from leasehold.jobs.entry import Outcome, Said
from leasehold.jobs.worker.seat import Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    import anyio

    from leasehold.jobs.worker.run import Run
    from leasehold.jobs.worker.seat import Plan, Seat
    from leasehold.model import Ownership

TIMEOUT, REPLACED, STOPPED = "timeout", "replaced", "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be told to the store of a run that has ended.

    ``settled`` is up to where the schedule is done by it; None where the occurrence stays open, for
    somebody else to run, or where it had none.
    """

    outcome: Outcome
    words: str = ""
    settled: datetime | None = None
    retry: bool = False


class Activity:
    """A job that is reserved here and is run, once or, if it fails, several times."""

    def __init__(
        self, plan: Plan, ownership: Ownership, *, said: Said, began: datetime, began_s: float
    ) -> None:
        """Reserved, and not started yet."""
        self.plan = plan
        self.ownership = ownership
        self.said = said
        self.began = began
        self.began_s = began_s
        self.attempt = said.attempt
        self.tries = 0
        self.run: Run | None = None
        self.running = False
        self.cancel: Callable[[], None] | None = None
        self.reason: str | None = None
        self.heir: str | None = None  # who is to have it next, if an operator named one
        self.lost = False
        self.stuck = False
        self.bell: anyio.Event | None = None  # rung when it is told, while somebody waits

    def __str__(self) -> str:
        """For people, behind the name of the job: which occurrence, and which attempt."""
        occurrence = self.plan.occurrence
        moment = "" if occurrence is None else f", {occurrence:%Y-%m-%d %H:%M:%S} UTC"
        return f"{moment}, attempt {self.attempt}" if self.attempt > 1 else moment

    @property
    def seat(self) -> Seat:
        """Whose run it is."""
        return self.plan.seat

    @property
    def key(self) -> str:
        """What is reserved."""
        return self.ownership.key

    def tell(self, reason: str, *, lost: bool = False) -> bool:
        """Have it stop; False if it was told before. A loss overrules all other reasons."""
        first = self.reason is None
        if first or (lost and not self.lost):
            self.reason = reason
        self.lost |= lost
        if self.run is not None:
            self.run.tell(reason)
        if self.bell is not None:
            self.bell.set()
        if first and self.running and self.cancel is not None:
            self.cancel()
        return first

    def last_words(self, verdict: Verdict) -> Said:
        """What the log says of it in the end."""
        said = self.said
        return Said(
            host=said.host,
            pid=said.pid,
            occurrence=said.occurrence,
            attempt=self.attempt,
            schedule=said.schedule,
            outcome=verdict.outcome,
            exit_code=None if self.run is None else self.run.exit_code,
            words=verdict.words,
        )

    def verdict(self, error: BaseException | None, ended: datetime) -> Verdict:
        """What comes of it, now that its function has ended."""
        if self.lost:
            return Verdict(outcome=Outcome.LOST, words=self.reason or "")
        if self.reason == REPLACED:
            return Verdict(outcome=Outcome.KILLED, words=REPLACED, settled=self.done(ended))
        if self.reason == STOPPED and error is not None:
            return self._stopped(error, ended)
        if self.reason == TIMEOUT:
            limit = self.seat.job.policy.timeout
            words = "" if limit is None else f"it took longer than {limit.total_seconds():g} s"
            return self._failed(words, ended)
        if error is not None:
            return self._failed(_words(error), ended)
        words = self.run.words if self.run is not None else ""
        return Verdict(outcome=Outcome.OK, words=words, settled=self.done(ended))

    def _stopped(self, error: BaseException, ended: datetime) -> Verdict:
        if self.plan.kind is not Kind.SERVICE:
            return Verdict(outcome=Outcome.HANDED_OVER, words="the worker was stopped")
        if isinstance(error, asyncio.CancelledError | LeaseLost):
            return Verdict(outcome=Outcome.OK, words=STOPPED)
        return self._failed(_words(error), ended)

    def _failed(self, words: str, ended: datetime) -> Verdict:
        again = self.tries <= self.seat.job.policy.retries and self.reason != STOPPED
        # A service is released, and run again by whoever is first. What was stuck is done with.
        again = again and self.plan.kind is not Kind.SERVICE and not self.stuck
        settled = None if again else self.done(ended)
        return Verdict(outcome=Outcome.FAILED, words=words, settled=settled, retry=again)

    def done(self, ended: datetime) -> datetime | None:
        """Up to where the schedule is done by this run; None if that is nowhere new."""
        job, base = self.seat.job, self.plan.occurrence or self.plan.done
        if job.schedule is None or base is None:
            return None
        settled = settled_by(
            job.schedule,
            base,
            began=self.began,
            ended=ended,
            rules=job.policy,
            shift=job.shift,
        )
        return None if settled == self.plan.done else settled


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
