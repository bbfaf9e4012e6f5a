"""Faults that users of other systems met, by name: none of them may happen here.

A number alone is from that project's own issue list.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import EndReason, HandOver, KeyClaim, MemberInfo, Ownership, State
from leasehold.testing.contract.store_case import (
    GUESS,
    ContractBase,
    StoreCase,
    assert_unchanged,
    lost,
)
from leasehold.testing.faults import FaultyStore, Lost


class ShedLockContract(ContractBase):
    """The cases of ShedLock's own suite, in terms of a store."""

    @pytest.mark.spec("L1")
    async def test_shedlock_should_create_lock(self, scene: StoreCase) -> None:
        """shouldCreateLock: got, and seen as got; released, and seen as free."""
        _, ownership = await scene.owned()
        assert (await scene.resource(ownership.key)).state is State.LEASED
        await scene.store.release([ownership])
        assert (await scene.resource(ownership.key)).state is State.AVAILABLE

    async def test_shedlock_should_not_return_second_lock(self, scene: StoreCase) -> None:
        """shouldNotReturnSecondLock: skipped, not queued."""
        _, ownership = await scene.owned()
        assert await scene.claim(await scene.member("second"), ownership.key) == []

    async def test_shedlock_should_create_two_independent_locks(self, scene: StoreCase) -> None:
        """shouldCreateTwoIndependentLocks: releasing one leaves the other."""
        _, one = await scene.owned("one")
        _, two = await scene.owned("two")
        await scene.store.release([one])
        assert (await scene.resource(two.key)).state is State.LEASED

    async def test_shedlock_should_lock_twice_in_a_row(self, scene: StoreCase) -> None:
        """In the words of ShedLock: shouldLockTwiceInARow."""
        lease, ownership = await scene.owned()
        await scene.store.release([ownership])
        assert (await scene.own(lease, ownership.key)).epoch == 2

    async def test_shedlock_should_be_able_to_lock_right_after_unlock(
        self, scene: StoreCase
    ) -> None:
        """shouldBeAbleToLockRightAfterUnlock, ten times, by two in turn."""
        (key,) = await scene.declared("k")
        leases = [await scene.member("a"), await scene.member("b")]
        for n in range(10):
            ownership = await scene.own(leases[n % 2], key)
            assert await scene.claim(leases[1 - n % 2], key) == []
            await scene.store.release([ownership])

    @pytest.mark.spec("L4", "L5")
    async def test_shedlock_time_is_over(self, scene: StoreCase) -> None:
        """What has run out stays so.

        shouldTimeout, extendAfterExpirationShouldBeNoOp, unlockingAfterExpirationShouldBeNoOp,
        shouldNotBeAbleToExtendExpiredLock.
        """
        lease, ownership = await scene.owned(units=1)
        second = await scene.member("second")
        await scene.wait()
        newer = await scene.own(second, ownership.key)
        before = await scene.snapshot()
        assert await lost(scene, lease) == EndReason.EXPIRED.value
        assert list(await scene.store.release([ownership])) == [ownership.key]
        assert_unchanged(before, await scene.snapshot())
        assert await scene.write_checkpoint(newer, 1) is None

    async def test_shedlock_should_not_be_able_to_extend_unlocked_lock(
        self, scene: StoreCase
    ) -> None:
        """shouldNotBeAbleToExtendUnlockedLock: renewing does not bring a released key back."""
        lease, ownership = await scene.owned()
        await scene.store.release([ownership])
        await scene.store.renew(lease)
        assert (await scene.resource(ownership.key)).state is State.AVAILABLE

    async def test_shedlock_owner_is_more_than_a_host_name(self, scene: StoreCase) -> None:
        """A run that is over and a newer one on the same host do not unlock each other.

        ShedLock's SQL checks ``locked_by`` = host name alone. The same host and even the same
        lease: the epoch distinguishes the runs.
        """
        lease, first = await scene.owned()
        await scene.store.release([first])
        second = await scene.own(lease, first.key)
        await scene.store.release([first])
        assert (await scene.resource(first.key)).holder == lease.holder
        assert await scene.write_checkpoint(first, 1) == "fenced"
        assert await scene.write_checkpoint(second, 1) is None


