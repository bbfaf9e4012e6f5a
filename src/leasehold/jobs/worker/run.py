"""What a job's function knows of its run. All methods may be called from any thread."""

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
    """What a run stands on: the reservation of its job."""

    def why_lost(self, key: str) -> str | None:
        """Why the reservation holds no more; None while it does."""
        ...

    def remaining_s(self, key: str) -> float:
        """How long the work may go on if no renewal succeeds any more."""
        ...

    def say(self, key: str) -> None:
        """There are new words of progress; from any thread."""
        ...


class Run:
    """One run of a job, as its function sees it.

    Attributes:
        name: of the job.
        epoch: the fencing token. Show it to whatever the job writes to.
        occurrence: the scheduled moment this is the run of; None: it was started otherwise.
        attempt: 1 for the first try of this occurrence.
        words: the last progress. They end up in the log.
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
        """A run that begins."""
        self.name = name
        self.epoch = epoch
        self.occurrence = occurrence
        self.attempt = attempt
        self.words = ""
        self.exit_code: int | None = None
        self._ground = ground
        self._key = key
        self._told: str | None = None
        self._lost: threading.Event | None = None

    def __repr__(self) -> str:
        moment = "" if self.occurrence is None else f" of {self.occurrence.isoformat()}"
        return f"<Run of {self.name!r}{moment}, attempt {self.attempt}, epoch {self.epoch}>"

    @property
    def lost(self) -> threading.Event:
        """Set when the work must stop: raise at once, as ``check`` does.

        A function that returns has done its work: its occurrence would count as done.
        """
        with _EVENTS:  # made on demand: most runs never ask for it
            if self._lost is None:
                self._lost = threading.Event()
                if self._told is not None:
                    self._lost.set()
            return self._lost

    @property
    def why_lost(self) -> str | None:
        """Why the work must stop; None while it may go on."""
        return self._told or self._ground.why_lost(self._key)

    def remaining(self) -> timedelta:
        """How long the work may go on if no renewal succeeds any more."""
        return timedelta(seconds=self._ground.remaining_s(self._key))

    def check(self) -> None:
        """Return if the work may go on at this very moment.

        Raises:
            LeaseLost: it may not, with the reason.
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
        """Say how far it is: found in the log within seconds. Returns at once.

        Raises:
            LeaseLost: the run must stop.
        """
        self.check()
        self.words = str(words)[:LONGEST_WORDS].replace("\0", "")
        self._ground.say(self._key)

    def tell(self, reason: str) -> None:
        """For the worker: the work must stop. Said once; the first reason stands."""
        if self._told is None:
            self._told = reason
            self.lost.set()
