"""``Wrapper``: reserves a job, runs a command under it and releases it; once, or as a standby.

Guarantees:

- The command runs only while the job is reserved here: never because the store is unreachable, and
  never if less than half of the lease is left at its start.
- The reservation is released when the last process of the command has ended, with the outcome and
  the exit code, in the same step.
- Every end has its exit code and its reason: see ``ExitStatus``.
"""

from __future__ import annotations

import logging
import math
import select
import signal
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from leasehold.core.backoff import Backoff
from leasehold.errors import LeaseLost, OccurrenceNotDue, StoreError, StoreUnavailable
from leasehold.jobs.claimant import Claimant, Parting
from leasehold.jobs.command.child import SIGNALLED
from leasehold.jobs.command.command_run import CommandEnd, CommandRun
from leasehold.jobs.command.exit_status import (
    LEFT_BEHIND,
    ExitCode,
    ExitReason,
    ExitStatus,
    IfHeld,
    environment,
    failure_text,
    status_of_end,
    status_of_loss,
)
from leasehold.jobs.command.signal_queue import SignalQueue, StopRequested
from leasehold.jobs.operator_requests import read_requests
from leasehold.jobs.request import Request
from leasehold.jobs.reservation import Reservation
from leasehold.jobs.run_log import Outcome
from leasehold.jobs.wish import Done, Held
from leasehold.stores import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from datetime import datetime

    from leasehold.clock import Clock
    from leasehold.core.cron import Schedule
    from leasehold.jobs.command.exit_status import CommandPlan

log = logging.getLogger("leasehold.jobs")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 15.0  # when the store fails
_MIN_READ_S, _MAX_READ_S = 2.0, 10.0  # for the requests: the store may have to be created
_PAUSED_POLL_S = 2.0
_NOTHING_RUN = "nothing was run"
_STANDBY_REASONS = (ExitReason.LOST, ExitReason.HANDED_OVER, ExitReason.PAUSED)  # of a standby