class KinesisContract(ContractBase):
    """Kinesis Client Library and the clients of the DynamoDB lock table."""

    async def test_kcl_677_ambiguous_conditional_write(self, scene: StoreCase) -> None:
        """KCL #677: a write that took effect and was answered by an error lost the lease.

        Here the same call once more says what is true: it is ours.
        """
        (key,) = await scene.declared("k")
        lease, wanted = await scene.member("a"), [KeyClaim(key=key, seen_epoch=0)]
        faulty = FaultyStore(scene.store, lambda _: Lost.ANSWER).as_store
        with pytest.raises(StoreUnavailable):
            await faulty.claim(lease, wanted)
        with pytest.raises(StoreUnavailable):
            await faulty.renew(lease)
        (ownership,) = await scene.store.claim(lease, wanted)
        assert ownership.epoch == 1
        assert await lost(scene, lease) is None
        assert await scene.write_checkpoint(ownership, 1) is None

    async def test_kcl_1743_giver_stops_in_the_middle_of_a_hand_over(
        self, scene: StoreCase
    ) -> None:
        """KCL #1743: the giver ends after the hand-over and before the claim.

        The key was the receiver's from the hand-over on; the giver is no longer needed.
        """
        giver, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver)
        await scene.store.revoke(giver)
        assert (await scene.own(receiver, ownership.key)).epoch == 2

    async def test_kcl_1718_receiver_restarts_with_a_key_on_its_way(self, scene: StoreCase) -> None:
        """KCL #1718: its new incarnation is a new holder, and the key is free to it immediately."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        await scene.hand_over(ownership, receiver)
        await scene.store.revoke(receiver)
        assert (await scene.own(await scene.member("receiver"), ownership.key)).epoch == 2

    async def test_kcl_1765_hand_over_that_ran_out_is_free(self, scene: StoreCase) -> None:
        """KCL #1765: its time is over, so anybody may have it, the giver too."""
        giver, ownership = await scene.owned()
        await scene.hand_over(ownership, await scene.member("receiver"), units=1)
        await scene.wait()
        assert (await scene.own(giver, ownership.key)).epoch == 2

    async def test_kcl_461_row_removed_by_hand(self, scene: StoreCase) -> None:
        """KCL #461: no worker recovered a lease row that was deleted.

        Here a key is removed by ``forget``; declaring it again brings it back to every watcher,
        with its epoch, so that no older owner can write.
        """
        lease, ownership = await scene.owned()
        watcher = await scene.member("watcher")
        await scene.store.release([ownership])
        await scene.store.forget([ownership.key])
        version = (await scene.store.renew(watcher)).version
        await scene.store.declare([ownership.key])
        reported = (await scene.store.renew(watcher, since=version)).resources
        assert [(each.key, each.epoch) for each in reported] == [(ownership.key, 1)]
        assert (await scene.own(lease, ownership.key)).epoch == 2
        assert await scene.write_checkpoint(ownership, 1) == "fenced"

    async def test_dynamolock_280_expired_owner_writes(self, scene: StoreCase) -> None:
        """dynamolock#280: a lock was lost, and its holder continued to treat it as held.

        The store does not: neither a write nor a renewal nor a claim goes through.
        """
        lease, ownership = await scene.owned(units=1)
        await scene.wait()
        assert await scene.write_checkpoint(ownership, 1) == "fenced"
        with pytest.raises(LeaseLost):
            await scene.claim(lease, ownership.key)
        assert await lost(scene, lease) == EndReason.EXPIRED.value
        assert await scene.store.checkpoints(scene.group) == {}

    async def test_dynamodb_lock_client_116_renewal_in_flight(self, scene: StoreCase) -> None:
        """DynamoDB lock client #116: a heartbeat that overtakes the release brings it back.

        Here a renewal that arrives after the end is refused, however it was sent.
        """
        lease, ownership = await scene.owned()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lost, scene, lease)
            tasks.start_soon(scene.store.revoke, lease)
        before = await scene.snapshot()
        assert await lost(scene, lease) == EndReason.RELEASED.value
        assert_unchanged(before, await scene.snapshot())
        assert (await scene.resource(ownership.key)).state is State.AVAILABLE


