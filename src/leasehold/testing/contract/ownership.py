"""Keys and their owners: declare, forget, claim, steal, release.

Also passing a key on: ask, hand over, and every way in which that can be interrupted.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from leasehold.errors import LeaseLost
from leasehold.model import EndReason, HandOver, KeyClaim, Lease, Ownership, State
from leasehold.testing.contract.store_case import (
    GUESS,
    ContractBase,
    StoreCase,
    assert_unchanged,
    forged,
)


class AskContract(ContractBase):
    """The question before it."""

    async def test_the_owner_finds_the_question(self, scene: StoreCase) -> None:
        """In its next renewal, and everybody else sees it too."""
        owner, ownership = await scene.owned()
        version = (await scene.store.renew(owner)).version
        asker = await scene.member("asker")
        assert await scene.store.ask(asker, await scene.wanted(ownership.key))
        found = (await scene.store.renew(owner, since=version)).resources
        assert [(each.key, each.asked_by) for each in found] == [(ownership.key, asker.holder)]

    async def test_asking_again_changes_nothing(self, scene: StoreCase) -> None:
        """The question stands already."""
        _, ownership = await scene.owned()
        asker, wanted = await scene.member("asker"), await scene.wanted(ownership.key)
        assert await scene.store.ask(asker, wanted)
        before = await scene.snapshot()
        assert await scene.store.ask(asker, wanted)
        assert_unchanged(before, await scene.snapshot())

    async def test_a_question_ends_when_somebody_else_asks(self, scene: StoreCase) -> None:
        """One question per key: the last."""
        _, ownership = await scene.owned()
        wanted = await scene.wanted(ownership.key)
        for name in ("first", "second"):
            asker = await scene.member(name)
            assert await scene.store.ask(asker, wanted)
            assert (await scene.resource(ownership.key)).asked_by == asker.holder

    async def test_a_question_ends_with_the_term(self, scene: StoreCase) -> None:
        """The next owner is not asked for what the last one was asked."""
        lease, ownership = await scene.owned()
        asker = await scene.member("asker")
        await scene.store.ask(asker, await scene.wanted(ownership.key))
        await scene.store.release([ownership])
        assert (await scene.resource(ownership.key)).asked_by is None
        await scene.own(lease, ownership.key)
        assert (await scene.resource(ownership.key)).asked_by is None

    async def test_a_question_without_sense_does_not_stand(self, scene: StoreCase) -> None:
        """Of no holder, of itself, of an epoch that is over, of an unknown key."""
        owner, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        asker = await scene.member("asker")
        before = await scene.snapshot()
        assert not await scene.store.ask(asker, KeyClaim(key=free, seen_epoch=0))
        assert not await scene.store.ask(owner, KeyClaim(key=ownership.key, seen_epoch=1))
        assert not await scene.store.ask(asker, KeyClaim(key=ownership.key, seen_epoch=0))
        assert not await scene.store.ask(asker, KeyClaim(key=ownership.key, seen_epoch=2))
        assert not await scene.store.ask(asker, KeyClaim(key=scene.key("unknown"), seen_epoch=0))
        assert_unchanged(before, await scene.snapshot())

    async def test_asking_needs_a_lease(self, scene: StoreCase) -> None:
        """Who has ended asks no more."""
        _, ownership = await scene.owned()
        asker = await scene.member("asker")
        await scene.store.revoke(asker)
        before = await scene.snapshot()
        with pytest.raises(LeaseLost):
            await scene.store.ask(asker, await scene.wanted(ownership.key))
        assert_unchanged(before, await scene.snapshot())


class HandOverContract(ContractBase):
    """The passing on."""

    @pytest.mark.spec("L3")
    async def test_the_receiver_claims_what_is_kept_for_it(self, scene: StoreCase) -> None:
        """The old token is dead from the hand-over on; the new epoch begins with the claim."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        assert await scene.hand_over(ownership, receiver) == [ownership.key]
        kept = await scene.resource(ownership.key)
        assert (kept.epoch, kept.state) == (1, State.AVAILABLE)
        assert (kept.holder, kept.handed_to) == (None, receiver.holder)
        assert await scene.write_checkpoint(ownership, 1) == "fenced"
        taken = await scene.own(receiver, ownership.key)
        assert taken.epoch == 2
        assert (await scene.resource(ownership.key)).handed_to is None
        assert await scene.reasons(ownership.key) == [EndReason.HANDED_OVER, None]

    async def test_a_kept_key_is_refused_to_others(self, scene: StoreCase) -> None:
        """Forcibly, too: it has no owner, and the receiver is about to claim it."""
        owner, ownership = await scene.owned()
        await scene.hand_over(ownership, await scene.member("receiver"))
        before = await scene.snapshot()
        for lease in (await scene.member("third"), owner):
            for force in (False, True):
                assert await scene.claim(lease, ownership.key, force=force) == []
        after = await scene.snapshot()
        assert after.resources == before.resources
        assert after.terms == before.terms

    async def test_after_the_limit_it_is_free_for_all(self, scene: StoreCase) -> None:
        """A receiver that never comes does not block others for long."""
        owner, ownership = await scene.owned()
        third = await scene.member("third")
        version = (await scene.store.renew(third)).version
        await scene.hand_over(ownership, await scene.member("receiver"), units=1)
        await scene.wait()
        changes = await scene.store.renew(third, since=version)
        reported = {each.key: each.handed_to for each in changes.resources}
        assert reported == {ownership.key: None}
        assert (await scene.own(third, ownership.key)).epoch == 2
        await scene.store.renew(owner)

    async def test_it_is_shown_as_kept_no_longer_than_it_is(self, scene: StoreCase) -> None:
        """By the store's clock, whether or not anybody has renewed since."""
        _, one = await scene.owned("one")
        _, two = await scene.owned("two")
        await scene.hand_over(one, await scene.member("slow"), units=1)
        await scene.hand_over(two, await scene.member("dying", units=1))
        await scene.wait()
        shown = await scene.store.resources(scene.group)
        assert {each.key: each.handed_to for each in shown.values()} == {
            one.key: None,
            two.key: None,
        }

    async def test_handing_over_again_does_not_lengthen_the_limit(self, scene: StoreCase) -> None:
        """The repetition of a lost call is no new call."""
        _, ownership = await scene.owned()
        receiver, third = await scene.member("receiver"), await scene.member("third")
        await scene.hand_over(ownership, receiver, units=2)
        await scene.wait(1.3)
        assert await scene.hand_over(ownership, receiver, units=2) == [ownership.key]
        await scene.wait(0.8)
        assert (await scene.own(third, ownership.key)).epoch == 2

    async def test_a_receiver_that_ends_frees_it(self, scene: StoreCase) -> None:
        """By time or by its own request: the key is reserved for no holder."""
        _, one = await scene.owned("one")
        _, two = await scene.owned("two")
        third = await scene.member("third")
        leaving = await scene.member("leaving")
        await scene.hand_over(one, leaving)
        dying = await scene.member("dying", units=1)
        await scene.hand_over(two, dying)
        await scene.store.revoke(leaving)
        await scene.wait()
        assert len(await scene.claim(third, one.key, two.key)) == 2

    async def test_to_a_dead_or_unknown_holder(self, scene: StoreCase) -> None:
        """It is passed on, and free immediately: its holder cannot come."""
        third, dead = await scene.member("third"), await scene.member("dead")
        await scene.store.revoke(dead)
        for name, to in (("x", dead.holder), ("y", f"never heard of-{scene.suffix}")):
            _, ownership = await scene.owned(name)
            passed = await scene.store.hand_over(
                [HandOver(ownership=ownership, to=to)], limit=scene.units(100)
            )
            assert list(passed) == [ownership.key]
            assert (await scene.own(third, ownership.key)).epoch == 2
            assert await scene.reasons(ownership.key) == [EndReason.HANDED_OVER, None]

    async def test_a_limit_of_zero_keeps_it_for_nobody(self, scene: StoreCase) -> None:
        """The end is inclusive."""
        _, ownership = await scene.owned()
        receiver, third = await scene.member("receiver"), await scene.member("third")
        assert await scene.hand_over(ownership, receiver, units=0) == [ownership.key]
        assert (await scene.own(third, ownership.key)).epoch == 2

    async def test_a_kept_key_is_passed_on(self, scene: StoreCase) -> None:
        """A member that drains while a key is being handed to it passes it on."""
        _, ownership = await scene.owned()
        middle, last = await scene.member("middle"), await scene.member("last")
        await scene.hand_over(ownership, middle)
        kept = _kept_for(middle, ownership)
        version = (await scene.store.renew(last)).version
        assert await scene.hand_over(kept, last) == [ownership.key]
        reported = (await scene.store.renew(last, since=version)).resources
        assert [(each.key, each.handed_to) for each in reported] == [(ownership.key, last.holder)]
        assert await scene.claim(middle, ownership.key) == []
        assert (await scene.own(last, ownership.key)).epoch == 2
        assert await scene.reasons(ownership.key) == [EndReason.HANDED_OVER, None]

    async def test_passing_on_again_is_counted_as_passed(self, scene: StoreCase) -> None:
        """The answer to the first call may have been lost."""
        _, ownership = await scene.owned()
        middle, last = await scene.member("middle"), await scene.member("last")
        await scene.hand_over(ownership, middle)
        kept = _kept_for(middle, ownership)
        await scene.hand_over(kept, last)
        before = await scene.snapshot()
        again = await scene.hand_over(kept, last)
        assert_unchanged(before, await scene.snapshot())
        assert again == [ownership.key]

    async def test_only_the_receiver_passes_a_kept_key_on(self, scene: StoreCase) -> None:
        """And only while its own lease lives."""
        _, ownership = await scene.owned()
        middle, thief = await scene.member("middle"), await scene.member("thief")
        await scene.hand_over(ownership, middle)
        before = await scene.snapshot()
        assert await scene.hand_over(_kept_for(thief, ownership), thief) == []
        assert await scene.hand_over(forged(_kept_for(middle, ownership)), thief) == []
        assert_unchanged(before, await scene.snapshot())
        await scene.store.revoke(middle)
        assert await scene.hand_over(_kept_for(middle, ownership), thief) == []
        assert (await scene.resource(ownership.key)).handed_to != thief.holder

    @pytest.mark.spec("L3")
    async def test_handing_over_again_is_counted_as_passed(self, scene: StoreCase) -> None:
        """It was handed over, and waits for its receiver."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver)
        before = await scene.snapshot()
        assert await scene.hand_over(ownership, receiver) == [ownership.key]
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("L3")
    async def test_handing_over_again_what_was_claimed_since(self, scene: StoreCase) -> None:
        """The receiver was faster than the repetition: still passed, and still the receiver's."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver)
        await scene.own(receiver, ownership.key)
        before = await scene.snapshot()
        again = await scene.hand_over(ownership, receiver)
        assert_unchanged(before, await scene.snapshot())
        assert again == [ownership.key]

    async def test_a_second_thought_comes_too_late(self, scene: StoreCase) -> None:
        """The former owner can no longer give the key to another holder."""
        _, ownership = await scene.owned()
        first, second = await scene.member("first"), await scene.member("second")
        await scene.hand_over(ownership, first)
        before = await scene.snapshot()
        await scene.hand_over(ownership, second)
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("L3")
    async def test_handing_over_needs_the_proof(self, scene: StoreCase) -> None:
        """Of a batch only what is one's own is passed."""
        _, ownership = await scene.owned("k")
        _, mine = await scene.owned("mine")
        receiver = await scene.member("receiver")
        before = await scene.snapshot()
        wrong = [
            HandOver(ownership=each, to=receiver.holder)
            for each in (
                forged(ownership),
                _kept_for(receiver, ownership),
                Ownership(key=scene.key("unknown"), epoch=1, holder=mine.holder, token=mine.token),
            )
        ]
        limit = timedelta(seconds=scene.harness.unit_s)
        assert list(await scene.store.hand_over(wrong, limit=limit)) == []
        assert list(await scene.store.hand_over([], limit=limit)) == []
        assert_unchanged(before, await scene.snapshot())
        right = HandOver(ownership=mine, to=receiver.holder)
        passed = await scene.store.hand_over([*wrong, right, right], limit=scene.units(100))
        assert set(passed) == {mine.key}

    async def test_both_sides_are_told(self, scene: StoreCase) -> None:
        """The giver of the end of its term, the receiver of the key that waits for it."""
        owner, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        version = (await scene.store.renew(owner)).version
        await scene.hand_over(ownership, receiver)
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [(term.key, term.reason) for term in ended] == [
            (ownership.key, EndReason.HANDED_OVER)
        ]
        reported = (await scene.store.renew(receiver, since=version)).resources
        assert [(each.key, each.handed_to) for each in reported] == [
            (ownership.key, receiver.holder)
        ]


