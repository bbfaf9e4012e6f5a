"""Breaking: ending an ownership over its holder's head, at once or after a while."""

from __future__ import annotations

import pytest

from leasehold.errors import UnknownResource
from leasehold.model import EndReason, Resource, State
from leasehold.testing.contract.scene import ContractBase, Scene, assert_unchanged


class BreakContract(ContractBase):
    """For operators, and for holders that do not answer."""

    @pytest.mark.spec("L5")
    async def test_break_at_once(self, scene: Scene) -> None:
        """The key is free, the token dead, and only this key of the holder is touched."""
        owner, ownership = await scene.owned()
        (other,) = await scene.declared("other")
        await scene.own(owner, other)
        version = (await scene.store.renew(owner)).version
        broken = await _break(scene, ownership.key, 1, 0)
        assert broken is not None
        assert broken.state in {State.AVAILABLE, State.BROKEN}
        assert await scene.mark(ownership, 1) == "fenced"
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [(term.key, term.reason) for term in ended] == [(ownership.key, EndReason.BROKEN)]
        assert (await scene.own(await scene.member("next"), ownership.key)).epoch == 2
        assert (await scene.resource(other)).holder == owner.holder

    @pytest.mark.spec("L5", "L1")
    async def test_break_after_a_while(self, scene: Scene) -> None:
        """Until then the owner works on, and nobody else is let in; then it is over."""
        owner, ownership = await scene.owned()
        rival = await scene.member("rival")
        broken = await _break(scene, ownership.key, 1, 2)
        assert broken is not None
        assert broken.state is State.BREAKING
        assert 0 < (broken.breaking_s or 0) <= 2 * scene.harness.unit_s
        assert await scene.mark(ownership, 1) is None
        assert await scene.claim(rival, ownership.key) == []
        await scene.store.renew(owner)
        await scene.wait(2.1)
        assert (await scene.resource(ownership.key)).state is State.BROKEN
        assert await scene.mark(ownership, 2) == "fenced"
        assert (await scene.own(rival, ownership.key)).epoch == 2
        assert await scene.reasons(ownership.key) == [EndReason.BROKEN, None]

    async def test_breaking_keys_may_still_be_given_back(self, scene: Scene) -> None:
        """A holder that hears of it ends in good order."""
        _, ownership = await scene.owned()
        await _break(scene, ownership.key, 1, 100)
        assert list(await scene.store.release([ownership])) == [ownership.key]
        resource = await scene.resource(ownership.key)
        assert (resource.state, resource.breaking_s) == (State.AVAILABLE, None)
        assert await scene.reasons(ownership.key) == [EndReason.RELEASED]

    @pytest.mark.spec("L5")
    async def test_a_second_break_can_only_shorten(self, scene: Scene) -> None:
        """Longer is no change; shorter counts; none at all ends it now."""
        _, ownership = await scene.owned()
        unit_s = scene.harness.unit_s
        await _break(scene, ownership.key, 1, 50)
        for units, at_most in ((100, 50), (20, 20), (50, 20)):
            broken = await _break(scene, ownership.key, 1, units)
            assert broken is not None
            most = scene.capped(at_most)
            assert (most - 5) * unit_s < (broken.breaking_s or 0) <= most * unit_s
        assert await _break(scene, ownership.key, 1, 0) is not None
        assert await scene.reasons(ownership.key) == [EndReason.BROKEN]

    @pytest.mark.spec("L5")
    async def test_a_break_lasts_no_longer_than_the_lease(self, scene: Scene) -> None:
        """Renewing in the meantime keeps the lease, and does not rescue the key."""
        owner, ownership = await scene.owned(units=2)
        await _break(scene, ownership.key, 1, 100)
        await scene.wait(1)
        await scene.store.renew(owner)
        await scene.wait(1.1)
        rival = await scene.member("rival")
        await scene.store.renew(owner)
        assert (await scene.own(rival, ownership.key)).epoch == 2
        assert await scene.reasons(ownership.key) == [EndReason.BROKEN, None]

    async def test_watchers_learn_of_a_break_that_fell_due(self, scene: Scene) -> None:
        """At the next renewal of any of them."""
        owner, ownership = await scene.owned()
        watcher = await scene.member("watcher")
        await _break(scene, ownership.key, 1, 1)
        version = (await scene.store.renew(watcher)).version
        await scene.wait()
        told = (await scene.store.renew(watcher, since=version)).resources
        assert [(each.key, each.state, each.holder) for each in told] == [
            (ownership.key, State.AVAILABLE, None)
        ]
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [term.reason for term in ended] == [EndReason.BROKEN]

    @pytest.mark.spec("L5")
    async def test_break_names_the_epoch_it_means(self, scene: Scene) -> None:
        """Another epoch, or a key nobody holds: None, and nothing changes."""
        _, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        before = await scene.picture()
        for key, epoch in ((ownership.key, 0), (ownership.key, 2), (free, 0), (free, 1)):
            for units in (0, 10):
                assert await _break(scene, key, epoch, units) is None
        assert_unchanged(before, await scene.picture())

    async def test_break_of_an_unknown_key(self, scene: Scene) -> None:
        """Never declared, or forgotten: a mistake of the caller, and said so."""
        (key,) = await scene.declared("k")
        await scene.store.forget([key])
        for unknown in (key, scene.key("unknown")):
            with pytest.raises(UnknownResource):
                await _break(scene, unknown, 0, 0)

    async def test_break_again_changes_nothing(self, scene: Scene) -> None:
        """Neither at once nor after a while; the time does not begin anew."""
        _, now = await scene.owned("now")
        _, later = await scene.owned("later")
        await _break(scene, now.key, 1, 0)
        await _break(scene, later.key, 1, 2)
        before = (await scene.picture()).plain("")
        await scene.wait(1)
        await _break(scene, now.key, 1, 0)
        await _break(scene, later.key, 1, 2)
        assert (await scene.picture()).plain("") == before
        await scene.wait(1.1)
        assert (await scene.resource(later.key)).state is State.BROKEN

    async def test_force_takes_a_breaking_key(self, scene: Scene) -> None:
        """The steal does not wait."""
        _, ownership = await scene.owned()
        await _break(scene, ownership.key, 1, 100)
        thief = await scene.member("thief")
        assert await scene.claim(thief, ownership.key) == []
        assert (await scene.own(thief, ownership.key, force=True)).epoch == 2
        assert (await scene.resource(ownership.key)).state is State.LEASED
        assert await scene.reasons(ownership.key) == [EndReason.STOLEN, None]


async def _break(scene: Scene, key: str, epoch: int, units: float) -> Resource | None:
    return await scene.store.break_(key, epoch=epoch, after=scene.units(units))
