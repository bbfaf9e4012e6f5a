"""The wrapper: reserve a job, run a command under it, let go; once, or as a standby.

Guarantees:

- The command runs only while the job is reserved here: never because the store is away, and never
  if less than half of the lease is left at its start.
- The reservation is let go when the last process of the command is gone, with the outcome and the
  exit code, in the same step.
- Every way to end has its exit code and its reason: see ``ExitStatus``.
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
from leasehold.errors import LeaseLost, StoreError, StoreUnavailable
from leasehold.jobs.claimant import Claimant, Parting
from leasehold.jobs.command.child import SIGNALLED
from leasehold.jobs.command.command_run import CommandEnd, CommandRun
from leasehold.jobs.command.exit_status import (
    LEFT_BEHIND,
    ExitCode,
    ExitReason,
    ExitStatus,
    IfHeld,
    ended_run,
    environment,
    lost_run,
    what_happened,
)
from leasehold.jobs.command.signal_queue import SignalQueue, StopRequested
from leasehold.jobs.operator_requests import standing
from leasehold.jobs.request import Request
from leasehold.jobs.reservation import Reservation
from leasehold.jobs.run_log import Outcome
from leasehold.jobs.wish import Done, Held
from leasehold.stores import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.jobs.command.exit_status import CommandPlan

log = logging.getLogger("leasehold.jobs")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 15.0  # when the store is in trouble
_MIN_READ_S, _MAX_READ_S = 2.0, 10.0  # for the orders: the store may have to be made
_PAUSED_LOOK_S = 2.0
_NOTHING_RUN = "nothing was run"
_NOT_THE_END = (ExitReason.LOST, ExitReason.HANDED_OVER, ExitReason.PAUSED)  # of a standby


class Wrapper:
    """One wrapper. ``run`` blocks in the main thread, in which it hears signals."""

    def __init__(
        self,
        plan: CommandPlan,
        *,
        bell: SignalQueue,
        clock: Clock,
        rng: random.Random,
        say: Callable[[str], None],
        alone: bool = False,
    ) -> None:
        """``say`` prints words for people. See ``Child`` on ``alone``."""
        self._plan = plan
        self._bell = bell
        self._clock = clock
        self._rng = rng
        self._say = say
        self._alone = alone
        self._heir: str | None = None
        self._asked = False
        self._told_to_end = False
        self._running: CommandRun | None = None
        self._wish = plan.wish()

    def run(self) -> ExitStatus:
        """Do what the plan says."""
        try:
            while True:
                verdict = self._once()
                if not self._goes_on(verdict):
                    return verdict
                self._say(f"{verdict.message}; standing by")
                if verdict.reason is ExitReason.PAUSED:
                    self._wait_for_resume()
        except StopRequested as stopped:
            name = signal.Signals(stopped.number).name
            return ExitStatus(
                reason=ExitReason.STOPPED,
                # To be told to go is the usual end of a standby.
                code=ExitCode.OK if self._plan.standby else SIGNALLED + stopped.number,
                message=f"{name} while waiting for {self._plan.job!r}: nothing was run",
            )

    def _goes_on(self, verdict: ExitStatus) -> bool:
        if not self._plan.standby or self._told_to_end:
            return False
        left = verdict.reason is ExitReason.HANDED_OVER and self._heir is None
        return verdict.reason in _NOT_THE_END and not left

    def _wait_for_resume(self) -> None:
        """Look at the orders alone: a reservation that is not used would fill the log.

        Raises:
            Stopped: somebody asked for the end.
        """
        paused = True
        while paused:
            self._rest(_PAUSED_LOOK_S)
            try:
                paused = self._paused() is not None
            except StoreError as error:
                log.warning("whether %s is paused is not known: %s", self._plan.job, error)

    def _rest(self, seconds: float) -> None:
        """Wait, unless somebody asks for the end.

        Raises:
            Stopped: somebody has.
        """
        poll = select.poll()
        poll.register(self._bell.descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        self._bell.check()

    # ------------------------------------------------------------ the reservation

    def _once(self) -> ExitStatus:
        """Reserve it, and run the command; or say why not.

        Raises:
            Stopped: somebody asked for the end while it was waited for.
        """
        self._asked, self._heir = False, None
        try:
            answer = self._patiently()
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

    def _patiently(self) -> Reservation | Held | Done | ExitStatus:
        """Have it reserved. A store in trouble is asked again: for a lease, or while we wait.

        Raises:
            StoreError: the store can not be asked, and that is not waited for any longer.
            LeaseLost: the same, of a lease that ended before it was of use.
            Stopped: somebody asked for the end.
        """
        wait, lease_s = self._wait(), self._plan.limits.lease_s
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
            self._rest(pause_s)

    def _unless_paused(self, wait: timedelta | None) -> Reservation | Held | Done | ExitStatus:
        waits = self._plan.standby or self._plan.if_held is IfHeld.WAIT
        if not self._plan.standby and (paused := self._paused()):
            return paused
        answer = self._reserved(wait)
        if isinstance(answer, Reservation) and waits and (paused := self._paused_now(answer)):
            return paused
        return answer

    def _reserved(self, wait: timedelta | None) -> Reservation | Held | Done:
        """Wait for it so long.

        Raises:
            StoreError: the store can not be asked.
            Stopped: somebody asked for the end.
        """
        request = Request(
            self._wish,
            store=self._plan.store,
            clock=self._clock,
            on_waiting=self._waits,
            on_lost=lambda _: self._bell.ring(),
            on_asked=self._hear_asked,
        )
        with self._bell.on_stop(lambda _number: request.cancel()):
            try:
                answer = request.ask(wait=wait)
                self._bell.check()
            except BaseException:
                request.release(Parting(outcome=Outcome.NO_RUN, words=_NOTHING_RUN))
                raise
        if answer is None:
            raise StopRequested(signal.SIGTERM)
        return Reservation(request, answer) if isinstance(answer, Claimant) else answer

    def _paused_now(self, reservation: Reservation) -> ExitStatus | None:
        """Whether the job was paused meanwhile; then it is let go, and its run is still open."""
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

    def _waits(self, held: Held) -> None:
        if self._plan.standby:
            self._say(f"waiting: {held}")

    def _hear_asked(self, by: str | None) -> None:
        self._asked, self._heir = True, by
        if self._running is not None:
            self._running.ask_stop()

    def _held(self, held: Held) -> ExitStatus:
        return ExitStatus(reason=ExitReason.HELD, code=self._left(ExitCode.HELD), message=str(held))

    def _done(self, done: Done) -> ExitStatus:
        return ExitStatus(
            reason=ExitReason.DONE,
            code=self._left(ExitCode.DONE),
            message=str(done),
            occurrence=done.occurrence,
        )

    def _left(self, usual: ExitCode) -> int:
        """The exit code of one that leaves the run to others."""
        if self._plan.held_exit is not None:
            return self._plan.held_exit
        return ExitCode.OK if self._plan.if_held is IfHeld.SKIP else usual

    def _paused(self) -> ExitStatus | None:
        """What to say if the job is paused.

        Raises:
            StoreError: the store can not be asked.
        """
        plan, clock = self._plan, self._clock

        async def read() -> ExitStatus | None:
            async with open_store(plan.store, clock=clock) as store:
                orders = await standing(store)
            if not orders.is_paused(plan.job, now=clock.utc_now()):
                return None
            order = orders.paused[plan.job]
            why = f": {order.why}" if order.why else ""
            until = f" until {order.until:%Y-%m-%d %H:%M:%S} UTC" if order.until else ""
            return ExitStatus(
                reason=ExitReason.PAUSED,
                code=ExitCode.PAUSED,
                message=f"{plan.job!r} is paused{until} by {order.by or 'an operator'}{why}; "
                f"`leasehold jobs resume {plan.job}` ends that",
            )

        async def bounded() -> ExitStatus | None:
            limit_s = min(_MAX_READ_S, max(_MIN_READ_S, self._wish.timing.call_s))
            try:
                return await clock.bounded(read(), seconds=limit_s)
            except TimeoutError as error:
                raise StoreUnavailable(f"no answer within {limit_s:.3g} s") from error

        return anyio.run(bounded)

    # ------------------------------------------------------------ a term

    def _serve(self, reservation: Reservation) -> ExitStatus:
        """Run the command, and let go with the outcome."""
        # What holds if we are told to stop before the command was started.
        outcome = Outcome.NO_RUN
        verdict = ExitStatus(reason=ExitReason.STOPPED, code=ExitCode.LOST, message=_NOTHING_RUN)
        exit_code: int | None = None
        try:
            if self._plan.standby:
                self._say(f"active: {self._plan.job!r} is reserved, token {reservation.epoch}")
            ended, attempt = self._attempts(reservation)
            exit_code = None if ended is None else ended.exit_code
            outcome, verdict = self._judged(ended, reservation)
            verdict = replace(
                verdict,
                epoch=reservation.epoch,
                attempt=attempt,
                occurrence=self._wish.occurrence,
            )
        finally:
            to = self._heir if self._asked else None
            reservation.release(
                to=to, outcome=outcome, exit_code=exit_code, words=verdict.message[:200]
            )
        return verdict

    def _attempts(self, reservation: Reservation) -> tuple[CommandEnd | None, int]:
        """Run it until it succeeds or no attempt is left; None if it could never start.

        Raises:
            Stopped: somebody asked for the end before it was started at all.
        """
        ended: CommandEnd | None = None
        attempt = 0
        try:
            while self._may_start(reservation):
                attempt += 1
                ended = self._run(reservation, attempt)
                if not self._tried_again(ended, attempt):
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
            tenure=reservation,
            environment=environment(
                job=self._plan.job,
                epoch=reservation.epoch,
                lease_id=reservation.lease_id,
                occurrence=self._wish.occurrence,
                attempt=reservation.attempt + attempt - 1,  # those that crashed count
            ),
            limits=self._plan.limits,
            bell=self._bell,
            clock=self._clock,
            alone=self._alone,
        )
        if self._asked:  # in between
            self._running.ask_stop()
        try:
            ended = self._running.run()
        finally:
            self._running = None
        if ended.left_behind:
            self._say(LEFT_BEHIND)
        return ended

    def _tried_again(self, ended: CommandEnd, attempt: int) -> bool:
        final = ended.exit_code == 0 and not ended.timed_out
        over = ended.lost is not None or ended.stopped_by is not None
        return ended.executed and not (final or over) and attempt <= self._plan.policy.retries

    def _may_start(self, reservation: Reservation) -> bool:
        """Wait until half of the lease is left: a renewal brings it, or it is lost.

        Raises:
            Stopped: somebody asked for the end.
        """
        while reservation.why_lost is None and not self._asked:
            self._bell.check()
            if reservation.remaining() >= self._plan.lease / 2:
                return True
            select.poll().poll(self._plan.limits.slice_s * 1000)
        return False

    def _pause_after(self, ended: CommandEnd, attempt: int, reservation: Reservation) -> None:
        """Wait before the next attempt, while it is held and nobody wants to have it.

        Raises:
            Stopped: somebody asked for the end.
        """
        seconds = self._plan.policy.pauses.pause_s(attempt, self._rng)
        self._say(
            f"{what_happened(ended)}: attempt {attempt + 1} of {self._plan.policy.retries + 1} "
            f"in {seconds:.1f} s"
        )
        until_s = self._clock.boottime_s() + seconds
        while reservation.why_lost is None and not self._asked:
            left_s = until_s - self._clock.boottime_s()
            if left_s <= 0:
                return
            self._rest(min(left_s, self._plan.limits.slice_s))

    def _judged(
        self, ended: CommandEnd | None, reservation: Reservation
    ) -> tuple[Outcome, ExitStatus]:
        job = repr(self._plan.job)
        lost = reservation.why_lost if ended is None else ended.lost
        self._told_to_end = ended is not None and bool(ended.stopped_by)
        succeeded = ended is not None and ended.exit_code == 0
        if self._asked and lost is None and (self._plan.standby or not succeeded):
            to = f"to {self._heir}" if self._heir else "to nobody: this one was asked to leave"
            code = ExitCode.OK if self._plan.standby else ExitCode.LOST
            message = f"{job} was given away {to}"
            verdict = ExitStatus(reason=ExitReason.HANDED_OVER, code=code, message=message)
            if ended is None:
                return Outcome.NO_RUN, verdict
            return (Outcome.OK if succeeded else Outcome.HANDED_OVER), verdict
        if lost is not None and ended is None:
            message = f"{job} was lost ({lost}) before the command was started"
            return Outcome.NO_RUN, ExitStatus(
                reason=ExitReason.LOST, code=ExitCode.LOST, message=message
            )
        assert ended is not None  # noqa: S101 - it was neither lost nor given away
        if lost is not None:
            return lost_run(job, ended, self._plan.limits.on_loss.kind)
        return ended_run(ended, self._plan)