class TokenContract(ContractBase):
    """Owners that could not be distinguished, and answers that were read as a yes."""

    async def test_redbeat_127_lock_released_by_somebody_else(self, scene: StoreCase) -> None:
        """redbeat#127: a scheduler whose lock ran out extends or releases the next one's."""
        _, ownership = await scene.owned(units=1)
        await scene.wait()
        await scene.own(await scene.member("next"), ownership.key)
        before = await scene.snapshot()
        await scene.store.release([ownership])
        await scene.store.hand_over(
            [HandOver(ownership=ownership, to=ownership.holder)], limit=scene.units(1)
        )
        assert_unchanged(before, await scene.snapshot())

    async def test_rq_1531_lock_without_an_owner(self, scene: StoreCase) -> None:
        """rq#1531: any process deletes the lock, because it does not name its owner."""
        _, ownership = await scene.owned()
        stranger = await scene.member("stranger")
        before = await scene.snapshot()
        theirs = replace(ownership, holder=stranger.holder, token=stranger.token)
        assert list(await scene.store.release([theirs])) == []
        await scene.store.revoke(replace(stranger, holder=ownership.holder))
        assert_unchanged(before, await scene.snapshot())

    async def test_oban_py_32_two_processes_on_one_host(self, scene: StoreCase) -> None:
        """oban-py#32: both had the host's name, and both were leader. Here they are two."""
        (key,) = await scene.declared("leader")
        info = MemberInfo(host="same", pid=1)
        one, two = [await scene.member("same", info=info) for _ in range(2)]
        assert one.holder != two.holder
        await scene.own(one, key)
        assert await scene.claim(two, key) == []
        assert set(await scene.store.members(scene.group)) == {one.holder, two.holder}

    async def test_oban_py_32_same_id_on_purpose(self, scene: StoreCase) -> None:
        """And if two do take the same holder id, the token distinguishes them."""
        lease, ownership = await scene.owned()
        impostor = replace(lease, token=GUESS)
        with pytest.raises(LeaseLost):
            await scene.claim(impostor, ownership.key, force=True)
        with pytest.raises(LeaseLost):
            await scene.store.renew(impostor)
        assert await scene.write_checkpoint(replace(ownership, token=impostor.token), 1) == "fenced"

    async def test_fabric8_7160_the_duration_in_the_record_decides(self, scene: StoreCase) -> None:
        """fabric8#7160: a reader with a shorter setting than the owner's took its lease away.

        Neither a longer nor a shorter duration in the caller's hands changes the lease.
        """
        lease, ownership = await scene.owned(units=2)
        await scene.store.renew(replace(lease, duration_s=lease.duration_s * 50))
        await scene.wait(1)
        assert await scene.claim(await scene.member("rival", units=0.5), ownership.key) == []
        third = await scene.member("third")
        await scene.store.renew(replace(lease, duration_s=lease.duration_s / 100))
        await scene.wait(1)
        assert await scene.claim(third, ownership.key) == []
        await scene.wait(1.1)
        assert (await scene.own(third, ownership.key)).epoch == 2

    async def test_azure_eventhub_timeout_counted_as_won(self, scene: StoreCase) -> None:
        """azure-eventhub: a claim that timed out was taken for won.

        An answer that did not come proves nothing: here the request was lost and a rival has it,
        and a caller that assumed otherwise cannot write.
        """
        (key,) = await scene.declared("k")
        lease, rival = await scene.member("a"), await scene.member("rival")
        faulty = FaultyStore(scene.store, lambda _: Lost.REQUEST).as_store
        with pytest.raises(StoreUnavailable):
            await faulty.claim(lease, [KeyClaim(key=key, seen_epoch=0)])
        await scene.own(rival, key)
        claimed = Ownership(key=key, epoch=1, holder=lease.holder, token=lease.token)
        assert await scene.write_checkpoint(claimed, 1) == "fenced"
        assert list(await scene.store.claim(lease, [KeyClaim(key=key, seen_epoch=0)])) == []
        await scene.store.break_(key, epoch=1, after=timedelta(0))
        assert await scene.write_checkpoint(claimed, 1) == "fenced"
