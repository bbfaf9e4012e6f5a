"""Operators: list all groups, request hand-overs, and ask members to leave.

Also resets: an operator moves checkpoints anywhere, all of them or none, and no former owner can
undo it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import anyio
import anyio.lowlevel
import pytest

from leasehold.errors import InvalidName, StoreUnavailable, UnknownResource, UsageError
from leasehold.model import (
    EndReason,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
    State,
)
from leasehold.names import LONGEST_KEY, group_of, partition_key
from leasehold.testing.contract.bad_input import BAD_KEYS, BAD_NAMES, ODD_PARTS, WIDE
from leasehold.testing.contract.store_case import LONG, ContractBase, StoreCase, assert_unchanged
from leasehold.testing.faults import FaultyStore, Lost

BAD_POSITIONS = (
    7,
    "7",
    True,
    Position(sequence_number=2**63),
    Position(sequence_number=1, offset="\0"),
    Position(sequence_number=1, offset="\ud800"),
    Position(sequence_number=1, offset=7),  # type: ignore[arg-type]
    Position(sequence_number=1, stream="\0"),
    Position(sequence_number=1, stream=7),  # type: ignore[arg-type]
)
_FREE = ("available", "expired", "broken", "hand-over is over", "receiver is gone")
_OWNED = ("leased", "breaking", "kept for a receiver")


def _at(sequence_number: int) -> Position:
    return Position(sequence_number=sequence_number, offset=f"put at {sequence_number}")


class ResetContract(ContractBase):
    """What a reset does."""

    @pytest.mark.spec("C2")
    @pytest.mark.parametrize("to", [-1, 3, 7, 2**63 - 1])
    async def test_back_and_forth(self, scene: StoreCase, to: int) -> None:
        """The position is there to the letter, under the new epoch; no other key is touched."""
        _, ownership = await scene.owned()
        _, other = await scene.owned("other")
        for each in (ownership, other):
            await scene.write_checkpoint(each, 7)
        await scene.store.release([ownership])
        before = await scene.snapshot()
        assert await scene.store.reset({ownership.key: _at(to)}) == {}
        after = await scene.snapshot()
        stored = after.checkpoints[ownership.key]
        assert (stored.epoch, stored.position.sequence_number) == (2, to)
        assert stored.position.offset == f"put at {to}"
        for seen in ("resources", "terms", "checkpoints"):
            assert getattr(after, seen)[other.key] == getattr(before, seen)[other.key]
        assert (after.members, after.fenced) == (before.members, before.fenced)

    async def test_none_removes(self, scene: StoreCase) -> None:
        """And where there is nothing, nothing is removed: the epoch rises all the same."""
        _, ownership = await scene.owned()
        (empty,) = await scene.declared("empty")
        await scene.write_checkpoint(ownership, 7)
        await scene.store.release([ownership])
        assert await scene.store.reset({ownership.key: None, empty: None}) == {}
        assert await scene.store.checkpoints(scene.group) == {}
        resources = await scene.store.resources(scene.group)
        assert [resources[key].epoch for key in (ownership.key, empty)] == [2, 1]

    async def test_a_key_that_never_had_an_owner(self, scene: StoreCase) -> None:
        """A group may be set up before its first member comes."""
        (key,) = await scene.declared("k")
        assert await scene.store.reset({key: _at(40)}) == {}
        stored = (await scene.store.checkpoints(scene.group))[key]
        assert (stored.epoch, stored.resumes_at) == (1, 41)
        assert stored.updated_at.tzinfo is not None
        ownership = await scene.own(await scene.member("a"), key)
        assert ownership.epoch == 2
        assert await scene.write_checkpoint(ownership, 39) == "behind"
        assert await scene.write_checkpoint(ownership, 41) is None

    @pytest.mark.spec("B10")
    async def test_the_history_says_who_and_when(self, scene: StoreCase) -> None:
        """A term of the operator, of no length; epochs have no gap."""
        lease, ownership = await scene.owned()
        await scene.store.release([ownership])
        await scene.store.reset({ownership.key: _at(3)})
        await scene.own(lease, ownership.key)
        terms = await scene.store.history(ownership.key)
        assert [(term.epoch, term.holder, term.reason) for term in terms] == [
            (3, lease.holder, None),
            (2, "operator", EndReason.RESET),
            (1, lease.holder, EndReason.RELEASED),
        ]
        assert terms[1].started_at == terms[1].ended_at
        assert terms[1].started_at.tzinfo is not None

    async def test_history_keeps_a_hundred(self, scene: StoreCase) -> None:
        """Resets are terms: the oldest go, whatever they were."""
        (key,) = await scene.declared("k")
        for number in range(103):
            await scene.store.reset({key: _at(number)})
        terms = await scene.store.history(key, limit=1000)
        assert [term.epoch for term in terms][:100] == list(range(103, 3, -1))

    async def test_watchers_are_told(self, scene: StoreCase) -> None:
        """The key is free, in a new epoch: a claim for the one they knew would be refused."""
        (key,) = await scene.declared("k")
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        await scene.store.reset({key: _at(3)})
        changes = await scene.store.renew(watcher, since=version)
        assert [(each.key, each.epoch, each.state) for each in changes.resources] == [
            (key, 1, State.AVAILABLE)
        ]
        assert (changes.members, changes.ended) == ((), ())
        assert list(await scene.store.claim(watcher, [KeyClaim(key=key, seen_epoch=0)])) == []
        assert (await scene.own(watcher, key)).epoch == 2

    @pytest.mark.parametrize("why", _FREE)
    async def test_what_nobody_owns_may_be_reset(self, scene: StoreCase, why: str) -> None:
        """By the store's clock; and what time had ended keeps that reason."""
        key, reason = await _freed(scene, why)
        assert await scene.store.reset({key: _at(3)}) == {}
        resource = await scene.resource(key)
        assert (resource.epoch, resource.state, resource.holder) == (2, State.AVAILABLE, None)
        assert (resource.handed_to, resource.asked_by, resource.breaking_s) == (None, None, None)
        assert await scene.reasons(key) == [reason, EndReason.RESET]
        assert (await scene.own(await scene.member("next"), key)).epoch == 3

    async def test_many_keys_of_many_groups_at_once(self, scene: StoreCase) -> None:
        """One step, also where names are long."""
        keys = [
            key for n in range(3) for key in await scene.declared(*"abc", group=_group(scene, n))
        ]
        assert await scene.store.reset({key: _at(n) for n, key in enumerate(keys)}) == {}
        for n in range(3):
            stored = await scene.store.checkpoints(_group(scene, n))
            assert [each.position.sequence_number for _, each in sorted(stored.items())] == [
                3 * n,
                3 * n + 1,
                3 * n + 2,
            ]


