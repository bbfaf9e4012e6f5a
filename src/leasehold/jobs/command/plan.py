"""What a wrapper is to run, under which name, and how; and what the command is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.clock import host_name
from leasehold.jobs.command import guard
from leasehold.jobs.policy import Policy
from leasehold.jobs.wish import Wish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from leasehold.jobs.command.command_run import Limits


class IfHeld(Enum):
    """What is done if somebody else has the job."""

    SKIP = "skip"  # nothing, and that is fine
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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
    limits: Limits
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
    *, job: str, token: int, lease_id: str, occurrence: datetime | None, attempt: int
) -> Mapping[str, str]:
    """What a command finds in its environment; the guard adds ``LEASEHOLD_DEADLINE_FD``."""
    moment = "" if occurrence is None else occurrence.astimezone(UTC).isoformat()
    return {
        **guard.environment(),
        "LEASEHOLD_JOB": job,
        "LEASEHOLD_TOKEN": str(token),
        "LEASEHOLD_LEASE_ID": lease_id,
        "LEASEHOLD_OCCURRENCE": moment,
        "LEASEHOLD_ATTEMPT": str(attempt),
        "LEASEHOLD_NODE": host_name(),
    }