def _kept_for(receiver: Lease, ownership: Ownership) -> Ownership:
    """What the receiver shows for a key that is kept for it: the epoch that ended."""
    return Ownership(
        key=ownership.key, epoch=ownership.epoch, holder=receiver.holder, token=receiver.token
    )


class DeclareContract(ContractBase):
    """Which keys there are."""

    async def test_declare_counts_the_new(self, scene: StoreCase) -> None:
        """A key is new once, however often it is named."""
        keys = [scene.key(name) for name in "abc"]
        assert await scene.store.declare([*keys[:2], keys[0]]) == 2
        assert await scene.store.declare(keys) == 1
        assert await scene.store.declare([]) == 0
        resources = await scene.store.resources(scene.group)
        assert {each.key: (each.epoch, each.state) for each in resources.values()} == dict.fromkeys(
            keys, (0, State.AVAILABLE)
        )

    async def test_declare_again_leaves_owners_alone(self, scene: StoreCase) -> None:
        """Starting once more is harmless."""
        _, ownership = await scene.owned()
        before = await scene.snapshot()
        assert await scene.store.declare([ownership.key]) == 0
        assert_unchanged(before, await scene.snapshot())

    async def test_ten_hosts_declare_at_once(self, scene: StoreCase) -> None:
        """Each key is new to exactly one of them."""
        keys = [scene.key(str(n)) for n in range(20)]
        new: list[int] = []

        async def host() -> None:
            new.append(await scene.store.declare(keys))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(host)
        assert sum(new) == len(keys)
        assert set(await scene.store.resources(scene.group)) == set(keys)

    async def test_forget_takes_only_free_keys(self, scene: StoreCase) -> None:
        """What is owned stays; what is unknown does not count; twice counts once."""
        _, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        assert await scene.store.forget([free, ownership.key, scene.key("unknown")]) == 1
        assert await scene.store.forget([free]) == 0
        assert set(await scene.store.resources(scene.group)) == {ownership.key}

    async def test_forgotten_keys_can_not_be_had(self, scene: StoreCase) -> None:
        """Not by a claim, not forcibly."""
        (key,) = await scene.declared("k")
        lease = await scene.member("a")
        await scene.store.forget([key])
        before = await scene.snapshot()
        for force in (False, True):
            wanted = [KeyClaim(key=key, seen_epoch=0)]
            assert list(await scene.store.claim(lease, wanted, force=force)) == []
        assert_unchanged(before, await scene.snapshot())

    async def test_what_time_has_ended_may_be_forgotten(self, scene: StoreCase) -> None:
        """A key whose owner ran out is free, whether anybody has noticed or not."""
        _, ownership = await scene.owned(units=1)
        await scene.wait()
        assert await scene.store.forget([ownership.key]) == 1
        assert await scene.store.resources(scene.group) == {}
        assert await scene.reasons(ownership.key) == [EndReason.EXPIRED]