class ResetRefusalContract(ContractBase):
    """All or nothing."""

    @pytest.mark.parametrize("why", _OWNED)
    async def test_an_owned_key_refuses_the_whole_call(self, scene: StoreCase, why: str) -> None:
        """With the name of who has it, or is to have it. The free ones are not touched."""
        lease, ownership = await scene.owned()
        first, last = await scene.declared("first", "last")
        holder = lease.holder
        if why == "breaking":
            await scene.store.break_(ownership.key, epoch=1, after=scene.units(10))
        if why == "kept for a receiver":
            receiver = await scene.member("receiver")
            await scene.hand_over(ownership, receiver)
            holder = receiver.holder
        before = await scene.snapshot()
        refused = await scene.store.reset({first: _at(1), ownership.key: None, last: _at(2)})
        assert refused == {ownership.key: holder}
        assert_unchanged(before, await scene.snapshot())

    async def test_all_owned_keys_are_named(self, scene: StoreCase) -> None:
        """Each with its own holder; and the owners do not notice."""
        one, first = await scene.owned("1")
        two, second = await scene.owned("2")
        await scene.write_checkpoint(first, 7)
        assert await scene.store.reset(dict.fromkeys((first.key, second.key))) == {
            first.key: one.holder,
            second.key: two.holder,
        }
        assert await scene.write_checkpoint(first, 8) is None
        assert await scene.write_checkpoint(second, 1) is None

    async def test_a_refusal_wakes_nobody(self, scene: StoreCase) -> None:
        """Nothing has changed, so nothing is reported."""
        _, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        assert await scene.store.reset({free: None, ownership.key: None})
        assert (await scene.store.renew(watcher, since=version)).resources == ()

    @pytest.mark.parametrize("kind", ["never declared", "forgotten"])
    async def test_an_unknown_key_refuses_the_whole_call(self, scene: StoreCase, kind: str) -> None:
        """It is named. Owned keys beside it make no difference."""
        _, ownership = await scene.owned()
        free, odd = await scene.declared("free", "odd")
        await scene.store.forget([odd])
        unknown = odd if kind == "forgotten" else scene.key("unknown")
        before = await scene.snapshot()
        for others in ((free,), (free, ownership.key)):
            with pytest.raises(UnknownResource, match=unknown):
                await scene.store.reset(dict.fromkeys((*others, unknown), _at(1)))
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.parametrize("bad", BAD_KEYS, ids=ascii)
    async def test_bad_keys(self, scene: StoreCase, bad: str) -> None:
        """Then none is reset."""
        (key,) = await scene.declared("k")
        with pytest.raises(InvalidName):
            await scene.store.reset({key: _at(1), bad: _at(1)})
        assert (await scene.resource(key)).epoch == 0

    @pytest.mark.parametrize("bad", BAD_POSITIONS, ids=ascii)
    async def test_bad_positions(self, scene: StoreCase, bad: Position) -> None:
        """The message names the key; then none is reset."""
        good, key = await scene.declared("good", "k")
        with pytest.raises(UsageError, match=key):
            await scene.store.reset({good: _at(1), key: bad})
        assert (await scene.resource(good)).epoch == 0

    async def test_nothing_is_nothing(self, scene: StoreCase) -> None:
        """And a list of keys is not taken for it."""
        assert await scene.store.reset({}) == {}
        with pytest.raises(UsageError):
            await scene.store.reset([scene.key("k")])  # type: ignore[arg-type]


