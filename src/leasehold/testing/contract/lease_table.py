"""Every cell of the lease table, driven through the store.

The cells come from ``core.lease_rules``. For each state and each move the suite creates a key in
that state, makes the move, and compares the outcome with ``judge``. A refusal must leave everything
unchanged. All moves of one state share one wait.

Also ``next_end_s``: a renewal returns when time will next end something, so that no member checks
too late. Where the store has its own clock the value may be a little less than what was just set,
and never more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType

import pytest

from leasehold.core.lease_rules import COLUMNS, Move, RuleOutcome, evaluate
from leasehold.errors import LeaseLost
from leasehold.model import Lease, MemberInfo, Ownership, State
from leasehold.testing.contract.store_case import (
    LONG,
    ContractBase,
    GroupSnapshot,
    StoreCase,
    assert_unchanged,
    forged,
)

# In units: ends so far apart that they cannot be mixed up while a test runs.
_SOON, _LATER = 20.0, 100.0


async def _units_left(store_case: StoreCase, lease: Lease, since: int = 0) -> float | None:
    left_s = (await store_case.store.renew(lease, since=since)).next_end_s
    return None if left_s is None else left_s / store_case.harness.unit_s


def _about(store_case: StoreCase, units: float | None, expected: float) -> bool:
    """Whether it is the expected end; by a real clock a little of it has passed since."""
    if units is None:
        return False
    if not store_case.harness.tells_ends:
        return 0.0 < units <= store_case.capped(expected) + _late(store_case)
    slack = 1e-6 if store_case.harness.exact else 5.0
    return expected - slack <= units <= expected + 1e-6


def _late(store_case: StoreCase) -> float:
    """By how many units it may come later than what was set: a lease may have begun just now."""
    return store_case.harness.longest_s / store_case.harness.unit_s


class NextEndContract(ContractBase):
    """What counts, what does not, and from when."""

    async def test_nothing_ends_for_a_member_that_is_alone(self, scene: StoreCase) -> None:
        """Its own lease and its own keys are no reason to look."""
        owner, _ = await scene.owned(units=_SOON)
        assert await _units_left(scene, owner) is None

    @pytest.mark.spec("P3")
    async def test_the_first_end_of_another_member_counts(self, scene: StoreCase) -> None:
        """Owner or not; the caller's own, which is shorter, does not."""
        watcher = await scene.member("watcher", units=10.0)
        late = await scene.member("late", units=LONG)
        assert _about(scene, await _units_left(scene, watcher), LONG)
        await scene.member("soon", units=_SOON)
        assert _about(scene, await _units_left(scene, watcher), _SOON)
        assert _about(scene, await _units_left(scene, late), 10.0)

    async def test_a_quiet_answer_tells_it_as_well(self, scene: StoreCase) -> None:
        """Nothing has changed, and time goes on."""
        watcher = await scene.member("watcher")
        await scene.member("other", units=_SOON)
        version = (await scene.store.renew(watcher)).version
        await scene.wait(2.0)
        assert _about(scene, await _units_left(scene, watcher, since=version), _SOON - 2.0)

    async def test_a_renewal_puts_it_off(self, scene: StoreCase) -> None:
        """It is counted from the moment at which the other one renewed."""
        watcher, other = await scene.member("watcher"), await scene.member("other", units=_SOON)
        await scene.wait(2.0)
        before = await _units_left(scene, watcher)
        assert before is not None
        assert before <= _SOON - 2.0 + 1e-6
        await scene.store.renew(other)
        after = await _units_left(scene, watcher)
        assert after is not None
        assert after > before or not scene.harness.tells_ends

    async def test_what_has_ended_counts_no_more(self, scene: StoreCase) -> None:
        """By time, noted in the very same step, or by revocation."""
        watcher = await scene.member("watcher")
        await scene.member("dying", units=1)
        leaving = await scene.member("leaving", units=_SOON)
        await scene.wait()
        units = await _units_left(scene, watcher)
        assert units is not None
        assert units > 1.0
        await scene.store.revoke(leaving)
        assert await _units_left(scene, watcher) is None

    @pytest.mark.spec("P3")
    async def test_a_lease_ends_when_it_was_said(self, scene: StoreCase) -> None:
        """Who waits for just that long finds the member dead and its key free."""
        watcher = await scene.member("watcher")
        _, ownership = await scene.owned(units=1)
        version = (await scene.store.renew(watcher)).version
        left_s = (await scene.store.renew(watcher, since=version)).next_end_s
        assert left_s is not None
        await scene.harness.pass_time(left_s + (1e-6 if scene.harness.exact else 0.02))
        changes = await scene.store.renew(watcher, since=version)
        assert [(each.key, each.holder) for each in changes.resources] == [(ownership.key, None)]
        assert changes.next_end_s is None

    async def test_draining_and_dismissed_members_count(self, scene: StoreCase) -> None:
        """They may die before they have left."""
        watcher = await scene.member("watcher")
        leaving = await scene.member("leaving", units=_SOON, info=MemberInfo(draining=True))
        await scene.store.request_leave(leaving.holder)
        assert _about(scene, await _units_left(scene, watcher), _SOON)

    async def test_an_outsider_that_owns_a_key_of_the_group_counts(self, scene: StoreCase) -> None:
        """No other member would check; without such a key it does not concern the group."""
        (key,) = await scene.declared("k")
        watcher = await scene.member("watcher")
        outsider = await scene.member("outsider", units=_SOON, group="")
        await scene.member("stranger", units=10.0, group=scene.group + "2")
        assert await _units_left(scene, watcher) is None
        await scene.own(outsider, key)
        assert _about(scene, await _units_left(scene, watcher), _SOON)
        assert await _units_left(scene, outsider) is None, "who has no group watches nobody"

    async def test_a_break_that_falls_due_counts(self, scene: StoreCase) -> None:
        """Also one of the caller's own keys; no more once it has ended the term."""
        owner, ownership = await scene.owned()
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(_SOON))
        assert _about(scene, await _units_left(scene, owner), _SOON)
        watcher = await scene.member("watcher")
        assert _about(scene, await _units_left(scene, watcher), _SOON)
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(0))
        assert _about(scene, await _units_left(scene, watcher), LONG)

    async def test_a_hand_over_counts_until_it_is_over(self, scene: StoreCase) -> None:
        """For its limit, or the end of its receiver; who claims the key ends that."""
        owner, ownership = await scene.owned()
        receiver = await scene.member("receiver", units=LONG)
        await scene.hand_over(ownership, receiver, units=_SOON)
        for lease in (owner, receiver):
            assert _about(scene, await _units_left(scene, lease), _SOON)
        await scene.own(receiver, ownership.key)
        assert _about(scene, await _units_left(scene, owner), LONG)

    async def test_the_receiver_of_a_kept_key_counts_wherever_it_is(self, scene: StoreCase) -> None:
        """Its key is free when it dies, and it need be no member of the group."""
        owner, ownership = await scene.owned()
        outsider = await scene.member("outsider", units=_SOON, group="")
        await scene.hand_over(ownership, outsider, units=_LATER)
        assert _about(scene, await _units_left(scene, owner), _SOON)

    async def test_what_a_former_hand_over_left_behind_does_not_count(
        self, scene: StoreCase
    ) -> None:
        """The limit of a hand-over that was claimed is past; the break that came after is not."""
        owner, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver, units=10.0)
        taken = await scene.own(receiver, ownership.key)
        await scene.store.break_(taken.key, epoch=taken.epoch, after=scene.units(_LATER))
        assert _about(scene, await _units_left(scene, owner), _LATER)


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

    store_case: StoreCase
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
    newcomer = await cell.store_case.member("newcomer", group="")
    return bool(await cell.store_case.claim(newcomer, cell.key))


