"""Leases: grant, renew, revoke, and the time at which they end.

Also dead tokens and epochs (what has ended stays ended, and epochs never decrease), and breaks (an
operator ends an ownership, immediately or after a while).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.errors import LeaseLost, UnknownResource
from leasehold.model import (
    CheckpointWrite,
    EndReason,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
    Resource,
    State,
)
from leasehold.testing.contract.history import ENDS
from leasehold.testing.contract.store_case import (
    GUESS,
    LONG,
    ContractBase,
    StoreCase,
    assert_unchanged,
    lost,
)

_LEASE_ENDS = ("revoke", "expire", "expire, then claim", "expire, then steal")
_KEY_ENDS = ("release", "hand over", "steal", "break", "break slowly")
_CHANGES = ("release", "expire", "hand over", "steal", "expire, then claim", "break", "revoke")


class DeadTokenContract(ContractBase):
    """A lease or an ownership that has ended is refused everywhere."""

    @pytest.mark.spec("L4", "L7")
    @pytest.mark.parametrize("way", _LEASE_ENDS)
    async def test_a_dead_lease_is_refused_everywhere(self, scene: StoreCase, way: str) -> None:
        """Every method that takes one, and nothing changes."""
        (free,) = await scene.declared("free")
        _, held = await scene.owned("held")
        lease, ownership = await scene.owned(units=1 if way.startswith("expire") else LONG)
        await ENDS[way][0](scene, lease, ownership)
        before = await scene.snapshot()
        for force in (False, True):
            with pytest.raises(LeaseLost):
                await scene.store.claim(lease, [KeyClaim(key=free, seen_epoch=0)], force=force)
        with pytest.raises(LeaseLost):
            await scene.store.renew(lease, info=MemberInfo(host="back from the dead"))
        with pytest.raises(LeaseLost):
            await scene.store.ask(lease, KeyClaim(key=held.key, seen_epoch=1))
        with pytest.raises(LeaseLost):
            await scene.store.grant(
                holder=lease.holder,
                token=lease.token,
                group=lease.group,
                duration=timedelta(seconds=lease.duration_s),
                info=MemberInfo(),
            )
        await scene.store.revoke(lease)
        assert_unchanged(before, await scene.snapshot())
        await _assert_dead(scene, ownership)

    @pytest.mark.spec("L3", "L7")
    @pytest.mark.parametrize("way", _KEY_ENDS)
    async def test_a_dead_ownership_is_refused_everywhere(self, scene: StoreCase, way: str) -> None:
        """The lease lives on, and gives no right to what it has lost."""
        lease, ownership = await scene.owned()
        await ENDS[way][0](scene, lease, ownership)
        await _assert_dead(scene, ownership)
        before = await scene.snapshot()
        await scene.store.renew(lease)
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("L3", "L7")
    @pytest.mark.parametrize("way", [*_LEASE_ENDS, *_KEY_ENDS])
    async def test_and_when_somebody_else_has_it(self, scene: StoreCase, way: str) -> None:
        """The next owner does not notice any of it."""
        lease, ownership = await scene.owned(units=1 if way.startswith("expire") else LONG)
        await ENDS[way][0](scene, lease, ownership)
        resource = await scene.resource(ownership.key)
        if resource.holder is None and resource.handed_to is None:
            await scene.own(await scene.member("next"), ownership.key)
        await _assert_dead(scene, ownership)


async def _assert_dead(store_case: StoreCase, ownership: Ownership) -> None:
    """No method does anything for ``ownership``; only the refused write is counted."""
    before = await store_case.snapshot()
    third = await store_case.member("third", group="")
    position = Position(sequence_number=10)
    refused = await store_case.store.checkpoint(
        [CheckpointWrite(ownership=ownership, position=position)]
    )
    assert [each.value for each in refused.values()] == ["fenced"]
    # Repetitions of what ended it are answered as before; what counts is that nothing happens.
    await store_case.store.hand_over(
        [HandOver(ownership=ownership, to=third.holder)], limit=store_case.units(10)
    )
    await store_case.store.release([ownership])
    old = [KeyClaim(key=ownership.key, seen_epoch=ownership.epoch - 1)]
    assert list(await store_case.store.claim(third, old, force=True)) == []
    after = await store_case.snapshot()
    assert after.fenced == before.fenced + 1
    assert_unchanged(before, replace(after, fenced=before.fenced))


class EpochContract(ContractBase):
    """The number that every write carries."""

    async def test_one_step_up_per_change_of_owner(self, scene: StoreCase) -> None:
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

    async def test_a_renewal_is_no_change_of_owner(self, scene: StoreCase) -> None:
        """Neither are questions, breaks and checkpoints."""
        lease, ownership = await scene.owned()
        asker = await scene.member("asker")
        await scene.store.renew(lease)
        await scene.store.ask(asker, await scene.wanted(ownership.key))
        await scene.write_checkpoint(ownership, 1)
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(10))
        assert (await scene.resource(ownership.key)).epoch == 1

    async def test_forgetting_does_not_reset_it(self, scene: StoreCase) -> None:
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

    async def test_opening_the_store_anew_does_not_reset_it(self, scene: StoreCase) -> None:
        """Nor does it end a term: leases live in the store."""
        lease, ownership = await scene.owned()
        async with scene.harness.open() as store:
            reopened = StoreCase(store, scene.harness, scene.suffix)
            resource = await reopened.resource(ownership.key)
            assert (resource.epoch, resource.state) == (1, State.LEASED)
            await store.renew(lease)
            assert await reopened.write_checkpoint(ownership, 1) is None


async def _owned_now(store_case: StoreCase, lease: Lease, key: str) -> Ownership:
    """Take the key from its owner or receiver."""
    resource = await store_case.resource(key)
    if resource.handed_to is not None:
        await store_case.store.forget([key])
        await store_case.store.declare([key])
    return await store_case.own(lease, key, force=True)


class BreakContract(ContractBase):
    """For operators, and for holders that do not answer."""

    @pytest.mark.spec("L5")
    async def test_break_at_once(self, scene: StoreCase) -> None:
        """The key is free, the token dead, and only this key of the holder is touched."""
        owner, ownership = await scene.owned()
        (other,) = await scene.declared("other")
        await scene.own(owner, other)
        version = (await scene.store.renew(owner)).version
        broken = await _break(scene, ownership.key, 1, 0)
        assert broken is not None
        assert broken.state in {State.AVAILABLE, State.BROKEN}
        assert await scene.write_checkpoint(ownership, 1) == "fenced"
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [(term.key, term.reason) for term in ended] == [(ownership.key, EndReason.BROKEN)]
        assert (await scene.own(await scene.member("next"), ownership.key)).epoch == 2
        assert (await scene.resource(other)).holder == owner.holder

    @pytest.mark.spec("L5", "L1")
    async def test_break_after_a_while(self, scene: StoreCase) -> None:
        """Until then the owner keeps it, and no other holder gets it; then it is over."""
        owner, ownership = await scene.owned()
        rival = await scene.member("rival")
        broken = await _break(scene, ownership.key, 1, 2)
        assert broken is not None
        assert broken.state is State.BREAKING
        assert 0 < (broken.breaking_s or 0) <= 2 * scene.harness.unit_s
        assert await scene.write_checkpoint(ownership, 1) is None
        assert await scene.claim(rival, ownership.key) == []
        await scene.store.renew(owner)
        await scene.wait(2.1)
        assert (await scene.resource(ownership.key)).state is State.BROKEN
        assert await scene.write_checkpoint(ownership, 2) == "fenced"
        assert (await scene.own(rival, ownership.key)).epoch == 2
        assert await scene.reasons(ownership.key) == [EndReason.BROKEN, None]

    async def test_breaking_keys_may_still_be_given_back(self, scene: StoreCase) -> None:
        """A holder that learns of it ends gracefully."""
        _, ownership = await scene.owned()
        await _break(scene, ownership.key, 1, 100)
        assert list(await scene.store.release([ownership])) == [ownership.key]
        resource = await scene.resource(ownership.key)
        assert (resource.state, resource.breaking_s) == (State.AVAILABLE, None)
        assert await scene.reasons(ownership.key) == [EndReason.RELEASED]

    @pytest.mark.spec("L5")
    async def test_a_second_break_can_only_shorten(self, scene: StoreCase) -> None:
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
    async def test_a_break_lasts_no_longer_than_the_lease(self, scene: StoreCase) -> None:
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

    async def test_watchers_learn_of_a_break_that_fell_due(self, scene: StoreCase) -> None:
        """At the next renewal of any of them."""
        owner, ownership = await scene.owned()
        watcher = await scene.member("watcher")
        await _break(scene, ownership.key, 1, 1)
        version = (await scene.store.renew(watcher)).version
        await scene.wait()
        reported = (await scene.store.renew(watcher, since=version)).resources
        assert [(each.key, each.state, each.holder) for each in reported] == [
            (ownership.key, State.AVAILABLE, None)
        ]
        ended = (await scene.store.renew(owner, since=version)).ended
        assert [term.reason for term in ended] == [EndReason.BROKEN]

    @pytest.mark.spec("L5")
    async def test_break_names_the_epoch_it_means(self, scene: StoreCase) -> None:
        """Another epoch, or a key without an owner: None, and nothing changes."""
        _, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        before = await scene.snapshot()
        for key, epoch in ((ownership.key, 0), (ownership.key, 2), (free, 0), (free, 1)):
            for units in (0, 10):
                assert await _break(scene, key, epoch, units) is None
        assert_unchanged(before, await scene.snapshot())

    async def test_break_of_an_unknown_key(self, scene: StoreCase) -> None:
        """Never declared, or forgotten: a mistake of the caller, and said so."""
        (key,) = await scene.declared("k")
        await scene.store.forget([key])
        for unknown in (key, scene.key("unknown")):
            with pytest.raises(UnknownResource):
                await _break(scene, unknown, 0, 0)

    async def test_break_again_changes_nothing(self, scene: StoreCase) -> None:
        """Neither immediately nor after a while; the time does not begin again."""
        _, now = await scene.owned("now")
        _, later = await scene.owned("later")
        await _break(scene, now.key, 1, 0)
        await _break(scene, later.key, 1, 2)
        before = (await scene.snapshot()).plain("")
        await scene.wait(1)
        await _break(scene, now.key, 1, 0)
        await _break(scene, later.key, 1, 2)
        assert (await scene.snapshot()).plain("") == before
        await scene.wait(1.1)
        assert (await scene.resource(later.key)).state is State.BROKEN

    async def test_force_takes_a_breaking_key(self, scene: StoreCase) -> None:
        """The steal does not wait."""
        _, ownership = await scene.owned()
        await _break(scene, ownership.key, 1, 100)
        thief = await scene.member("thief")
        assert await scene.claim(thief, ownership.key) == []
        assert (await scene.own(thief, ownership.key, force=True)).epoch == 2
        assert (await scene.resource(ownership.key)).state is State.LEASED
        assert await scene.reasons(ownership.key) == [EndReason.STOLEN, None]


async def _break(store_case: StoreCase, key: str, epoch: int, units: float) -> Resource | None:
    return await store_case.store.break_(key, epoch=epoch, after=store_case.units(units))


class LeaseContract(ContractBase):
    """Which holders count as alive, and until when."""

    @pytest.mark.spec("L2")
    async def test_grant_gives_what_was_asked_for(self, scene: StoreCase) -> None:
        """The lease has the caller's values, and the holder is a member immediately."""
        lease = await scene.member("a", units=3)
        assert lease.group == scene.group
        assert lease.duration_s == pytest.approx(3 * scene.harness.unit_s)
        assert lease.token == f"token of {lease.holder}"
        record = (await scene.store.members(scene.group))[lease.holder]
        assert record.alive
        assert record.group == scene.group
        assert 0 < record.remaining_s <= lease.duration_s

    async def test_grant_again_is_the_same_grant(self, scene: StoreCase) -> None:
        """The same holder with the same token is the same incarnation."""
        lease = await scene.member("a")
        before = await scene.snapshot()
        again = await _grant_again(scene, lease, token=lease.token)
        assert again == lease
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("L2", "L4")
    async def test_grant_with_another_token_is_refused(self, scene: StoreCase) -> None:
        """A holder id in use belongs to the process that has its token."""
        lease = await scene.member("a")
        before = await scene.snapshot()
        with pytest.raises(LeaseLost):
            await _grant_again(scene, lease, token=GUESS)
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("L4")
    async def test_an_ended_holder_does_not_come_back(self, scene: StoreCase) -> None:
        """A new incarnation needs a new holder id, whichever way the old one ended."""
        gone, late = await scene.member("gone"), await scene.member("late", units=1)
        await scene.store.revoke(gone)
        await scene.wait()
        for lease in (gone, late):
            for token in (lease.token, "a new one"):
                with pytest.raises(LeaseLost):
                    await _grant_again(scene, lease, token=token)
        assert await scene.store.members(scene.group) == {}

    @pytest.mark.spec("L4")
    async def test_renewal_counts_from_now(self, scene: StoreCase) -> None:
        """Not from the old end: three units, renewed after two, last until five and no longer."""
        lease = await scene.member("a", units=3)
        await scene.wait(2)
        await scene.store.renew(lease)
        remaining_s = (await scene.store.members(scene.group))[lease.holder].remaining_s
        assert remaining_s <= 3 * scene.harness.unit_s
        await scene.wait(2)
        assert lease.holder in await scene.store.members(scene.group)
        await scene.wait(1.1)
        assert lease.holder not in await scene.store.members(scene.group)

    @pytest.mark.spec("L4")
    async def test_renewal_by_a_stranger_is_refused(self, scene: StoreCase) -> None:
        """Neither a wrong token nor an unknown holder is extended."""
        lease = await scene.member("a", units=1)
        for stranger in (replace(lease, token=GUESS), replace(lease, holder="nobody at all")):
            with pytest.raises(LeaseLost):
                await scene.store.renew(stranger)
        await scene.wait()
        assert await lost(scene, lease) == "expired"

    @pytest.mark.spec("L4")
    async def test_renewal_after_the_loss_says_why(self, scene: StoreCase) -> None:
        """The reason is that of the end, and asking again gives it again."""
        gone, late = await scene.member("gone"), await scene.member("late", units=1)
        await scene.store.revoke(gone)
        await scene.wait()
        for _ in range(2):
            assert await lost(scene, gone) == EndReason.RELEASED.value
            assert await lost(scene, late) == EndReason.EXPIRED.value

    @pytest.mark.spec("B1")
    async def test_one_renewal_covers_all_that_is_owned(self, scene: StoreCase) -> None:
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

    async def test_renewal_replaces_what_others_know(self, scene: StoreCase) -> None:
        """``info`` is taken over whole; without it the old one stays."""
        first = MemberInfo(host="h", pid=7, weight=2.5, most=3, draining=False, loads={"k": 1.25})
        failing = {"k": "at 901, attempt 3"}
        second = MemberInfo(host="hé 🚀", pid=8, weight=0.1, draining=True, failing=failing)
        lease = await scene.member("a", info=first)
        seen = [(await scene.store.members(scene.group))[lease.holder].info]
        await scene.store.renew(lease)
        seen.append((await scene.store.members(scene.group))[lease.holder].info)
        await scene.store.renew(lease, info=second)
        seen.append((await scene.store.members(scene.group))[lease.holder].info)
        assert seen == [first, first, second]

    @pytest.mark.spec("L5")
    async def test_revoke_frees_everything_at_once(self, scene: StoreCase) -> None:
        """Keys are available, the member is gone, and the history says released."""
        keys = await scene.declared("x", "y")
        lease, other = await scene.member("a"), await scene.member("b")
        await scene.claim(lease, *keys)
        await scene.store.revoke(lease)
        assert set(await scene.store.members(scene.group)) == {other.holder}
        for key in keys:
            assert (await scene.resource(key)).state is State.AVAILABLE
            assert await scene.reasons(key) == [EndReason.RELEASED]
        assert len(await scene.claim(other, *keys)) == 2

    async def test_revoke_again_changes_nothing(self, scene: StoreCase) -> None:
        """Ending an ended lease is no error, and does not touch the next owner."""
        lease, ownership = await scene.owned()
        other = await scene.member("b")
        await scene.store.revoke(lease)
        await scene.own(other, ownership.key)
        before = await scene.snapshot()
        await scene.store.revoke(lease)
        assert_unchanged(before, await scene.snapshot())

    async def test_revoke_needs_the_token(self, scene: StoreCase) -> None:
        """A guess ends nothing, and neither does an unknown name."""
        lease, _ = await scene.owned()
        before = await scene.snapshot()
        await scene.store.revoke(replace(lease, token=GUESS))
        await scene.store.revoke(replace(lease, holder="nobody at all"))
        assert_unchanged(before, await scene.snapshot())

    @pytest.mark.spec("B10")
    async def test_revoke_after_the_end_is_still_an_expiry(self, scene: StoreCase) -> None:
        """Time ended the term; who comes too late to end it does not change the reason."""
        lease, ownership = await scene.owned(units=1)
        await scene.wait()
        await scene.store.revoke(lease)
        assert await scene.reasons(ownership.key) == [EndReason.EXPIRED]
        assert await lost(scene, lease) == EndReason.EXPIRED.value

    @pytest.mark.spec("L1", "L4")
    async def test_no_instant_belongs_to_two(self, scene: StoreCase) -> None:
        """Just before its end a lease is whole; from the very moment of its end it is over.

        Seen from outside: it cannot end before (sent + duration), and has ended at
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
        assert lease.holder not in await scene.store.members(scene.group)
        assert (await scene.own(rival, key)).epoch == 2
        assert await lost(scene, lease) == EndReason.EXPIRED.value

    @pytest.mark.spec("L4")
    async def test_the_end_is_inclusive_for_every_call(self, scene: StoreCase) -> None:
        """At the very moment of the end each call, made first, finds the lease over."""
        leases, owned = [], []
        for name in ("renewing", "claiming", "writing", "handing over"):
            (key,) = await scene.declared(name)
            leases.append(await scene.member(name, units=1))
            owned.append(await scene.own(leases[-1], key))
        await scene.wait(1)
        assert await scene.write_checkpoint(owned[2], 1) == "fenced"
        assert await scene.hand_over(owned[3], leases[2]) == []
        with pytest.raises(LeaseLost):
            await scene.store.claim(leases[1], [])
        assert await lost(scene, leases[0]) == EndReason.EXPIRED.value

    @pytest.mark.spec("L6")
    async def test_the_whole_range_of_durations_is_granted(self, scene: StoreCase) -> None:
        """From the shortest to the longest; both ends included."""
        harness = scene.harness
        for name, seconds in (("short", harness.shortest_s), ("long", harness.longest_s)):
            lease = await scene.member(name, units=seconds / scene.harness.unit_s)
            assert lease.duration_s == pytest.approx(seconds)

    @pytest.mark.spec("L2")
    async def test_tokens_are_shown_to_nobody(self, scene: StoreCase) -> None:
        """A reader of a token could act with it: no answer has one."""
        lease, ownership = await scene.owned()
        await scene.write_checkpoint(ownership, 1)
        changes = await scene.store.renew(await scene.member("b"), since=0)
        snapshot = await scene.snapshot()
        assert lease.holder in repr(snapshot)
        assert lease.token not in repr((snapshot, changes, lease, ownership))

    @pytest.mark.spec("L2")
    async def test_tokens_are_not_stored(self, scene: StoreCase) -> None:
        """A reader of what the store keeps could act with a token: it has only digests."""
        lease, ownership = await scene.owned()
        heir = await scene.member("heir")
        await scene.store.renew(lease, info=MemberInfo(host="renewed"))
        await scene.write_checkpoint(ownership, 1)
        await scene.annotate(ownership, "a note")
        assert await scene.hand_over(ownership, heir)
        assert await scene.claim(heir, ownership.key)
        stored = scene.harness.stored()
        if stored is None:
            pytest.skip("this harness does not show what the store keeps")
        for each in (lease, heir):
            assert each.holder.encode() in stored
            assert each.token.encode() not in stored

    async def test_closing_ends_no_lease(self, scene: StoreCase) -> None:
        """Another connection that comes and goes leaves everything as it is."""
        lease, _ = await scene.owned()
        before = await scene.snapshot()
        async with scene.harness.open() as second:
            await second.renew(lease)
        assert_unchanged(before, await scene.snapshot())
        assert await lost(scene, lease) is None

    async def test_url_has_no_secrets(self, scene: StoreCase) -> None:
        """What is shown to people names the kind of store."""
        assert "://" in scene.store.url
        assert "password" not in scene.store.url


async def _grant_again(store_case: StoreCase, lease: Lease, *, token: str) -> Lease:
    return await store_case.store.grant(
        holder=lease.holder,
        token=token,
        group=lease.group,
        duration=min(timedelta(seconds=lease.duration_s), store_case.lasting(LONG)),
        info=MemberInfo(host="gone" if token != lease.token else lease.holder[0]),
    )