class ResetFenceContract(ContractBase):
    """Former owners, lost answers and races."""

    @pytest.mark.spec("B5", "L7")
    @pytest.mark.parametrize("why", _FREE)
    async def test_dead_writes_are_fenced(self, scene: StoreCase, why: str) -> None:
        """However the last term ended, and before and after the key has a new owner."""
        key, _ = await _freed(scene, why)
        dead = await _last_ownership(scene, key)
        await scene.store.reset({key: _at(3)})
        before = await scene.snapshot()
        assert await scene.write_checkpoint(dead, 9) == "fenced"
        assert await scene.write_checkpoint(replace(dead, epoch=2), 9) == "fenced"
        # A repetition is answered as it was before; what counts is that nothing happens.
        await scene.store.release([dead, replace(dead, epoch=2)])
        third = await scene.member("third", group="")
        await scene.hand_over(dead, third)
        assert await scene.store.break_(key, epoch=1, after=timedelta(0)) is None
        after = await scene.snapshot()
        assert after.fenced == before.fenced + 2
        assert_unchanged(before, replace(after, fenced=before.fenced))
        current = await scene.own(await scene.member("next"), key)
        assert await scene.write_checkpoint(dead, 9) == "fenced"
        assert await scene.write_checkpoint(current, 4) is None

    async def test_a_claim_under_way_is_refused(self, scene: StoreCase) -> None:
        """Its sender knew the old checkpoint: it has to read the key again."""
        (key,) = await scene.declared("k")
        lease, wanted = await scene.member("a"), await scene.wanted(key)
        await scene.store.reset({key: _at(3)})
        for force in (False, True):
            assert list(await scene.store.claim(lease, [wanted], force=force)) == []
        assert (await scene.own(lease, key)).epoch == 2

    async def test_a_lost_answer_may_be_asked_for_again(self, scene: StoreCase) -> None:
        """The second call is not refused, and what the first one did stands."""
        _, ownership = await scene.owned()
        await scene.write_checkpoint(ownership, 7)
        await scene.store.release([ownership])
        (other,) = await scene.declared("other")
        wanted = {ownership.key: _at(3), other: None}
        faulty = FaultyStore(scene.store, lambda _: Lost.ANSWER).as_store
        with pytest.raises(StoreUnavailable):
            await faulty.reset(wanted)
        done = await scene.snapshot()
        assert await scene.store.reset(wanted) == {}
        assert_unchanged(done, await scene.snapshot())
        assert await scene.write_checkpoint(ownership, 9) == "fenced"

    async def test_another_place_is_no_repetition(self, scene: StoreCase) -> None:
        """Not even if only the offset differs; nor is the same place after an owner."""
        (key,) = await scene.declared("k")
        places = [_at(3), _at(2), replace(_at(2), offset="elsewhere"), None, _at(3)]
        for epoch, place in enumerate(places, start=1):
            assert await scene.store.reset({key: place}) == {}
            assert (await scene.resource(key)).epoch == epoch
        lease = await scene.member("a")
        await scene.store.release([await scene.own(lease, key)])
        assert await scene.store.reset({key: _at(3)}) == {}
        assert (await scene.resource(key)).epoch == len(places) + 2

    async def test_a_repetition_that_comes_late_does_no_harm(self, scene: StoreCase) -> None:
        """It has an owner by then: it is refused, and the work continues."""
        (key,) = await scene.declared("k")
        await scene.store.reset({key: _at(3)})
        lease = await scene.member("a")
        ownership = await scene.own(lease, key)
        assert await scene.write_checkpoint(ownership, 9) is None
        before = await scene.snapshot()
        assert await scene.store.reset({key: _at(3)}) == {key: lease.holder}
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("B5")
    async def test_resets_race_with_claims_and_writes(self, scene: StoreCase) -> None:
        """Every epoch is one owner's or one reset's; a write after a reset starts from it.

        The worker only ever writes the number after the one that it finds when it has claimed: if
        a write of an older epoch came through, or a reset hit an owned key, it would be behind,
        ahead or fenced.
        """
        (key,) = await scene.declared("k")
        lease, resets, writes = await scene.member("worker"), 0, 0

        async def operate(number: int) -> None:
            nonlocal resets
            async with scene.harness.open() as store:
                for turn in range(12):
                    refused = await store.reset({key: _at(100 * number + turn)})
                    resets += not refused
                    assert refused in ({}, {key: lease.holder})
                    await anyio.lowlevel.checkpoint()

        async def work() -> None:
            nonlocal writes
            async with scene.harness.open() as store:
                mine = StoreCase(store, scene.harness, scene.suffix)
                for _ in range(12):
                    for ownership in await mine.claim(lease, key):
                        found = (await store.checkpoints(scene.group)).get(key)
                        at = found.resumes_at if found else 0
                        await anyio.lowlevel.checkpoint()
                        assert await mine.write_checkpoint(ownership, at) is None
                        stored = (await store.checkpoints(scene.group))[key]
                        assert (stored.position.sequence_number, stored.epoch) == (
                            at,
                            ownership.epoch,
                        )
                        await store.release([ownership])
                        assert await mine.write_checkpoint(ownership, 10**6) == "fenced"
                        writes += 1
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            for number in (1, 2):
                tasks.start_soon(operate, number)
        terms = await scene.store.history(key, limit=100)
        assert [term.epoch for term in terms] == list(range(len(terms), 0, -1))
        assert len(terms) == (await scene.resource(key)).epoch == resets + writes


