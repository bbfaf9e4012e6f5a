"""The table of the lease, typed in a second time from the blob service's own, and its edges."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lease_diagram
from leasehold.core.lease_rules import (
    COLUMNS,
    Move,
    RequestRefusal,
    RuleOutcome,
    break_time,
    evaluate,
    markdown,
    mermaid,
    state_of,
)
from leasehold.model import State

if TYPE_CHECKING:
    from pathlib import Path

PRESENT = "409 LeaseAlreadyPresent"
MISMATCH = "409 LeaseIdMismatchWithLeaseOperation"
ABSENT = "409 LeaseNotPresentWithLeaseOperation"
NO_ACQUIRE = "409 LeaseIsBreakingAndCannotBeAcquired"
NO_RENEWAL = "409 LeaseIsBrokenAndCannotBeRenewed"
NO_CHANGE = "409 LeaseIsBreakingAndCannotBeChanged"
DEAD = "412 LeaseNotPresentWithBlobOperation"
NOT_YOURS = "412 LeaseIdMismatchWithBlobOperation"
BARE = "412 LeaseIdMissing"

# "same": granted, and the state stays. A status alone: the service's table has no more than that.
# fmt: off
ORACLE: dict[Move, tuple[str, ...]] = {
    #                    available   leased      breaking    broken      expired
    Move.ACQUIRE_NEW:   ("leased",   PRESENT,    PRESENT,    "leased",   "leased"),
    Move.ACQUIRE_SAME:  ("leased",   "leased",   NO_ACQUIRE, "leased",   "leased"),
    Move.ACQUIRE_OTHER: ("leased",   PRESENT,    PRESENT,    "leased",   "leased"),
    Move.RENEW:         (MISMATCH,   "leased",   NO_RENEWAL, NO_RENEWAL, "leased"),
    Move.RENEW_TOUCHED: (MISMATCH,   "leased",   NO_RENEWAL, NO_RENEWAL, MISMATCH),
    Move.RENEW_OTHER:   ("409",      MISMATCH,   "409",      "409",      "409"),
    Move.CHANGE:        (ABSENT,     "leased",   NO_CHANGE,  ABSENT,     ABSENT),
    Move.CHANGE_AGAIN:  (ABSENT,     "leased",   MISMATCH,   ABSENT,     ABSENT),
    Move.CHANGE_OTHER:  (ABSENT,     MISMATCH,   MISMATCH,   "409",      "409"),
    Move.RELEASE:       (MISMATCH,   "available", "available", "available", "available"),
    Move.RELEASE_OTHER: ("409",      MISMATCH,   "409",      "409",      "409"),
    Move.BREAK_NOW:     (ABSENT,     "broken",   "broken",   "broken",   "broken"),
    Move.BREAK_AFTER:   (ABSENT,     "breaking", "breaking", "broken",   "broken"),
    Move.BREAK_AT_END:  (ABSENT,     "breaking", "same",     "broken",   "broken"),
    Move.BREAK_ENDLESS: (ABSENT,     "broken",   "same",     "broken",   "broken"),
    Move.TIME:          ("same",     "expired",  "broken",   "same",     "same"),
    Move.WRITE:         (DEAD,       "same",     "same",     DEAD,       DEAD),
    Move.WRITE_OTHER:   ("412",      NOT_YOURS,  "412",      "412",      "412"),
    Move.WRITE_BARE:    ("same",     BARE,       BARE,       "available", "available"),
    Move.READ:          ("412",      "same",     "same",     "412",      "412"),
    Move.READ_BARE:     ("same",     "same",     "same",     "same",     "same"),
}
# fmt: on

CELLS = [
    pytest.param(state, move, cell, id=f"{move.name}-{state.name}")
    for move, row in ORACLE.items()
    for state, cell in zip(COLUMNS, row, strict=True)
]
EVERYWHERE = [(state, move) for state in State for move in Move]
LOCKED = (State.LEASED, State.BREAKING)


def said(verdict: RuleOutcome) -> str:
    """A verdict in the words of the oracle."""
    if verdict.refusal is not None:
        return f"{verdict.refusal.status} {verdict.refusal.code}"
    assert verdict.to is not None
    return verdict.to.value


# ------------------------------------------------------------------------------- the table


@pytest.mark.spec("L1")
@pytest.mark.parametrize(("state", "move", "cell"), CELLS)
def test_each_request_does_what_the_blob_service_does(state: State, move: Move, cell: str) -> None:
    expected = state.value if cell == "same" else cell
    got = said(evaluate(state, move))
    assert got.split()[0] == expected if expected.isdigit() else got == expected


def test_the_table_has_every_request_and_every_state() -> None:
    assert set(ORACLE) == set(Move)
    assert set(COLUMNS) == set(State)
    assert all(len(row) == len(COLUMNS) for row in ORACLE.values())


@pytest.mark.parametrize(("state", "move"), EVERYWHERE)
def test_a_verdict_is_a_state_or_a_refusal_and_never_both(state: State, move: Move) -> None:
    verdict = evaluate(state, move)
    assert (verdict.to is None) == (verdict.refusal is not None)
    assert verdict.granted == (verdict.refusal is None)


@pytest.mark.spec("L7")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("move", [Move.WRITE, Move.WRITE_OTHER])
def test_a_write_under_a_token_that_is_not_alive_is_refused(state: State, move: Move) -> None:
    verdict = evaluate(state, move)
    if state in LOCKED and move is Move.WRITE:
        assert verdict == RuleOutcome(to=state)
    else:
        assert verdict.to is None
        assert verdict.refusal is not None
        assert verdict.refusal.status == 412


@pytest.mark.parametrize(("state", "move"), EVERYWHERE)
def test_refusals_are_409_for_the_lease_and_412_for_what_is_in_it(state: State, move: Move) -> None:
    refusal = evaluate(state, move).refusal
    if refusal is not None:
        inside = move.name.startswith(("READ", "WRITE"))
        assert refusal.status == (412 if inside else 409)


def test_the_codes_of_the_refusals_are_those_of_the_service() -> None:
    spelled = {cell for row in ORACLE.values() for cell in row if " " in cell}
    assert {f"{each.status} {each.code}" for each in RequestRefusal} == spelled


@pytest.mark.spec("L1")
@pytest.mark.parametrize("state", State)
def test_anybody_acquires_what_no_running_lease_covers(state: State) -> None:
    for move in (Move.ACQUIRE_NEW, Move.ACQUIRE_OTHER):
        assert evaluate(state, move).granted == (state not in LOCKED)


@pytest.mark.spec("L4")
@pytest.mark.parametrize("state", State)
def test_a_renewal_by_a_stranger_or_after_the_loss_is_refused_with_the_reason(state: State) -> None:
    assert evaluate(state, Move.RENEW_OTHER).refusal is RequestRefusal.MISMATCH
    late = evaluate(state, Move.RENEW_TOUCHED)
    assert late.granted == (state is State.LEASED)
    assert late.granted or late.refusal in (
        RequestRefusal.MISMATCH,
        RequestRefusal.BROKEN_NOT_RENEWED,
    )


@pytest.mark.spec("L5")
@pytest.mark.parametrize("state", [each for each in State if each is not State.AVAILABLE])
def test_a_release_by_its_holder_makes_it_available_whatever_the_state(state: State) -> None:
    assert evaluate(state, Move.RELEASE) == RuleOutcome(to=State.AVAILABLE)
    assert not evaluate(state, Move.RELEASE_OTHER).granted


@pytest.mark.spec("L5")
def test_a_break_at_once_ends_what_runs_and_a_break_with_a_period_lets_it_run_on() -> None:
    for state in LOCKED:
        assert evaluate(state, Move.BREAK_NOW) == RuleOutcome(to=State.BROKEN)
        assert evaluate(state, Move.BREAK_AFTER) == RuleOutcome(to=State.BREAKING)


# -------------------------------------------------------------------------------- the clock


@pytest.mark.spec("L1")
@pytest.mark.parametrize(
    ("held", "ends", "break_at", "now", "state"),
    [
        (False, 0.0, None, 5.0, State.AVAILABLE),
        (False, 10.0, 3.0, 5.0, State.AVAILABLE),
        (True, 10.0, None, 9.999, State.LEASED),
        (True, 10.0, None, 10.0, State.EXPIRED),
        (True, 10.0, None, 10.001, State.EXPIRED),
        (True, 10.0, 7.0, 6.999, State.BREAKING),
        (True, 10.0, 7.0, 7.0, State.BROKEN),
        (True, 10.0, 7.0, 10.0, State.BROKEN),
        (True, 10.0, 7.0, 99.0, State.BROKEN),
        (True, 10.0, 10.0, 9.999, State.BREAKING),
        (True, 10.0, 10.0, 10.0, State.BROKEN),
        (True, 10.0, 12.0, 9.999, State.BREAKING),
        (True, 10.0, 12.0, 10.0, State.EXPIRED),
        (True, 10.0, 12.0, 12.0, State.EXPIRED),
    ],
)
def test_the_end_belongs_to_nobody(
    held: bool, ends: float, break_at: float | None, now: float, state: State
) -> None:
    assert state_of(held=held, lease_ends_at=ends, break_at=break_at, now=now) is state


moments = st.floats(min_value=0, max_value=1e6)
perhaps = st.none() | moments


@given(ends=moments, break_at=perhaps, now=moments, later=moments)
def test_what_has_ended_stays_ended(
    ends: float, break_at: float | None, now: float, later: float
) -> None:
    now, later = sorted((now, later))
    first = state_of(held=True, lease_ends_at=ends, break_at=break_at, now=now)
    second = state_of(held=True, lease_ends_at=ends, break_at=break_at, now=later)
    assert first in LOCKED or second is first
    ended = ends if break_at is None else min(ends, break_at)
    assert (first in LOCKED) == (now < ended)


@given(ends=moments, now=moments)
def test_time_does_what_the_table_says(ends: float, now: float) -> None:
    for start, break_at in ((State.LEASED, None), (State.BREAKING, ends)):
        state = state_of(held=True, lease_ends_at=ends, break_at=break_at, now=now)
        assert state in (start, evaluate(start, Move.TIME).to)


@pytest.mark.spec("L5")
@given(now=moments, after=moments, ends=moments, break_at=perhaps)
def test_a_break_only_shortens(
    now: float, after: float, ends: float, break_at: float | None
) -> None:
    moment = break_time(now=now, after_s=after, lease_ends_at=ends, break_at=break_at)
    assert moment <= now + after
    assert moment <= (ends if break_at is None else break_at)
    assert moment in (now + after, ends, break_at)


@pytest.mark.spec("L5")
def test_a_second_break_comes_sooner_and_never_later() -> None:
    first = break_time(now=0.0, after_s=5.0, lease_ends_at=10.0, break_at=None)
    sooner = break_time(now=1.0, after_s=1.0, lease_ends_at=10.0, break_at=first)
    later = break_time(now=1.0, after_s=9.0, lease_ends_at=10.0, break_at=sooner)
    assert (first, sooner, later) == (5.0, 2.0, 2.0)


# --------------------------------------------------------------------------------- the page


def test_the_page_with_the_diagram_is_up_to_date() -> None:
    page = lease_diagram.PAGE.read_text(encoding="utf-8")
    assert lease_diagram.filled(page) == page, "stale: run python tools/lease_diagram.py"


def test_the_check_tells_a_stale_page_from_a_good_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "lease-states.md"
    good = lease_diagram.PAGE.read_text(encoding="utf-8")
    page.write_text(good.replace("**leased**", "**free**", 1), encoding="utf-8")
    monkeypatch.setattr(lease_diagram, "PAGE", page)
    assert lease_diagram.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().out
    assert lease_diagram.main([]) == 0
    assert page.read_text(encoding="utf-8") == good
    assert lease_diagram.main(["--check"]) == 0
    assert lease_diagram.main(["--nonsense"]) == 2
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(LookupError, match="begin diagram"):
        lease_diagram.main([])


def test_the_diagram_has_an_arrow_for_each_change_and_no_other() -> None:
    drawn: set[tuple[str, str, str]] = set()
    for start, end, moves in re.findall(r"^    (\w+) --> (\w+): (.+)$", mermaid(), re.MULTILINE):
        drawn |= {(start, end, move) for move in moves.split("<br/>")}
    states = {state.value for state in State}
    assert drawn == {
        (state.value, cell, move.value)
        for move, row in ORACLE.items()
        for state, cell in zip(COLUMNS, row, strict=True)
        if cell in states and cell != state.value
    }
    assert mermaid().startswith("stateDiagram-v2\n    [*] --> available\n")


def test_the_printed_table_says_what_is_judged() -> None:
    rows = [line.strip("| ").split(" | ") for line in markdown().splitlines()]
    assert rows[0] == ["request", *(state.value for state in COLUMNS)]
    shown = {row[0]: [cell.strip("*") for cell in row[1:]] for row in rows[2:]}
    assert shown == {
        move.value: [said(evaluate(state, move)) for state in COLUMNS] for move in ORACLE
    }
