"""Checkpoints: fenced by the epoch, and never moved backwards.

Also notes of terms: set, replaced and closed in the same step as the term.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.errors import LeaseLost, UsageError
from leasehold.model import (
    LONGEST_NOTE,
    CheckpointWrite,
    EndReason,
    HandOver,
    KeyClaim,
    Note,
    Ownership,
    Position,
    Refusal,
    State,
)
from leasehold.testing.contract.bad_input import WIDE
from leasehold.testing.contract.store_case import ContractBase, StoreCase, assert_unchanged, forged

ODD_NOTES = ("", " ", "é 🚀 'x' \\ % \n", '{"a": [1, null]}', "NULL", WIDE[:LONGEST_NOTE])
BAD_NOTES = ("x" * (LONGEST_NOTE + 1), "a\x00b", "\ud800", None, 7, b"bytes", ["x"])


class NoteContract(ContractBase):
    """What a term begins with and ends with."""

    @pytest.mark.spec("B10")
    async def test_a_term_begins_with_the_note_that_is_wanted(self, scene: StoreCase) -> None:
        """Each key with its own; a claim without one begins with none."""
        keys = await scene.declared("a", "b", "c")
        texts = dict(zip(keys, ("first", "", "third"), strict=True))
        wanted = [KeyClaim(key=key, seen_epoch=0, note=texts[key]) for key in keys]
        taken = await scene.store.claim(await scene.member(), wanted)
        assert {each.key for each in taken} == set(keys)
        assert {key: await scene.notes(key) for key in keys} == {
            key: [text] for key, text in texts.items()
        }

    @pytest.mark.parametrize("text", ODD_NOTES, ids=lambda text: ascii(text)[:12])
    async def test_notes_are_read_as_they_were_written(self, scene: StoreCase, text: str) -> None:
        """On each way, to the letter."""
        (key,) = await scene.declared("k")
        lease, heir = await scene.member(), await scene.member("heir")
        (first,) = await scene.store.claim(lease, [KeyClaim(key=key, seen_epoch=0, note=text)])
        await scene.store.release([first])
        second = await scene.own(lease, key)
        assert await scene.annotate(second, text)
        await scene.store.release([second])
        third = await scene.own(lease, key)
        await scene.store.release([third], notes={key: text})
        passed = HandOver(ownership=await scene.own(lease, key), to=heir.holder, note=text)
        await scene.store.hand_over([passed], limit=scene.units(1))
        assert await scene.notes(key) == [text] * 4

    async def test_a_refused_claim_leaves_the_note_alone(self, scene: StoreCase) -> None:
        """Another holder holds the key, or it was seen at another epoch."""
        _, ownership = await scene.owned()
        await scene.annotate(ownership, "mine")
        rival = await scene.member("rival")
        before = await scene.snapshot()
        for epoch in (0, 1, 2):
            wanted = KeyClaim(key=ownership.key, seen_epoch=epoch, note="theirs")
            assert list(await scene.store.claim(rival, [wanted])) == []
        assert_unchanged(before, await scene.snapshot())

    async def test_claiming_again_leaves_the_note_alone(self, scene: StoreCase) -> None:
        """A key that is returned once more has the note of its first claim, or a later one."""
        lease, ownership = await scene.owned()
        await scene.annotate(ownership, "half done")
        before = await scene.snapshot()
        for epoch in (0, 1):
            again = KeyClaim(key=ownership.key, seen_epoch=epoch, note="begun")
            assert list(await scene.store.claim(lease, [again])) == [ownership]
        assert_unchanged(before, await scene.snapshot())

    async def test_a_steal_ends_one_note_and_begins_another(self, scene: StoreCase) -> None:
        """The former owner's note stays; the new owner begins with its own."""
        _, ownership = await scene.owned()
        await scene.annotate(ownership, "half done")
        thief = await scene.member("thief")
        wanted = KeyClaim(key=ownership.key, seen_epoch=1, note="stolen")
        assert len(await scene.store.claim(thief, [wanted], force=True)) == 1
        assert await scene.notes(ownership.key) == ["half done", "stolen"]

    @pytest.mark.spec("B10")
    async def test_a_release_ends_the_term_with_its_note(self, scene: StoreCase) -> None:
        """By key; without one the note stays, and an empty one takes it away."""
        lease = await scene.member()
        keys = await scene.declared("a", "b", "c")
        owned = await scene.claim(lease, *keys)
        for each in owned:
            await scene.annotate(each, "half done")
        notes = {keys[0]: "done", keys[2]: ""}
        assert set(await scene.store.release(owned, notes=notes)) == set(keys)
        assert [await scene.notes(key) for key in keys] == [["done"], ["half done"], [""]]
        assert await scene.reasons(keys[0]) == [EndReason.RELEASED]

    async def test_releasing_again_does_not_change_the_note(self, scene: StoreCase) -> None:
        """The answer is yes, with the note of the first release, also under a later owner."""
        lease, ownership = await scene.owned()
        key = ownership.key
        await scene.store.release([ownership], notes={key: "done"})
        assert list(await scene.store.release([ownership], notes={key: "again"})) == [key]
        await scene.store.claim(lease, [KeyClaim(key=key, seen_epoch=1, note="next")])
        assert list(await scene.store.release([ownership], notes={key: "late"})) == [key]
        assert await scene.notes(key) == ["done", "next"]

    async def test_what_has_ended_otherwise_keeps_its_note(self, scene: StoreCase) -> None:
        """Expired, broken, stolen or handed over: the release that came after changes nothing."""
        lease, expired = await scene.owned("expired", units=1)
        _, broken = await scene.owned("broken")
        _, due = await scene.owned("due")
        _, stolen = await scene.owned("stolen")
        _, passed = await scene.owned("passed")
        late = [expired, broken, due, stolen, passed]
        for each in late:
            await scene.annotate(each, "half done")
        await scene.store.break_(broken.key, epoch=1, after=timedelta(0))
        await scene.store.break_(due.key, epoch=1, after=scene.units(1))
        await scene.own(await scene.member("thief"), stolen.key, force=True)
        await scene.hand_over(passed, await scene.member("heir"))
        await scene.wait()
        await scene.store.release(late, notes={each.key: "done" for each in late})
        for each in late:
            assert (await scene.notes(each.key))[0] == "half done"
        assert await scene.reasons(expired.key) == [EndReason.EXPIRED]
        assert await scene.reasons(due.key) == [EndReason.BROKEN]
        with pytest.raises(LeaseLost):
            await scene.store.renew(lease)

    async def test_a_release_that_proves_nothing_leaves_the_note(self, scene: StoreCase) -> None:
        """Another epoch, a guess, a stranger."""
        _, ownership = await scene.owned()
        stranger = await scene.member("stranger")
        before = await scene.snapshot()
        wrong = [
            replace(ownership, epoch=2),
            forged(ownership),
            replace(ownership, holder=stranger.holder, token=stranger.token),
        ]
        for each in wrong:
            assert list(await scene.store.release([each], notes={each.key: "done"})) == []
        assert_unchanged(before, await scene.snapshot())

    async def test_a_batch_of_two_epochs_of_one_key_means_the_one_that_lasts(
        self, scene: StoreCase
    ) -> None:
        """The note is for the key, and goes to the term that the call ends."""
        lease, old = await scene.owned()
        await scene.store.release([old], notes={old.key: "first"})
        new = await scene.own(lease, old.key)
        for batch in ([old, new, new], [new, old]):
            await scene.store.release(batch, notes={old.key: "second"})
        assert await scene.notes(old.key) == ["first", "second"]

    async def test_a_hand_over_ends_the_term_with_its_note(self, scene: StoreCase) -> None:
        """None leaves it. Handing over again, or passing on what was kept, changes nothing."""
        lease, heir = await scene.member(), await scene.member("heir")
        keys = await scene.declared("a", "b")
        owned = await scene.claim(lease, *keys)
        for each in owned:
            await scene.annotate(each, "half done")
        texts = ("passed", None)
        for again in (texts, ("again", "again")):
            passed = [
                HandOver(ownership=each, to=heir.holder, note=text)
                for each, text in zip(owned, again, strict=True)
            ]
            assert set(await scene.store.hand_over(passed, limit=scene.units(9))) == set(keys)
        kept = replace(owned[0], holder=heir.holder, token=heir.token)
        onwards = HandOver(ownership=kept, to=lease.holder, note="onwards")
        assert list(await scene.store.hand_over([onwards], limit=scene.units(9))) == [keys[0]]
        assert [await scene.notes(key) for key in keys] == [["passed"], ["half done"]]

    async def test_every_other_end_keeps_the_note(self, scene: StoreCase) -> None:
        """Revoked, expired, broken: the last note stays in the history, and is reported."""
        lease, revoked = await scene.owned("revoked")
        await scene.annotate(revoked, "half done")
        previous, broken = await scene.owned("broken")
        await scene.annotate(broken, "nearly done")
        await scene.store.revoke(lease)
        await scene.store.break_(broken.key, epoch=1, after=timedelta(0))
        assert await scene.notes(revoked.key) == ["half done"]
        (reported,) = (await scene.store.renew(previous)).ended
        assert (reported.note, reported.reason) == ("nearly done", EndReason.BROKEN)
        await scene.store.reset({revoked.key: None})
        assert await scene.notes(revoked.key) == ["half done", ""]