def _group(store_case: StoreCase, number: int) -> str:
    return f"{store_case.group}{number}" + "x" * 150 * number


async def _freed(store_case: StoreCase, why: str) -> tuple[str, EndReason]:
    """A key whose first term is over in this way, written down or not, and the reason."""
    _, ownership = await store_case.owned(units=1 if why == "expired" else LONG)
    await store_case.write_checkpoint(ownership, 7)
    if why == "available":
        await store_case.store.release([ownership])
        return ownership.key, EndReason.RELEASED
    if why == "expired":
        await store_case.wait()
        return ownership.key, EndReason.EXPIRED
    if why == "broken":
        await store_case.store.break_(ownership.key, epoch=1, after=store_case.units(1))
        await store_case.wait()
        return ownership.key, EndReason.BROKEN
    receiver = await store_case.member("receiver")
    await store_case.hand_over(ownership, receiver, units=1)
    if why == "receiver is gone":
        await store_case.store.revoke(receiver)
    else:
        await store_case.wait()
    return ownership.key, EndReason.HANDED_OVER


async def _last_ownership(store_case: StoreCase, key: str) -> Ownership:
    (term, *_) = await store_case.store.history(key)
    return Ownership(key=key, epoch=term.epoch, holder=term.holder, token=f"token of {term.holder}")


