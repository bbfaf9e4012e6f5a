"""Watching: what a renewal returns, so that a watcher always knows the state of the group.

Also a group with a random history, from one seed: members join, claim, hand over, steal, break and
leave.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from leasehold.errors import LeaseLost, StoreUnavailable, UnknownResource
from leasehold.lease.group_state import GroupState
from leasehold.model import Changes, EndReason, KeyClaim, MemberInfo, Ownership, Position, State
from leasehold.testing.contract.store_case import ContractBase, StoreCase
from leasehold.testing.faults import FaultyStore, Lost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.model import Lease, MemberRecord, Resource
    from leasehold.ports import Store

_KEYS = 5
_MEMBERS = 4
# How often each step is taken, relative to the others.
_WEIGHTS = {
    "join": 3,
    "leave": 1,
    "renew": 3,
    "claim": 6,
    "steal": 2,
    "release": 3,
    "hand_over": 4,
    "pass_on": 3,
    "ask": 2,
    "break_": 3,
    "declare": 1,
    "forget": 1,
    "checkpoint": 2,
    "annotate": 2,
    "request_hand_over": 2,
    "request_leave": 1,
    "reset": 1,
    "wait": 3,
}


@dataclass(slots=True)
class RandomGroup:
    """A group to which random steps happen: many are refused, on purpose."""

    store_case: StoreCase
    rng: Random
    keys: list[str]
    leases: list[Lease] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)

    @classmethod
    async def begun(cls, store_case: StoreCase, rng: Random) -> RandomGroup:
        """Declare some keys, and grant a first lease."""
        keys = await store_case.declared(*map(str, range(_KEYS)))
        random_group = cls(store_case, rng, keys)
        await random_group._join()
        return random_group

    async def step(self) -> None:
        """Take one step, drawn from all."""
        name = self.rng.choices([*_WEIGHTS], weights=[*_WEIGHTS.values()])[0]
        with suppress(LeaseLost, UnknownResource):
            await getattr(self, f"_{name}")()

    async def _join(self) -> None:
        units = self.rng.choice([1.0, 2.0, 50.0])
        self.leases = self.leases[-_MEMBERS + 1 :]
        self.leases.append(await self.store_case.member("m", units=units))

    async def _leave(self) -> None:
        await self.store_case.store.revoke(self._some_lease())

    async def _renew(self) -> None:
        info = MemberInfo(host="m", draining=True) if self.rng.random() < 0.3 else None
        await self.store_case.store.renew(self._some_lease(), info=info)

    async def _claim(self, *, force: bool = False) -> None:
        wanted = [
            KeyClaim(key=each.key, seen_epoch=each.epoch, note=self.rng.choice(["", "begun"]))
            for each in await self._some_keys()
        ]
        taken = await self.store_case.store.claim(self._some_lease(), wanted, force=force)
        self.ownerships = [*self.ownerships, *taken][-2 * _KEYS :]

    async def _steal(self) -> None:
        await self._claim(force=True)

    async def _release(self) -> None:
        ended = self._some_ownerships()
        notes = {each.key: "done" for each in ended if self.rng.random() < 0.5}
        await self.store_case.store.release(ended, notes=notes)

    async def _hand_over(self) -> None:
        units = self.rng.choice([0.0, 1.0, 50.0])
        for ownership in self._some_ownerships():
            await self.store_case.hand_over(ownership, self._some_lease(), units=units)

    async def _pass_on(self) -> None:
        tokens = {lease.holder: lease.token for lease in self.leases}
        for each in await self._some_keys(_KEYS):
            if each.handed_to in tokens:
                holder, token = each.handed_to, tokens[each.handed_to]
                kept = Ownership(key=each.key, epoch=each.epoch, holder=holder, token=token)
                await self.store_case.hand_over(
                    kept, self._some_lease(), units=self.rng.choice([1, 50])
                )

    async def _ask(self) -> None:
        for each in await self._some_keys():
            wanted = KeyClaim(key=each.key, seen_epoch=each.epoch)
            await self.store_case.store.ask(self._some_lease(), wanted)

    async def _break_(self) -> None:
        after = self.store_case.units(self.rng.choice([0.0, 1.0, 50.0]))
        for each in await self._some_keys():
            await self.store_case.store.break_(each.key, epoch=each.epoch, after=after)

    async def _declare(self) -> None:
        await self.store_case.store.declare(self.keys)

    async def _forget(self) -> None:
        await self.store_case.store.forget([self.rng.choice(self.keys)])

    async def _checkpoint(self) -> None:
        for ownership in self._some_ownerships():
            await self.store_case.write_checkpoint(ownership, self.rng.randrange(10))

    async def _annotate(self) -> None:
        for ownership in self._some_ownerships():
            await self.store_case.annotate(ownership, f"at {self.rng.randrange(10)}")

    async def _request_hand_over(self) -> None:
        for each in await self._some_keys():
            to = self._some_lease().holder
            await self.store_case.store.request_hand_over(each.key, epoch=each.epoch, to=to)

    async def _request_leave(self) -> None:
        await self.store_case.store.request_leave(self._some_lease().holder)

    async def _reset(self) -> None:
        position = self.rng.choice([None, Position(sequence_number=self.rng.randrange(10))])
        await self.store_case.store.reset({each.key: position for each in await self._some_keys()})

    async def _wait(self) -> None:
        await self.store_case.wait(self.rng.choice([0.1, 0.5]))

    def _some_lease(self) -> Lease:
        return self.rng.choice(self.leases)

    async def _some_keys(self, most: int = 2) -> list[Resource]:
        found = list((await self.store_case.store.resources(self.store_case.group)).values())
        return self.rng.sample(found, min(len(found), self.rng.randint(1, most)))

    def _some_ownerships(self) -> list[Ownership]:
        return self.rng.sample(self.ownerships, min(len(self.ownerships), 2))


_STEPS = 60


class WatchContract(ContractBase):
    """``renew`` as the only way to learn."""

    async def test_from_nothing_it_tells_everything(self, scene: StoreCase) -> None:
        """All keys, owned or not, and all members, owners or not."""
        owner, ownership = await scene.owned()
        (free,) = await scene.declared("free")
        watcher = await scene.member("watcher")
        changes = await scene.store.renew(watcher)
        assert {each.key: each.holder for each in changes.resources} == {
            ownership.key: owner.holder,
            free: None,
        }
        assert {each.holder for each in changes.members} == {owner.holder, watcher.holder}
        assert all(each.alive for each in changes.members)

    @pytest.mark.spec("B1")
    async def test_a_quiet_group_has_nothing_to_tell(self, scene: StoreCase) -> None:
        """However often one asks, and though everybody renews."""
        owner, _ = await scene.owned()
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        for _ in range(3):
            await scene.store.renew(owner)
            changes = await scene.store.renew(watcher, since=version)
            assert _nothing(changes)
            version = changes.version
        await scene.store.renew(watcher, since=version, info=MemberInfo(host="watcher"))
        assert _nothing(await scene.store.renew(watcher, since=version))

    async def test_refusals_wake_nobody(self, scene: StoreCase) -> None:
        """What changes nothing is not reported."""
        _, ownership = await scene.owned()
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        wrong = replace(ownership, epoch=7)
        assert await scene.claim(watcher, ownership.key) == []
        assert list(await scene.store.release([wrong])) == []
        assert await scene.hand_over(wrong, watcher) == []
        await scene.store.break_(ownership.key, epoch=7, after=scene.units(1))
        await scene.store.declare([ownership.key])
        assert _nothing(await scene.store.renew(watcher, since=version))

    async def test_only_what_is_newer_than_since(self, scene: StoreCase) -> None:
        """The same ``since`` gets the same news again, until the watcher moves on."""
        keys = await scene.declared("x", "y")
        watcher, owner = await scene.member("watcher"), await scene.member("owner")
        version = (await scene.store.renew(watcher)).version
        await scene.own(owner, keys[0])
        changes = await scene.store.renew(watcher, since=version)
        assert [each.key for each in changes.resources] == [keys[0]]
        assert changes.version > version
        again = await scene.store.renew(watcher, since=version)
        assert [each.key for each in again.resources] == [keys[0]]
        await scene.own(owner, keys[1])
        changes = await scene.store.renew(watcher, since=changes.version)
        assert [each.key for each in changes.resources] == [keys[1]]

    async def test_versions_are_newer_than_what_was_known(self, scene: StoreCase) -> None:
        """Each change of a key or a member has a higher version than all before it."""
        watcher, (key,) = await scene.member("watcher"), await scene.declared("k")
        seen = [(await scene.store.renew(watcher)).version]
        for _ in range(3):
            ownership = await scene.own(watcher, key)
            seen.append((await scene.resource(key)).version)
            await scene.store.release([ownership])
            seen.append((await scene.resource(key)).version)
        assert seen == sorted(set(seen))
        assert (await scene.store.renew(watcher)).version >= seen[-1]

    async def test_a_since_from_the_future_gets_nothing(self, scene: StoreCase) -> None:
        """It asks for what has not happened."""
        await scene.owned()
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        assert _nothing(await scene.store.renew(watcher, since=version + 10**6))

    async def test_members_come_and_go(self, scene: StoreCase) -> None:
        """With or without keys; and their info is passed on."""
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        other = await scene.member("other")
        changes = await scene.store.renew(watcher, since=version)
        assert [(each.holder, each.alive) for each in changes.members] == [(other.holder, True)]
        await scene.store.renew(other, info=MemberInfo(host="other", draining=True))
        changes = await scene.store.renew(watcher, since=changes.version)
        assert [each.info.draining for each in changes.members] == [True]
        await scene.store.revoke(other)
        changes = await scene.store.renew(watcher, since=changes.version)
        assert [(each.holder, each.alive) for each in changes.members] == [(other.holder, False)]

    @pytest.mark.spec("P3")
    async def test_the_next_renewal_of_anybody_ends_the_expired(self, scene: StoreCase) -> None:
        """The member is reported dead and its keys free, to every watcher."""
        watchers = [await scene.member(name) for name in ("first", "second")]
        dying, ownership = await scene.owned(units=1)
        version = (await scene.store.renew(watchers[0])).version
        await scene.wait()
        for watcher in watchers:
            changes = await scene.store.renew(watcher, since=version)
            assert [(each.holder, each.alive) for each in changes.members] == [
                (dying.holder, False)
            ]
            assert [(each.key, each.state, each.holder) for each in changes.resources] == [
                (ownership.key, State.AVAILABLE, None)
            ]
        assert await scene.reasons(ownership.key) == [EndReason.EXPIRED]

    async def test_forgotten_keys_are_told_as_such(self, scene: StoreCase) -> None:
        """A watcher has to remove them from its view."""
        (key,) = await scene.declared("k")
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        await scene.store.forget([key])
        changes = await scene.store.renew(watcher, since=version)
        assert [(each.key, each.forgotten) for each in changes.resources] == [(key, True)]
        await scene.store.declare([key])
        changes = await scene.store.renew(watcher, since=changes.version)
        assert [(each.key, each.forgotten) for each in changes.resources] == [(key, False)]

    async def test_own_ends_are_told_until_they_are_heard(self, scene: StoreCase) -> None:
        """With the reason; again for the same ``since``, and no more after it."""
        owner, ownership = await scene.owned()
        version = (await scene.store.renew(owner)).version
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(0))
        changes = await scene.store.renew(owner, since=version)
        assert [(term.epoch, term.reason) for term in changes.ended] == [(1, EndReason.BROKEN)]
        assert (await scene.store.renew(owner, since=version)).ended == changes.ended
        assert (await scene.store.renew(owner, since=changes.version)).ended == ()

    async def test_groups_do_not_hear_each_other(self, scene: StoreCase) -> None:
        """What happens elsewhere is no news here."""
        twin = scene.twin()
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        _, ownership = await twin.owned()
        await twin.store.release([ownership])
        assert _nothing(await scene.store.renew(watcher, since=version))
        assert not {*await scene.store.members(scene.group)} & {
            *await scene.store.members(twin.group)
        }
        assert not await scene.store.resources(scene.group)

    async def test_a_holder_of_no_group_hears_of_its_own_keys(self, scene: StoreCase) -> None:
        """It watches no member, is seen by none, and still learns what it lost."""
        (key,) = await scene.declared("k")
        alone = await scene.member("alone", group="")
        version = (await scene.store.renew(alone)).version
        ownership = await scene.own(alone, key)
        changes = await scene.store.renew(alone, since=version)
        assert [each.key for each in changes.resources] == [key]
        asker = await scene.member("asker")
        await scene.store.ask(asker, await scene.wanted(key))
        changes = await scene.store.renew(alone, since=changes.version)
        assert [each.asked_by for each in changes.resources] == [asker.holder]
        await scene.store.break_(key, epoch=ownership.epoch, after=scene.units(0))
        changes = await scene.store.renew(alone, since=changes.version)
        assert [term.reason for term in changes.ended] == [EndReason.BROKEN]
        assert alone.holder not in await scene.store.members(scene.group)

    async def test_keys_of_an_outsider_that_ran_out_are_told(self, scene: StoreCase) -> None:
        """Its group is another or none: the key is of this one, and no other member would check."""
        keys = await scene.declared("x", "y")
        watcher = await scene.member("watcher")
        for key, group in zip(keys, ("", scene.group + "2"), strict=True):
            await scene.own(await scene.member("outsider", units=1, group=group), key)
        version = (await scene.store.renew(watcher)).version
        await scene.wait()
        changes = await scene.store.renew(watcher, since=version)
        assert {each.key: each.state for each in changes.resources} == dict.fromkeys(
            keys, State.AVAILABLE
        )

    @pytest.mark.spec("B1", "P3")
    @pytest.mark.parametrize("seed", range(6))
    async def test_who_replays_all_answers_knows_everything(
        self, scene: StoreCase, seed: int
    ) -> None:
        """After any life of the group, and whichever answers got lost on the way."""
        for number in range(scene.harness.lives):
            await _live_and_listen(scene.twin(), Random(100 * seed + number))

    async def test_no_change_is_missed_among_many_at_once(self, scene: StoreCase) -> None:
        """Despite concurrent writes: a version that was returned is never extended."""
        keys = await scene.declared(*map(str, range(4)))
        watcher, view = await scene.member("watcher"), GroupState()
        busy = len(keys)

        async def work(key: str) -> None:
            nonlocal busy
            async with scene.harness.open() as store:
                mine = StoreCase(store, scene.harness, scene.suffix)
                lease = await mine.member(f"worker {key[-1]} ")
                for _ in range(15):
                    await store.release([await mine.own(lease, key)])
                    await anyio.lowlevel.checkpoint()
                await mine.own(lease, key)
            busy -= 1

        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(work, key)
            while busy:
                await _listen(scene.store, watcher, view)
                await anyio.lowlevel.checkpoint()
        await _assert_knows(scene, watcher, view)


def _nothing(changes: Changes) -> bool:
    return (changes.resources, changes.members, changes.ended) == ((), (), ())


async def _live_and_listen(store_case: StoreCase, rng: Random) -> None:
    faulty = FaultyStore(store_case.store, lambda _: Lost.ANSWER if rng.random() < 0.3 else None)
    random_group, view, watcher = (
        await RandomGroup.begun(store_case, rng),
        GroupState(),
        await store_case.member("watcher"),
    )
    for _ in range(_STEPS):
        await random_group.step()
        if rng.random() < 0.5:
            await _listen(faulty.as_store, watcher, view)
    await _assert_knows(store_case, watcher, view)
    late = GroupState()
    await _assert_knows(store_case, watcher, late)


async def _listen(store: Store, watcher: Lease, view: GroupState) -> None:
    try:
        view.apply(await store.renew(watcher, since=view.version))
    except StoreUnavailable:
        return


async def _assert_knows(store_case: StoreCase, watcher: Lease, view: GroupState) -> None:
    reported, shown = await _told_and_shown(store_case, watcher, view)
    # By real time something may run out between the two: then the next answer reports it.
    for _ in range(0 if store_case.harness.exact else 5):
        if reported != shown:
            reported, shown = await _told_and_shown(store_case, watcher, view)
    assert reported == shown


async def _told_and_shown(
    store_case: StoreCase, watcher: Lease, view: GroupState
) -> tuple[object, object]:
    """What the watcher knows after one more answer, and what anybody can read."""
    await _listen(store_case.store, watcher, view)
    resources = await store_case.store.resources(store_case.group)
    members = await store_case.store.members(store_case.group)
    reported = _bare(view.resources.values(), view.members.values())
    return reported, _bare(resources.values(), members.values())


def _bare(
    resources: Iterable[Resource], members: Iterable[MemberRecord]
) -> tuple[dict[str, Resource], dict[str, MemberRecord]]:
    """Without the times that run by themselves."""
    return (
        {each.key: replace(each, breaking_s=None) for each in resources},
        {each.holder: replace(each, remaining_s=0.0) for each in members},
    )