class AnnotateContract(ContractBase):
    """What is said of a term while it lasts, under its ownership."""

    async def test_a_note_is_replaced_while_the_term_lasts(self, scene: StoreCase) -> None:
        """The last word stands; the term and its start stay as they are."""
        _, ownership = await scene.owned()
        (before,) = await scene.store.history(ownership.key)
        for text in ("one", "two", "", "three"):
            assert await scene.annotate(ownership, text)
            assert await scene.notes(ownership.key) == [text]
        (after,) = await scene.store.history(ownership.key)
        assert after == replace(before, note="three")

    async def test_one_that_is_being_broken_may_still_speak(self, scene: StoreCase) -> None:
        """As it may still write: until the moment has come."""
        _, ownership = await scene.owned()
        await scene.store.break_(ownership.key, epoch=1, after=scene.units(1))
        assert await scene.annotate(ownership, "stopping")
        await scene.wait()
        assert not await scene.annotate(ownership, "too late")
        assert await scene.notes(ownership.key) == ["stopping"]

    @pytest.mark.spec("B5", "L7")
    async def test_dead_and_wrong_proofs_are_refused_and_counted(self, scene: StoreCase) -> None:
        """An older epoch, a newer one, a guess, a stranger, an unknown key, a dead lease."""
        lease, old = await scene.owned()
        await scene.store.release([old])
        current = await scene.own(lease, old.key)
        _, expired = await scene.owned("expired", units=1)
        other = await scene.member("other")
        await scene.wait()
        before = await scene.snapshot()
        wrong = [
            old,
            replace(current, epoch=3),
            forged(current),
            replace(current, holder=other.holder, token=other.token),
            replace(current, key=scene.key("unknown")),
            expired,
        ]
        for ownership in wrong:
            notes = [Note(ownership=ownership, text="zombie")]
            assert list(await scene.store.annotate(notes)) == [ownership.key]
        after = await scene.snapshot()
        assert after.fenced == before.fenced + len(wrong)
        assert_unchanged(before, replace(after, fenced=before.fenced))

    async def test_a_batch_is_judged_note_by_note(self, scene: StoreCase) -> None:
        """One refusal does not stop the rest; each is counted, its key reported once."""
        _, good = await scene.owned("good")
        _, dead = await scene.owned("dead")
        await scene.store.release([dead])
        texts = [(dead, "a"), (good, "b"), (forged(good), "c"), (good, "d"), (dead, "e")]
        notes = [Note(ownership=each, text=text) for each, text in texts]
        assert sorted(await scene.store.annotate(notes)) == sorted([dead.key, good.key])
        assert await scene.notes(good.key) == ["d"]
        assert await scene.notes(dead.key) == [""]
        assert await scene.store.fenced_writes(scene.group) == 3
        assert list(await scene.store.annotate([])) == []

    async def test_a_note_is_no_renewal(self, scene: StoreCase) -> None:
        """It does not keep the lease alive, and wakes no watcher."""
        _, ownership = await scene.owned(units=2)
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        await scene.wait(1)
        assert await scene.annotate(ownership, "half done")
        changes = await scene.store.renew(watcher, since=version)
        assert (changes.resources, changes.members, changes.ended) == ((), (), ())
        await scene.wait(1.1)
        assert not await scene.annotate(ownership, "too late")
        assert (await scene.resource(ownership.key)).state is State.EXPIRED


