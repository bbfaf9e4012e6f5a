"""The position of an event, as it is written into a checkpoint."""

from __future__ import annotations

import pytest

from leasehold.events import Event
from leasehold.model import Position
from leasehold.processor.context import position_of


@pytest.mark.spec("C1")
@pytest.mark.parametrize(("offset", "text"), [(0, "0"), (4_096, "4096"), (-1, "")])
def test_an_offset_that_is_no_number_is_left_out_instead_of_meaning_the_beginning(
    offset: int, text: str
) -> None:
    found = position_of(Event(body=b"", sequence_number=7, offset=offset))
    assert found == Position(sequence_number=7)
    assert found.offset == text
