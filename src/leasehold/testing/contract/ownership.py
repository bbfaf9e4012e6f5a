"""Keys and who owns them: declare, forget, claim, steal, release."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from leasehold.errors import LeaseLost
from leasehold.model import EndReason, State, Wanted
from leasehold.testing.contract.scene import (
    GUESS,
    ContractBase,
    Scene,
    assert_unchanged,
    forged,
)


class DeclareContract(ContractBase):
    """Which keys there are."""

    async def test_declare_counts_the_new(self, scene: Scene) -> None:
        """A key is new once, however often it is named."""
        keys = [scene.key(name) for name in "abc"]
        assert await scene.store.declare([*keys[:2], keys[0]]) == 2
        assert await scene.store.declare(keys) == 1
        assert await scene.store.declare([]) == 0
        resources = await scene.store.resources(scene.group)
        assert {each.key: (each.epoch, each.state) for each in resources.values()} == dict.fromkeys(
            keys, (0, State.AVAILABLE)
        )

    async def test_declare_again_leaves_owners_alone(self, scene: Scene) -> None:
        """Starting once more is harmless."""
        _, ownership = await scene.owned()
        before = await scene.picture()
        assert await scene.store.declare([ownership.key]) == 0
        assert_unchanged(before, await scene.picture())

    async def test_ten_hosts_declare_at_once(self, scene: Scene) -> None:
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

    async def test_forget_takes_only_free_keys(self, scene: Scene) -> None:
        """What is owned stays; what is unknown does not count; twice counts once."""
        _, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        assert await scene.store.forget([free, ownership.key, scene.key("unknown")]) == 1
        assert await scene.store.forget([free]) == 0
        assert set(await scene.store.resources(scene.group)) == {ownership.key}

    async def test_forgotten_keys_can_not_be_had(self, scene: Scene) -> None:
        """Not by a claim, not by force."""
        (key,) = await scene.declared("k")
        lease = await scene.member("a")
        await scene.store.forget([key])
        before = await scene.picture()
        for force in (False, True):
            wanted = [Wanted(key=key, seen_epoch=0)]
            assert list(await scene.store.claim(lease, wanted, force=force)) == []
        assert_unchanged(before, await scene.picture())

    async def test_what_time_has_ended_may_be_forgotten(self, scene: Scene) -> None:
        """A key whose owner ran out is free, whether anybody has noticed or not."""
        _, ownership = await scene.owned(units=1)
        await scene.wait()
        assert await scene.store.forget([ownership.key]) == 1
        assert await scene.store.resources(scene.group) == {}
        assert await scene.reasons(ownership.key) == [EndReason.EXPIRED]


class ClaimContract(ContractBase):
    """Who has them."""

    @pytest.mark.spec("L1", "L2", "C2")
    async def test_claim_takes_a_free_key(self, scene: Scene) -> None:
        """The epoch rises by one and everybody sees the owner."""
        lease, ownership = await scene.owned()
        assert (ownership.epoch, ownership.holder) == (1, lease.holder)
        resource = await scene.resource(ownership.key)
        assert (resource.epoch, resource.state) == (1, State.LEASED)
        assert resource.holder == lease.holder

    @pytest.mark.spec("L1", "P4")
    async def test_claim_of_a_held_key_is_refused(self, scene: Scene) -> None:
        """Not getting it is an answer, and changes nothing."""
        _, ownership = await scene.owned()
        rival = await scene.member("rival")
        before = await scene.picture()
        assert await scene.claim(rival, ownership.key) == []
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("P4")
    async def test_claim_names_the_epoch_it_saw(self, scene: Scene) -> None:
        """A key that changed hands in between is left alone, by force too."""
        lease, ownership = await scene.owned()
        await scene.store.release([ownership])
        before = await scene.picture()
        for seen in (0, 2, 100):
            for force in (False, True):
                wanted = [Wanted(key=ownership.key, seen_epoch=seen)]
                taken = await scene.store.claim(lease, wanted, force=force)
                assert list(taken) == []
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("P4")
    async def test_claim_returns_only_what_was_had(self, scene: Scene) -> None:
        """Of a batch the possible part is taken; unknown keys are no error."""
        _, ownership = await scene.owned("held")
        keys = await scene.declared("x", "y")
        lease = await scene.member("a")
        wanted = [Wanted(key=key, seen_epoch=0) for key in (*keys, scene.key("unknown"))]
        wanted += [Wanted(key=ownership.key, seen_epoch=1)]
        taken = await scene.store.claim(lease, wanted)
        assert sorted(each.key for each in taken) == sorted(keys)
        assert list(await scene.store.claim(lease, [])) == []

    async def test_claim_of_many_keys_at_once(self, scene: Scene) -> None:
        """A host may have many partitions."""
        keys = await scene.declared(*map(str, range(300)))
        lease = await scene.member("a")
        wanted = [Wanted(key=key, seen_epoch=0) for key in keys]
        taken = await scene.store.claim(lease, wanted)
        assert sorted(each.key for each in taken) == sorted(keys)
        assert sorted(await scene.store.release(taken)) == sorted(keys)

    async def test_claim_again_gives_the_same_ownership(self, scene: Scene) -> None:
        """The answer may have been lost: the same question has the same answer."""
        (key,) = await scene.declared("k")
        lease, wanted = await scene.member("a"), [Wanted(key=key, seen_epoch=0)]
        first = list(await scene.store.claim(lease, wanted))
        before = await scene.picture()
        for force in (False, True):
            assert list(await scene.store.claim(lease, wanted, force=force)) == first
        assert_unchanged(before, await scene.picture())

    async def test_one_batch_may_name_a_key_twice(self, scene: Scene) -> None:
        """It is taken, released and passed on once."""
        (key,) = await scene.declared("k")
        lease, wanted = await scene.member("a"), Wanted(key=key, seen_epoch=0)
        taken = await scene.store.claim(lease, [wanted, wanted])
        assert {each.epoch for each in taken} == {1}
        assert set(await scene.store.release([taken[0], taken[0]])) == {key}
        assert (await scene.resource(key)).state is State.AVAILABLE
        assert await scene.reasons(key) == [EndReason.RELEASED]

    @pytest.mark.spec("L4", "L7")
    async def test_claim_under_an_ended_lease_is_refused(self, scene: Scene) -> None:
        """With an error: the claimer has to stop, not to try the next key."""
        (key,) = await scene.declared("k")
        lease = await scene.member("a")
        await scene.store.revoke(lease)
        before = await scene.picture()
        for wanted in ([Wanted(key=key, seen_epoch=0)], []):
            for force in (False, True):
                with pytest.raises(LeaseLost):
                    await scene.store.claim(lease, wanted, force=force)
        with pytest.raises(LeaseLost):
            await scene.store.claim(replace(lease, token=GUESS), [])
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("P6", "L3")
    async def test_force_steals(self, scene: Scene) -> None:
        """The thief has a new epoch at once; the robbed learns at its next renewal."""
        owner, ownership = await scene.owned()
        version = (await scene.store.renew(owner)).version
        thief = await scene.member("thief")
        stolen = await scene.own(thief, ownership.key, force=True)
        assert stolen.epoch == 2
        assert await scene.mark(ownership, 1) == "fenced"
        assert await scene.mark(stolen, 1) is None
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [(term.key, term.epoch, term.reason) for term in ended] == [
            (ownership.key, 1, EndReason.STOLEN)
        ]

    async def test_force_takes_a_free_key_like_any_claim(self, scene: Scene) -> None:
        """There is nobody to rob, and the history says so."""
        (key,) = await scene.declared("k")
        assert (await scene.own(await scene.member("a"), key, force=True)).epoch == 1
        assert await scene.reasons(key) == [None]

    async def test_any_holder_may_own_any_key(self, scene: Scene) -> None:
        """Neither a member of another group nor a holder of no group is shut out."""
        keys = await scene.declared("x", "y")
        other = await scene.member("other", group=scene.group + "2")
        alone = await scene.member("alone", group="")
        for lease, key in zip((other, alone), keys, strict=True):
            ownership = await scene.own(lease, key)
            assert await scene.mark(ownership, 1) is None
            assert (await scene.resource(key)).holder == lease.holder


class ReleaseContract(ContractBase):
    """How they give them back."""

    @pytest.mark.spec("L5")
    async def test_release_makes_it_available_at_once(self, scene: Scene) -> None:
        """The epoch stays; the next owner raises it."""
        lease, ownership = await scene.owned()
        assert list(await scene.store.release([ownership])) == [ownership.key]
        resource = await scene.resource(ownership.key)
        assert (resource.epoch, resource.state) == (1, State.AVAILABLE)
        assert resource.holder is None
        assert (await scene.own(await scene.member("b"), ownership.key)).epoch == 2
        assert await scene.mark(ownership, 1) == "fenced"
        assert list(await scene.store.release([])) == []
        await scene.store.renew(lease)

    async def test_release_again_is_answered_again(self, scene: Scene) -> None:
        """It was ended by it before."""
        _, ownership = await scene.owned()
        await scene.store.release([ownership])
        before = await scene.picture()
        assert list(await scene.store.release([ownership])) == [ownership.key]
        assert_unchanged(before, await scene.picture())

    async def test_release_again_leaves_the_next_owner_alone(self, scene: Scene) -> None:
        """It names its epoch; and the answer is still that it was ended by it."""
        _, ownership = await scene.owned()
        await scene.store.release([ownership])
        await scene.own(await scene.member("b"), ownership.key)
        before = await scene.picture()
        again = await scene.store.release([ownership])
        assert_unchanged(before, await scene.picture())
        assert list(again) == [ownership.key]

    @pytest.mark.spec("L5", "L7")
    async def test_release_of_several_that_time_has_ended(self, scene: Scene) -> None:
        """All of them are over, in whatever order they are named, and however often."""
        keys = await scene.declared("a", "b")
        lease = await scene.member("owner", units=1)
        owned = [await scene.own(lease, key) for key in keys]
        await scene.wait()
        for _ in range(2):
            assert list(await scene.store.release(owned)) == keys
        assert [(await scene.reasons(key))[0] for key in keys] == [EndReason.EXPIRED] * 2

    async def test_release_needs_the_proof(self, scene: Scene) -> None:
        """A wrong token, epoch or holder releases nothing, whatever else is in the batch."""
        _, ownership = await scene.owned("k")
        _, mine = await scene.owned("mine")
        other = await scene.member("other")
        before = await scene.picture()
        wrong = [
            forged(ownership),
            replace(ownership, epoch=2),
            replace(ownership, epoch=0),
            replace(ownership, holder=other.holder, token=other.token),
            replace(ownership, key=scene.key("unknown")),
        ]
        assert list(await scene.store.release(wrong)) == []
        assert_unchanged(before, await scene.picture())
        assert list(await scene.store.release([*wrong, mine])) == [mine.key]
