"""The public surface is the recorded one: a name or a parameter never changes unnoticed."""

from __future__ import annotations

import json

from tests.support.surface import RECORD, surface


def test_the_public_surface_is_the_recorded_one() -> None:
    recorded = set(json.loads(RECORD.read_text(encoding="utf-8")))
    found = set(surface())
    assert sorted(recorded - found) == [], "gone: python -m tests.support.surface records it anew"
    assert sorted(found - recorded) == [], "new: python -m tests.support.surface records it anew"
