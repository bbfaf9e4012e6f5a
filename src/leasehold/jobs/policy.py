"""What is to be done about runs that crashed, were missed, take too long, or fail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from leasehold.core.backoff import Backoff
from leasehold.core.next_run import CatchUp, OnCrash, Overlap
from leasehold.errors import InvalidOptions
from leasehold.names import seconds_of

__all__ = ["CatchUp", "OnCrash", "Overlap", "Policy"]

_YEAR_S = 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the runs of a schedule are treated.

    Attributes:
        on_crash: run the occurrence again, or leave it.
        catch_up: which of the missed occurrences are run.
        max_age: a missed occurrence that is older is never run; None: any age.
        overlap: what to do if the run before has not ended.
        jitter: each job begins up to so much later than the schedule says, always by the same part.
        timeout: a run that takes longer is stopped, and has failed; None: it may take for ever.
        retries: a run that failed is tried so many times more, with growing pauses from
            ``retry_pause`` on, before the occurrence counts as done.

    Raises:
        InvalidDuration: a duration is negative or longer than a year.
        InvalidOptions: ``retries`` is no number from 0 to 100.
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
        """Refuse what can not be meant."""
        for what in ("max_age", "jitter", "timeout", "retry_pause"):
            given = getattr(self, what)
            if given is not None:
                seconds_of(given, what=what, min_s=0.0, max_s=_YEAR_S)
        most = 100
        retries: object = self.retries
        if not isinstance(retries, int) or not 0 <= retries <= most:
            raise InvalidOptions(f"retries must be a number from 0 to {most}, not {retries!r}")

    @property
    def pauses(self) -> Backoff:
        """Between the attempts."""
        base_s = self.retry_pause.total_seconds()
        return Backoff(base_s=base_s, max_s=max(base_s, 60.0))
