"""``Policy``: what to do about runs that crash, fail, overlap, take too long or are missed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TypeVar

from leasehold.core.backoff import Backoff
from leasehold.core.next_run import CatchUp, OnCrash, Overlap
from leasehold.errors import InvalidOptions
from leasehold.names import seconds_of

__all__ = ["CatchUp", "OnCrash", "Overlap", "Policy"]

_YEAR_S = 366 * 86400.0
_KINDS = {"on_crash": OnCrash, "catch_up": CatchUp, "overlap": Overlap}

E = TypeVar("E", bound=Enum)


def choice(kind: type[E], given: E | str, *, option: str) -> E:
    """Return the member of an enum that is given, by itself or by its text.

    Raises:
        InvalidOptions: it is neither; the message lists what can be given.
    """
    try:
        return kind(given)
    except ValueError:
        words = ", ".join(repr(each.value) for each in kind)
        raise InvalidOptions(f"{option} must be one of {words}, not {given!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to do about the runs of a schedule.

    Attributes:
        on_crash: run the occurrence again, or leave it.
        catch_up: which of the missed occurrences are run.
        max_age: a missed occurrence that is older is never run; None: no limit.
        overlap: what to do if the previous run has not ended.
        jitter: each job starts up to this much later than scheduled, always by the same part.
        timeout: a run that takes longer is stopped and has failed; None: no limit.
        retries: how often a failed run is tried again, with growing pauses from ``retry_pause``
            on, before the occurrence counts as done.

    Raises:
        InvalidDuration: a duration is negative or longer than a year.
        InvalidOptions: ``retries`` is not a number from 0 to 100, or a text is none of those that
            can be given.
    """

    on_crash: OnCrash = OnCrash.RERUN
    catch_up: CatchUp = CatchUp.LATEST
    max_age: timedelta | None = None
    overlap: Overlap = Overlap.SKIP
    jitter: timedelta = timedelta(0)
    timeout: timedelta | None = None
    retries: int = 0
    retry_pause: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        """Check the values; text becomes the member of the enum that it names."""
        for option, kind in _KINDS.items():
            member = choice(kind, getattr(self, option), option=option)
            object.__setattr__(self, option, member)
        for what in ("max_age", "jitter", "timeout", "retry_pause"):
            given = getattr(self, what)
            if given is not None:
                seconds_of(given, what=what, min_s=0.0, max_s=_YEAR_S)
        max_retries = 100
        retries: object = self.retries
        if not isinstance(retries, int) or not 0 <= retries <= max_retries:
            raise InvalidOptions(
                f"retries must be a number from 0 to {max_retries}, not {retries!r}"
            )

    @property
    def pauses(self) -> Backoff:
        """The pauses between the attempts."""
        base_s = self.retry_pause.total_seconds()
        return Backoff(base_s=base_s, max_s=max(base_s, 60.0))
