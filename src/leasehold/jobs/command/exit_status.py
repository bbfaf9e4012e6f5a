"""What is made of a run that has ended: the outcome for the log, and the verdict.

Whether the program of a command is here to be executed, and what to say if it is not.

Guarantees: looked for as the guard will do it, and without running anything. What passes may still
fail to start: its interpreter may be missing.

How the wrapper of a command ends: the exit code, and the reason for people and programs.

====  ================================================================
code  meaning
====  ================================================================
n     the command's own; 128 and the number if a signal ended it
0     held by somebody else, or done, and ``skip`` was asked for
64    the wrapper was called wrongly
69    the store can not be reached: nothing was run
75    held by somebody else
79    the reservation was lost, or given away: the command was stopped
80    the run of this occurrence is done
81    the job is paused
124   the command ended with 0 after it was stopped by the time-out
126   the command can not be executed
127   there is no such command
====  ================================================================

What a wrapper is to run, under which name, and how; and what the command is told of it.
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
from leasehold.jobs.policy import Policy
from leasehold.jobs.run_log import Outcome
from leasehold.jobs.wish import Wish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from leasehold.jobs.command.command_run import CommandEnd, CommandTimeouts


class IfHeld(Enum):
    """What is done if somebody else has the job."""

    SKIP = "skip"  # nothing, and that is fine
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlan:
    """What is to be run, and how.

    Attributes:
        job: the name that is reserved.
        command: the program and its arguments.
        store: the URL of the store.
        lease: of the reservation.
        limits: of each run.
        if_held: what to do if somebody else has it; ``wait`` is how long, None for ever.
        held_exit: the exit code if it is held, or done, in place of the usual one.
        occurrence: the run of this moment is reserved; None: any run.
        schedule: the text of the schedule, for the log.
        policy: of crashes and retries.
        standby: wait for the job for ever, and again after it was lost.
    """

    job: str
    command: Sequence[str]
    store: str
    lease: timedelta
    limits: CommandTimeouts
    if_held: IfHeld = IfHeld.SKIP
    wait: timedelta | None = None
    held_exit: int | None = None
    occurrence: datetime | None = None
    schedule: str = ""
    policy: Policy = field(default_factory=Policy)
    standby: bool = False

    def wish(self) -> Wish:
        """What is reserved.

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
        """
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
    """What a command finds in its environment; the guard adds ``LEASEHOLD_LOST_FD``."""
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


def code_of(program: str) -> int:
    """0 if it can be executed, else the exit code that a shell would have for it."""
    there = [path for path in _paths(program) if os.access(path, os.F_OK)]
    if any(os.access(path, os.X_OK) and not Path(path).is_dir() for path in there):
        return 0
    return EXIT_NOT_EXECUTABLE if there else EXIT_NOT_FOUND


def why_not(program: str, code: int) -> str:
    """What to say of one that could not be executed, with the exit code ``code``."""
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
    """The codes that are the wrapper's own; those below 79 are known from ``sysexits.h``."""

    OK = 0
    USAGE = 64
    UNREACHABLE = 69
    HELD = 75
    LOST = 79
    DONE = 80
    PAUSED = 81


class ExitReason(Enum):
    """Why the wrapper ended."""

    ENDED = "ended"  # the command, by itself
    TIMED_OUT = "timed_out"
    NOT_EXECUTED = "not_executed"
    HELD = "held"
    DONE = "done"
    PAUSED = "paused"
    LOST = "lost"
    HANDED_OVER = "handed_over"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    USAGE = "usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """What the wrapper ends with.

    Attributes:
        reason: why.
        code: the exit code.
        message: for people; empty if there is nothing to say.
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
        """One JSON object for programs."""
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
LEFT_BEHIND = (
    "the command had ended, and processes that it left running were stopped: "
    "it has to wait for what it starts in the background"
)


def unable(plan: CommandPlan) -> ExitStatus | None:
    """What to say if the command is not here: then nothing is to be reserved for it."""
    program = plan.command[0]
    code = code_of(program)
    return _not_executed(repr(plan.job), program, code) if code else None


def lost_run(job: str, ended: CommandEnd, kind: LossKind) -> tuple[Outcome, ExitStatus]:
    """Of a run whose reservation was lost meanwhile."""
    warned = kind is LossKind.WARN
    done = "has ended since" if warned else ("was killed" if ended.killed else "was stopped")
    verdict = ExitStatus(
        reason=ExitReason.LOST,
        code=ended.exit_code if warned else ExitCode.LOST,
        message=f"{job} was lost ({ended.lost}): the command {done} (exit code {ended.exit_code})",
    )
    return Outcome.LOST, verdict


def ended_run(ended: CommandEnd, plan: CommandPlan) -> tuple[Outcome, ExitStatus]:
    """Of a run that was reserved to its end."""
    job, code = repr(plan.job), ended.exit_code
    if ended.timed_out:
        how = "killed" if ended.killed else "stopped"
        message = f"{job} took longer than {plan.limits.timeout_s:g} s: the command was {how}"
        failed = code or _TIMED_OUT  # it was not done, whatever it says
        return Outcome.FAILED, ExitStatus(reason=ExitReason.TIMED_OUT, code=failed, message=message)
    if not ended.executed:
        # Nothing has happened: the occurrence is left to a node that has the command.
        return Outcome.HANDED_OVER, _not_executed(job, plan.command[0], code)
    if code == 0:
        return Outcome.OK, ExitStatus(reason=ExitReason.ENDED, code=0)
    if ended.stopped_by is not None:
        return Outcome.KILLED, ExitStatus(
            reason=ExitReason.STOPPED, code=code, message=what_happened(ended)
        )
    return Outcome.FAILED, ExitStatus(
        reason=ExitReason.ENDED, code=code, message=what_happened(ended)
    )


def _not_executed(job: str, program: str, code: int) -> ExitStatus:
    message = f"{job}: nothing was run: {why_not(program, code)}"
    return ExitStatus(reason=ExitReason.NOT_EXECUTED, code=code, message=message)


def what_happened(ended: CommandEnd) -> str:
    """In words, of a run that did not succeed."""
    if ended.timed_out:
        return "the command took too long"
    if ended.exit_code > SIGNALLED:
        number = ended.exit_code - SIGNALLED
        if number in set(signal.Signals):
            return f"the command was ended by {signal.Signals(number).name}"
    return f"the command failed with exit code {ended.exit_code}"
