"""What the log has done in this process, counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Sums since the log was opened.

    Attributes:
        events: events stored by this process as the owner of their partition.
        frames: the batches they were stored in.
        commits: how often the volumes were waited for; many batches may share one.
        duplicates: events that were sent again and not stored again.
        fenced: batches that were refused because the partition had been taken over.
        forwarded: batches that were handed to an owner in another process.
        taken: partitions that this process became the owner of.
        recovered: of these, those whose owner was dead or silent and was shut out from here.
    """

    events: int = 0
    frames: int = 0
    commits: int = 0
    duplicates: int = 0
    fenced: int = 0
    forwarded: int = 0
    taken: int = 0
    recovered: int = 0


class Counts:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = threading.Lock()
        self._numbers = Numbers()

    def add(self, more: Numbers) -> None:
        """Add each of the numbers to its sum."""
        with self._lock:
            old = self._numbers
            self._numbers = replace(
                old,
                **{
                    each.name: getattr(old, each.name) + getattr(more, each.name)
                    for each in fields(Numbers)
                },
            )

    @property
    def now(self) -> Numbers:
        """The sums at this moment."""
        return self._numbers
