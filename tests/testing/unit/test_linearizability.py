"""The checker of histories: what it lets pass, and what it finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from leasehold.testing.linearizability import CallOutcome, KeyCall, KeyState, Operation, violation


def op(text: str, began_s: float, ended_s: float) -> Operation:
    """``"a claim 0 = 1"``: a claims having seen epoch 0, and gets epoch 1."""
    words, _, result = text.partition(" = ")
    holder, call, epoch, *position = words.split()
    word = "done" if result.isdigit() else result
    return Operation(
        call=KeyCall(call),
        holder=holder,
        epoch=int(epoch),
        began_s=began_s,
        ended_s=ended_s,
        outcome=CallOutcome(word),
        won=int(result) if result.isdigit() else 0,
        position=int(position[0]) if position else 0,
    )


def one_by_one(*texts: str) -> list[Operation]:
    return [op(text, 2 * n, 2 * n + 1) for n, text in enumerate(texts)]


def at_once(*texts: str) -> list[Operation]:
    return [op(text, 0, 10) for text in texts]


GOOD = {
    "nothing": [],
    "in turn": one_by_one(
        "a claim 0 = 1",
        "b claim 1 = refused",
        "a checkpoint 1 5 = done",
        "a release 1 = done",
        "b claim 1 = 2",
        "a checkpoint 1 6 = refused",
        "b checkpoint 2 4 = behind",
        "b checkpoint 2 5 = done",
    ),
    "a steal": one_by_one("a claim 0 = 1", "b steal 1 = 2", "a checkpoint 1 1 = refused"),
    "one of two at once": at_once("a claim 0 = 1", "b claim 0 = refused"),
    "the order is not that of the record": at_once(
        "b claim 1 = 2", "a release 1 = done", "a claim 0 = 1", "b checkpoint 2 1 = done"
    ),
    "claimed again": one_by_one("a claim 0 = 1", "a claim 0 = 1"),
    "released again": one_by_one("a claim 0 = 1", "a release 1 = done", "a release 1 = done"),
    "unknown and done": one_by_one("a claim 0 = unknown", "a claim 0 = 1"),
    "unknown, done much later": [
        *one_by_one("b claim 0 = 1", "b release 1 = done", "a claim 1 = unknown"),
        *[op("b claim 1 = 2", 10, 11), op("b release 2 = done", 12, 13)],
        *[op("c claim 2 = unknown", 14, 15), op("b claim 2 = refused", 30, 31)],
    ],
    "unknown and never done": one_by_one("a claim 0 = unknown", "b claim 0 = 1"),
    "a lost release": one_by_one("a claim 0 = 1", "a release 1 = unknown", "b claim 1 = 2"),
    "a lost release that is not done yet": [
        *one_by_one("a claim 0 = 1", "a release 1 = unknown", "b claim 1 = refused"),
        op("b claim 1 = 2", 20, 21),
    ],
    "a late write before the claim was answered": [
        op("a claim 0 = 1", 0, 1),
        op("b steal 1 = 2", 2, 9),
        op("a checkpoint 1 3 = done", 3, 8),
    ],
}

BAD = {
    "two winners of one epoch": at_once("a claim 0 = 1", "b claim 0 = 1"),
    "two winners, one after the other": one_by_one("a claim 0 = 1", "b claim 0 = 1"),
    "the epoch falls": one_by_one(
        "a claim 0 = 1",
        "a release 1 = done",
        "b claim 1 = 2",
        "b release 2 = done",
        "a claim 0 = 1",
    ),
    "a release of what nobody has had": one_by_one("a release 1 = done"),
    "a release of what another has": one_by_one("a claim 0 = 1", "b release 1 = done"),
    "the epoch leaps": one_by_one("a claim 0 = 2"),
    "the epoch stands still": one_by_one("a claim 0 = 1", "a release 1 = done", "b claim 1 = 1"),
    "won while another holds it": one_by_one("a claim 0 = 1", "b claim 1 = 2"),
    "refused though it is free": one_by_one("a claim 0 = refused"),
    "refused though it was released": one_by_one(
        "a claim 0 = 1", "a release 1 = done", "b claim 1 = refused"
    ),
    "an old epoch writes after a newer claim was answered": one_by_one(
        "a claim 0 = 1", "b steal 1 = 2", "a checkpoint 1 1 = done"
    ),
    "an owner is fenced": one_by_one("a claim 0 = 1", "a checkpoint 1 1 = refused"),
    "a write after the release": one_by_one(
        "a claim 0 = 1", "a release 1 = done", "a checkpoint 1 1 = done"
    ),
    "a checkpoint goes back": one_by_one(
        "a claim 0 = 1", "a checkpoint 1 5 = done", "a checkpoint 1 4 = done"
    ),
    "behind though it is ahead": one_by_one("a claim 0 = 1", "a checkpoint 1 1 = behind"),
    "a release of what one has is refused": one_by_one("a claim 0 = 1", "a release 1 = refused"),
    "an unknown call takes effect before it is sent": [
        op("b claim 0 = refused", 0, 1),
        op("a claim 0 = unknown", 2, 3),
    ],
    "an unknown call takes effect twice": one_by_one(
        "a claim 0 = unknown", "b claim 0 = refused", "c claim 0 = 1"
    ),
    "real time is not respected": [
        op("a claim 0 = 1", 0, 1),
        op("a release 1 = done", 5, 6),
        op("b claim 1 = 2", 2, 3),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_pass(name: str) -> None:
    assert violation(GOOD[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_bad_histories_are_found(name: str) -> None:
    found = violation(BAD[name])
    assert found is not None
    assert "none of these can be next" in found


def test_it_begins_where_it_is_told() -> None:
    history = one_by_one("a claim 7 = 8")
    assert violation(history, start=KeyState(epoch=7)) is None
    assert violation(history) is not None


def test_the_explanation_names_the_calls() -> None:
    found = violation(BAD["won while another holds it"]) or ""
    assert "epoch 1, owner a" in found
    assert "b: claim(1) -> done 2" in found


@pytest.mark.parametrize("seed", range(20))
def test_long_histories_are_judged_in_time(seed: int) -> None:
    """Four at a time, a third of the answers unknown; then one answer is made wrong."""
    history = _lived(Random(seed), calls=300)
    assert violation(history) is None
    won = [n for n, each in enumerate(history) if each.won and each.outcome is CallOutcome.DONE]
    n = won[len(won) // 2]
    wrong = replace(history[n], won=history[n].won + 1)
    assert violation([*history[:n], wrong, *history[n + 1 :]]) is not None


def _lived(rng: Random, *, calls: int) -> list[Operation]:
    """Carry calls out one by one on a real key, and blur when each began and ended."""
    epoch, owner, history = 0, "", []
    for moment in range(calls):
        who = rng.choice("abcd")
        if who == owner and rng.random() < 0.5:
            text, owner = f"{who} release {epoch} = done", ""
        elif owner in {"", who}:
            known = epoch if owner == "" else epoch - 1
            text = f"{who} claim {known} = {known + 1}"
            epoch, owner = known + 1, who
        else:
            text = f"{who} claim {epoch} = refused"
        if rng.random() < 0.3:
            text = text.partition(" = ")[0] + " = unknown"
        began_s, ended_s = moment - rng.uniform(0, 2), moment + rng.uniform(0, 2)
        history.append(op(text, began_s, ended_s))
    return history