async def _acquire_same(cell: _Cell) -> bool:
    return bool(await cell.store_case.claim(cell.a, cell.key))


async def _acquire_other(cell: _Cell) -> bool:
    return bool(await cell.store_case.claim(cell.b, cell.key))


async def _renew(cell: _Cell) -> bool:
    """A renewal is of the whole lease; it is granted to a key that lives on by it."""
    try:
        await cell.store_case.store.renew(cell.a)
    except LeaseLost:
        return False
    resource = await cell.store_case.resource(cell.key)
    return resource.state is State.LEASED and resource.holder == cell.a.holder


async def _renew_other(cell: _Cell) -> bool:
    try:
        await cell.store_case.store.renew(replace(cell.a, token=cell.b.token))
    except LeaseLost:
        return False
    return True


async def _change(cell: _Cell) -> bool:
    """A change of hands has two steps here: the owner passes it on, the receiver claims it."""
    if not await cell.store_case.hand_over(cell.proof, cell.b):
        return False
    return bool(await cell.store_case.claim(cell.b, cell.key))


async def _change_again(cell: _Cell) -> bool:
    """The former owner repeats the hand-over by which ``a`` got it: nothing may change."""
    assert cell.former is not None
    before = await cell.store_case.snapshot()
    await cell.store_case.hand_over(cell.former, cell.a)
    assert_unchanged(before, await cell.store_case.snapshot())
    # The blob service answers by its state now, ours by what the caller did: see ownership.py.
    shown = (await cell.store_case.resource(cell.key)).state
    return evaluate(shown, Move.CHANGE_AGAIN).granted


async def _change_other(cell: _Cell) -> bool:
    return bool(await cell.store_case.hand_over(forged(cell.proof), cell.b))


async def _release(cell: _Cell) -> bool:
    return bool(await cell.store_case.store.release([cell.proof]))