class ClaimContract(ContractBase):
    """Who has them."""

    @pytest.mark.spec("L1", "L2", "C2")
    async def test_claim_takes_a_free_key(self, scene: StoreCase) -> None:
        """The epoch rises by one and everybody sees the owner."""
        lease, ownership = await scene.owned()
        assert (ownership.epoch, ownership.holder) == (1, lease.holder)
        resource = await scene.resource(ownership.key)
        assert (resource.epoch, resource.state) == (1, State.LEASED)
        assert resource.holder == lease.holder

    @pytest.mark.spec("L1", "P4")
    async def test_claim_of_a_held_key_is_refused(self, scene: StoreCase) -> None:
        """Not getting it is an answer, and changes nothing."""
        _, ownership = await scene.owned()
        rival = await scene.member("rival")
        before = await scene.snapshot()
        assert await scene.claim(rival, ownership.key) == []
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("P4")
    async def test_claim_names_the_epoch_it_saw(self, scene: StoreCase) -> None:
        """A key that changed hands in between is left alone, forcibly too."""
        lease, ownership = await scene.owned()
        await scene.store.release([ownership])
        before = await scene.snapshot()
        for seen in (0, 2, 100):
            for force in (False, True):
                wanted = [KeyClaim(key=ownership.key, seen_epoch=seen)]
                taken = await scene.store.claim(lease, wanted, force=force)
                assert list(taken) == []
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("P4")
    async def test_claim_returns_only_what_was_had(self, scene: StoreCase) -> None:
        """Of a batch the possible part is taken; unknown keys are no error."""
        _, ownership = await scene.owned("held")
        keys = await scene.declared("x", "y")
        lease = await scene.member("a")
        wanted = [KeyClaim(key=key, seen_epoch=0) for key in (*keys, scene.key("unknown"))]
        wanted += [KeyClaim(key=ownership.key, seen_epoch=1)]
        taken = await scene.store.claim(lease, wanted)
        assert sorted(each.key for each in taken) == sorted(keys)
        assert list(await scene.store.claim(lease, [])) == []

    async def test_claim_of_many_keys_at_once(self, scene: StoreCase) -> None:
        """A host may have many partitions."""
        keys = await scene.declared(*map(str, range(300)))
        lease = await scene.member("a")
        wanted = [KeyClaim(key=key, seen_epoch=0) for key in keys]
        taken = await scene.store.claim(lease, wanted)
        assert sorted(each.key for each in taken) == sorted(keys)
        assert sorted(await scene.store.release(taken)) == sorted(keys)

    async def test_claim_again_gives_the_same_ownership(self, scene: StoreCase) -> None:
        """The answer may have been lost: the same question has the same answer."""
        (key,) = await scene.declared("k")
        lease, wanted = await scene.member("a"), [KeyClaim(key=key, seen_epoch=0)]
        first = list(await scene.store.claim(lease, wanted))
        before = await scene.snapshot()
        for force in (False, True):
            assert list(await scene.store.claim(lease, wanted, force=force)) == first
        assert_unchanged(before, await scene.snapshot())

    async def test_one_batch_may_name_a_key_twice(self, scene: StoreCase) -> None:
        """It is taken, released and passed on once."""
        (key,) = await scene.declared("k")
        lease, wanted = await scene.member("a"), KeyClaim(key=key, seen_epoch=0)
        taken = await scene.store.claim(lease, [wanted, wanted])
        assert {each.epoch for each in taken} == {1}
        assert set(await scene.store.release([taken[0], taken[0]])) == {key}
        assert (await scene.resource(key)).state is State.AVAILABLE
        assert await scene.reasons(key) == [EndReason.RELEASED]

    @pytest.mark.spec("L4", "L7")
    async def test_claim_under_an_ended_lease_is_refused(self, scene: StoreCase) -> None:
        """With an error: the claimer has to stop, not to try the next key."""
        (key,) = await scene.declared("k")
        lease = await scene.member("a")
        await scene.store.revoke(lease)
        before = await scene.snapshot()
        for wanted in ([KeyClaim(key=key, seen_epoch=0)], []):
            for force in (False, True):
                with pytest.raises(LeaseLost):
                    await scene.store.claim(lease, wanted, force=force)
        with pytest.raises(LeaseLost):
            await scene.store.claim(replace(lease, token=GUESS), [])
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("P6", "L3")
    async def test_force_steals(self, scene: StoreCase) -> None:
        """The new owner has a new epoch immediately; the former one learns at its next renewal."""
        owner, ownership = await scene.owned()
        version = (await scene.store.renew(owner)).version
        thief = await scene.member("thief")
        stolen = await scene.own(thief, ownership.key, force=True)
        assert stolen.epoch == 2
        assert await scene.write_checkpoint(ownership, 1) == "fenced"
        assert await scene.write_checkpoint(stolen, 1) is None
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [(term.key, term.epoch, term.reason) for term in ended] == [
            (ownership.key, 1, EndReason.STOLEN)
        ]

    async def test_force_takes_a_free_key_like_any_claim(self, scene: StoreCase) -> None:
        """The key has no owner, and the history shows it."""
        (key,) = await scene.declared("k")
        assert (await scene.own(await scene.member("a"), key, force=True)).epoch == 1
        assert await scene.reasons(key) == [None]

    async def test_any_holder_may_own_any_key(self, scene: StoreCase) -> None:
        """Neither a member of another group nor a holder of no group is shut out."""
        keys = await scene.declared("x", "y")
        other = await scene.member("other", group=scene.group + "2")
        alone = await scene.member("alone", group="")
        for lease, key in zip((other, alone), keys, strict=True):
            ownership = await scene.own(lease, key)
            assert await scene.write_checkpoint(ownership, 1) is None
            assert (await scene.resource(key)).holder == lease.holder