BAD_EPOCHS = (-1, 2**63, 1.0, "1", None, True)
_Receiver = Callable[[StoreCase, Lease], Awaitable[str]]


class GroupContract(ContractBase):
    """Which groups there are."""

    async def test_groups_are_those_with_keys(self, scene: StoreCase) -> None:
        """Each once, sorted, with or without members; a group of members alone is none."""
        other = scene.group + "2"
        await scene.declared("a", "b")
        await scene.declared("a", group=other)
        await scene.member("lonely", group=scene.group + "3")
        assert await _groups(scene) == [scene.group, other]
        found = list(await scene.store.groups())
        assert found == sorted(set(found))

    async def test_a_group_whose_keys_are_all_forgotten_is_gone(self, scene: StoreCase) -> None:
        """One key that is left keeps it, and one that comes back brings it back."""
        first, second = await scene.declared("a", "b")
        await scene.store.forget([first])
        assert await _groups(scene) == [scene.group]
        await scene.store.forget([second])
        assert await _groups(scene) == []
        await scene.store.declare([first])
        assert await _groups(scene) == [scene.group]

    async def test_asking_for_something_does_not_make_a_group(self, scene: StoreCase) -> None:
        """Reads leave no trace, and neither do refused writes."""
        lease, ownership = await scene.owned()
        unknown = f"{scene.group}9/k"
        await scene.store.resources(group_of(unknown))
        await scene.store.fenced_writes(group_of(unknown))
        await scene.write_checkpoint(replace(ownership, key=unknown), 1)
        assert not await scene.store.request_hand_over(unknown, epoch=0, to=lease.holder)
        assert await _groups(scene) == [scene.group]

    async def test_odd_groups_are_named_as_they_are(self, scene: StoreCase) -> None:
        """In all letters, also where a store has to keep them under a shorter name."""
        keys = [partition_key(f"{scene.suffix}{part}"[:64], "g", "0") for part in ODD_PARTS]
        keys.append(f"{scene.group}/{WIDE}"[: LONGEST_KEY - 2] + "/k")
        await scene.store.declare(keys)
        assert await _groups(scene) == sorted({group_of(key) for key in keys})


