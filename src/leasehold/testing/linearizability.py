"""Checks whether one order of single steps explains a recorded history of one key.

Several processes claim, steal, release and write under one key. Each records for each call when it
was sent, when the answer came, and what it was. The history is *linearizable* if every call can be
given one time between the two at which it took effect, so that all answers are right. A call
without an answer may have taken effect at any time after it was sent, or never.

The search is that of Wing and Gong with Lowe's memory: walk through all orders that respect real
time, depth first, and never visit the same set of done calls with the same key state twice. A call
that leaves the key unchanged is placed at the first time at which its answer is right. That keeps
the search short and misses nothing: epochs never decrease, so what has no effect now can have none
later. For the same reason unknown calls of past epochs are dropped.

Not modelled: the passing of time. Record with leases that outlast the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class KeyCall(Enum):
    """The kind of call. ``epoch`` is the one seen (claim, steal) or held (the others)."""

    CLAIM = "claim"
    STEAL = "steal"
    RELEASE = "release"
    CHECKPOINT = "checkpoint"


class CallOutcome(Enum):
    """The answer; ``UNKNOWN`` if there was none."""

    DONE = "done"
    REFUSED = "refused"
    BEHIND = "behind"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call: its holder, kind, start, end and outcome.

    ``won`` is the epoch that a claim or steal returned. ``ended_s`` of an unknown one is ignored.
    """

    call: KeyCall
    holder: str
    epoch: int
    began_s: float
    ended_s: float
    outcome: CallOutcome
    won: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class KeyState:
    """The key between two calls."""

    epoch: int = 0
    holder: str | None = None
    position: int = -1


def violation(history: Sequence[Operation], *, start: KeyState | None = None) -> str | None:
    """Return why no order explains ``history``, as text; None if one does."""
    calls = sorted(history, key=lambda each: each.began_s)
    to_do = sum(1 << n for n, each in enumerate(calls) if each.outcome is not CallOutcome.UNKNOWN)
    state = start or KeyState()
    stack = [(_settled(calls, 0, state), state)]
    seen = set(stack)
    best = stack[0]
    while stack:
        done, state = stack.pop()
        if to_do & ~done == 0:
            return None
        if (done & to_do).bit_count() > (best[0] & to_do).bit_count():
            best = (done, state)
        for n in _next(calls, done):
            for after in _steps(calls[n], state):
                branch = (_settled(calls, done | 1 << n, after), after)
                if branch not in seen:
                    seen.add(branch)
                    stack.append(branch)
    return _describe_conflict(calls, *best)


def _next(calls: Sequence[Operation], done: int) -> Iterator[int]:
    """Return the calls that may be next: sent before the earliest answer not yet explained."""
    first_answer_s = float("inf")
    waiting = []
    for n, each in enumerate(calls):
        if each.began_s > first_answer_s:
            break
        if not done >> n & 1:
            waiting.append(n)
            if each.outcome is not CallOutcome.UNKNOWN:
                first_answer_s = min(first_answer_s, each.ended_s)
    return (n for n in waiting if calls[n].began_s <= first_answer_s)


def _settled(calls: Sequence[Operation], done: int, state: KeyState) -> int:
    """Do all calls that are right now and change nothing; drop what never will be."""
    for n, each in enumerate(calls):
        if each.outcome is CallOutcome.UNKNOWN and each.epoch < state.epoch:
            done |= 1 << n
    while True:
        idle = [
            n
            for n in _next(calls, done)
            if calls[n].outcome is not CallOutcome.UNKNOWN and state in _steps(calls[n], state)
        ]
        if not idle:
            return done
        for n in idle:
            done |= 1 << n


def _steps(call: Operation, state: KeyState) -> list[KeyState]:
    """Return the states in which ``call`` may leave the key if its answer is right."""
    if call.outcome is not CallOutcome.UNKNOWN:
        after = _after(call, state)
        return [] if after is None else [after]
    after = _after(replace(call, outcome=CallOutcome.DONE, won=state.epoch + 1), state)
    return [] if after in {None, state} else [after]


def _after(call: Operation, state: KeyState) -> KeyState | None:
    """Return the state after the call, or None if the answer is wrong in ``state``."""
    if call.call is KeyCall.RELEASE:
        return _after_release(call, state)
    if call.call is KeyCall.CHECKPOINT:
        return _after_checkpoint(call, state)
    return _after_claim(call, state)


def _after_claim(call: Operation, state: KeyState) -> KeyState | None:
    again = state.holder == call.holder and state.epoch in {call.epoch, call.epoch + 1}
    free = state.holder is None or call.call is KeyCall.STEAL
    had = free and state.epoch == call.epoch
    if call.outcome is CallOutcome.REFUSED:
        # A second claim by the owner: stores may grant or refuse it, and nothing changes.
        return state if again or not had else None
    if again and call.won == state.epoch:
        return state
    if not had or call.won != state.epoch + 1:
        return None
    return replace(state, epoch=call.won, holder=call.holder)


def _after_release(call: Operation, state: KeyState) -> KeyState | None:
    if _holds(call, state):
        return replace(state, holder=None) if call.outcome is CallOutcome.DONE else None
    # Whether it ended before by this holder's own release is not known here: both answers pass.
    over = state.epoch > call.epoch or (state.epoch == call.epoch and state.holder is None)
    return state if over or call.outcome is CallOutcome.REFUSED else None


def _after_checkpoint(call: Operation, state: KeyState) -> KeyState | None:
    if not _holds(call, state):
        return state if call.outcome is CallOutcome.REFUSED else None
    behind = call.position < state.position
    if call.outcome is not (CallOutcome.BEHIND if behind else CallOutcome.DONE):
        return None
    return state if behind else replace(state, position=call.position)


def _holds(call: Operation, state: KeyState) -> bool:
    return state.holder == call.holder and state.epoch == call.epoch


def _describe_conflict(calls: Sequence[Operation], done: int, state: KeyState) -> str:
    stuck = [calls[n] for n in _next(calls, done)]
    where = f"the key has epoch {state.epoch}, owner {state.holder}, position {state.position}"
    lines = [f"after {done.bit_count()} of {len(calls)} calls {where}; none of these can be next:"]
    lines += [
        f"  {each.holder}: {each.call.value}({each.epoch}) -> {each.outcome.value}"
        f"{f' {each.won}' if each.won else ''}, {each.began_s:.6f} to {each.ended_s:.6f}"
        for each in stuck
    ]
    return "\n".join(lines)
