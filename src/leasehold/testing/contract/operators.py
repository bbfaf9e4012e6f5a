"""Operators: they see all groups, suggest who should have a key, and ask members to leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import anyio
import pytest

from leasehold.errors import InvalidName, UsageError
from leasehold.model import EndReason, HandOver, Lease, MemberInfo, Ownership, State
from leasehold.names import LONGEST_KEY, group_of, partition_key
from leasehold.testing.contract.bad_input import BAD_KEYS, BAD_NAMES, ODD_PARTS, WIDE
from leasehold.testing.contract.store_case import LONG, ContractBase, Scene, assert_unchanged

BAD_EPOCHS = (-1, 2**63, 1.0, "1", None, True)
_Receiver = Callable[[Scene, Lease], Awaitable[str]]


class GroupContract(ContractBase):
    """Which groups there are."""

    async def test_groups_are_those_with_keys(self, scene: Scene) -> None:
        """Each once, sorted, with or without members; a group of members alone is none."""
        other = scene.group + "2"
        await scene.declared("a", "b")
        await scene.declared("a", group=other)
        await scene.member("lonely", group=scene.group + "3")
        assert await _groups(scene) == [scene.group, other]
        found = list(await scene.store.groups())
        assert found == sorted(set(found))

    async def test_a_group_whose_keys_are_all_forgotten_is_gone(self, scene: Scene) -> None:
        """One key that is left keeps it, and one that comes back brings it back."""
        first, second = await scene.declared("a", "b")
        await scene.store.forget([first])
        assert await _groups(scene) == [scene.group]
        await scene.store.forget([second])
        assert await _groups(scene) == []
        await scene.store.declare([first])
        assert await _groups(scene) == [scene.group]

    async def test_asking_for_something_does_not_make_a_group(self, scene: Scene) -> None:
        """Reads leave no trace, and neither do refused writes."""
        lease, ownership = await scene.owned()
        unknown = f"{scene.group}9/k"
        await scene.store.resources(group_of(unknown))
        await scene.store.fenced_writes(group_of(unknown))
        await scene.mark(replace(ownership, key=unknown), 1)
        assert not await scene.store.suggest(unknown, epoch=0, to=lease.holder)
        assert await _groups(scene) == [scene.group]

    async def test_odd_groups_are_named_as_they_are(self, scene: Scene) -> None:
        """In all letters, also where a store has to keep them under a shorter name."""
        keys = [partition_key(f"{scene.suffix}{part}"[:64], "g", "0") for part in ODD_PARTS]
        keys.append(f"{scene.group}/{WIDE}"[: LONGEST_KEY - 2] + "/k")
        await scene.store.declare(keys)
        assert await _groups(scene) == sorted({group_of(key) for key in keys})


class SuggestContract(ContractBase):
    """A question that is put in the name of somebody else."""

    @pytest.mark.spec("B3")
    async def test_the_owner_finds_it_in_its_next_renewal(self, scene: Scene) -> None:
        """Exactly as after ``ask``; then it hands over, and the receiver has it."""
        owner, ownership = await scene.owned()
        to = await scene.member("to")
        version = (await scene.store.renew(owner)).version
        assert await scene.store.suggest(ownership.key, epoch=1, to=to.holder)
        changes = await scene.store.renew(owner, since=version)
        (told,) = changes.resources
        assert (told.key, told.epoch, told.holder) == (ownership.key, 1, owner.holder)
        assert told.asked_by == to.holder
        assert (changes.peers, changes.ended) == ((), ())
        await scene.hand_over(ownership, to)
        assert (await scene.own(to, ownership.key)).epoch == 2
        assert (await scene.resource(ownership.key)).asked_by is None

    async def test_it_is_the_same_question_as_that_of_the_receiver(self, scene: Scene) -> None:
        """Whoever of the two asks first; nobody is told twice."""
        owner, ownership = await scene.owned()
        to = await scene.member("to")
        assert await scene.store.suggest(ownership.key, epoch=1, to=to.holder)
        version = (await scene.store.renew(owner)).version
        assert await scene.store.ask(to, await scene.wanted(ownership.key))
        assert await scene.store.suggest(ownership.key, epoch=1, to=to.holder)
        assert (await scene.store.renew(owner, since=version)).resources == ()

    async def test_the_last_one_who_asks_counts(self, scene: Scene) -> None:
        """As with ``ask``: an operator may change its mind."""
        _, ownership = await scene.owned()
        for name in "ab":
            to = await scene.member(name)
            assert await scene.store.suggest(ownership.key, epoch=1, to=to.holder)
            assert (await scene.resource(ownership.key)).asked_by == to.holder

    async def test_it_ends_with_the_term(self, scene: Scene) -> None:
        """The next owner is not asked for what the last one was."""
        lease, ownership = await scene.owned()
        to = await scene.member("to")
        assert await scene.store.suggest(ownership.key, epoch=1, to=to.holder)
        await scene.store.release([ownership])
        assert (await scene.resource(ownership.key)).asked_by is None
        await scene.own(lease, ownership.key)
        assert (await scene.resource(ownership.key)).asked_by is None

    async def test_an_owner_from_outside_can_be_asked(self, scene: Scene) -> None:
        """The receiver has to be of the key's group; the owner need not be."""
        (key,) = await scene.declared("k")
        outsider, to = await scene.member("outsider", group=""), await scene.member("to")
        await scene.own(outsider, key)
        version = (await scene.store.renew(outsider)).version
        assert await scene.store.suggest(key, epoch=1, to=to.holder)
        (told,) = (await scene.store.renew(outsider, since=version)).resources
        assert told.asked_by == to.holder

    @pytest.mark.parametrize("epoch", [0, 1, 3, 2**63 - 1])
    async def test_it_names_the_epoch_it_means(self, scene: Scene, epoch: int) -> None:
        """An ownership that has moved on is not touched; nor is one that is to come."""
        lease, ownership = await scene.owned()
        to = await scene.member("to")
        await scene.store.release([ownership])
        await scene.own(lease, ownership.key)
        before = await scene.picture()
        assert not await scene.store.suggest(ownership.key, epoch=epoch, to=to.holder)
        assert_unchanged(before, await scene.picture())

    @pytest.mark.parametrize("why", ["free", "kept", "unknown", "forgotten", "expired", "broken"])
    async def test_what_nobody_owns_can_not_be_asked_for(self, scene: Scene, why: str) -> None:
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
        before = await scene.picture()
        assert not await scene.store.suggest(key, epoch=1, to=to.holder)
        assert_unchanged(before, await scene.picture())

    @pytest.mark.parametrize(
        "kind",
        ["owner", "unknown", "revoked", "expired", "draining", "dismissed", "stranger", "loner"],
    )
    async def test_who_can_not_receive_is_not_suggested(self, scene: Scene, kind: str) -> None:
        """A living member of the key's group, that means to stay, and is not the owner."""
        owner, ownership = await scene.owned()
        to = await _RECEIVERS[kind](scene, owner)
        before = await scene.picture()
        assert not await scene.store.suggest(ownership.key, epoch=1, to=to)
        assert_unchanged(before, await scene.picture())

    @pytest.mark.parametrize("bad", BAD_KEYS, ids=ascii)
    async def test_bad_keys_are_said(self, scene: Scene, bad: str) -> None:
        """Before anything is asked of the store."""
        with pytest.raises(InvalidName):
            await scene.store.suggest(bad, epoch=1, to="anybody")

    @pytest.mark.parametrize("bad", BAD_NAMES, ids=ascii)
    async def test_bad_receivers_are_said(self, scene: Scene, bad: str) -> None:
        """As holders are everywhere."""
        _, ownership = await scene.owned()
        with pytest.raises(InvalidName, match="holder"):
            await scene.store.suggest(ownership.key, epoch=1, to=bad)

    @pytest.mark.parametrize("bad", BAD_EPOCHS, ids=repr)
    async def test_bad_epochs_are_said(self, scene: Scene, bad: int) -> None:
        """And nothing has happened."""
        _, ownership = await scene.owned()
        to = await scene.member("to")
        with pytest.raises(UsageError, match="epoch"):
            await scene.store.suggest(ownership.key, epoch=bad, to=to.holder)
        assert (await scene.resource(ownership.key)).asked_by is None


