"""Checkpoints: fenced by the epoch, and never back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.model import Mark, MarkRefusal, Ownership, Position, State
from leasehold.testing.contract.scene import ContractBase, Scene, assert_unchanged, forged


class CheckpointContract(ContractBase):
    """Positions written under an ownership."""

    @pytest.mark.spec("C1", "C2", "C3")
    async def test_a_checkpoint_is_read_as_it_was_written(self, scene: Scene) -> None:
        """Any position and offset, to the letter."""
        positions = [
            Position(sequence_number=-1, offset=""),
            Position(sequence_number=0, offset="@latest"),
            Position(sequence_number=2**63 - 1, offset="é 🚀 'x' \\ % \n"),
        ]
        lease = await scene.member("a")
        for number, position in enumerate(positions):
            (key,) = await scene.declared(str(number))
            ownership = await scene.own(lease, key)
            mark = Mark(ownership=ownership, position=position)
            assert not await scene.store.checkpoint([mark])
            stored = (await scene.store.checkpoints(scene.group))[key]
            assert (stored.key, stored.epoch) == (key, 1)
            assert stored.position == position
            assert stored.position.offset == position.offset
            assert stored.updated_at.tzinfo is not None

    @pytest.mark.spec("C2")
    async def test_a_checkpoint_never_goes_back(self, scene: Scene) -> None:
        """Equal is fine, ahead is fine, behind is refused and changes nothing."""
        _, ownership = await scene.owned()
        assert [await scene.mark(ownership, n) for n in (5, 5, 7)] == [None, None, None]
        before = await scene.picture()
        assert await scene.mark(ownership, 6) == "behind"
        assert_unchanged(before, await scene.picture())
        assert before.checkpoints[ownership.key].position.offset == "at 7"

    @pytest.mark.spec("C2")
    async def test_not_even_for_a_new_owner(self, scene: Scene) -> None:
        """The next epoch goes on where the last one stopped."""
        lease, ownership = await scene.owned()
        await scene.mark(ownership, 7)
        await scene.store.release([ownership])
        newer = await scene.own(lease, ownership.key)
        assert await scene.mark(newer, 6) == "behind"
        assert await scene.mark(newer, 7) is None
        stored = (await scene.store.checkpoints(scene.group))[ownership.key]
        assert (stored.epoch, stored.position.sequence_number) == (2, 7)

    @pytest.mark.spec("L7")
    async def test_dead_and_wrong_proofs_are_fenced_and_counted(self, scene: Scene) -> None:
        """An older epoch, a newer one, a guess, a stranger, an unknown key."""
        lease, old = await scene.owned()
        await scene.store.release([old])
        current = await scene.own(lease, old.key)
        await scene.mark(current, 5)
        other = await scene.member("other")
        before = await scene.picture()
        wrong = [
            old,
            replace(current, epoch=3),
            forged(current),
            replace(current, holder=other.holder, token=other.token),
            replace(current, key=scene.key("unknown")),
        ]
        for ownership in wrong:
            assert await scene.mark(ownership, 9) == "fenced"
        after = await scene.picture()
        assert after.fenced == before.fenced + len(wrong)
        assert_unchanged(before, replace(after, fenced=before.fenced))

    async def test_fenced_comes_before_behind(self, scene: Scene) -> None:
        """A zombie is told that it is one, wherever it stands; ``behind`` is not counted."""
        lease, old = await scene.owned()
        await scene.mark(old, 5)
        await scene.store.release([old])
        current = await scene.own(lease, old.key)
        assert await scene.mark(old, 1) == "fenced"
        assert await scene.mark(current, 1) == "behind"
        assert await scene.store.fenced_writes(scene.group) == 1

    async def test_a_batch_is_judged_mark_by_mark(self, scene: Scene) -> None:
        """One refusal does not stop the rest."""
        _, good = await scene.owned("good")
        _, behind = await scene.owned("behind")
        _, dead = await scene.owned("dead")
        await scene.mark(behind, 5)
        await scene.store.release([dead])
        refused = await scene.store.checkpoint(_marks([dead, good, behind], 3))
        assert refused == {dead.key: MarkRefusal.FENCED, behind.key: MarkRefusal.BEHIND}
        stored = await scene.store.checkpoints(scene.group)
        assert {key: each.position.sequence_number for key, each in stored.items()} == {
            good.key: 3,
            behind.key: 5,
        }
        assert not await scene.store.checkpoint([])

    async def test_a_batch_may_hold_two_positions_of_one_key(self, scene: Scene) -> None:
        """They are written in their order."""
        _, ownership = await scene.owned()
        marks = [*_marks([ownership], 3), *_marks([ownership], 8)]
        assert not await scene.store.checkpoint(marks)
        stored = await scene.store.checkpoints(scene.group)
        assert stored[ownership.key].position.sequence_number == 8

    async def test_writing_again_changes_nothing(self, scene: Scene) -> None:
        """The same mark twice is the same checkpoint."""
        _, ownership = await scene.owned()
        await scene.mark(ownership, 5)
        before = (await scene.picture()).plain("")
        assert await scene.mark(ownership, 5) is None
        assert (await scene.picture()).plain("") == before

    async def test_checkpoints_outlive_their_owner(self, scene: Scene) -> None:
        """Nothing removes one: not the end of the lease, not a key that is forgotten."""
        lease, ownership = await scene.owned()
        await scene.mark(ownership, 5)
        await scene.store.revoke(lease)
        await scene.store.forget([ownership.key])
        await scene.store.declare([ownership.key])
        stored = await scene.store.checkpoints(scene.group)
        assert stored[ownership.key].position.sequence_number == 5

    async def test_a_checkpoint_is_no_renewal(self, scene: Scene) -> None:
        """Writing does not keep the lease alive, and wakes no watcher."""
        _, ownership = await scene.owned(units=2)
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        await scene.wait(1)
        assert await scene.mark(ownership, 1) is None
        changes = await scene.store.renew(watcher, since=version)
        assert (changes.resources, changes.peers, changes.ended) == ((), (), ())
        await scene.wait(1.1)
        assert await scene.mark(ownership, 2) == "fenced"
        assert (await scene.resource(ownership.key)).state is State.EXPIRED

    async def test_groups_have_their_own(self, scene: Scene) -> None:
        """Neither checkpoints nor refusals of one group show in another."""
        _, ownership = await scene.owned()
        twin = scene.twin()
        await scene.mark(ownership, 5)
        await scene.mark(forged(ownership), 6)
        assert await scene.store.checkpoints(twin.group) == {}
        assert await scene.store.fenced_writes(twin.group) == 0
        assert await scene.store.fenced_writes(scene.group) == 1


def _marks(ownerships: list[Ownership], sequence_number: int) -> list[Mark]:
    position = Position(sequence_number=sequence_number)
    return [Mark(ownership=each, position=position) for each in ownerships]
