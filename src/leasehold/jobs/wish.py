"""What somebody wants to reserve, by which times, and the answer if somebody else has it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from leasehold.core.timing import Timing
from leasehold.errors import UsageError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Keys that are wanted together, all or none. The first is the job; its epoch is the fence.

    Attributes:
        keys: keys of jobs, none of them twice.
        name: the first part of the holder's id, for people.
        timing: of the lease that covers them all.
        grace_s: belief ends this long before trust does: the time to stop in.
    """

    keys: tuple[str, ...]
    name: str
    timing: Timing
    grace_s: float

    @classmethod
    def of(cls, names: Sequence[str], *, lease: timedelta, holder_name: str | None = None) -> Wish:
        """A wish for these jobs.

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
            UsageError: no name is given.
        """
        if isinstance(names, str) or not names:
            raise UsageError(f"give the names of one or more jobs, not {names!r}")
        timing = Timing.of(lease=lease, renew_every=lease * _RENEW, call_limit=lease * _CALL)
        return cls(
            keys=tuple(dict.fromkeys(job_key(name) for name in names)),
            name=check_name(holder_name or names[0], what="holder name"),
            timing=timing,
            grace_s=timing.lease_s * _GRACE,
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
        return min(_LONGEST_LEAVE_S, self.timing.lease_s)


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
    """

    key: str
    holder: str
    host: str
    pid: int
    epoch: int
    since: datetime | None
    ends_in_s: float

    def __str__(self) -> str:
        where = f" (process {self.pid} on {self.host})" if self.host else ""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        return (
            f"{last_part(self.key)!r} is held by {self.holder}{where}{since}, epoch {self.epoch}: "
            f"it is free when that one lets go, or {self.ends_in_s:.1f} s after it has died"
        )


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
