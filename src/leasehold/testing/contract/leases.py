"""Leases: grant, renew, revoke, and the moment at which they end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.errors import LeaseLost
from leasehold.model import EndReason, Lease, MemberInfo, State
from leasehold.testing.contract.scene import (
    GUESS,
    LONG,
    ContractBase,
    Scene,
    assert_unchanged,
    lost,
)


class LeaseContract(ContractBase):
    """Who is believed alive, and until when."""

    @pytest.mark.spec("L2")
    async def test_grant_gives_what_was_asked_for(self, scene: Scene) -> None:
        """The lease is the caller's own words, and the holder is a member at once."""
        lease = await scene.member("a", units=3)
        assert lease.group == scene.group
        assert lease.duration_s == pytest.approx(3 * scene.harness.unit_s)
        assert lease.token == f"token of {lease.holder}"
        peer = (await scene.store.peers(scene.group))[lease.holder]
        assert peer.alive
        assert peer.group == scene.group
        assert 0 < peer.remaining_s <= lease.duration_s

    async def test_grant_again_is_the_same_grant(self, scene: Scene) -> None:
        """The same holder with the same token is the same incarnation."""
        lease = await scene.member("a")
        before = await scene.picture()
        again = await _grant_again(scene, lease, token=lease.token)
        assert again == lease
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("L2", "L4")
    async def test_grant_with_another_token_is_refused(self, scene: Scene) -> None:
        """A holder id in use belongs to whoever has its token."""
        lease = await scene.member("a")
        before = await scene.picture()
        with pytest.raises(LeaseLost):
            await _grant_again(scene, lease, token=GUESS)
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("L4")
    async def test_an_ended_holder_does_not_come_back(self, scene: Scene) -> None:
        """A new incarnation needs a new holder id, whichever way the old one ended."""
        gone, late = await scene.member("gone"), await scene.member("late", units=1)
        await scene.store.revoke(gone)
        await scene.wait()
        for lease in (gone, late):
            for token in (lease.token, "a new one"):
                with pytest.raises(LeaseLost):
                    await _grant_again(scene, lease, token=token)
        assert await scene.store.peers(scene.group) == {}

    @pytest.mark.spec("L4")
    async def test_renewal_counts_from_now(self, scene: Scene) -> None:
        """Not from the old end: three units, renewed after two, last until five and no longer."""
        lease = await scene.member("a", units=3)
        await scene.wait(2)
        await scene.store.renew(lease)
        remaining_s = (await scene.store.peers(scene.group))[lease.holder].remaining_s
        assert remaining_s <= 3 * scene.harness.unit_s
        await scene.wait(2)
        assert lease.holder in await scene.store.peers(scene.group)
        await scene.wait(1.1)
        assert lease.holder not in await scene.store.peers(scene.group)

    @pytest.mark.spec("L4")
    async def test_renewal_by_a_stranger_is_refused(self, scene: Scene) -> None:
        """Neither a wrong token nor a holder nobody knows is extended."""
        lease = await scene.member("a", units=1)
        for stranger in (replace(lease, token=GUESS), replace(lease, holder="nobody at all")):
            with pytest.raises(LeaseLost):
                await scene.store.renew(stranger)
        await scene.wait()
        assert await lost(scene, lease) == "expired"

    @pytest.mark.spec("L4")
    async def test_renewal_after_the_loss_says_why(self, scene: Scene) -> None:
        """The reason is that of the end, and asking again gives it again."""
        gone, late = await scene.member("gone"), await scene.member("late", units=1)
        await scene.store.revoke(gone)
        await scene.wait()
        for _ in range(2):
            assert await lost(scene, gone) == EndReason.RELEASED.value
            assert await lost(scene, late) == EndReason.EXPIRED.value

    @pytest.mark.spec("B1")
    async def test_one_renewal_covers_all_that_is_owned(self, scene: Scene) -> None:
        """Fifty keys live on by a single call."""
        keys = await scene.declared(*map(str, range(50)))
        lease = await scene.member("a", units=3)
        assert len(await scene.claim(lease, keys[0])) == 1
        await scene.claim(lease, *keys[1:])
        await scene.wait(1.5)
        await scene.store.renew(lease)
        await scene.wait(2)
        states = {each.state for each in (await scene.store.resources(scene.group)).values()}
        assert states == {State.LEASED}

    async def test_renewal_replaces_what_others_know(self, scene: Scene) -> None:
        """``info`` is taken over whole; without it the old one stays."""
        first = MemberInfo(host="h", pid=7, weight=2.5, most=3, draining=False, loads={"k": 1.25})
        second = MemberInfo(host="hé 🚀", pid=8, weight=0.1, draining=True, loads={})
        lease = await scene.member("a", info=first)
        seen = [(await scene.store.peers(scene.group))[lease.holder].info]
        await scene.store.renew(lease)
        seen.append((await scene.store.peers(scene.group))[lease.holder].info)
        await scene.store.renew(lease, info=second)
        seen.append((await scene.store.peers(scene.group))[lease.holder].info)
        assert seen == [first, first, second]

    @pytest.mark.spec("L5")
    async def test_revoke_frees_everything_at_once(self, scene: Scene) -> None:
        """Keys are available, the member is gone, and the history says released."""
        keys = await scene.declared("x", "y")
        lease, other = await scene.member("a"), await scene.member("b")
        await scene.claim(lease, *keys)
        await scene.store.revoke(lease)
        assert set(await scene.store.peers(scene.group)) == {other.holder}
        for key in keys:
            assert (await scene.resource(key)).state is State.AVAILABLE
            assert await scene.reasons(key) == [EndReason.RELEASED]
        assert len(await scene.claim(other, *keys)) == 2

    async def test_revoke_again_changes_nothing(self, scene: Scene) -> None:
        """Ending an ended lease is no error, and does not touch the next owner."""
        lease, ownership = await scene.owned()
        other = await scene.member("b")
        await scene.store.revoke(lease)
        await scene.own(other, ownership.key)
        before = await scene.picture()
        await scene.store.revoke(lease)
        assert_unchanged(before, await scene.picture())

    async def test_revoke_needs_the_token(self, scene: Scene) -> None:
        """A guess ends nothing, and neither does a name nobody has."""
        lease, _ = await scene.owned()
        before = await scene.picture()
        await scene.store.revoke(replace(lease, token=GUESS))
        await scene.store.revoke(replace(lease, holder="nobody at all"))
        assert_unchanged(before, await scene.picture())

    @pytest.mark.spec("B10")
    async def test_revoke_after_the_end_is_still_an_expiry(self, scene: Scene) -> None:
        """Time ended the term; who comes too late to end it does not change the reason."""
        lease, ownership = await scene.owned(units=1)
        await scene.wait()
        await scene.store.revoke(lease)
        assert await scene.reasons(ownership.key) == [EndReason.EXPIRED]
        assert await lost(scene, lease) == EndReason.EXPIRED.value

    @pytest.mark.spec("L1", "L4")
    async def test_no_instant_belongs_to_two(self, scene: Scene) -> None:
        """Just before its end a lease is whole; from the very moment of its end it is over.

        Seen from outside: it can not end before (sent + duration), and has ended at
        (answered + duration).
        """
        (key,) = await scene.declared("k")
        rival, clock = await scene.member("rival"), scene.harness.clock
        sent_s = clock.boottime_s()
        lease = await scene.member("a", units=2)
        answered_s = clock.boottime_s()
        await scene.own(lease, key)
        end_s = sent_s + lease.duration_s
        hair_s = 1e-6 if scene.harness.exact else lease.duration_s / 4
        await scene.harness.pass_time(end_s - clock.boottime_s() - hair_s)
        state, taken = (await scene.resource(key)).state, await scene.claim(rival, key)
        if clock.boottime_s() < end_s:  # always so by hand; by real time unless the machine hung
            assert (state, taken) == (State.LEASED, [])
        await scene.harness.pass_time(answered_s + lease.duration_s - clock.boottime_s())
        assert (await scene.resource(key)).state is State.EXPIRED
        assert lease.holder not in await scene.store.peers(scene.group)
        assert (await scene.own(rival, key)).epoch == 2
        assert await lost(scene, lease) == EndReason.EXPIRED.value

    @pytest.mark.spec("L4")
    async def test_the_end_is_inclusive_for_every_call(self, scene: Scene) -> None:
        """At the very moment of the end each call, made first, finds the lease over."""
        leases, owned = [], []
        for name in ("renewing", "claiming", "writing", "handing over"):
            (key,) = await scene.declared(name)
            leases.append(await scene.member(name, units=1))
            owned.append(await scene.own(leases[-1], key))
        await scene.wait(1)
        assert await scene.mark(owned[2], 1) == "fenced"
        assert await scene.hand_over(owned[3], leases[2]) == []
        with pytest.raises(LeaseLost):
            await scene.store.claim(leases[1], [])
        assert await lost(scene, leases[0]) == EndReason.EXPIRED.value

    @pytest.mark.spec("L6")
    async def test_the_whole_range_of_durations_is_granted(self, scene: Scene) -> None:
        """From the shortest to the longest; both ends included."""
        harness = scene.harness
        for name, seconds in (("short", harness.shortest_s), ("long", harness.longest_s)):
            lease = await scene.member(name, units=seconds / scene.harness.unit_s)
            assert lease.duration_s == pytest.approx(seconds)

    @pytest.mark.spec("L2")
    async def test_tokens_are_shown_to_nobody(self, scene: Scene) -> None:
        """Whoever reads a token could act with it: no answer has one."""
        lease, ownership = await scene.owned()
        await scene.mark(ownership, 1)
        changes = await scene.store.renew(await scene.member("b"), since=0)
        picture = await scene.picture()
        assert lease.holder in repr(picture)
        assert lease.token not in repr((picture, changes, lease, ownership))

    async def test_closing_ends_no_lease(self, scene: Scene) -> None:
        """Another connection that comes and goes leaves everything as it is."""
        lease, _ = await scene.owned()
        before = await scene.picture()
        async with scene.harness.open() as second:
            await second.renew(lease)
        assert_unchanged(before, await scene.picture())
        assert await lost(scene, lease) is None

    async def test_url_has_no_secrets(self, scene: Scene) -> None:
        """What is shown to people names the kind of store."""
        assert "://" in scene.store.url
        assert "password" not in scene.store.url


async def _grant_again(scene: Scene, lease: Lease, *, token: str) -> Lease:
    return await scene.store.grant(
        holder=lease.holder,
        token=token,
        group=lease.group,
        duration=min(timedelta(seconds=lease.duration_s), scene.lasting(LONG)),
        info=MemberInfo(host="gone" if token != lease.token else lease.holder[0]),
    )