class DismissContract(ContractBase):
    """A member that is asked to leave."""

    async def test_the_member_and_all_others_are_told(self, scene: Scene) -> None:
        """Once each, with a version that is new."""
        watcher = await scene.member("watcher")
        member, ownership = await scene.owned()
        version = (await scene.store.renew(watcher)).version
        assert await scene.store.dismiss(member.holder)
        for lease in (member, watcher):
            changes = await scene.store.renew(lease, since=version)
            (told,) = changes.peers
            assert (told.holder, told.dismissed, told.alive) == (member.holder, True, True)
            assert told.version > version
            assert (changes.resources, changes.ended) == ((), ())
            assert (await scene.store.renew(lease, since=changes.version)).peers == ()
        peers = await scene.store.peers(scene.group)
        assert {name: each.dismissed for name, each in peers.items()} == {
            watcher.holder: False,
            member.holder: True,
        }
        assert await scene.mark(ownership, 1) is None

    async def test_again_is_harmless_and_wakes_nobody(self, scene: Scene) -> None:
        """The answer is the same."""
        member, watcher = await scene.member("member"), await scene.member("watcher")
        assert await scene.store.dismiss(member.holder)
        version = (await scene.store.renew(watcher)).version
        before = await scene.picture()
        assert await scene.store.dismiss(member.holder)
        assert_unchanged(before, await scene.picture())
        assert (await scene.store.renew(watcher, since=version)).peers == ()

    async def test_it_takes_nothing_away(self, scene: Scene) -> None:
        """Nothing but the request is new: what it owns it owns, and it may claim and hand over."""
        member, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        to = await scene.member("to")
        assert await scene.store.dismiss(member.holder)
        assert (await scene.resource(ownership.key)).state is State.LEASED
        assert (await scene.own(member, free)).epoch == 1
        assert await scene.hand_over(ownership, to) == [ownership.key]
        await scene.store.revoke(member)
        assert await scene.reasons(free) == [EndReason.RELEASED]

    async def test_it_lasts_as_long_as_the_lease(self, scene: Scene) -> None:
        """Neither a renewal nor news of the member nor a repeated grant takes it back."""
        member = await scene.member("member")
        assert await scene.store.dismiss(member.holder)
        info = MemberInfo(host="elsewhere", draining=True)
        await scene.store.renew(member, info=info)
        await scene.store.grant(
            holder=member.holder,
            token=member.token,
            group=member.group,
            duration=timedelta(seconds=member.duration_s),
            info=MemberInfo(),
        )
        peer = (await scene.store.peers(scene.group))[member.holder]
        assert (peer.dismissed, peer.info) == (True, info)

    async def test_a_new_member_is_not_dismissed(self, scene: Scene) -> None:
        """The next incarnation is another holder."""
        member = await scene.member("member")
        assert await scene.store.dismiss(member.holder)
        await scene.store.revoke(member)
        anew = await scene.member("member")
        assert [each.dismissed for each in (await scene.store.peers(scene.group)).values()] == [
            False
        ]
        assert not (await scene.store.renew(anew)).peers[-1].dismissed

    @pytest.mark.parametrize("kind", ["unknown", "revoked", "expired", "loner"])
    async def test_who_is_no_living_member_can_not_be_asked(self, scene: Scene, kind: str) -> None:
        """A holder of no group would never hear of it."""
        lease, _ = await scene.owned()
        holder = await _RECEIVERS[kind](scene, lease)
        before = await scene.picture()
        assert not await scene.store.dismiss(holder)
        assert_unchanged(before, await scene.picture())

    @pytest.mark.parametrize("bad", BAD_NAMES, ids=ascii)
    async def test_bad_names_are_said(self, scene: Scene, bad: str) -> None:
        """As holders are everywhere."""
        with pytest.raises(InvalidName, match="holder"):
            await scene.store.dismiss(bad)

    async def test_a_peer_tells_how_long_its_lease_is(self, scene: Scene) -> None:
        """So that anybody can say when it renewed: its length less what remains."""
        member = await scene.member("member", units=10)
        await scene.wait(1)
        peer = (await scene.store.peers(scene.group))[member.holder]
        assert peer.duration_s == pytest.approx(scene.capped(10) * scene.harness.unit_s)
        renewed_ago_s = peer.duration_s - peer.remaining_s
        if scene.harness.exact and scene.harness.tells_ends:
            assert renewed_ago_s == pytest.approx(scene.harness.unit_s)
        (told,) = (await scene.store.renew(member)).peers
        assert told.duration_s == peer.duration_s

    async def test_operators_and_members_at_once(self, scene: Scene) -> None:
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
                    await store.suggest(keys[number % 3], epoch=epoch, to=to)
                await store.dismiss(leases[2].holder)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(operate)
            for lease in leases:
                tasks.start_soon(_serve, scene, lease)
        for key, resource in (await scene.store.resources(scene.group)).items():
            assert (resource.holder is None) != (resource.handed_to is None)
            terms = await scene.store.history(key, limit=100)
            assert [term.epoch for term in terms] == list(range(resource.epoch, 0, -1))
            assert {term.reason for term in terms[1:]} <= {EndReason.HANDED_OVER}
        assert (await scene.store.peers(scene.group))[leases[2].holder].dismissed


