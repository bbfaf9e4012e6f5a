"""The reservation log: notes of terms, and what is read out of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.jobs import Outcome
from leasehold.jobs.run_log import RunLogEntry, RunNote, log_entries, recent_holders
from leasehold.model import LONGEST_NOTE, EndReason, Note, Ownership, Term

AT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
PROOF = Ownership(key="job/nightly", epoch=1, holder="me", token="secret")


def term(
    number: int, *, reason: EndReason | None = EndReason.RELEASED, note: str = "", holder: str = "a"
) -> Term:
    began = AT + timedelta(minutes=number)
    return Term(
        key="job/nightly",
        epoch=number,
        holder=holder,
        started_at=began,
        ended_at=None if reason is None else began + timedelta(seconds=90),
        reason=reason,
        note=note,
    )


texts = st.text(max_size=3000)
moments = st.datetimes(
    min_value=datetime(1970, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)


@given(
    st.builds(
        RunNote,
        host=st.text(max_size=100),
        pid=st.integers(0, 2**22),
        occurrence=st.none() | moments,
        attempt=st.integers(1, 1000),
        schedule=st.text(max_size=300),
        outcome=st.none() | st.sampled_from(Outcome),
        exit_code=st.none() | st.integers(-64, 255),
        words=texts,
    )
)
def test_any_note_can_be_kept_and_what_is_read_from_it_is_what_was_said(note: RunNote) -> None:
    text = note.to_json()
    assert Note(ownership=PROOF, text=text).text == text  # every store can keep it
    read = RunNote.of(text)
    assert (read.pid, read.attempt, read.outcome) == (note.pid, note.attempt, note.outcome)
    assert (read.occurrence, read.exit_code) == (note.occurrence, note.exit_code)
    assert note.host.startswith(read.host)
    cut = read.words.removesuffix("…")
    assert read.words == note.words or note.words.startswith(cut)


def test_short_words_are_kept_whole_and_what_is_empty_takes_no_room() -> None:
    note = RunNote(host="vm", pid=7, occurrence=AT, exit_code=0, words="half of it")
    assert RunNote.of(note.to_json()) == note
    assert json.loads(note.to_json()).keys() == {"host", "pid", "occurrence", "exit_code", "words"}
    assert RunNote().to_json() == "{}"
    assert len(RunNote(words="x" * 5000).to_json()) <= LONGEST_NOTE
    assert RunNote.of(RunNote(words="x" * 5000).to_json()).words.endswith("x…")


@given(st.text(max_size=200) | st.recursive(st.integers(), st.lists).map(json.dumps))
def test_a_note_that_is_not_ours_is_never_an_error(note: str) -> None:
    assert isinstance(RunNote.of(note), RunNote)


@pytest.mark.parametrize(
    "note",
    [
        "by hand",
        "[1, 2]",
        '"text"',
        '{"pid": "seven"}',
        '{"attempt": "2"}',
        '{"outcome": "splendid"}',
        '{"outcome": []}',
        '{"occurrence": 5}',
        '{"occurrence": "tomorrow"}',
        '{"occurrence": "0001-01-01T00:00:00+14:00"}',
        "[" * 1000,
    ],
)
def test_what_others_wrote_is_taken_for_words(note: str) -> None:
    assert RunNote.of(note) == RunNote(words=note)


def test_parts_that_a_later_release_adds_are_passed_over() -> None:
    assert RunNote.of('{"words": "w", "colour": "red"}') == RunNote(words="w")


@pytest.mark.spec("J3")
@pytest.mark.parametrize(
    ("reason", "note", "outcome"),
    [
        (None, RunNote(), None),
        (EndReason.RELEASED, RunNote(), Outcome.OK),
        (EndReason.RELEASED, RunNote(outcome=Outcome.FAILED), Outcome.FAILED),
        (EndReason.RELEASED, RunNote(outcome=Outcome.KILLED), Outcome.KILLED),
        (EndReason.RELEASED, RunNote(outcome=Outcome.NO_RUN), Outcome.NO_RUN),
        (EndReason.LAPSED, RunNote(), Outcome.LOST),
        (EndReason.LAPSED, RunNote(outcome=Outcome.KILLED), Outcome.KILLED),
        (None, RunNote(outcome=Outcome.NO_RUN), None),  # it may still run
        (EndReason.EXPIRED, RunNote(outcome=Outcome.NO_RUN), Outcome.EXPIRED),
        (EndReason.HANDED_OVER, RunNote(), Outcome.HANDED_OVER),
        (EndReason.HANDED_OVER, RunNote(outcome=Outcome.OK), Outcome.OK),
        (EndReason.EXPIRED, RunNote(words="half way"), Outcome.EXPIRED),
        (EndReason.STOLEN, RunNote(), Outcome.LOST),
        (EndReason.BROKEN, RunNote(), Outcome.BROKEN),
        (EndReason.BROKEN, RunNote(outcome=Outcome.OK), Outcome.BROKEN),  # it never said so in time
    ],
)
def test_how_it_ended_is_what_its_holder_said_or_else_what_the_store_saw(
    reason: EndReason | None, note: RunNote, outcome: Outcome | None
) -> None:
    entry = RunLogEntry.of(term(1, reason=reason, note=note.to_json()))
    assert entry.outcome is outcome
    assert entry.note == note
    assert entry.ran == (outcome is not Outcome.NO_RUN)
    known = reason not in (None, EndReason.EXPIRED)  # it died some time before that was seen
    assert entry.duration == (timedelta(seconds=90) if known else None)


@pytest.mark.spec("J3")
def test_the_last_ten_reservers_newest_first_and_one_in_a_row_is_one() -> None:
    holders = ["c", "c", *(f"h{number}" for number in range(8)), "b", "b", "a"]
    log = log_entries(term(99 - at, holder=holder) for at, holder in enumerate(holders))
    found = recent_holders(log)
    assert [each.holder for each in found] == ["c", *(f"h{number}" for number in range(8)), "b"]
    assert [len(each.entries) for each in found] == [2, 1, 1, 1, 1, 1, 1, 1, 1, 2]
    assert [entry.epoch for entry in found[0].entries] == [99, 98]
    assert len(recent_holders(log, max_holders=2)) == 2


def test_what_an_operator_has_reset_is_no_reservation() -> None:
    log = log_entries([term(2), term(1, reason=EndReason.RESET, holder="operator")])
    assert [entry.epoch for entry in log] == [2]


def test_what_its_holder_has_killed_is_killed_though_only_time_has_ended_its_term() -> None:
    note = RunNote(outcome=Outcome.KILLED, words="timeout: it did not stop").to_json()
    killed = RunLogEntry.of(term(1, reason=EndReason.EXPIRED, note=note))
    assert (killed.outcome, killed.duration) == (Outcome.KILLED, None)
    for outcome in set(Outcome) - {Outcome.KILLED}:
        note = RunNote(outcome=outcome).to_json()
        assert (
            RunLogEntry.of(term(1, reason=EndReason.EXPIRED, note=note)).outcome is Outcome.EXPIRED
        )
    for reason in (EndReason.STOLEN, EndReason.BROKEN):
        note = RunNote(outcome=Outcome.KILLED).to_json()
        assert RunLogEntry.of(term(1, reason=reason, note=note)).outcome is not Outcome.KILLED
