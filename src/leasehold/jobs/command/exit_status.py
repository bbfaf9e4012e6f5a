"""How the wrapper of a command ends: the exit code, its reason, and the outcome for the log.

Also: what a wrapper is to run (``CommandPlan``), the environment of the command, and whether its
program can be executed here. That is checked as the guard will search for it, without running
anything; it may still fail to start, for example if its interpreter is missing.

====  ================================================================
code  meaning
====  ================================================================
n     the command's own; 128 and the number if a signal ended it
0     held by another process, or done, and ``skip`` was asked for
64    the wrapper was called wrongly
69    the store cannot be reached: nothing was run
75    held by another process
79    the reservation was lost, or handed over: the command was stopped
80    the run of this occurrence is done
81    the job is paused
124   the command ended with 0 after it was stopped by the time-out
126   the command cannot be executed
127   there is no such command
====  ================================================================
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from datetime import UTC
from enum import Enum, IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.clock import host_name
from leasehold.jobs.command import guard
from leasehold.jobs.command.child import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, SIGNALLED
from leasehold.jobs.command.command_run import LossKind
from leasehold.jobs.policy import OnCrash, Policy
from leasehold.jobs.run_log import Outcome
from leasehold.jobs.wish import Wish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from leasehold.jobs.command.command_run import CommandEnd, CommandTimeouts


class IfHeld(Enum):
    """What to do if another process has the job."""

    SKIP = "skip"  # nothing, and that is fine
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlan:
    """What to run, and how.

    Attributes:
        job: the name that is reserved.
        command: the program and its arguments.
        store: the URL of the store.
        lease: of the reservation.
        timeouts: of each run.
        if_held: what to do if another process has it; ``wait`` is how long, None without limit.
        held_exit: the exit code if it is held or done, in place of the usual one.
        occurrence: the run of this time is reserved; None: any run.
        schedule: the text of the schedule, for the log.
        policy: for crashes and retries.
        standby: wait for the job without limit, and again after it was lost.
    """

    job: str
    command: Sequence[str]
    store: str
    lease: timedelta
    timeouts: CommandTimeouts
    if_held: IfHeld = IfHeld.SKIP
    wait: timedelta | None = None
    held_exit: int | None = None
    occurrence: datetime | None = None
    schedule: str = ""
    policy: Policy = field(default_factory=Policy)
    standby: bool = False

    def wish(self) -> Wish:
        """Return what to reserve."""
        return Wish.of(
            (self.job,),
            lease=self.lease,
            occurrence=self.occurrence,
            on_crash=self.policy.on_crash,
            schedule=self.schedule,
        )


def environment(
    *, job: str, epoch: int, lease_id: str, occurrence: datetime | None, attempt: int
) -> Mapping[str, str]:
    """Return the environment of a command; the guard adds ``LEASEHOLD_LOST_FD``."""
    moment = "" if occurrence is None else occurrence.astimezone(UTC).isoformat()
    return {
        **guard.environment(),
        "LEASEHOLD_JOB": job,
        "LEASEHOLD_EPOCH": str(epoch),
        "LEASEHOLD_TOKEN": str(epoch),  # the former name of the same number
        "LEASEHOLD_LEASE_ID": lease_id,
        "LEASEHOLD_OCCURRENCE": moment,
        "LEASEHOLD_ATTEMPT": str(attempt),
        "LEASEHOLD_HOST": host_name(),
    }


def exec_error_code(program: str) -> int:
    """Return 0 if it can be executed, otherwise the exit code that a shell would use."""
    there = [path for path in _paths(program) if os.access(path, os.F_OK)]
    if any(os.access(path, os.X_OK) and not Path(path).is_dir() for path in there):
        return 0
    return EXIT_NOT_EXECUTABLE if there else EXIT_NOT_FOUND


def exec_error_text(program: str, code: int) -> str:
    """Explain why it could not be executed, with the exit code ``code``."""
    name = f"{program!r} (looked for from {Path.cwd()})"
    if code != EXIT_NOT_FOUND:
        return f"{name} can not be executed: see its permissions and its first line"
    if any(os.access(path, os.F_OK) for path in _paths(program)):
        return f"the interpreter of {name} is not there: see its first line"
    return f"there is no command {name}: give its full path"


def _paths(program: str) -> list[str]:
    if os.sep in program:
        return [program]
    return [str(Path(folder) / program) for folder in os.get_exec_path()]


class ExitCode(IntEnum):
    """The wrapper's own exit codes; those below 79 are from ``sysexits.h``."""

    OK = 0
    USAGE = 64
    UNREACHABLE = 69
    HELD = 75
    LOST = 79
    DONE = 80
    PAUSED = 81


