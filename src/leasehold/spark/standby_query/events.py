"""What a standby tells the program that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StandbyState(Enum):
    """The kinds, in the order of a life."""

    WAITING = "waiting"
    ACTIVE = "active"
    BATCH = "batch"
    ASKED = "asked"
    LOST = "lost"
    FAILED = "failed"
    STUCK = "stuck"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyChanged:
    """One thing that happened to this driver.

    Attributes:
        what: ``WAITING``: another driver runs the query, and ``text`` says which. ``ACTIVE``: this
            one runs it now. ``BATCH``: it has done one. ``ASKED``: an operator wants it elsewhere.
            ``LOST``: its reservation is gone, and the query is being stopped. ``FAILED``: the query
            or its making failed. ``STUCK``: the query did not stop in time. ``ENDED``: it has ended
            by itself. ``STOPPED``: it was stopped in good order.
        name: the query.
        epoch: that of the reservation; 0 while there is none.
        batch: the number of the last batch that is done; None if that is not known.
        text: for people.
    """

    what: StandbyState
    name: str
    epoch: int = 0
    batch: int | None = None
    text: str = ""

    def __str__(self) -> str:
        where = f", epoch {self.epoch}" if self.epoch else ""
        done = f", batch {self.batch}" if self.batch is not None else ""
        return f"{self.name}: {self.what.value}{where}{done}" + (f": {self.text}" * bool(self.text))
