"""Where a pipeline resumes: by the sink, by the checkpoint, by an operator, or unknown."""

from __future__ import annotations

import pytest

from leasehold.core.resume_position import (
    PositionOrigin,
    ResumePosition,
    resumed,
    resumed_by_checkpoint,
)


@pytest.mark.spec("S4")
@pytest.mark.parametrize(
    ("checkpoint", "sunk", "is_reset", "by", "position"),
    [
        (None, None, False, PositionOrigin.START, None),
        (0, None, False, PositionOrigin.CHECKPOINT, 0),
        (None, 7, False, PositionOrigin.SINK, 7),
        (7, 7, False, PositionOrigin.SINK, 7),
        (3, 7, False, PositionOrigin.SINK, 7),
        (8, 7, False, PositionOrigin.NOBODY, None),
        (8, None, False, PositionOrigin.NOBODY, None),
        (3, 7, True, PositionOrigin.OPERATOR, 3),
        (9, 7, True, PositionOrigin.OPERATOR, 9),
        (9, None, True, PositionOrigin.OPERATOR, 9),
        (None, 7, True, PositionOrigin.OPERATOR, None),
    ],
)
def test_who_is_right(
    checkpoint: int | None,
    sunk: int | None,
    is_reset: bool,
    by: PositionOrigin,
    position: int | None,
) -> None:
    found = resumed(checkpoint=checkpoint, sink_position=sunk, is_reset=is_reset)
    assert found == ResumePosition(by=by, position=position)


def test_a_sink_without_positions_follows_the_checkpoint() -> None:
    assert resumed_by_checkpoint(None) == ResumePosition(by=PositionOrigin.START)
    assert resumed_by_checkpoint(5) == ResumePosition(by=PositionOrigin.CHECKPOINT, position=5)
