"""Passing a key on: ask, hand over, and every way in which that can be left half done."""

from __future__ import annotations

from datetime import timedelta

import pytest

from leasehold.errors import LeaseLost
from leasehold.model import EndReason, HandOver, Lease, Ownership, State, Wanted
from leasehold.testing.contract.scene import ContractBase, Scene, assert_unchanged, forged


class AskContract(ContractBase):
    """The question before it."""

    async def test_the_owner_finds_the_question(self, scene: Scene) -> None:
        """In its next renewal, and everybody else sees it too."""
        owner, ownership = await scene.owned()
        version = (await scene.store.renew(owner)).version
        asker = await scene.member("asker")
        assert await scene.store.ask(asker, await scene.wanted(ownership.key))
        found = (await scene.store.renew(owner, since=version)).resources
        assert [(each.key, each.asked_by) for each in found] == [(ownership.key, asker.holder)]

    async def test_asking_again_changes_nothing(self, scene: Scene) -> None:
        """The question stands already."""
        _, ownership = await scene.owned()
        asker, wanted = await scene.member("asker"), await scene.wanted(ownership.key)
        assert await scene.store.ask(asker, wanted)
        before = await scene.picture()
        assert await scene.store.ask(asker, wanted)
        assert_unchanged(before, await scene.picture())

    async def test_a_question_ends_when_somebody_else_asks(self, scene: Scene) -> None:
        """One question per key: the last."""
        _, ownership = await scene.owned()
        wanted = await scene.wanted(ownership.key)
        for name in ("first", "second"):
            asker = await scene.member(name)
            assert await scene.store.ask(asker, wanted)
            assert (await scene.resource(ownership.key)).asked_by == asker.holder

    async def test_a_question_ends_with_the_term(self, scene: Scene) -> None:
        """The next owner is not asked for what the last one was asked."""
        lease, ownership = await scene.owned()
        asker = await scene.member("asker")
        await scene.store.ask(asker, await scene.wanted(ownership.key))
        await scene.store.release([ownership])
        assert (await scene.resource(ownership.key)).asked_by is None
        await scene.own(lease, ownership.key)
        assert (await scene.resource(ownership.key)).asked_by is None

    async def test_a_question_without_sense_does_not_stand(self, scene: Scene) -> None:
        """Of nobody, of oneself, of an epoch that is over, of a key nobody knows."""
        owner, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        asker = await scene.member("asker")
        before = await scene.picture()
        assert not await scene.store.ask(asker, Wanted(key=free, seen_epoch=0))
        assert not await scene.store.ask(owner, Wanted(key=ownership.key, seen_epoch=1))
        assert not await scene.store.ask(asker, Wanted(key=ownership.key, seen_epoch=0))
        assert not await scene.store.ask(asker, Wanted(key=ownership.key, seen_epoch=2))
        assert not await scene.store.ask(asker, Wanted(key=scene.key("unknown"), seen_epoch=0))
        assert_unchanged(before, await scene.picture())

    async def test_asking_needs_a_lease(self, scene: Scene) -> None:
        """Who has ended asks no more."""
        _, ownership = await scene.owned()
        asker = await scene.member("asker")
        await scene.store.revoke(asker)
        before = await scene.picture()
        with pytest.raises(LeaseLost):
            await scene.store.ask(asker, await scene.wanted(ownership.key))
        assert_unchanged(before, await scene.picture())


