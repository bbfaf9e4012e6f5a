"""Where a pipeline goes on: the sink's word, the checkpoint's, an operator's, or nobody's."""

from __future__ import annotations

import pytest

from leasehold.core.resume_position import By, Resumed, resumed, resumed_by_checkpoint


@pytest.mark.spec("S4")
@pytest.mark.parametrize(
    ("checkpoint", "sunk", "is_reset", "by", "position"),
    [
        (None, None, False, By.START, None),
        (0, None, False, By.CHECKPOINT, 0),
        (None, 7, False, By.SINK, 7),
        (7, 7, False, By.SINK, 7),
        (3, 7, False, By.SINK, 7),
        (8, 7, False, By.NOBODY, None),
        (8, None, False, By.NOBODY, None),
        (3, 7, True, By.OPERATOR, 3),
        (9, 7, True, By.OPERATOR, 9),
        (9, None, True, By.OPERATOR, 9),
        (None, 7, True, By.OPERATOR, None),
    ],
)
def test_who_is_right(
    checkpoint: int | None, sunk: int | None, is_reset: bool, by: By, position: int | None
) -> None:
    found = resumed(checkpoint=checkpoint, sunk=sunk, is_reset=is_reset)
    assert found == Resumed(by=by, position=position)


def test_a_sink_without_positions_follows_the_checkpoint() -> None:
    assert resumed_by_checkpoint(None) == Resumed(by=By.START)
    assert resumed_by_checkpoint(5) == Resumed(by=By.CHECKPOINT, position=5)