class ExitReason(Enum):
    """Why the wrapper ended."""

    ENDED = "ended"  # the command, on its own
    TIMED_OUT = "timed_out"
    NOT_EXECUTED = "not_executed"
    HELD = "held"
    DONE = "done"
    PAUSED = "paused"
    LOST = "lost"
    HANDED_OVER = "handed_over"
    STOPPED = "stopped"
    CRASHED = "crashed"  # its guard was killed
    UNREACHABLE = "unreachable"
    USAGE = "usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """What the wrapper ends with.

    Attributes:
        reason: why.
        code: the exit code.
        message: human-readable; empty if there is nothing to report.
        epoch: the epoch of the last reservation; 0 if there was none.
        occurrence: whose run it was.
        attempt: how many times the command was started.
    """

    reason: ExitReason
    code: int
    message: str = ""
    epoch: int = 0
    occurrence: datetime | None = None
    attempt: int = 0

    def line(self, job: str) -> str:
        """Return the status as one JSON object."""
        return json.dumps(
            {
                "job": job,
                "reason": self.reason.value,
                "exit_code": self.code,
                "message": self.message,
                "epoch": self.epoch or None,
                "occurrence": self.occurrence.isoformat() if self.occurrence else None,
                "attempts": self.attempt,
            },
            ensure_ascii=False,
        )


_TIMED_OUT = 124  # as timeout(1)
_AFTER_CRASH = {
    OnCrash.RERUN: "the run is not done; the next call, or a standby, runs it again",
    OnCrash.ABANDON: "the run is not done, and is abandoned (--on-crash)",
}
LEFT_BEHIND = (
    "the command had ended, and processes that it left running were stopped: "
    "it has to wait for what it starts in the background"
)


def not_executable(plan: CommandPlan) -> ExitStatus | None:
    """Return the status if the command cannot be executed here: nothing is reserved then."""
    program = plan.command[0]
    code = exec_error_code(program)
    return _not_executed(repr(plan.job), program, code) if code else None


def status_of_loss(job: str, ended: CommandEnd, kind: LossKind) -> tuple[Outcome, ExitStatus]:
    """Return the status of a run whose reservation was lost."""
    warned = kind is LossKind.WARN
    done = "has ended since" if warned else ("was killed" if ended.killed else "was stopped")
    status = ExitStatus(
        reason=ExitReason.LOST,
        code=ended.exit_code if warned else ExitCode.LOST,
        message=f"{job} was lost ({ended.lost}): the command {done} (exit code {ended.exit_code})",
    )
    return Outcome.LOST, status


def status_of_end(ended: CommandEnd, plan: CommandPlan) -> tuple[Outcome, ExitStatus]:
    """Return the status of a run that was reserved to its end."""
    job, code = repr(plan.job), ended.exit_code
    if ended.timed_out:
        how = "killed" if ended.killed else "stopped"
        message = f"{job} took longer than {plan.timeouts.timeout_s:g} s: the command was {how}"
        failed = code or _TIMED_OUT  # it did not finish, whatever its exit code
        return Outcome.FAILED, ExitStatus(reason=ExitReason.TIMED_OUT, code=failed, message=message)
    if not ended.executed:
        # Nothing was run: the occurrence is left to a node that has the command.
        return Outcome.NO_RUN, _not_executed(job, plan.command[0], code)
    if ended.crashed:
        message = f"{job}: {failure_text(ended)}; {_AFTER_CRASH[plan.policy.on_crash]}"
        return Outcome.CRASHED, ExitStatus(reason=ExitReason.CRASHED, code=code, message=message)
    if code == 0:
        return Outcome.OK, ExitStatus(reason=ExitReason.ENDED, code=0)
    if ended.stopped_by is not None:
        return Outcome.KILLED, ExitStatus(
            reason=ExitReason.STOPPED, code=code, message=failure_text(ended)
        )
    return Outcome.FAILED, ExitStatus(
        reason=ExitReason.ENDED, code=code, message=failure_text(ended)
    )


def _not_executed(job: str, program: str, code: int) -> ExitStatus:
    message = f"{job}: nothing was run: {exec_error_text(program, code)}"
    return ExitStatus(reason=ExitReason.NOT_EXECUTED, code=code, message=message)


def failure_text(ended: CommandEnd) -> str:
    """Describe a run that did not succeed."""
    if ended.timed_out:
        return "the command took too long"
    if ended.crashed:
        return "the guard of the command was killed, and the command was killed with it"
    if ended.exit_code > SIGNALLED:
        number = ended.exit_code - SIGNALLED
        if number in set(signal.Signals):
            return f"the command was ended by {signal.Signals(number).name}"
    return f"the command failed with exit code {ended.exit_code}"