async def _release_other(cell: _Cell) -> bool:
    other = replace(cell.proof, holder=cell.b.holder, token=cell.b.token)
    return bool(await cell.store_case.store.release([forged(cell.proof), other]))


def _break(units: float) -> _Act:
    async def act(cell: _Cell) -> bool:
        after = cell.store_case.units(units)
        broken = await cell.store_case.store.break_(cell.key, epoch=cell.proof.epoch, after=after)
        return broken is not None

    return act


async def _time(cell: _Cell) -> bool:
    await cell.store_case.wait()
    return True


async def _write(cell: _Cell) -> bool:
    return await cell.store_case.write_checkpoint(cell.proof, 5) is None


async def _write_other(cell: _Cell) -> bool:
    other = replace(cell.proof, holder=cell.b.holder, token=cell.b.token)
    answers = [
        await cell.store_case.write_checkpoint(each, 5) for each in (forged(cell.proof), other)
    ]
    return None in answers


async def _read(cell: _Cell) -> bool:
    return cell.key in await cell.store_case.store.resources(cell.store_case.group)


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
        """A new row of the table cannot be overlooked."""
        assert set(ACTS) | set(UNEXPRESSED) == set(Move)
        assert not set(ACTS) & set(UNEXPRESSED)

    @pytest.mark.spec("L1", "L2", "L3", "L4", "L5", "L7")
    @pytest.mark.parametrize("state", COLUMNS, ids=lambda state: state.value)
    async def test_every_cell(self, scene: StoreCase, state: State) -> None:
        """For each move a key in that state, and what the move does to it."""
        wrong = []
        # Keys that expire on their own are created when it is their turn.
        for moves in (set(ACTS) - {Move.TIME}, {Move.TIME}):
            cells = [await _prepared(scene.twin(), state, move) for move in ACTS if move in moves]
            if state in {State.BROKEN, State.EXPIRED}:
                await scene.wait()
            wrong += [finding for cell in cells for finding in await _findings(cell, state)]
        assert not wrong, "\n" + "\n".join(wrong)


async def _prepared(store_case: StoreCase, state: State, move: Move) -> _Cell:
    """A key that is in ``state``, at the latest after one wait."""
    (key,) = await store_case.declared("k")
    b = await store_case.member("b")
    former = await store_case.own(b, key) if move is Move.CHANGE_AGAIN else None
    short = state is State.EXPIRED or (state is State.LEASED and move is Move.TIME)
    a = await store_case.member("a", units=1 if short else LONG)
    if former is not None:
        await store_case.hand_over(former, a)
    proof = await store_case.own(a, key)
    if state is State.AVAILABLE:
        await store_case.store.release([proof])
    elif state in {State.BREAKING, State.BROKEN}:
        soon = state is State.BROKEN or move is Move.TIME
        after = store_case.units(1 if soon else 100)
        await store_case.store.break_(key, epoch=proof.epoch, after=after)
    return _Cell(store_case, move, a, b, proof, former)


async def _findings(cell: _Cell, state: State) -> list[str]:
    before = await cell.store_case.snapshot()
    left_before = (
        await cell.store_case.resource(cell.key)
    ).breaking_s or timedelta.max.total_seconds()
    shown = before.resources[cell.key].state
    if shown is not state:
        return [f"{cell.move.value}: prepared {state.value}, and it is shown as {shown.value}"]
    verdict = evaluate(state, cell.move)
    granted = await _granted(cell)
    where = f"{cell.move.value} in {state.value}: "
    if (state, cell.move) not in GOES_BEFORE and granted is not verdict.granted:
        return [where + f"the table says {verdict}, the store {granted=}"]
    after = await cell.store_case.snapshot()
    if (state, cell.move) in GOES_BEFORE or not verdict.granted:
        changed = _difference(before, after)
    else:
        changed = _off_the_table(cell, verdict, after)
    left_s = (await cell.store_case.resource(cell.key)).breaking_s or 0.0
    longer = [f"the break takes longer than before: {left_s:g} s"] if left_s > left_before else []
    return [where + finding for finding in changed + longer]


async def _granted(cell: _Cell) -> bool:
    try:
        return await ACTS[cell.move](cell)
    except LeaseLost:
        return False


def _off_the_table(cell: _Cell, verdict: RuleOutcome, after: GroupSnapshot) -> list[str]:
    """What a granted move did to the key that the table does not say."""
    now = after.resources[cell.key].state
    # Stores record immediately what has ended: broken and expired may be available already.
    if now is verdict.to or (now in _FREE and verdict.to in _FREE):
        return []
    return [f"the table leads to {verdict.to}, the store to {now}"]


def _difference(before: GroupSnapshot, after: GroupSnapshot) -> list[str]:
    try:
        assert_unchanged(before, replace(after, members=before.members, fenced=before.fenced))
    except AssertionError as error:
        return [f"refused, and changed something: {error}"]
    return []
