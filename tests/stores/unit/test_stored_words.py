"""Databases keep the words of earlier versions: they are understood, and written as before."""

from __future__ import annotations

import json

import pytest

from leasehold.errors import LeaseLost
from leasehold.jobs import Outcome
from leasehold.jobs.run_log import RunNote
from leasehold.model import EndReason
from leasehold.stores.postgres.store import _raise_if_lost


def test_the_stored_word_for_a_hand_over_is_understood() -> None:
    assert EndReason("handed over") is EndReason("handed_over") is EndReason.HANDED_OVER
    assert EndReason.HANDED_OVER.stored == "handed over"
    for each in EndReason:
        assert EndReason(each.stored) is EndReason(each.value) is each
    with pytest.raises(ValueError, match="let go"):
        EndReason("let go")


@pytest.mark.parametrize(
    ("stored", "outcome"),
    [("handed over", Outcome.HANDED_OVER), ("nothing", Outcome.NO_RUN), ("ok", Outcome.OK)],
)
def test_the_outcomes_in_stored_notes_are_understood(stored: str, outcome: Outcome) -> None:
    assert RunNote.of(json.dumps({"outcome": stored})) == RunNote(outcome=outcome)
    assert RunNote.of(json.dumps({"outcome": outcome.value})) == RunNote(outcome=outcome)
    assert json.loads(RunNote(outcome=outcome).to_json()) == {"outcome": stored}


@pytest.mark.parametrize(
    ("said", "reason"),
    [("another token is in use", "holder_id_in_use"), ("expired", "expired")],
)
def test_a_reason_that_postgresql_returns_has_the_word_of_the_library(
    said: str, reason: str
) -> None:
    with pytest.raises(LeaseLost) as told:
        _raise_if_lost("a", said)
    assert (told.value.key, told.value.reason) == ("a", reason)
