"""Where a pipeline goes on in a partition, when sink and checkpoint may say different things. Pure.

The sink's own position was moved in the same step as its rows, so it is the truth; the checkpoint
is written after it, and may be behind after a crash. It can only be ahead if the sink went back, or
if an operator has moved it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PositionOrigin(Enum):
    """Whose word counts."""

    SINK = "sink"
    CHECKPOINT = "checkpoint"
    OPERATOR = "operator"
    START = "start"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePosition:
    """Go on at ``position``; None with ``START`` and ``OPERATOR``: where the options say.

    ``NOBODY``: sink and checkpoint contradict each other, and a person must decide.
    """

    by: PositionOrigin
    position: int | None = None


def resumed(*, checkpoint: int | None, sunk: int | None, is_reset: bool) -> ResumePosition:
    """Decide. Both are the number of the first event that is not done.

    ``is_reset``: an operator has put the checkpoint there, and no owner has written one since.
    """
    if is_reset:
        return ResumePosition(by=PositionOrigin.OPERATOR, position=checkpoint)
    if sunk is None and not checkpoint:  # nothing was ever done
        return resumed_by_checkpoint(checkpoint)
    if sunk is None:
        return ResumePosition(by=PositionOrigin.NOBODY)
    if checkpoint is not None and checkpoint > sunk:
        return ResumePosition(by=PositionOrigin.NOBODY)
    return ResumePosition(by=PositionOrigin.SINK, position=sunk)


def resumed_by_checkpoint(checkpoint: int | None) -> ResumePosition:
    """Decide for a sink that keeps no positions."""
    by = PositionOrigin.START if checkpoint is None else PositionOrigin.CHECKPOINT
    return ResumePosition(by=by, position=checkpoint)
