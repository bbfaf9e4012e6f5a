"""``ScheduledWrapper``: runs a command at each occurrence of a schedule; a worker with one job.

The guarantees of ``Worker`` hold for the schedule: each occurrence is run once over all nodes,
missed ones are caught up with, and the requests of operators are followed. The guarantees of
``CommandRun`` hold for each run. A node on which the command cannot be executed leaves, and the
occurrence stays open for a node that has the command.
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
    environment,
    failure_text,
    status_of_end,
)
from leasehold.jobs.worker.definition import job
from leasehold.jobs.worker.job_state import STOPPED, RunCrashed
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
_SPARE_S = 5.0  # after the stop timeout: for the kernel to kill, and for the release
_STOP_ALWAYS = (signal.SIGTERM, signal.SIGINT)


class CommandFailed(Exception):
    """The command was run, and its exit code was not 0."""


class ScheduledWrapper:
    """One node of a scheduled command. ``run`` blocks in the main thread."""

    def __init__(
        self,
        plan: CommandPlan,
        schedule: Schedule,
        *,
        signals: SignalQueue,
        clock: Clock,
        rng: random.Random,
        echo: Callable[[str], None],
        no_other_children: bool = False,
    ) -> None:
        """``echo`` prints a message. See ``Child`` on ``no_other_children``."""
        self._plan, self._signals, self._clock, self._echo = plan, signals, clock, echo
        self._no_other_children = no_other_children
        text, every = schedule.text, schedule.text.startswith(_EVERY)
        made = job(
            plan.job,
            cron=None if every else text,
            every=text.removeprefix(_EVERY) if every else None,
            tz=schedule.tz,
            lease=plan.lease,
            policy=replace(plan.policy, timeout=None),  # each run of the command enforces it
        )(self._run)
        self._worker = Worker(
            [made],
            store=plan.store,
            name=plan.job,
            grace=timedelta(0),  # each run has its own
            stop_within=timedelta(seconds=plan.timeouts.stop_timeout_s + _SPARE_S),
            check_interval=timedelta(seconds=2),
            clock=clock,
            rng=rng,
        )
        self._explanation = schedule.explain()
        self._not_executable: ExitStatus | None = None

    def run(self) -> ExitStatus:
        """Run the command when it is due, until a signal asks to stop."""
        with self._signals.on_stop(self._on_stop):
            self._echo(f"standing by for {self._plan.job!r}: {self._explanation}")
            anyio.run(self._worker.run)
        if self._not_executable is not None:
            return self._not_executable
        if self._worker.abandoned:
            return ExitStatus(
                reason=ExitReason.STOPPED,
                code=SIGNALLED + signal.SIGKILL,
                message="the command did not stop and is killed now; the run is still open, and "
                f"others have the job when the lease ({self._plan.timeouts.lease_s:g} s) is over",
            )
        return ExitStatus(
            reason=ExitReason.STOPPED, code=ExitCode.OK, message="stopped in good order"
        )

    def _on_stop(self, number: int) -> None:
        # While the command runs the other signals are for it: it may reload on SIGHUP.
        if number in _STOP_ALWAYS or not self._worker.held():
            self._worker.stop()

    def _run(self, run: Run) -> None:
        """Run one attempt, in its own thread; the function of the job."""
        self._signals.take()  # signals that came while nothing ran are dropped
        while run.remaining() < self._plan.lease / 2:
            run.check()
            select.poll().poll(self._plan.timeouts.slice_s * 1000)
        moment = "by hand" if run.occurrence is None else f"of {run.occurrence:%Y-%m-%d %H:%M:%SZ}"
        self._echo(f"run {moment}, attempt {run.attempt}, token {run.epoch}")
        ended = CommandRun(
            self._plan.command,
            handle=run,
            environment=environment(
                job=self._plan.job,
                epoch=run.epoch,
                lease_id=self._worker.holder,
                occurrence=run.occurrence,
                attempt=run.attempt,
            ),
            timeouts=self._plan.timeouts,
            signals=self._signals,
            clock=self._clock,
            no_other_children=self._no_other_children,
            stop_reasons=(STOPPED,),
        ).run()
        self._finish(run, ended)

    def _finish(self, run: Run, ended: CommandEnd) -> None:
        run.exit_code = ended.exit_code
        if ended.left_behind:
            self._echo(LEFT_BEHIND)
        if ended.exit_code == 0 and not ended.timed_out:
            run.words = run.words or "exit code 0"
            self._echo("run ended: exit code 0")
            return
        if not ended.executed:
            self._give_up(run, ended)
        elif ended.stopped_by in _STOP_ALWAYS:
            # The worker learns of the signal in its event loop, perhaps after the command has
            # ended. A run that ends before that would count as failed, and not as stopped.
            run.lost.wait(_SPARE_S)
        words = failure_text(ended)
        if ended.lost is not None:
            words = f"{words} ({ended.lost})"
        self._echo(f"run ended: {words}")
        if ended.lost is not None:
            raise LeaseLost(words, key=self._plan.job, epoch=run.epoch, reason=ended.lost)
        if ended.crashed:
            raise RunCrashed(words)
        raise CommandFailed(words)

    def _give_up(self, run: Run, ended: CommandEnd) -> None:
        """Stop the worker if the command cannot be executed: only that leaves the run open."""
        _, self._not_executable = status_of_end(ended, self._plan)
        self._worker.stop()
        run.lost.wait(_SPARE_S)