class NoteInputContract(ContractBase):
    """What not every store could keep is refused by all, before anything has happened."""

    @pytest.mark.parametrize("bad", BAD_NOTES, ids=lambda bad: ascii(bad)[:12])
    async def test_bad_notes(self, scene: StoreCase, bad: object) -> None:
        """On each way; the message says what is wrong."""
        _, ownership = await scene.owned()
        text: str = bad  # type: ignore[assignment]
        before = await scene.snapshot()
        with pytest.raises(UsageError, match="note must be text of at most 1,024"):
            KeyClaim(key=ownership.key, seen_epoch=1, note=text)
        with pytest.raises(UsageError, match="note must be"):
            Note(ownership=ownership, text=text)
        with pytest.raises(UsageError, match="note must be"):
            await scene.store.release([ownership], notes={ownership.key: text})
        if bad is not None:
            with pytest.raises(UsageError, match="note must be"):
                HandOver(ownership=ownership, to=ownership.holder, note=text)
        assert_unchanged(before, await scene.snapshot())

    async def test_a_note_of_a_key_that_is_not_released(self, scene: StoreCase) -> None:
        """A mistake of the caller: it is reported, and nothing is released."""
        _, ownership = await scene.owned()
        (other,) = await scene.declared("other")
        with pytest.raises(UsageError, match="not released in this call"):
            await scene.store.release([ownership], notes={other: "done"})
        with pytest.raises(UsageError, match="notes by key"):
            await scene.store.release([ownership], notes=["done"])  # type: ignore[arg-type]
        assert (await scene.resource(ownership.key)).state is State.LEASED