async def _serve(scene: Scene, lease: Lease) -> None:
    """Live as a member does: hand over what is asked for, and claim what is kept for it."""
    async with scene.harness.open() as store:
        mine = Scene(store, scene.harness, scene.suffix)
        for _ in range(12):
            for each in (await store.renew(lease)).resources:
                if each.holder == lease.holder and each.asked_by is not None:
                    owned = Ownership(
                        key=each.key, epoch=each.epoch, holder=lease.holder, token=lease.token
                    )
                    passed = [HandOver(ownership=owned, to=each.asked_by)]
                    await store.hand_over(passed, limit=scene.units(LONG))
                elif each.handed_to == lease.holder:
                    await mine.claim(lease, each.key)


async def _groups(scene: Scene) -> list[str]:
    """The groups of this scene alone: the store may have others."""
    return [group for group in await scene.store.groups() if scene.suffix in group]


async def _owner(_: Scene, owner: Lease) -> str:
    return owner.holder


async def _unknown(scene: Scene, _: Lease) -> str:
    return f"nobody-{scene.suffix}"


async def _revoked(scene: Scene, _: Lease) -> str:
    lease = await scene.member("gone")
    await scene.store.revoke(lease)
    return lease.holder


async def _expired(scene: Scene, _: Lease) -> str:
    lease = await scene.member("late", units=1)
    await scene.wait()
    return lease.holder


async def _draining(scene: Scene, _: Lease) -> str:
    return (await scene.member("tired", info=MemberInfo(draining=True))).holder


async def _dismissed(scene: Scene, _: Lease) -> str:
    lease = await scene.member("sent away")
    assert await scene.store.dismiss(lease.holder)
    return lease.holder


async def _stranger(scene: Scene, _: Lease) -> str:
    return (await scene.member("stranger", group=scene.group + "2")).holder


async def _loner(scene: Scene, _: Lease) -> str:
    return (await scene.member("loner", group="")).holder


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
