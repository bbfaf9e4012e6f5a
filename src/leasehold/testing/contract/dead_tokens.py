"""Dead tokens and living epochs: what has ended stays ended, and numbers never fall."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.errors import LeaseLost
from leasehold.model import HandOver, Lease, Mark, MemberInfo, Ownership, Position, State, Wanted
from leasehold.testing.contract.history import ENDS
from leasehold.testing.contract.scene import LONG, ContractBase, Scene, assert_unchanged

_LEASE_ENDS = ("revoke", "expire", "expire, then claim", "expire, then steal")
_KEY_ENDS = ("release", "hand over", "steal", "break", "break slowly")
_CHANGES = ("release", "expire", "hand over", "steal", "expire, then claim", "break", "revoke")


class DeadTokenContract(ContractBase):
    """A lease or an ownership that has ended opens no door."""

    @pytest.mark.spec("L4", "L7")
    @pytest.mark.parametrize("way", _LEASE_ENDS)
    async def test_a_dead_lease_is_refused_everywhere(self, scene: Scene, way: str) -> None:
        """Every method that takes one, and nothing changes."""
        (free,) = await scene.declared("free")
        _, held = await scene.owned("held")
        lease, ownership = await scene.owned(units=1 if way.startswith("expire") else LONG)
        await ENDS[way][0](scene, lease, ownership)
        before = await scene.picture()
        for force in (False, True):
            with pytest.raises(LeaseLost):
                await scene.store.claim(lease, [Wanted(key=free, seen_epoch=0)], force=force)
        with pytest.raises(LeaseLost):
            await scene.store.renew(lease, info=MemberInfo(host="back from the dead"))
        with pytest.raises(LeaseLost):
            await scene.store.ask(lease, Wanted(key=held.key, seen_epoch=1))
        with pytest.raises(LeaseLost):
            await scene.store.grant(
                holder=lease.holder,
                token=lease.token,
                group=lease.group,
                duration=timedelta(seconds=lease.duration_s),
                info=MemberInfo(),
            )
        await scene.store.revoke(lease)
        assert_unchanged(before, await scene.picture())
        await _assert_dead(scene, ownership)

    @pytest.mark.spec("L3", "L7")
    @pytest.mark.parametrize("way", _KEY_ENDS)
    async def test_a_dead_ownership_is_refused_everywhere(self, scene: Scene, way: str) -> None:
        """The lease lives on, and gives no right to what it has lost."""
        lease, ownership = await scene.owned()
        await ENDS[way][0](scene, lease, ownership)
        await _assert_dead(scene, ownership)
        before = await scene.picture()
        await scene.store.renew(lease)
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("L3", "L7")
    @pytest.mark.parametrize("way", [*_LEASE_ENDS, *_KEY_ENDS])
    async def test_and_when_somebody_else_has_it(self, scene: Scene, way: str) -> None:
        """The next owner does not notice any of it."""
        lease, ownership = await scene.owned(units=1 if way.startswith("expire") else LONG)
        await ENDS[way][0](scene, lease, ownership)
        resource = await scene.resource(ownership.key)
        if resource.holder is None and resource.handed_to is None:
            await scene.own(await scene.member("next"), ownership.key)
        await _assert_dead(scene, ownership)


async def _assert_dead(scene: Scene, ownership: Ownership) -> None:
    """No method does anything for ``ownership``; only the refused write is counted."""
    before = await scene.picture()
    third = await scene.member("third", group="")
    position = Position(sequence_number=10)
    refused = await scene.store.checkpoint([Mark(ownership=ownership, position=position)])
    assert [each.value for each in refused.values()] == ["fenced"]
    # Repetitions of what ended it are answered as before; what counts is that nothing happens.
    await scene.store.hand_over(
        [HandOver(ownership=ownership, to=third.holder)], limit=scene.units(10)
    )
    await scene.store.release([ownership])
    old = [Wanted(key=ownership.key, seen_epoch=ownership.epoch - 1)]
    assert list(await scene.store.claim(third, old, force=True)) == []
    after = await scene.picture()
    assert after.fenced == before.fenced + 1
    assert_unchanged(before, replace(after, fenced=before.fenced))


class EpochContract(ContractBase):
    """The number that every write carries."""

    async def test_one_step_up_per_change_of_owner(self, scene: Scene) -> None:
        """Whatever ended the last term: exactly one, and the last owner may be the next."""
        (key,) = await scene.declared("k")
        for epoch, way in enumerate(_CHANGES, start=1):
            lease = await scene.member("a", units=1 if way.startswith("expire") else LONG)
            ownership = await _owned_now(scene, lease, key)
            assert ownership.epoch >= epoch
            before = (await scene.resource(key)).epoch
            await ENDS[way][0](scene, lease, ownership)
            after = (await scene.resource(key)).epoch
            assert after - before == (1 if way.endswith(("steal", "claim")) else 0)
        terms = await scene.store.history(key, limit=100)
        assert [term.epoch for term in terms] == list(range(len(terms), 0, -1))

    async def test_a_renewal_is_no_change_of_owner(self, scene: Scene) -> None:
        """Neither are questions, breaks and checkpoints."""
        lease, ownership = await scene.owned()
        asker = await scene.member("asker")
        await scene.store.renew(lease)
        await scene.store.ask(asker, await scene.wanted(ownership.key))
        await scene.mark(ownership, 1)
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(10))
        assert (await scene.resource(ownership.key)).epoch == 1

    async def test_forgetting_does_not_reset_it(self, scene: Scene) -> None:
        """A key that comes back has the epoch it had, however often."""
        lease, ownership = await scene.owned()
        for epoch in (2, 3, 4):
            await scene.store.release([ownership])
            assert await scene.store.forget([ownership.key]) == 1
            assert await scene.store.declare([ownership.key]) == 1
            resource = await scene.resource(ownership.key)
            assert (resource.epoch, resource.state) == (epoch - 1, State.AVAILABLE)
            ownership = await scene.own(lease, ownership.key)
            assert ownership.epoch == epoch

    async def test_opening_the_store_anew_does_not_reset_it(self, scene: Scene) -> None:
        """Nor does it end a term: leases live in the store."""
        lease, ownership = await scene.owned()
        async with scene.harness.open() as store:
            anew = Scene(store, scene.harness, scene.suffix)
            resource = await anew.resource(ownership.key)
            assert (resource.epoch, resource.state) == (1, State.LEASED)
            await store.renew(lease)
            assert await anew.mark(ownership, 1) is None


async def _owned_now(scene: Scene, lease: Lease, key: str) -> Ownership:
    """Take the key, from whoever has it or is to have it."""
    resource = await scene.resource(key)
    if resource.handed_to is not None:
        await scene.store.forget([key])
        await scene.store.declare([key])
    return await scene.own(lease, key, force=True)