class HandOverContract(ContractBase):
    """The passing on."""

    @pytest.mark.spec("L3")
    async def test_the_receiver_claims_what_is_kept_for_it(self, scene: Scene) -> None:
        """The old token is dead from the hand-over on; the new epoch begins with the claim."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        assert await scene.hand_over(ownership, receiver) == [ownership.key]
        kept = await scene.resource(ownership.key)
        assert (kept.epoch, kept.state) == (1, State.AVAILABLE)
        assert (kept.holder, kept.handed_to) == (None, receiver.holder)
        assert await scene.mark(ownership, 1) == "fenced"
        taken = await scene.own(receiver, ownership.key)
        assert taken.epoch == 2
        assert (await scene.resource(ownership.key)).handed_to is None
        assert await scene.reasons(ownership.key) == [EndReason.HANDED_OVER, None]

    async def test_a_kept_key_is_refused_to_others(self, scene: Scene) -> None:
        """By force too: there is nobody to rob, and the receiver is on its way."""
        owner, ownership = await scene.owned()
        await scene.hand_over(ownership, await scene.member("receiver"))
        before = await scene.picture()
        for lease in (await scene.member("third"), owner):
            for force in (False, True):
                assert await scene.claim(lease, ownership.key, force=force) == []
        after = await scene.picture()
        assert after.resources == before.resources
        assert after.terms == before.terms

    async def test_after_the_limit_it_is_free_for_all(self, scene: Scene) -> None:
        """A receiver that never comes blocks nobody for long."""
        owner, ownership = await scene.owned()
        third = await scene.member("third")
        version = (await scene.store.renew(third)).version
        await scene.hand_over(ownership, await scene.member("receiver"), units=1)
        await scene.wait()
        changes = await scene.store.renew(third, since=version)
        told = {each.key: each.handed_to for each in changes.resources}
        assert told == {ownership.key: None}
        assert (await scene.own(third, ownership.key)).epoch == 2
        await scene.store.renew(owner)

    async def test_it_is_shown_as_kept_no_longer_than_it_is(self, scene: Scene) -> None:
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

    async def test_handing_over_again_does_not_lengthen_the_limit(self, scene: Scene) -> None:
        """The repetition of a lost call is no new call."""
        _, ownership = await scene.owned()
        receiver, third = await scene.member("receiver"), await scene.member("third")
        await scene.hand_over(ownership, receiver, units=2)
        await scene.wait(1.3)
        assert await scene.hand_over(ownership, receiver, units=2) == [ownership.key]
        await scene.wait(0.8)
        assert (await scene.own(third, ownership.key)).epoch == 2

    async def test_a_receiver_that_ends_frees_it(self, scene: Scene) -> None:
        """By time or by its own will: the key is kept for nobody."""
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

    async def test_to_a_dead_or_unknown_holder(self, scene: Scene) -> None:
        """It is passed, and free at once: nobody waits for a holder that can not come."""
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

    async def test_a_limit_of_zero_keeps_it_for_nobody(self, scene: Scene) -> None:
        """The end is inclusive."""
        _, ownership = await scene.owned()
        receiver, third = await scene.member("receiver"), await scene.member("third")
        assert await scene.hand_over(ownership, receiver, units=0) == [ownership.key]
        assert (await scene.own(third, ownership.key)).epoch == 2

    async def test_a_kept_key_is_passed_on(self, scene: Scene) -> None:
        """Who drains while a key is on its way to it sends it further."""
        _, ownership = await scene.owned()
        middle, last = await scene.member("middle"), await scene.member("last")
        await scene.hand_over(ownership, middle)
        kept = _kept_for(middle, ownership)
        version = (await scene.store.renew(last)).version
        assert await scene.hand_over(kept, last) == [ownership.key]
        told = (await scene.store.renew(last, since=version)).resources
        assert [(each.key, each.handed_to) for each in told] == [(ownership.key, last.holder)]
        assert await scene.claim(middle, ownership.key) == []
        assert (await scene.own(last, ownership.key)).epoch == 2
        assert await scene.reasons(ownership.key) == [EndReason.HANDED_OVER, None]

    async def test_passing_on_again_is_counted_as_passed(self, scene: Scene) -> None:
        """The answer to the first call may have been lost."""
        _, ownership = await scene.owned()
        middle, last = await scene.member("middle"), await scene.member("last")
        await scene.hand_over(ownership, middle)
        kept = _kept_for(middle, ownership)
        await scene.hand_over(kept, last)
        before = await scene.picture()
        again = await scene.hand_over(kept, last)
        assert_unchanged(before, await scene.picture())
        assert again == [ownership.key]

    async def test_only_the_receiver_passes_a_kept_key_on(self, scene: Scene) -> None:
        """And only while its own lease lives."""
        _, ownership = await scene.owned()
        middle, thief = await scene.member("middle"), await scene.member("thief")
        await scene.hand_over(ownership, middle)
        before = await scene.picture()
        assert await scene.hand_over(_kept_for(thief, ownership), thief) == []
        assert await scene.hand_over(forged(_kept_for(middle, ownership)), thief) == []
        assert_unchanged(before, await scene.picture())
        await scene.store.revoke(middle)
        assert await scene.hand_over(_kept_for(middle, ownership), thief) == []
        assert (await scene.resource(ownership.key)).handed_to != thief.holder

    @pytest.mark.spec("L3")
    async def test_handing_over_again_is_counted_as_passed(self, scene: Scene) -> None:
        """It was handed over, and waits for its receiver."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver)
        before = await scene.picture()
        assert await scene.hand_over(ownership, receiver) == [ownership.key]
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("L3")
    async def test_handing_over_again_what_was_claimed_since(self, scene: Scene) -> None:
        """The receiver was faster than the repetition: still passed, and still the receiver's."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver)
        await scene.own(receiver, ownership.key)
        before = await scene.picture()
        again = await scene.hand_over(ownership, receiver)
        assert_unchanged(before, await scene.picture())
        assert again == [ownership.key]

    async def test_a_second_thought_comes_too_late(self, scene: Scene) -> None:
        """The key is not the former owner's any more, to give it to somebody else."""
        _, ownership = await scene.owned()
        first, second = await scene.member("first"), await scene.member("second")
        await scene.hand_over(ownership, first)
        before = await scene.picture()
        await scene.hand_over(ownership, second)
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("L3")
    async def test_handing_over_needs_the_proof(self, scene: Scene) -> None:
        """Of a batch only what is one's own is passed."""
        _, ownership = await scene.owned("k")
        _, mine = await scene.owned("mine")
        receiver = await scene.member("receiver")
        before = await scene.picture()
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
        assert_unchanged(before, await scene.picture())
        right = HandOver(ownership=mine, to=receiver.holder)
        passed = await scene.store.hand_over([*wrong, right, right], limit=scene.units(100))
        assert set(passed) == {mine.key}

    async def test_both_sides_are_told(self, scene: Scene) -> None:
        """The giver of the end of its term, the receiver of the key that waits for it."""
        owner, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        version = (await scene.store.renew(owner)).version
        await scene.hand_over(ownership, receiver)
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [(term.key, term.reason) for term in ended] == [
            (ownership.key, EndReason.HANDED_OVER)
        ]
        told = (await scene.store.renew(receiver, since=version)).resources
        assert [(each.key, each.handed_to) for each in told] == [(ownership.key, receiver.holder)]


def _kept_for(receiver: Lease, ownership: Ownership) -> Ownership:
    """What the receiver shows for a key that is kept for it: the epoch that ended."""
    return Ownership(
        key=ownership.key, epoch=ownership.epoch, holder=receiver.holder, token=receiver.token
    )
