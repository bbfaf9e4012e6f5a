"""``Run``: what a job's function is given. All methods may be called from any thread."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from leasehold.errors import LeaseLost

if TYPE_CHECKING:
    from datetime import datetime

LONGEST_WORDS = 500
_EVENTS = threading.Lock()


class RunReservation(Protocol):
    """The reservation that a run needs."""

    def why_lost(self, key: str) -> str | None:
        """Return why the reservation has ended; None while it is valid."""
        ...

    def remaining_s(self, key: str) -> float:
        """Return how long the work may continue if no renewal succeeds."""
        ...

    def progress_changed(self, key: str) -> None:
        """Have the new progress of a run written; from any thread."""
        ...


class Run:
    """One run of a job, as its function sees it.

    Attributes:
        name: of the job.
        epoch: the fencing token. Pass it to every system that the job writes to.
        occurrence: the scheduled time that this is the run of; None: it was started otherwise.
        attempt: 1 for the first try of this occurrence.
        words: the last progress, kept in the log.
        exit_code: for the log, if the function ran a command; None by default.
    """

    def __init__(
        self,
        ground: RunReservation,
        *,
        name: str,
        key: str,
        epoch: int,
        occurrence: datetime | None,
        attempt: int,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.occurrence = occurrence
        self.attempt = attempt
        self.words = ""
        self.exit_code: int | None = None
        self._reservation = ground
        self._key = key
        self._stop_reason: str | None = None
        self._lost: threading.Event | None = None

    def __repr__(self) -> str:
        moment = "" if self.occurrence is None else f" of {self.occurrence.isoformat()}"
        return f"<Run of {self.name!r}{moment}, attempt {self.attempt}, epoch {self.epoch}>"

    @property
    def lost(self) -> threading.Event:
        """Set when the work must stop. Raise an error then, as ``check`` does.

        A function that returns counts as successful, and its occurrence as done.
        """
        with _EVENTS:  # made on demand: most runs never use it
            if self._lost is None:
                self._lost = threading.Event()
                if self._stop_reason is not None:
                    self._lost.set()
            return self._lost

    @property
    def why_lost(self) -> str | None:
        """Why the work must stop; None while it may continue."""
        return self._stop_reason or self._reservation.why_lost(self._key)

    def remaining(self) -> timedelta:
        """Return how long the work may continue if no renewal succeeds."""
        return timedelta(seconds=self._reservation.remaining_s(self._key))

    def check(self) -> None:
        """Return if the work may continue now.

        Raises:
            LeaseLost: the work must stop; ``reason`` says why.
        """
        why = self.why_lost
        if why is not None:
            raise LeaseLost(
                f"the run of {self.name!r} must stop ({why}; epoch {self.epoch}): leave the rest "
                "to the one that follows",
                key=self._key,
                epoch=self.epoch,
                reason=why,
            )

    def progress(self, words: str) -> None:
        """Report progress, which is in the log within seconds. Does not block.

        Raises:
            LeaseLost: the run must stop.
        """
        self.check()
        self.words = str(words)[:LONGEST_WORDS].replace("\0", "")
        self._reservation.progress_changed(self._key)

    def tell(self, reason: str) -> None:
        """Ask the work to stop (for the worker). Only the first reason counts."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self.lost.set()