class RequestHandOverContract(ContractBase):
    """A question that is put in the name of another holder."""

    @pytest.mark.spec("B3")
    async def test_the_owner_finds_it_in_its_next_renewal(self, scene: StoreCase) -> None:
        """Exactly as after ``ask``; then it hands over, and the receiver has it."""
        owner, ownership = await scene.owned()
        to = await scene.member("to")
        version = (await scene.store.renew(owner)).version
        assert await scene.store.request_hand_over(ownership.key, epoch=1, to=to.holder)
        changes = await scene.store.renew(owner, since=version)
        (reported,) = changes.resources
        assert (reported.key, reported.epoch, reported.holder) == (ownership.key, 1, owner.holder)
        assert reported.asked_by == to.holder
        assert (changes.members, changes.ended) == ((), ())
        await scene.hand_over(ownership, to)
        assert (await scene.own(to, ownership.key)).epoch == 2
        assert (await scene.resource(ownership.key)).asked_by is None

    async def test_it_is_the_same_question_as_that_of_the_receiver(self, scene: StoreCase) -> None:
        """Whichever of the two asks first; no member is notified twice."""
        owner, ownership = await scene.owned()
        to = await scene.member("to")
        assert await scene.store.request_hand_over(ownership.key, epoch=1, to=to.holder)
        version = (await scene.store.renew(owner)).version
        assert await scene.store.ask(to, await scene.wanted(ownership.key))
        assert await scene.store.request_hand_over(ownership.key, epoch=1, to=to.holder)
        assert (await scene.store.renew(owner, since=version)).resources == ()

    async def test_the_last_one_who_asks_counts(self, scene: StoreCase) -> None:
        """As with ``ask``: an operator may change its mind."""
        _, ownership = await scene.owned()
        for name in "ab":
            to = await scene.member(name)
            assert await scene.store.request_hand_over(ownership.key, epoch=1, to=to.holder)
            assert (await scene.resource(ownership.key)).asked_by == to.holder

    async def test_it_ends_with_the_term(self, scene: StoreCase) -> None:
        """The next owner is not asked for what the last one was."""
        lease, ownership = await scene.owned()
        to = await scene.member("to")
        assert await scene.store.request_hand_over(ownership.key, epoch=1, to=to.holder)
        await scene.store.release([ownership])
        assert (await scene.resource(ownership.key)).asked_by is None
        await scene.own(lease, ownership.key)
        assert (await scene.resource(ownership.key)).asked_by is None

    async def test_an_owner_from_outside_can_be_asked(self, scene: StoreCase) -> None:
        """The receiver has to be of the key's group; the owner need not be."""
        (key,) = await scene.declared("k")
        outsider, to = await scene.member("outsider", group=""), await scene.member("to")
        await scene.own(outsider, key)
        version = (await scene.store.renew(outsider)).version
        assert await scene.store.request_hand_over(key, epoch=1, to=to.holder)
        (reported,) = (await scene.store.renew(outsider, since=version)).resources
        assert reported.asked_by == to.holder

    @pytest.mark.parametrize("epoch", [0, 1, 3, 2**63 - 1])
    async def test_it_names_the_epoch_it_means(self, scene: StoreCase, epoch: int) -> None:
        """An ownership that has moved on is not touched; nor is one that is to come."""
        lease, ownership = await scene.owned()
        to = await scene.member("to")
        await scene.store.release([ownership])
        await scene.own(lease, ownership.key)
        before = await scene.snapshot()
        assert not await scene.store.request_hand_over(ownership.key, epoch=epoch, to=to.holder)
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.parametrize("why", ["free", "kept", "unknown", "forgotten", "expired", "broken"])
    async def test_what_nobody_owns_can_not_be_asked_for(self, scene: StoreCase, why: str) -> None:
        """It can be claimed."""
        _, ownership = await scene.owned(units=1 if why == "expired" else LONG)
        to, third = await scene.member("to"), await scene.member("third")
        key = scene.key("nobody's") if why == "unknown" else ownership.key
        if why in {"free", "forgotten"}:
            await scene.store.release([ownership])
        if why == "forgotten":
            await scene.store.forget([key])
        if why == "kept":
            await scene.hand_over(ownership, third)
        if why == "broken":
            await scene.store.break_(key, epoch=1, after=scene.units(1))
        if why in {"expired", "broken"}:
            await scene.wait()
        before = await scene.snapshot()
        assert not await scene.store.request_hand_over(key, epoch=1, to=to.holder)
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.parametrize(
        "kind",
        ["owner", "unknown", "revoked", "expired", "draining", "dismissed", "stranger", "loner"],
    )
    async def test_who_can_not_receive_is_not_suggested(self, scene: StoreCase, kind: str) -> None:
        """A living member of the key's group, that means to stay, and is not the owner."""
        owner, ownership = await scene.owned()
        to = await _RECEIVERS[kind](scene, owner)
        before = await scene.snapshot()
        assert not await scene.store.request_hand_over(ownership.key, epoch=1, to=to)
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.parametrize("bad", BAD_KEYS, ids=ascii)
    async def test_bad_keys_are_said(self, scene: StoreCase, bad: str) -> None:
        """Before anything is asked of the store."""
        with pytest.raises(InvalidName):
            await scene.store.request_hand_over(bad, epoch=1, to="anybody")

    @pytest.mark.parametrize("bad", BAD_NAMES, ids=ascii)
    async def test_bad_receivers_are_said(self, scene: StoreCase, bad: str) -> None:
        """As holders are everywhere."""
        _, ownership = await scene.owned()
        with pytest.raises(InvalidName, match="holder"):
            await scene.store.request_hand_over(ownership.key, epoch=1, to=bad)

    @pytest.mark.parametrize("bad", BAD_EPOCHS, ids=repr)
    async def test_bad_epochs_are_said(self, scene: StoreCase, bad: int) -> None:
        """And nothing has happened."""
        _, ownership = await scene.owned()
        to = await scene.member("to")
        with pytest.raises(UsageError, match="epoch"):
            await scene.store.request_hand_over(ownership.key, epoch=bad, to=to.holder)
        assert (await scene.resource(ownership.key)).asked_by is None