class ReleaseContract(ContractBase):
    """How they give them back."""

    @pytest.mark.spec("L5")
    async def test_release_makes_it_available_at_once(self, scene: StoreCase) -> None:
        """The epoch stays; the next owner raises it."""
        lease, ownership = await scene.owned()
        assert list(await scene.store.release([ownership])) == [ownership.key]
        resource = await scene.resource(ownership.key)
        assert (resource.epoch, resource.state) == (1, State.AVAILABLE)
        assert resource.holder is None
        assert (await scene.own(await scene.member("b"), ownership.key)).epoch == 2
        assert await scene.write_checkpoint(ownership, 1) == "fenced"
        assert list(await scene.store.release([])) == []
        await scene.store.renew(lease)

    async def test_release_again_is_answered_again(self, scene: StoreCase) -> None:
        """It was ended by it before."""
        _, ownership = await scene.owned()
        await scene.store.release([ownership])
        before = await scene.snapshot()
        assert list(await scene.store.release([ownership])) == [ownership.key]
        assert_unchanged(before, await scene.snapshot())

    async def test_release_again_leaves_the_next_owner_alone(self, scene: StoreCase) -> None:
        """It names its epoch; and the answer is still that it was ended by it."""
        _, ownership = await scene.owned()
        await scene.store.release([ownership])
        await scene.own(await scene.member("b"), ownership.key)
        before = await scene.snapshot()
        again = await scene.store.release([ownership])
        assert_unchanged(before, await scene.snapshot())
        assert list(again) == [ownership.key]

    @pytest.mark.spec("L5", "L7")
    async def test_release_of_several_that_time_has_ended(self, scene: StoreCase) -> None:
        """All of them are over, in whatever order they are named, and however often."""
        keys = await scene.declared("a", "b")
        lease = await scene.member("owner", units=1)
        owned = [await scene.own(lease, key) for key in keys]
        await scene.wait()
        for _ in range(2):
            assert list(await scene.store.release(owned)) == keys
        assert [(await scene.reasons(key))[0] for key in keys] == [EndReason.EXPIRED] * 2

    async def test_release_needs_the_proof(self, scene: StoreCase) -> None:
        """A wrong token, epoch or holder releases nothing, whatever else is in the batch."""
        _, ownership = await scene.owned("k")
        _, mine = await scene.owned("mine")
        other = await scene.member("other")
        before = await scene.snapshot()
        wrong = [
            forged(ownership),
            replace(ownership, epoch=2),
            replace(ownership, epoch=0),
            replace(ownership, holder=other.holder, token=other.token),
            replace(ownership, key=scene.key("unknown")),
        ]
        assert list(await scene.store.release(wrong)) == []
        assert_unchanged(before, await scene.snapshot())
        assert list(await scene.store.release([*wrong, mine])) == [mine.key]
