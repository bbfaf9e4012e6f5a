"""What is made of a run that has ended: the outcome for the log, and the verdict."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from leasehold.jobs.command.child import SIGNALLED
from leasehold.jobs.command.program import code_of, why_not
from leasehold.jobs.command.run import LossKind
from leasehold.jobs.command.verdict import Exit, Reason, Verdict
from leasehold.jobs.entry import Outcome

if TYPE_CHECKING:
    from leasehold.jobs.command.plan import Plan
    from leasehold.jobs.command.run import Ended

_TIMED_OUT = 124  # as timeout(1)
LEFT_BEHIND = (
    "the command had ended, and processes that it left running were stopped: "
    "it has to wait for what it starts in the background"
)


def unable(plan: Plan) -> Verdict | None:
    """What to say if the command is not here: then nothing is to be reserved for it."""
    program = plan.command[0]
    code = code_of(program)
    return _not_executed(repr(plan.job), program, code) if code else None


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


def ended_run(ended: Ended, plan: Plan) -> tuple[Outcome, Verdict]:
    """Of a run that was reserved to its end."""
    job, code = repr(plan.job), ended.exit_code
    if ended.timed_out:
        how = "killed" if ended.killed else "stopped"
        message = f"{job} took longer than {plan.limits.timeout_s:g} s: the command was {how}"
        failed = code or _TIMED_OUT  # it was not done, whatever it says
        return Outcome.FAILED, Verdict(reason=Reason.TIMED_OUT, code=failed, message=message)
    if not ended.executed:
        # Nothing has happened: the occurrence is left to a node that has the command.
        return Outcome.HANDED_OVER, _not_executed(job, plan.command[0], code)
    if code == 0:
        return Outcome.OK, Verdict(reason=Reason.ENDED, code=0)
    if ended.stopped_by is not None:
        return Outcome.KILLED, Verdict(
            reason=Reason.STOPPED, code=code, message=what_happened(ended)
        )
    return Outcome.FAILED, Verdict(reason=Reason.ENDED, code=code, message=what_happened(ended))


def _not_executed(job: str, program: str, code: int) -> Verdict:
    message = f"{job}: nothing was run: {why_not(program, code)}"
    return Verdict(reason=Reason.NOT_EXECUTED, code=code, message=message)


def what_happened(ended: Ended) -> str:
    """In words, of a run that did not succeed."""
    if ended.timed_out:
        return "the command took too long"
    if ended.exit_code > SIGNALLED:
        number = ended.exit_code - SIGNALLED
        if number in set(signal.Signals):
            return f"the command was ended by {signal.Signals(number).name}"
    return f"the command failed with exit code {ended.exit_code}"
