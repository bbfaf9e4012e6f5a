"""The events of a standby driver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StandbyState(Enum):
    """The states, in the order of a driver's life."""

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
    """One event of this driver.

    Attributes:
        what: ``WAITING``: another driver runs the query, and ``text`` names it. ``ACTIVE``: this
            one
            runs it now. ``BATCH``: it has completed one. ``ASKED``: an operator wants it elsewhere.
            ``LOST``: its reservation is gone, and the query is being stopped. ``FAILED``: the query
            or its construction failed. ``STUCK``: the query did not stop in time. ``ENDED``: it has
            ended on its own. ``STOPPED``: it was stopped gracefully.
        name: the query.
        epoch: that of the reservation; 0 while there is none.
        batch: the number of the last completed batch; None if that is not known.
        text: a human-readable explanation.
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
