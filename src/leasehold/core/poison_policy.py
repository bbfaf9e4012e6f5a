"""Decides what to do with an event that its handler cannot process (B6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from leasehold.core.backoff import Backoff
from leasehold.errors import InvalidOptions

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0


class PoisonAction(Enum):
    """What to do when the last attempt has failed."""

    SKIP = "skip"
    DEAD_LETTER = "dead_letter"
    STOP = "stop"


def _pauses() -> Backoff:
    return Backoff(base_s=_FIRST_PAUSE_S, max_s=_LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonPolicy:
    """Made by one of its class methods: retry with growing pauses, then ``then``.

    ``retries`` None: retry forever. No event is lost, but the partition is paused, and every
    failure is reported.
    """

    retries: int | None = None
    then: PoisonAction = PoisonAction.STOP
    pauses: Backoff = field(default_factory=_pauses)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.retries is not None and self.retries < 0:
            raise InvalidOptions(f"retries >= 0 does not hold ({self.retries})")

    @classmethod
    def retry(cls, *, pauses: Backoff | None = None) -> Self:
        """Retry the event until the handler succeeds."""
        return cls(pauses=pauses or _pauses())

    @classmethod
    def skip(cls, *, retries: int = 3, pauses: Backoff | None = None) -> Self:
        """Report it and continue with the next event. It is lost for this group."""
        return cls(retries=retries, then=PoisonAction.SKIP, pauses=pauses or _pauses())

    @classmethod
    def dead_letter(cls, *, retries: int = 3, pauses: Backoff | None = None) -> Self:
        """Write it to another stream, with reason and traceback, then continue."""
        return cls(retries=retries, then=PoisonAction.DEAD_LETTER, pauses=pauses or _pauses())

    @classmethod
    def stop(cls, *, retries: int = 3, pauses: Backoff | None = None) -> Self:
        """Stop the partition: it stays owned, and nothing after the event is handled."""
        return cls(retries=retries, then=PoisonAction.STOP, pauses=pauses or _pauses())

    def exhausted(self, failures: int) -> bool:
        """Return whether there is no further attempt after this many failures."""
        return self.retries is not None and failures > self.retries