class RequestLeaveContract(ContractBase):
    """A member that is asked to leave."""

    async def test_the_member_and_all_others_are_told(self, scene: StoreCase) -> None:
        """Once each, with a version that is new."""
        watcher = await scene.member("watcher")
        member, ownership = await scene.owned()
        version = (await scene.store.renew(watcher)).version
        assert await scene.store.request_leave(member.holder)
        for lease in (member, watcher):
            changes = await scene.store.renew(lease, since=version)
            (reported,) = changes.members
            assert (reported.holder, reported.leave_requested, reported.alive) == (
                member.holder,
                True,
                True,
            )
            assert reported.version > version
            assert (changes.resources, changes.ended) == ((), ())
            assert (await scene.store.renew(lease, since=changes.version)).members == ()
        members = await scene.store.members(scene.group)
        assert {name: each.leave_requested for name, each in members.items()} == {
            watcher.holder: False,
            member.holder: True,
        }
        assert await scene.write_checkpoint(ownership, 1) is None

    async def test_again_is_harmless_and_wakes_nobody(self, scene: StoreCase) -> None:
        """The answer is the same."""
        member, watcher = await scene.member("member"), await scene.member("watcher")
        assert await scene.store.request_leave(member.holder)
        version = (await scene.store.renew(watcher)).version
        before = await scene.snapshot()
        assert await scene.store.request_leave(member.holder)
        assert_unchanged(before, await scene.snapshot())
        assert (await scene.store.renew(watcher, since=version)).members == ()

    async def test_it_takes_nothing_away(self, scene: StoreCase) -> None:
        """Nothing but the request is new: what it owns it owns, and it may claim and hand over."""
        member, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        to = await scene.member("to")
        assert await scene.store.request_leave(member.holder)
        assert (await scene.resource(ownership.key)).state is State.LEASED
        assert (await scene.own(member, free)).epoch == 1
        assert await scene.hand_over(ownership, to) == [ownership.key]
        await scene.store.revoke(member)
        assert await scene.reasons(free) == [EndReason.RELEASED]

    async def test_it_lasts_as_long_as_the_lease(self, scene: StoreCase) -> None:
        """Neither a renewal nor news of the member nor a repeated grant takes it back."""
        member = await scene.member("member")
        assert await scene.store.request_leave(member.holder)
        info = MemberInfo(host="elsewhere", draining=True)
        await scene.store.renew(member, info=info)
        await scene.store.grant(
            holder=member.holder,
            token=member.token,
            group=member.group,
            duration=timedelta(seconds=member.duration_s),
            info=MemberInfo(),
        )
        record = (await scene.store.members(scene.group))[member.holder]
        assert (record.leave_requested, record.info) == (True, info)

    async def test_a_new_member_is_not_dismissed(self, scene: StoreCase) -> None:
        """The next incarnation is another holder."""
        member = await scene.member("member")
        assert await scene.store.request_leave(member.holder)
        await scene.store.revoke(member)
        reopened = await scene.member("member")
        assert [
            each.leave_requested for each in (await scene.store.members(scene.group)).values()
        ] == [False]
        assert not (await scene.store.renew(reopened)).members[-1].leave_requested

    @pytest.mark.parametrize("kind", ["unknown", "revoked", "expired", "loner"])
    async def test_who_is_no_living_member_can_not_be_asked(
        self, scene: StoreCase, kind: str
    ) -> None:
        """A holder of no group would never learn of it."""
        lease, _ = await scene.owned()
        holder = await _RECEIVERS[kind](scene, lease)
        before = await scene.snapshot()
        assert not await scene.store.request_leave(holder)
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.parametrize("bad", BAD_NAMES, ids=ascii)
    async def test_bad_names_are_said(self, scene: StoreCase, bad: str) -> None:
        """As holders are everywhere."""
        with pytest.raises(InvalidName, match="holder"):
            await scene.store.request_leave(bad)

    async def test_a_peer_tells_how_long_its_lease_is(self, scene: StoreCase) -> None:
        """So that anybody can say when it renewed: its length less what remains."""
        member = await scene.member("member", units=10)
        await scene.wait(1)
        record = (await scene.store.members(scene.group))[member.holder]
        assert record.duration_s == pytest.approx(scene.capped(10) * scene.harness.unit_s)
        renewed_ago_s = record.duration_s - record.remaining_s
        if scene.harness.exact and scene.harness.tells_ends:
            assert renewed_ago_s == pytest.approx(scene.harness.unit_s)
        (reported,) = (await scene.store.renew(member)).members
        assert reported.duration_s == record.duration_s

    async def test_operators_and_members_at_once(self, scene: StoreCase) -> None:
        """Suggestions and dismissals among hand-overs: each key has one owner, none is lost."""
        keys = await scene.declared(*map(str, range(3)))
        leases = [await scene.member(name) for name in "abc"]
        for key, lease in zip(keys, leases, strict=True):
            await scene.own(lease, key)

        async def operate() -> None:
            async with scene.harness.open() as store:
                for number in range(12):
                    epoch = (await store.resources(scene.group))[keys[number % 3]].epoch
                    to = leases[(number + 1) % 3].holder
                    await store.request_hand_over(keys[number % 3], epoch=epoch, to=to)
                await store.request_leave(leases[2].holder)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(operate)
            for lease in leases:
                tasks.start_soon(_serve, scene, lease)
        for key, resource in (await scene.store.resources(scene.group)).items():
            assert (resource.holder is None) != (resource.handed_to is None)
            terms = await scene.store.history(key, limit=100)
            assert [term.epoch for term in terms] == list(range(resource.epoch, 0, -1))
            assert {term.reason for term in terms[1:]} <= {EndReason.HANDED_OVER}
        assert (await scene.store.members(scene.group))[leases[2].holder].leave_requested


