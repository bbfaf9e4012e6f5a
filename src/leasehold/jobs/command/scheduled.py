"""A command that is run at each occurrence of a schedule: a worker with one job.

All that ``Worker`` guarantees of schedules holds: each occurrence is run once over all nodes, what
was missed is caught up with, an operator's pause and wish for a run are honoured. All that
``CommandRun`` guarantees of commands holds for each run. One whose command can not be executed
leaves, and its occurrence is still open for a node that has the command.
"""

from __future__ import annotations

import select
import signal
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from leasehold.errors import LeaseLost
from leasehold.jobs.command.child import SIGNALLED
from leasehold.jobs.command.command_run import CommandEnd, CommandRun
from leasehold.jobs.command.exit_status import (
    LEFT_BEHIND,
    ExitCode,
    ExitReason,
    ExitStatus,
    ended_run,
    environment,
    what_happened,
)
from leasehold.jobs.worker.definition import job
from leasehold.jobs.worker.job_state import STOPPED
from leasehold.jobs.worker.worker import Worker

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.core.cron import Schedule
    from leasehold.jobs.command.exit_status import CommandPlan
    from leasehold.jobs.command.signal_queue import SignalQueue
    from leasehold.jobs.worker.run import Run

_EVERY = "every "
_SPARE_S = 5.0  # after the grace: for the kernel to kill, and for the release
_ALWAYS = (signal.SIGTERM, signal.SIGINT)


class CommandFailed(Exception):
    """The command was run, and its exit code was not 0."""


class ScheduledWrapper:
    """One node of a scheduled command. ``run`` blocks in the main thread."""

    def __init__(
        self,
        plan: CommandPlan,
        schedule: Schedule,
        *,
        bell: SignalQueue,
        clock: Clock,
        rng: random.Random,
        say: Callable[[str], None],
        alone: bool = False,
    ) -> None:
        """``say`` prints words for people. See ``Child`` on ``alone``."""
        self._plan, self._bell, self._clock, self._say = plan, bell, clock, say
        self._alone = alone
        text, every = schedule.text, schedule.text.startswith(_EVERY)
        made = job(
            plan.job,
            cron=None if every else text,
            every=text.removeprefix(_EVERY) if every else None,
            tz=schedule.tz,
            lease=plan.lease,
            policy=replace(plan.policy, timeout=None),  # the run of the command sees to it
        )(self._run)
        self._worker = Worker(
            [made],
            store=plan.store,
            name=plan.job,
            grace=timedelta(0),  # each run has its own
            stop_within=timedelta(seconds=plan.limits.grace_s + _SPARE_S),
            check_interval=timedelta(seconds=2),
            clock=clock,
            rng=rng,
        )
        self._words = schedule.explain()
        self._unable: ExitStatus | None = None

    def run(self) -> ExitStatus:
        """Run the command when it is due, until a signal asks for the end."""
        with self._bell.on_stop(self._hear_stop):
            self._say(f"standing by for {self._plan.job!r}: {self._words}")
            anyio.run(self._worker.run)
        if self._unable is not None:
            return self._unable
        if self._worker.abandoned:
            return ExitStatus(
                reason=ExitReason.STOPPED,
                code=SIGNALLED + signal.SIGKILL,
                message="the command did not stop and is killed now; the run is still open, and "
                f"others have the job when the lease ({self._plan.limits.lease_s:g} s) is over",
            )
        return ExitStatus(
            reason=ExitReason.STOPPED, code=ExitCode.OK, message="stopped in good order"
        )

    def _hear_stop(self, number: int) -> None:
        # While the command runs the others are for it: it may reload on SIGHUP.
        if number in _ALWAYS or not self._worker.held():
            self._worker.stop()

    def _run(self, run: Run) -> None:
        """One attempt, in a thread of its own.

        Raises:
            CommandFailed: its exit code was not 0.
            LeaseLost: there was no time to start it.
        """
        self._bell.heard()  # what came while nothing ran was for nobody
        while run.remaining() < self._plan.lease / 2:
            run.check()
            select.poll().poll(self._plan.limits.slice_s * 1000)
        moment = "by hand" if run.occurrence is None else f"of {run.occurrence:%Y-%m-%d %H:%M:%SZ}"
        self._say(f"run {moment}, attempt {run.attempt}, token {run.epoch}")
        ended = CommandRun(
            self._plan.command,
            tenure=run,
            environment=environment(
                job=self._plan.job,
                epoch=run.epoch,
                lease_id=self._worker.holder,
                occurrence=run.occurrence,
                attempt=run.attempt,
            ),
            limits=self._plan.limits,
            bell=self._bell,
            clock=self._clock,
            alone=self._alone,
            asks=(STOPPED,),
        ).run()
        self._judge(run, ended)

    def _judge(self, run: Run, ended: CommandEnd) -> None:
        run.exit_code = ended.exit_code
        if ended.left_behind:
            self._say(LEFT_BEHIND)
        if ended.exit_code == 0 and not ended.timed_out:
            run.words = run.words or "exit code 0"
            self._say("run ended: exit code 0")
            return
        if not ended.executed:
            self._give_up(run, ended)
        elif ended.stopped_by in _ALWAYS:
            # The worker learns of the signal in its event loop, perhaps after the command has
            # ended. A run that ends before that would count as failed, and not as stopped.
            run.lost.wait(_SPARE_S)
        words = what_happened(ended)
        if ended.lost is not None:
            words = f"{words} ({ended.lost})"
        self._say(f"run ended: {words}")
        if ended.lost is not None:
            raise LeaseLost(words, key=self._plan.job, epoch=run.epoch, reason=ended.lost)
        raise CommandFailed(words)

    def _give_up(self, run: Run, ended: CommandEnd) -> None:
        """Leave with what can not be executed: only a worker that stops leaves its run open."""
        _, self._unable = ended_run(ended, self._plan)
        self._worker.stop()
        run.lost.wait(_SPARE_S)
