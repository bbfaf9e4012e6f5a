"""``next_end_s``: a renewal says when time will next end something, so that nobody looks too late.

Where the store has a clock of its own the value may be a little less than what was set a moment
ago, and never more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.model import MemberInfo
from leasehold.testing.contract.scene import LONG, ContractBase, Scene

if TYPE_CHECKING:
    from leasehold.model import Lease

# In units: ends so far apart that they can not be mixed up while a test runs.
_SOON, _LATER = 20.0, 100.0


async def _units_left(scene: Scene, lease: Lease, since: int = 0) -> float | None:
    left_s = (await scene.store.renew(lease, since=since)).next_end_s
    return None if left_s is None else left_s / scene.harness.unit_s


def _about(scene: Scene, units: float | None, expected: float) -> bool:
    """Whether it is the expected end; by a real clock a little of it has passed since."""
    if units is None:
        return False
    if not scene.harness.tells_ends:
        return 0.0 < units <= scene.capped(expected) + _late(scene)
    slack = 1e-6 if scene.harness.exact else 5.0
    return expected - slack <= units <= expected + 1e-6


def _late(scene: Scene) -> float:
    """By how many units it may come later than what was set: a lease may have begun just now."""
    return scene.harness.longest_s / scene.harness.unit_s


class NextEndContract(ContractBase):
    """What counts, what does not, and from when."""

    async def test_nothing_ends_for_a_member_that_is_alone(self, scene: Scene) -> None:
        """Its own lease and its own keys are no reason to look."""
        owner, _ = await scene.owned(units=_SOON)
        assert await _units_left(scene, owner) is None

    @pytest.mark.spec("P3")
    async def test_the_first_end_of_another_member_counts(self, scene: Scene) -> None:
        """Owner or not; the caller's own, which is shorter, does not."""
        watcher = await scene.member("watcher", units=10.0)
        late = await scene.member("late", units=LONG)
        assert _about(scene, await _units_left(scene, watcher), LONG)
        await scene.member("soon", units=_SOON)
        assert _about(scene, await _units_left(scene, watcher), _SOON)
        assert _about(scene, await _units_left(scene, late), 10.0)

    async def test_a_quiet_answer_tells_it_as_well(self, scene: Scene) -> None:
        """Nothing has changed, and time goes on."""
        watcher = await scene.member("watcher")
        await scene.member("other", units=_SOON)
        version = (await scene.store.renew(watcher)).version
        await scene.wait(2.0)
        assert _about(scene, await _units_left(scene, watcher, since=version), _SOON - 2.0)

    async def test_a_renewal_puts_it_off(self, scene: Scene) -> None:
        """It is counted from the moment at which the other one renewed."""
        watcher, other = await scene.member("watcher"), await scene.member("other", units=_SOON)
        await scene.wait(2.0)
        before = await _units_left(scene, watcher)
        assert before is not None
        assert before <= _SOON - 2.0 + 1e-6
        await scene.store.renew(other)
        after = await _units_left(scene, watcher)
        assert after is not None
        assert after > before or not scene.harness.tells_ends

    async def test_what_has_ended_counts_no_more(self, scene: Scene) -> None:
        """By time, noted in the very same step, or by revocation."""
        watcher = await scene.member("watcher")
        await scene.member("dying", units=1)
        leaving = await scene.member("leaving", units=_SOON)
        await scene.wait()
        units = await _units_left(scene, watcher)
        assert units is not None
        assert units > 1.0
        await scene.store.revoke(leaving)
        assert await _units_left(scene, watcher) is None

    @pytest.mark.spec("P3")
    async def test_a_lease_ends_when_it_was_said(self, scene: Scene) -> None:
        """Who waits for just that long finds the member dead and its key free."""
        watcher = await scene.member("watcher")
        _, ownership = await scene.owned(units=1)
        version = (await scene.store.renew(watcher)).version
        left_s = (await scene.store.renew(watcher, since=version)).next_end_s
        assert left_s is not None
        await scene.harness.pass_time(left_s + (1e-6 if scene.harness.exact else 0.02))
        changes = await scene.store.renew(watcher, since=version)
        assert [(each.key, each.holder) for each in changes.resources] == [(ownership.key, None)]
        assert changes.next_end_s is None

    async def test_draining_and_dismissed_members_count(self, scene: Scene) -> None:
        """They may die before they have left."""
        watcher = await scene.member("watcher")
        leaving = await scene.member("leaving", units=_SOON, info=MemberInfo(draining=True))
        await scene.store.dismiss(leaving.holder)
        assert _about(scene, await _units_left(scene, watcher), _SOON)

    async def test_an_outsider_that_owns_a_key_of_the_group_counts(self, scene: Scene) -> None:
        """Nobody else would look; without such a key it is none of the group's business."""
        (key,) = await scene.declared("k")
        watcher = await scene.member("watcher")
        outsider = await scene.member("outsider", units=_SOON, group="")
        await scene.member("stranger", units=10.0, group=scene.group + "2")
        assert await _units_left(scene, watcher) is None
        await scene.own(outsider, key)
        assert _about(scene, await _units_left(scene, watcher), _SOON)
        assert await _units_left(scene, outsider) is None, "who has no group watches nobody"

    async def test_a_break_that_falls_due_counts(self, scene: Scene) -> None:
        """Also one of the caller's own keys; no more once it has ended the term."""
        owner, ownership = await scene.owned()
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(_SOON))
        assert _about(scene, await _units_left(scene, owner), _SOON)
        watcher = await scene.member("watcher")
        assert _about(scene, await _units_left(scene, watcher), _SOON)
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(0))
        assert _about(scene, await _units_left(scene, watcher), LONG)

    async def test_a_hand_over_counts_until_it_is_over(self, scene: Scene) -> None:
        """For its limit, or the end of its receiver; who claims the key ends that."""
        owner, ownership = await scene.owned()
        receiver = await scene.member("receiver", units=LONG)
        await scene.hand_over(ownership, receiver, units=_SOON)
        for lease in (owner, receiver):
            assert _about(scene, await _units_left(scene, lease), _SOON)
        await scene.own(receiver, ownership.key)
        assert _about(scene, await _units_left(scene, owner), LONG)

    async def test_the_receiver_of_a_kept_key_counts_wherever_it_is(self, scene: Scene) -> None:
        """Its key is free when it dies, and it need be no member of the group."""
        owner, ownership = await scene.owned()
        outsider = await scene.member("outsider", units=_SOON, group="")
        await scene.hand_over(ownership, outsider, units=_LATER)
        assert _about(scene, await _units_left(scene, owner), _SOON)

    async def test_what_a_former_hand_over_left_behind_does_not_count(self, scene: Scene) -> None:
        """The limit of a hand-over that was claimed is past; the break that came after is not."""
        owner, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver, units=10.0)
        taken = await scene.own(receiver, ownership.key)
        await scene.store.break_(taken.key, epoch=taken.epoch, after=scene.units(_LATER))
        assert _about(scene, await _units_left(scene, owner), _LATER)