class Wrapper:
    """One wrapper. ``run`` blocks in the main thread, which receives the signals."""

    def __init__(
        self,
        plan: CommandPlan,
        *,
        signals: SignalQueue,
        clock: Clock,
        rng: random.Random,
        echo: Callable[[str], None],
        schedule: Schedule | None = None,
        no_other_children: bool = False,
    ) -> None:
        """Take the latest occurrence of ``schedule`` if that of the plan is not due in the store.

        ``echo`` prints a message. See ``Child`` on ``no_other_children``.
        """
        self._plan = plan
        self._schedule = schedule
        self._signals = signals
        self._clock = clock
        self._rng = rng
        self._echo = echo
        self._no_other_children = no_other_children
        self._hand_over_to: str | None = None
        self._hand_over_requested = False
        self._ended_by_signal = False
        self._running: CommandRun | None = None
        self._wish = plan.wish()

    def run(self) -> ExitStatus:
        """Carry out the plan."""
        try:
            while True:
                status = self._once()
                if not self._stands_by(status):
                    return status
                self._echo(f"{status.message}; standing by")
                if status.reason is ExitReason.PAUSED:
                    self._wait_for_resume()
        except StopRequested as stopped:
            name = signal.Signals(stopped.number).name
            return ExitStatus(
                reason=ExitReason.STOPPED,
                # A standby usually ends by a signal.
                code=ExitCode.OK if self._plan.standby else SIGNALLED + stopped.number,
                message=f"{name} while waiting for {self._plan.job!r}: nothing was run",
            )

    def _stands_by(self, status: ExitStatus) -> bool:
        if not self._plan.standby or self._ended_by_signal:
            return False
        left = status.reason is ExitReason.HANDED_OVER and self._hand_over_to is None
        return status.reason in _STANDBY_REASONS and not left

    def _wait_for_resume(self) -> None:
        """Poll the requests only: a reservation that is not used would fill the log."""
        paused = True
        while paused:
            self._pause(_PAUSED_POLL_S)
            try:
                paused = self._paused() is not None
            except StoreError as error:
                log.warning("whether %s is paused is not known: %s", self._plan.job, error)

    def _pause(self, seconds: float) -> None:
        """Wait; raise ``StopRequested`` if a signal asks for the end."""
        poll = select.poll()
        poll.register(self._signals.descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        self._signals.check()

    # ------------------------------------------------------------ the reservation

    def _once(self) -> ExitStatus:
        """Reserve the job and run the command, or return why not."""
        self._hand_over_requested, self._hand_over_to = False, None
        try:
            answer = self._reserve_with_retries()
        except OccurrenceNotDue as error:
            due = self._due_in_store(error)
            if due is None:
                raise
            self._echo(f"{error}; the one of {due:%Y-%m-%d %H:%M:%S} UTC is reserved instead")
            self._wish = replace(self._wish, occurrence=due)
            return self._once()
        except (StoreError, LeaseLost) as error:
            return ExitStatus(
                reason=ExitReason.UNREACHABLE,
                code=ExitCode.UNREACHABLE,
                message=f"{error}; {self._plan.job!r} is not run without its reservation",
            )
        if isinstance(answer, ExitStatus):
            return answer
        if isinstance(answer, Held):
            return self._held(answer)
        if isinstance(answer, Done):
            return self._done(answer)
        return self._serve(answer)

    def _due_in_store(self, error: OccurrenceNotDue) -> datetime | None:
        """Return the latest occurrence by the store's clock; None if there is no earlier one."""
        if self._schedule is None:
            return None
        due = self._schedule.previous(error.store_time + timedelta(microseconds=1))
        return None if due is None or due >= error.occurrence else due

    def _reserve_with_retries(self) -> Reservation | Held | Done | ExitStatus:
        """Reserve the job. Store failures are retried for one lease, or while it waits."""
        wait, lease_s = self._wait(), self._plan.timeouts.lease_s
        began_s = self._clock.boottime_s()
        until_s = began_s + (math.inf if wait is None else wait.total_seconds())
        pauses = Backoff(base_s=min(_FIRST_PAUSE_S, lease_s / 8), max_s=_LONGEST_PAUSE_S)
        failures = 0
        while True:
            left_s = max(0.0, until_s - self._clock.boottime_s())
            try:
                return self._unless_paused(None if wait is None else timedelta(seconds=left_s))
            except (StoreUnavailable, LeaseLost) as error:
                failures += 1
                pause_s = pauses.pause_s(failures, self._rng)
                end_s = max(until_s, began_s + lease_s)
                if self._clock.boottime_s() + pause_s > end_s:
                    raise
                log.warning("%s: again in %.1f s: %s", self._plan.job, pause_s, error)
            self._pause(pause_s)

    def _unless_paused(self, wait: timedelta | None) -> Reservation | Held | Done | ExitStatus:
        waits = self._plan.standby or self._plan.if_held is IfHeld.WAIT
        if not self._plan.standby and (paused := self._paused()):
            return paused
        answer = self._reserved(wait)
        if isinstance(answer, Reservation) and waits and (paused := self._paused_now(answer)):
            return paused
        return answer

    def _reserved(self, wait: timedelta | None) -> Reservation | Held | Done:
        """Reserve the job, waiting at most for ``wait``."""
        request = Request(
            self._wish,
            store=self._plan.store,
            clock=self._clock,
            on_waiting=self._on_waiting,
            on_lost=lambda _: self._signals.wake(),
            on_asked=self._on_hand_over_request,
        )
        with self._signals.on_stop(lambda _number: request.cancel()):
            try:
                answer = request.ask(wait=wait)
                self._signals.check()
            except BaseException:
                request.release(Parting(outcome=Outcome.NO_RUN, words=_NOTHING_RUN))
                raise
        if answer is None:
            raise StopRequested(signal.SIGTERM)
        return Reservation(request, answer) if isinstance(answer, Claimant) else answer

    def _paused_now(self, reservation: Reservation) -> ExitStatus | None:
        """Release the job if it was paused in the meantime; its run is still open then."""
        try:
            paused = self._paused()
        except StoreError:
            reservation.release(outcome=Outcome.NO_RUN, words=_NOTHING_RUN)
            raise
        if paused:
            reservation.release(outcome=Outcome.NO_RUN, words=f"paused: {_NOTHING_RUN}")
        return paused

    def _wait(self) -> timedelta | None:
        if self._plan.standby:
            return None
        return self._plan.wait if self._plan.if_held is IfHeld.WAIT else timedelta(0)

    def _on_waiting(self, held: Held) -> None:
        if self._plan.standby:
            self._echo(f"waiting: {held}")

    def _on_hand_over_request(self, by: str | None) -> None:
        self._hand_over_requested, self._hand_over_to = True, by
        if self._running is not None:
            self._running.request_stop()

    def _held(self, held: Held) -> ExitStatus:
        return ExitStatus(
            reason=ExitReason.HELD, code=self._exit_code(ExitCode.HELD), message=str(held)
        )

    def _done(self, done: Done) -> ExitStatus:
        return ExitStatus(
            reason=ExitReason.DONE,
            code=self._exit_code(ExitCode.DONE),
            message=str(done),
            occurrence=done.occurrence,
        )

    def _exit_code(self, usual: ExitCode) -> int:
        """Return the exit code if the run is left to others."""
        if self._plan.held_exit is not None:
            return self._plan.held_exit
        return ExitCode.OK if self._plan.if_held is IfHeld.SKIP else usual

    def _paused(self) -> ExitStatus | None:
        """Return the status if the job is paused; None if it is not."""
        plan, clock = self._plan, self._clock

        async def read() -> ExitStatus | None:
            async with open_store(plan.store, clock=clock) as store:
                requests = await read_requests(store)
            if not requests.is_paused(plan.job, now=clock.utc_now()):
                return None
            request = requests.paused[plan.job]
            why = f": {request.why}" if request.why else ""
            until = f" until {request.until:%Y-%m-%d %H:%M:%S} UTC" if request.until else ""
            return ExitStatus(
                reason=ExitReason.PAUSED,
                code=ExitCode.PAUSED,
                message=f"{plan.job!r} is paused{until} by {request.by or 'an operator'}{why}; "
                f"`leasehold jobs resume {plan.job}` ends that",
            )

        async def bounded() -> ExitStatus | None:
            limit_s = min(_MAX_READ_S, max(_MIN_READ_S, self._wish.timing.call_s))
            try:
                return await clock.bounded(read(), seconds=limit_s)
            except TimeoutError as error:
                raise StoreUnavailable(f"no answer within {limit_s:.3g} s") from error

        return anyio.run(bounded)

    # ------------------------------------------------------------ the runs

    def _serve(self, reservation: Reservation) -> ExitStatus:
        """Run the command, and release the job with the outcome."""
        # The status if a stop is requested before the command was started.
        outcome = Outcome.NO_RUN
        status = ExitStatus(reason=ExitReason.STOPPED, code=ExitCode.LOST, message=_NOTHING_RUN)
        exit_code: int | None = None
        try:
            if self._plan.standby:
                self._echo(f"active: {self._plan.job!r} is reserved, token {reservation.epoch}")
            ended, attempt = self._attempts(reservation)
            exit_code = None if ended is None else ended.exit_code
            outcome, status = self._status_of(ended, reservation)
            status = replace(
                status,
                epoch=reservation.epoch,
                attempt=attempt,
                occurrence=self._wish.occurrence,
            )
        finally:
            to = self._hand_over_to if self._hand_over_requested else None
            reservation.release(
                to=to, outcome=outcome, exit_code=exit_code, words=status.message[:200]
            )
        return status

    def _attempts(self, reservation: Reservation) -> tuple[CommandEnd | None, int]:
        """Run the command until it succeeds or no attempt is left; None if it never started.

        Raises ``StopRequested`` only if that came before the first start.
        """
        ended: CommandEnd | None = None
        attempt = 0
        try:
            while self._may_start(reservation):
                attempt += 1
                ended = self._run(reservation, attempt)
                if not self._may_retry(ended, attempt):
                    break
                self._pause_after(ended, attempt, reservation)
        except StopRequested as stopped:
            if ended is None:
                raise
            ended = replace(ended, stopped_by=stopped.number)
        return ended, attempt

    def _run(self, reservation: Reservation, attempt: int) -> CommandEnd:
        self._running = CommandRun(
            self._plan.command,
            handle=reservation,
            environment=environment(
                job=self._plan.job,
                epoch=reservation.epoch,
                lease_id=reservation.lease_id,
                occurrence=self._wish.occurrence,
                attempt=reservation.attempt + attempt - 1,  # crashed ones count
            ),
            timeouts=self._plan.timeouts,
            signals=self._signals,
            clock=self._clock,
            no_other_children=self._no_other_children,
        )
        if self._hand_over_requested:  # since the last check
            self._running.request_stop()
        try:
            ended = self._running.run()
        finally:
            self._running = None
        if ended.left_behind:
            self._echo(LEFT_BEHIND)
        return ended

    def _may_retry(self, ended: CommandEnd, attempt: int) -> bool:
        succeeded = ended.exit_code == 0 and not ended.timed_out
        over = ended.lost is not None or ended.stopped_by is not None or ended.crashed
        return ended.executed and not (succeeded or over) and attempt <= self._plan.policy.retries

    def _may_start(self, reservation: Reservation) -> bool:
        """Wait until at least half of the lease is left; False if the job is lost first."""
        while reservation.why_lost is None and not self._hand_over_requested:
            self._signals.check()
            if reservation.remaining() >= self._plan.lease / 2:
                return True
            select.poll().poll(self._plan.timeouts.slice_s * 1000)
        return False

    def _pause_after(self, ended: CommandEnd, attempt: int, reservation: Reservation) -> None:
        """Wait before the next attempt, while the job is held and no hand-over is requested."""
        seconds = self._plan.policy.pauses.pause_s(attempt, self._rng)
        self._echo(
            f"{failure_text(ended)}: attempt {attempt + 1} of {self._plan.policy.retries + 1} "
            f"in {seconds:.1f} s"
        )
        until_s = self._clock.boottime_s() + seconds
        while reservation.why_lost is None and not self._hand_over_requested:
            left_s = until_s - self._clock.boottime_s()
            if left_s <= 0:
                return
            self._pause(min(left_s, self._plan.timeouts.slice_s))

    def _status_of(
        self, ended: CommandEnd | None, reservation: Reservation
    ) -> tuple[Outcome, ExitStatus]:
        job = repr(self._plan.job)
        lost = reservation.why_lost if ended is None else ended.lost
        self._ended_by_signal = ended is not None and bool(ended.stopped_by)
        succeeded = ended is not None and ended.exit_code == 0
        if self._hand_over_requested and lost is None and (self._plan.standby or not succeeded):
            to = (
                f"to {self._hand_over_to}"
                if self._hand_over_to
                else "to nobody: this one was asked to leave"
            )
            code = ExitCode.OK if self._plan.standby else ExitCode.LOST
            message = f"{job} was given away {to}"
            status = ExitStatus(reason=ExitReason.HANDED_OVER, code=code, message=message)
            if ended is None:
                return Outcome.NO_RUN, status
            return (Outcome.OK if succeeded else Outcome.HANDED_OVER), status
        if lost is not None and ended is None:
            message = f"{job} was lost ({lost}) before the command was started"
            return Outcome.NO_RUN, ExitStatus(
                reason=ExitReason.LOST, code=ExitCode.LOST, message=message
            )
        assert ended is not None  # noqa: S101 - it was neither lost nor given away
        if lost is not None:
            return status_of_loss(job, ended, self._plan.timeouts.on_loss.kind)
        return status_of_end(ended, self._plan)
