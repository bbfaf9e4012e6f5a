"""What somebody wants to reserve, by which times, and the answers if it can not be had."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Protocol

from leasehold.core.lease_timing import LeaseTiming
from leasehold.errors import UsageError
from leasehold.jobs.policy import OnCrash, choice
from leasehold.names import check_name, job_key, last_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.model import Ownership

GROUP = "job"
DEFAULT_LEASE = timedelta(seconds=15)
# Two calls that hang, one after the other, still leave time to stop in good order:
# 0.25 + 2 x 0.2 of the lease, then the grace, then the margin.
_RENEW, _CALL, _GRACE = 0.25, 0.2, 0.2
_LONGEST_LOOK_S = 0.5
_LONGEST_LEAVE_S = 15.0


def timing_of(lease: timedelta) -> LeaseTiming:
    """The times of a reservation's lease.

    Raises:
        InvalidDuration: it is too short or too long; the message says the range.
    """
    # The lease itself is looked at first: its parts would be called by names nobody gave.
    LeaseTiming.of(lease=lease)
    return LeaseTiming.of(lease=lease, renew_interval=lease * _RENEW, call_timeout=lease * _CALL)


def grace_s(timing: LeaseTiming) -> float:
    """How long before trust belief ends: the time to stop in."""
    return timing.lease_s * _GRACE


def leave_s(timing: LeaseTiming) -> float:
    """How long a store that does not answer is told of the release: then time ends it."""
    return min(_LONGEST_LEAVE_S, timing.lease_s)


def moment_of(occurrence: datetime) -> datetime:
    """The occurrence in UTC, to the second.

    Raises:
        UsageError: it has no time zone.
    """
    if occurrence.tzinfo is None:
        raise UsageError(
            f"the occurrence {occurrence} has no time zone, so it is no moment: give it one, "
            "such as datetime(2026, 1, 31, 2, 30, tzinfo=UTC)"
        )
    return occurrence.astimezone(UTC).replace(microsecond=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Keys that are wanted together, all or none. The first is the job; its epoch is the fence.

    Attributes:
        keys: keys of jobs, none of them twice.
        name: the first part of the holder's id, for people.
        timing: of the lease that covers them all.
        grace_s: belief ends this long before trust does: the time to stop in.
        occurrence: the run of this moment is wanted, and only if it is not done yet.
        on_crash: what is to be done if that run was started, and its holder died.
        schedule: the text of the schedule, for the log.
    """

    keys: tuple[str, ...]
    name: str
    timing: LeaseTiming
    grace_s: float
    occurrence: datetime | None = None
    on_crash: OnCrash = OnCrash.RERUN
    schedule: str = ""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        *,
        lease: timedelta,
        holder_name: str | None = None,
        occurrence: datetime | None = None,
        on_crash: OnCrash | str = OnCrash.RERUN,
        schedule: str = "",
    ) -> Wish:
        """A wish for these jobs. Occurrences are told apart by the second.

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
            InvalidOptions: ``on_crash`` is not one of its texts.
            UsageError: no name is given, or the occurrence has no time zone.
        """
        if isinstance(names, str) or not names:
            raise UsageError(f"give the names of one or more jobs, not {names!r}")
        timing = timing_of(lease)
        return cls(
            keys=tuple(dict.fromkeys(job_key(name) for name in names)),
            name=check_name(holder_name or names[0], what="holder name"),
            timing=timing,
            grace_s=grace_s(timing),
            occurrence=None if occurrence is None else moment_of(occurrence),
            on_crash=choice(OnCrash, on_crash, option="on_crash"),
            schedule=schedule,
        )

    @property
    def look_s(self) -> float:
        """How often one who waits looks: a release is to be seen at once."""
        return min(_LONGEST_LOOK_S, self.timing.renew_s)

    @property
    def leave_s(self) -> float:
        """How long a store that does not answer is told of the release: then time ends it.

        Not the whole of a long lease: whoever leaves was often asked to be quick.
        """
        return leave_s(self.timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The answer *somebody else has it*.

    Attributes:
        key: the key that can not be had.
        holder: who has it.
        host: its machine, and ``pid`` its process; empty and 0 where the store does not know.
        epoch: the epoch it is held under.
        since: when that began, by the store's clock.
        ends_in_s: when the lease ends if it is not renewed any more.
        kept: it was handed over to ``holder``, which has not taken it yet; ``epoch`` is that of the
            term before.
    """

    key: str
    holder: str
    host: str
    pid: int
    epoch: int
    since: datetime | None
    ends_in_s: float
    kept: bool = False

    def __str__(self) -> str:
        if self.kept:
            return f"{last_part(self.key)!r} is kept for {self.holder}, which has not taken it yet"
        where = f" (process {self.pid} on {self.host})" if self.host else ""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        return (
            f"{last_part(self.key)!r} is held by {self.holder}{where}{since}, epoch {self.epoch}: "
            f"it is free when that one lets go, and at the latest {self.ends_in_s:.0f} s from now "
            "if it is dead"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The answer *there is nothing to do*: the run of this occurrence is over.

    Attributes:
        key: of the job.
        occurrence: the moment whose run was wanted.
        started: it was started and never ended in order, and is not to be run again.
        holder: who had it, if the log still knows.
        later: the latest that is done, if it is a later one: then this one is passed over.
    """

    key: str
    occurrence: datetime
    started: bool
    holder: str = ""
    later: datetime | None = None

    def __str__(self) -> str:
        if self.later is not None:
            return (
                f"{self._run}: a later one ({_shown(self.later)}) is done, so this one is not run "
                "any more"
            )
        by = f" by {self.holder}" if self.holder else ""
        what = "was started and not finished" if self.started else "is done"
        more = ", and such a run is left alone (on_crash)" if self.started else ""
        return f"{self._run} {what}{by}{more}"

    @property
    def _run(self) -> str:
        return f"the run of {last_part(self.key)!r} at {_shown(self.occurrence)}"


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


class Told(Protocol):
    """Who hears what becomes of a wish. All methods return at once; they never wait."""

    def waits(self, held: Held) -> None:
        """Somebody else has it, and it is waited for. Said once for each holder."""
        ...

    def taken(self, ownerships: Mapping[str, Ownership]) -> None:
        """All keys are held."""
        ...

    def lost(self, reason: str) -> None:
        """They have to be given up: stop now. Said once, and never after a release."""
        ...

    def asked(self, by: str | None) -> None:
        """An operator wants ``by`` to have them, or, without a name, this holder to leave."""
        ...
