"""What is made of a run that has ended: the outcome for the log, and the verdict."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from leasehold.jobs.command.child import EXIT_NOT_FOUND, SIGNALLED
from leasehold.jobs.command.run import LossKind
from leasehold.jobs.command.verdict import Exit, Reason, Verdict
from leasehold.jobs.entry import Outcome

if TYPE_CHECKING:
    from leasehold.jobs.command.run import Ended, Limits

_TIMED_OUT = 124  # as timeout(1)


def lost_run(job: str, ended: Ended, kind: LossKind) -> tuple[Outcome, Verdict]:
    """Of a run whose reservation was lost meanwhile."""
    warned = kind is LossKind.WARN
    done = "has ended since" if warned else ("was killed" if ended.killed else "was stopped")
    verdict = Verdict(
        reason=Reason.LOST,
        code=ended.exit_code if warned else Exit.LOST,
        message=f"{job} was lost ({ended.lost}): the command {done} (exit code {ended.exit_code})",
    )
    return Outcome.LOST, verdict


def ended_run(job: str, ended: Ended, limits: Limits) -> tuple[Outcome, Verdict]:
    """Of a run that was reserved to its end."""
    code = ended.exit_code
    if ended.timed_out:
        how = "killed" if ended.killed else "stopped"
        message = f"{job} took longer than {limits.timeout_s:g} s: the command was {how}"
        failed = code or _TIMED_OUT  # it was not done, whatever it says
        return Outcome.FAILED, Verdict(reason=Reason.TIMED_OUT, code=failed, message=message)
    if not ended.executed:
        why = "there is no such command" if code == EXIT_NOT_FOUND else "it can not be executed"
        message = f"{job}: nothing was run: {why}"
        return Outcome.FAILED, Verdict(reason=Reason.NOT_EXECUTED, code=code, message=message)
    if code == 0:
        return Outcome.OK, Verdict(reason=Reason.ENDED, code=0)
    if ended.stopped_by is not None:
        return Outcome.KILLED, Verdict(
            reason=Reason.STOPPED, code=code, message=what_happened(ended)
        )
    return Outcome.FAILED, Verdict(reason=Reason.ENDED, code=code, message=what_happened(ended))


def what_happened(ended: Ended) -> str:
    """In words, of a run that did not succeed."""
    if ended.timed_out:
        return "the command took too long"
    if ended.exit_code > SIGNALLED:
        number = ended.exit_code - SIGNALLED
        if number in set(signal.Signals):
            return f"the command was ended by {signal.Signals(number).name}"
    return f"the command failed with exit code {ended.exit_code}"