async def _serve(store_case: StoreCase, lease: Lease) -> None:
    """Live as a member does: hand over what is asked for, and claim what is kept for it."""
    async with store_case.harness.open() as store:
        mine = StoreCase(store, store_case.harness, store_case.suffix)
        for _ in range(12):
            for each in (await store.renew(lease)).resources:
                if each.holder == lease.holder and each.asked_by is not None:
                    owned = Ownership(
                        key=each.key, epoch=each.epoch, holder=lease.holder, token=lease.token
                    )
                    passed = [HandOver(ownership=owned, to=each.asked_by)]
                    await store.hand_over(passed, limit=store_case.units(LONG))
                elif each.handed_to == lease.holder:
                    await mine.claim(lease, each.key)


async def _groups(store_case: StoreCase) -> list[str]:
    """The groups of this case alone: the store may have others."""
    return [group for group in await store_case.store.groups() if store_case.suffix in group]


async def _owner(_: StoreCase, owner: Lease) -> str:
    return owner.holder


async def _unknown(store_case: StoreCase, _: Lease) -> str:
    return f"nobody-{store_case.suffix}"


async def _revoked(store_case: StoreCase, _: Lease) -> str:
    lease = await store_case.member("gone")
    await store_case.store.revoke(lease)
    return lease.holder


async def _expired(store_case: StoreCase, _: Lease) -> str:
    lease = await store_case.member("late", units=1)
    await store_case.wait()
    return lease.holder


async def _draining(store_case: StoreCase, _: Lease) -> str:
    return (await store_case.member("tired", info=MemberInfo(draining=True))).holder


async def _dismissed(store_case: StoreCase, _: Lease) -> str:
    lease = await store_case.member("sent away")
    assert await store_case.store.request_leave(lease.holder)
    return lease.holder


async def _stranger(store_case: StoreCase, _: Lease) -> str:
    return (await store_case.member("stranger", group=store_case.group + "2")).holder


async def _loner(store_case: StoreCase, _: Lease) -> str:
    return (await store_case.member("loner", group="")).holder


_RECEIVERS: MappingProxyType[str, _Receiver] = MappingProxyType(
    {
        "owner": _owner,
        "unknown": _unknown,
        "revoked": _revoked,
        "expired": _expired,
        "draining": _draining,
        "dismissed": _dismissed,
        "stranger": _stranger,
        "loner": _loner,
    }
)
