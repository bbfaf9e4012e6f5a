"""Every cell of the lease table, driven through the store.

The cells come from ``core.lease_rules``: for each state the suite makes a key of that state for
each move, makes the move, and compares with ``judge``. A refusal has to leave everything as it
was. All moves of one state share one wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType

import pytest

from leasehold.core.lease_rules import COLUMNS, Move, Verdict, judge
from leasehold.errors import LeaseLost
from leasehold.model import Lease, Ownership, State
from leasehold.testing.contract.scene import (
    LONG,
    ContractBase,
    Picture,
    Scene,
    assert_unchanged,
    forged,
)

UNEXPRESSED = MappingProxyType(
    {
        Move.RENEW: "blob leases only: ours ask RENEW_TOUCHED, so that what has ended stays ended",
        Move.BREAK_ENDLESS: "there are no endless leases",
        Move.WRITE_BARE: "no method writes without a proof",
        Move.READ: "no method reads with a proof",
    }
)
# Cells in which a promise of the store goes before the table.
GOES_BEFORE = MappingProxyType(
    {
        (State.EXPIRED, Move.ACQUIRE_SAME): "one lease covers all: with the key the lease is dead",
        (State.AVAILABLE, Move.RELEASE): "a release is answered again as it was the first time",
    }
)
_FREE = {State.AVAILABLE, State.BROKEN, State.EXPIRED}


@dataclass(frozen=True, slots=True)
class _Cell:
    """A key in some state: ``a`` is the lease it was last owned under, ``b`` another."""

    scene: Scene
    move: Move
    a: Lease
    b: Lease
    proof: Ownership
    former: Ownership | None

    @property
    def key(self) -> str:
        return self.proof.key


_Act = Callable[[_Cell], Awaitable[bool]]


async def _acquire_new(cell: _Cell) -> bool:
    newcomer = await cell.scene.member("newcomer", group="")
    return bool(await cell.scene.claim(newcomer, cell.key))


async def _acquire_same(cell: _Cell) -> bool:
    return bool(await cell.scene.claim(cell.a, cell.key))


async def _acquire_other(cell: _Cell) -> bool:
    return bool(await cell.scene.claim(cell.b, cell.key))


async def _renew(cell: _Cell) -> bool:
    """A renewal is of the whole lease; it is granted to a key that lives on by it."""
    try:
        await cell.scene.store.renew(cell.a)
    except LeaseLost:
        return False
    resource = await cell.scene.resource(cell.key)
    return resource.state is State.LEASED and resource.holder == cell.a.holder


async def _renew_other(cell: _Cell) -> bool:
    try:
        await cell.scene.store.renew(replace(cell.a, token=cell.b.token))
    except LeaseLost:
        return False
    return True


async def _change(cell: _Cell) -> bool:
    """A change of hands has two steps here: the owner passes it on, the receiver claims it."""
    if not await cell.scene.hand_over(cell.proof, cell.b):
        return False
    return bool(await cell.scene.claim(cell.b, cell.key))


async def _change_again(cell: _Cell) -> bool:
    """The former owner repeats the hand-over by which ``a`` got it: nothing may change."""
    assert cell.former is not None
    before = await cell.scene.picture()
    await cell.scene.hand_over(cell.former, cell.a)
    assert_unchanged(before, await cell.scene.picture())
    # The blob service answers by its state now, ours by what the caller did: see hand_over.py.
    shown = (await cell.scene.resource(cell.key)).state
    return judge(shown, Move.CHANGE_AGAIN).granted


async def _change_other(cell: _Cell) -> bool:
    return bool(await cell.scene.hand_over(forged(cell.proof), cell.b))


async def _release(cell: _Cell) -> bool:
    return bool(await cell.scene.store.release([cell.proof]))


async def _release_other(cell: _Cell) -> bool:
    other = replace(cell.proof, holder=cell.b.holder, token=cell.b.token)
    return bool(await cell.scene.store.release([forged(cell.proof), other]))


def _break(units: float) -> _Act:
    async def act(cell: _Cell) -> bool:
        after = cell.scene.units(units)
        broken = await cell.scene.store.break_(cell.key, epoch=cell.proof.epoch, after=after)
        return broken is not None

    return act


async def _time(cell: _Cell) -> bool:
    await cell.scene.wait()
    return True


async def _write(cell: _Cell) -> bool:
    return await cell.scene.mark(cell.proof, 5) is None


async def _write_other(cell: _Cell) -> bool:
    other = replace(cell.proof, holder=cell.b.holder, token=cell.b.token)
    answers = [await cell.scene.mark(each, 5) for each in (forged(cell.proof), other)]
    return None in answers


async def _read(cell: _Cell) -> bool:
    return cell.key in await cell.scene.store.resources(cell.scene.group)


ACTS: MappingProxyType[Move, _Act] = MappingProxyType(
    {
        Move.ACQUIRE_NEW: _acquire_new,
        Move.ACQUIRE_SAME: _acquire_same,
        Move.ACQUIRE_OTHER: _acquire_other,
        Move.RENEW_TOUCHED: _renew,
        Move.RENEW_OTHER: _renew_other,
        Move.CHANGE: _change,
        Move.CHANGE_AGAIN: _change_again,
        Move.CHANGE_OTHER: _change_other,
        Move.RELEASE: _release,
        Move.RELEASE_OTHER: _release_other,
        Move.BREAK_NOW: _break(0),
        Move.BREAK_AFTER: _break(50),
        Move.BREAK_AT_END: _break(LONG),
        Move.TIME: _time,
        Move.WRITE: _write,
        Move.WRITE_OTHER: _write_other,
        Move.READ_BARE: _read,
    }
)


class LeaseTableContract(ContractBase):
    """The store decides as the table does."""

    def test_every_move_is_driven_or_excused(self) -> None:
        """A new row of the table can not be overlooked."""
        assert set(ACTS) | set(UNEXPRESSED) == set(Move)
        assert not set(ACTS) & set(UNEXPRESSED)

    @pytest.mark.spec("L1", "L2", "L3", "L4", "L5", "L7")
    @pytest.mark.parametrize("state", COLUMNS, ids=lambda state: state.value)
    async def test_every_cell(self, scene: Scene, state: State) -> None:
        """For each move a key in that state, and what the move does to it."""
        wrong = []
        # Keys that run out by themselves are made when it is their turn.
        for moves in (set(ACTS) - {Move.TIME}, {Move.TIME}):
            cells = [await _prepared(scene.twin(), state, move) for move in ACTS if move in moves]
            if state in {State.BROKEN, State.EXPIRED}:
                await scene.wait()
            wrong += [finding for cell in cells for finding in await _findings(cell, state)]
        assert not wrong, "\n" + "\n".join(wrong)


async def _prepared(scene: Scene, state: State, move: Move) -> _Cell:
    """A key that is in ``state``, at the latest after one wait."""
    (key,) = await scene.declared("k")
    b = await scene.member("b")
    former = await scene.own(b, key) if move is Move.CHANGE_AGAIN else None
    short = state is State.EXPIRED or (state is State.LEASED and move is Move.TIME)
    a = await scene.member("a", units=1 if short else LONG)
    if former is not None:
        await scene.hand_over(former, a)
    proof = await scene.own(a, key)
    if state is State.AVAILABLE:
        await scene.store.release([proof])
    elif state in {State.BREAKING, State.BROKEN}:
        soon = state is State.BROKEN or move is Move.TIME
        after = scene.units(1 if soon else 100)
        await scene.store.break_(key, epoch=proof.epoch, after=after)
    return _Cell(scene, move, a, b, proof, former)


async def _findings(cell: _Cell, state: State) -> list[str]:
    before = await cell.scene.picture()
    left_before = (await cell.scene.resource(cell.key)).breaking_s or timedelta.max.total_seconds()
    shown = before.resources[cell.key].state
    if shown is not state:
        return [f"{cell.move.value}: prepared {state.value}, and it is shown as {shown.value}"]
    verdict = judge(state, cell.move)
    granted = await _granted(cell)
    where = f"{cell.move.value} in {state.value}: "
    if (state, cell.move) not in GOES_BEFORE and granted is not verdict.granted:
        return [where + f"the table says {verdict}, the store {granted=}"]
    after = await cell.scene.picture()
    if (state, cell.move) in GOES_BEFORE or not verdict.granted:
        changed = _difference(before, after)
    else:
        changed = _off_the_table(cell, verdict, after)
    left_s = (await cell.scene.resource(cell.key)).breaking_s or 0.0
    longer = [f"the break takes longer than before: {left_s:g} s"] if left_s > left_before else []
    return [where + finding for finding in changed + longer]


async def _granted(cell: _Cell) -> bool:
    try:
        return await ACTS[cell.move](cell)
    except LeaseLost:
        return False


def _off_the_table(cell: _Cell, verdict: Verdict, after: Picture) -> list[str]:
    """What a granted move did to the key that the table does not say."""
    now = after.resources[cell.key].state
    # Stores write down at once what has ended: broken and expired may be available already.
    if now is verdict.to or (now in _FREE and verdict.to in _FREE):
        return []
    return [f"the table leads to {verdict.to}, the store to {now}"]


def _difference(before: Picture, after: Picture) -> list[str]:
    try:
        assert_unchanged(before, replace(after, peers=before.peers, fenced=before.fenced))
    except AssertionError as error:
        return [f"refused, and changed something: {error}"]
    return []