class CheckpointContract(ContractBase):
    """Positions written under an ownership."""

    @pytest.mark.spec("C1", "C2", "C3")
    async def test_a_checkpoint_is_read_as_it_was_written(self, scene: StoreCase) -> None:
        """Any position and offset, to the letter."""
        positions = [
            Position(sequence_number=-1, offset=""),
            Position(sequence_number=0, offset="@latest"),
            Position(sequence_number=2**63 - 1, offset="é 🚀 'x' \\ % \n"),
            Position(sequence_number=1, stream="2026-01-01T00:00:00.000001+00:00"),
            Position(sequence_number=2, offset="é\x1fstream=x", stream="é 🚀"),
            Position(sequence_number=3, offset="é\x1fstream=x"),
        ]
        lease = await scene.member("a")
        for number, position in enumerate(positions):
            (key,) = await scene.declared(str(number))
            ownership = await scene.own(lease, key)
            mark = CheckpointWrite(ownership=ownership, position=position)
            assert not await scene.store.checkpoint([mark])
            stored = (await scene.store.checkpoints(scene.group))[key]
            assert (stored.key, stored.epoch) == (key, 1)
            assert stored.position == position
            assert stored.position.offset == position.offset
            assert stored.position.stream == position.stream
            assert stored.updated_at.tzinfo is not None

    @pytest.mark.spec("C3")
    async def test_a_checkpoint_keeps_the_stream_that_it_belongs_to(self, scene: StoreCase) -> None:
        """It is replaced with the position: by a later write, and by a reset."""
        lease, ownership = await scene.owned()
        key, streams = ownership.key, ["", "first", "second", ""]
        for number, stream in enumerate(streams):
            position = Position(sequence_number=number, offset="at", stream=stream)
            write = CheckpointWrite(ownership=ownership, position=position)
            assert not await scene.store.checkpoint([write])
            stored = (await scene.store.checkpoints(scene.group))[key]
            assert (stored.position.offset, stored.position.stream) == ("at", stream)
        await scene.store.revoke(lease)
        for stream in ("third", "fourth", ""):  # only the stream differs, and it is a change
            position = Position(sequence_number=1, offset="at", stream=stream)
            assert not await scene.store.reset({key: position})
            stored = (await scene.store.checkpoints(scene.group))[key]
            assert (stored.position.offset, stored.position.stream) == ("at", stream)

    @pytest.mark.spec("C2")
    async def test_a_checkpoint_never_goes_back(self, scene: StoreCase) -> None:
        """Equal is fine, ahead is fine, behind is refused and changes nothing."""
        _, ownership = await scene.owned()
        assert [await scene.write_checkpoint(ownership, n) for n in (5, 5, 7)] == [None, None, None]
        before = await scene.snapshot()
        assert await scene.write_checkpoint(ownership, 6) == "behind"
        assert_unchanged(before, await scene.snapshot())
        assert before.checkpoints[ownership.key].position.offset == "at 7"

    @pytest.mark.spec("C2")
    async def test_not_even_for_a_new_owner(self, scene: StoreCase) -> None:
        """The next epoch resumes where the last one stopped."""
        lease, ownership = await scene.owned()
        await scene.write_checkpoint(ownership, 7)
        await scene.store.release([ownership])
        newer = await scene.own(lease, ownership.key)
        assert await scene.write_checkpoint(newer, 6) == "behind"
        assert await scene.write_checkpoint(newer, 7) is None
        stored = (await scene.store.checkpoints(scene.group))[ownership.key]
        assert (stored.epoch, stored.position.sequence_number) == (2, 7)

    @pytest.mark.spec("L7")
    async def test_dead_and_wrong_proofs_are_fenced_and_counted(self, scene: StoreCase) -> None:
        """An older epoch, a newer one, a guess, a stranger, an unknown key."""
        lease, old = await scene.owned()
        await scene.store.release([old])
        current = await scene.own(lease, old.key)
        await scene.write_checkpoint(current, 5)
        other = await scene.member("other")
        before = await scene.snapshot()
        wrong = [
            old,
            replace(current, epoch=3),
            forged(current),
            replace(current, holder=other.holder, token=other.token),
            replace(current, key=scene.key("unknown")),
        ]
        for ownership in wrong:
            assert await scene.write_checkpoint(ownership, 9) == "fenced"
        after = await scene.snapshot()
        assert after.fenced == before.fenced + len(wrong)
        assert_unchanged(before, replace(after, fenced=before.fenced))

    async def test_fenced_comes_before_behind(self, scene: StoreCase) -> None:
        """A zombie is refused as one, at any position; ``behind`` is not counted."""
        lease, old = await scene.owned()
        await scene.write_checkpoint(old, 5)
        await scene.store.release([old])
        current = await scene.own(lease, old.key)
        assert await scene.write_checkpoint(old, 1) == "fenced"
        assert await scene.write_checkpoint(current, 1) == "behind"
        assert await scene.store.fenced_writes(scene.group) == 1

    async def test_a_batch_is_judged_mark_by_mark(self, scene: StoreCase) -> None:
        """One refusal does not stop the rest."""
        _, good = await scene.owned("good")
        _, behind = await scene.owned("behind")
        _, dead = await scene.owned("dead")
        await scene.write_checkpoint(behind, 5)
        await scene.store.release([dead])
        refused = await scene.store.checkpoint(_marks([dead, good, behind], 3))
        assert refused == {dead.key: Refusal.FENCED, behind.key: Refusal.BEHIND}
        stored = await scene.store.checkpoints(scene.group)
        assert {key: each.position.sequence_number for key, each in stored.items()} == {
            good.key: 3,
            behind.key: 5,
        }
        assert not await scene.store.checkpoint([])

    async def test_a_batch_may_hold_two_positions_of_one_key(self, scene: StoreCase) -> None:
        """They are written in their order."""
        _, ownership = await scene.owned()
        marks = [*_marks([ownership], 3), *_marks([ownership], 8)]
        assert not await scene.store.checkpoint(marks)
        stored = await scene.store.checkpoints(scene.group)
        assert stored[ownership.key].position.sequence_number == 8

    async def test_writing_again_changes_nothing(self, scene: StoreCase) -> None:
        """The same write twice is the same checkpoint."""
        _, ownership = await scene.owned()
        await scene.write_checkpoint(ownership, 5)
        before = (await scene.snapshot()).plain("")
        assert await scene.write_checkpoint(ownership, 5) is None
        assert (await scene.snapshot()).plain("") == before

    async def test_checkpoints_outlive_their_owner(self, scene: StoreCase) -> None:
        """Nothing removes one: not the end of the lease, not a key that is forgotten."""
        lease, ownership = await scene.owned()
        await scene.write_checkpoint(ownership, 5)
        await scene.store.revoke(lease)
        await scene.store.forget([ownership.key])
        await scene.store.declare([ownership.key])
        stored = await scene.store.checkpoints(scene.group)
        assert stored[ownership.key].position.sequence_number == 5

    async def test_a_checkpoint_is_no_renewal(self, scene: StoreCase) -> None:
        """Writing does not keep the lease alive, and wakes no watcher."""
        _, ownership = await scene.owned(units=2)
        watcher = await scene.member("watcher")
        version = (await scene.store.renew(watcher)).version
        await scene.wait(1)
        assert await scene.write_checkpoint(ownership, 1) is None
        changes = await scene.store.renew(watcher, since=version)
        assert (changes.resources, changes.members, changes.ended) == ((), (), ())
        await scene.wait(1.1)
        assert await scene.write_checkpoint(ownership, 2) == "fenced"
        assert (await scene.resource(ownership.key)).state is State.EXPIRED

    async def test_groups_have_their_own(self, scene: StoreCase) -> None:
        """Neither checkpoints nor refusals of one group show in another."""
        _, ownership = await scene.owned()
        twin = scene.twin()
        await scene.write_checkpoint(ownership, 5)
        await scene.write_checkpoint(forged(ownership), 6)
        assert await scene.store.checkpoints(twin.group) == {}
        assert await scene.store.fenced_writes(twin.group) == 0
        assert await scene.store.fenced_writes(scene.group) == 1


def _marks(ownerships: list[Ownership], sequence_number: int) -> list[CheckpointWrite]:
    position = Position(sequence_number=sequence_number)
    return [CheckpointWrite(ownership=each, position=position) for each in ownerships]
