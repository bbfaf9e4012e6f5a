"""Decides where a pipeline resumes a partition, if sink and checkpoint differ.

The sink's own position is written in the same step as its rows, so it counts; the checkpoint is
written after it, and may be behind after a crash. It can only be ahead if the sink went back, or if
an operator has moved it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from leasehold.errors import PositionLost


class PositionOrigin(Enum):
    """Which position counts."""

    SINK = "sink"
    CHECKPOINT = "checkpoint"
    OPERATOR = "operator"
    START = "start"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePosition:
    """Resume at ``position``; None with ``START`` and ``OPERATOR``: where the options say.

    ``NOBODY``: sink and checkpoint contradict each other, and a person must decide.
    """

    by: PositionOrigin
    position: int | None = None


def check_same_stream(
    known: str, found: str, *, stream: str, partition: str, resumes_at: int | None
) -> None:
    """Return if both identities are of the same stream, or one of them is not known (empty).

    ``known`` is that of the position to resume at, ``found`` that of the stream as it is now.

    Raises:
        PositionLost: they differ: the number of the position means another event now.
    """
    if known in {"", found} or not found:
        return
    raise PositionLost(
        f"partition {partition} of {stream!r} cannot resume at event {resumes_at}: the stream was "
        f"deleted and recreated. The position is of the stream of {known}, this one is of {found}, "
        "and its events have other numbers. Nothing was read or skipped. Say where the group is to "
        "begin in the new stream with `leasehold checkpoints reset`"
    )


def resumed(*, checkpoint: int | None, sink_position: int | None, is_reset: bool) -> ResumePosition:
    """Decide where to resume. Both positions are the number of the first event that is not done.

    ``is_reset``: an operator has set the checkpoint, and no owner has written one since.
    """
    if is_reset:
        return ResumePosition(by=PositionOrigin.OPERATOR, position=checkpoint)
    if sink_position is None and not checkpoint:  # nothing was ever done
        return resumed_by_checkpoint(checkpoint)
    if sink_position is None:
        return ResumePosition(by=PositionOrigin.NOBODY)
    if checkpoint is not None and checkpoint > sink_position:
        return ResumePosition(by=PositionOrigin.NOBODY)
    return ResumePosition(by=PositionOrigin.SINK, position=sink_position)


def resumed_by_checkpoint(checkpoint: int | None) -> ResumePosition:
    """Decide for a sink that keeps no positions."""
    by = PositionOrigin.START if checkpoint is None else PositionOrigin.CHECKPOINT
    return ResumePosition(by=by, position=checkpoint)
