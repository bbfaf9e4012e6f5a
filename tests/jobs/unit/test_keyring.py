"""Many reservations under one lease, on simulated time. Nothing here waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.job_scene import LEASE_S, Scene, now, play, until

from leasehold.errors import LeaseLost, UsageError
from leasehold.jobs.wish import GROUP
from leasehold.model import Position, Refusal
from leasehold.names import job_key

A, B, C = (job_key(name) for name in "abc")


def test_one_renewal_a_cycle_keeps_all_keys_however_many() -> None:
    async def story(scene: Scene) -> None:
        keys = [job_key(str(number)) for number in range(200)]
        async with scene.ring(*keys) as ring:
            scene.store.calls.clear()
            await asyncio.sleep(100.1)
            assert all(ring.valid(key) for key in keys)
            assert ring.remaining_s(keys[0]) > LEASE_S / 2
            assert scene.store.calls == {"renew": 40}
            assert not ring.told

    play(story)


def test_what_is_held_is_had_by_nobody_else_and_by_nobody_here_a_second_time() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring, scene.ring(B) as other:
            assert await other.take({A: "", B: "", C: ""}) == {C: other.ownership(C)}
            assert await ring.take({A: ""}) == {}
            assert ring.valid(A)
            assert not other.valid(A)
            assert (other.remaining_s(A), other.ownership(A)) == (0.0, None)
            seen = other.resource(A)
            assert seen is not None
            assert seen.holder == ring.holder

    play(story)


def test_what_is_given_back_is_had_again_at_once_in_a_new_epoch_with_one_call_each() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring, scene.ring() as other:
            scene.store.calls.clear()
            for epoch in (2, 3):
                await ring.release({A: f"end {epoch}"})
                assert not ring.valid(A)
                proofs = await ring.take({A: f"begin {epoch}"})
                assert proofs[A].epoch == epoch
            assert scene.store.calls == {"claim": 2, "release": 2}
            await ring.release({A: ""})
            assert (await other.take({A: ""}))[A].epoch == 4
            assert (await ring.take({A: ""})) == {}
            assert await scene.notes(A) == ["", "begin 3", "end 3", "end 2"]

    play(story)


def test_calls_that_come_while_one_is_under_way_go_together() -> None:
    async def story(scene: Scene) -> None:
        keys = [job_key(str(number)) for number in range(32)]
        async with scene.ring(*keys) as ring:
            await ring.release(dict.fromkeys(keys, ""))
            scene.store.answer_s = 0.01
            scene.store.calls.clear()

            async def reserver(key: str) -> None:
                for number in range(10):
                    assert await ring.take({key: ""})
                    assert await ring.mark({key: Position(sequence_number=number)}) == {}
                    assert await ring.annotate({key: str(number)}) == []
                    await ring.release({key: "done"})

            await asyncio.gather(*map(reserver, keys))
            # 320 of each kind were asked for.
            kinds = ("claim", "release", "checkpoint", "annotate")
            assert all(scene.store.calls[kind] <= 20 for kind in kinds), scene.store.calls
            assert await scene.notes(keys[0]) == ["done"] * 10

    play(story)


def test_of_many_that_want_the_same_key_at_once_one_has_it() -> None:
    async def story(scene: Scene) -> None:
        scene.store.answer_s = 0.01
        async with scene.ring() as ring:
            inside, most = 0, 0

            async def reserver() -> int:
                nonlocal inside, most
                had = 0
                while had < 5:
                    if not await ring.take({A: ""}):
                        await asyncio.sleep(0.01)
                        continue
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.01)
                    inside -= 1
                    had += 1
                    await ring.release({A: ""})
                return had

            assert await asyncio.gather(*(reserver() for _ in range(8))) == [5] * 8
            assert most == 1

    play(story)


@pytest.mark.spec("B5")
def test_a_key_that_is_broken_is_lost_alone_and_said_once() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B, C) as ring:
            await scene.store.break_(A, epoch=1, after=timedelta(0))
            began_s = now()
            await scene.store.break_(B, epoch=1, after=timedelta(seconds=5))
            await asyncio.sleep(2.6)
            assert ring.losses() == [(A, "broken"), (B, "broken")]
            assert ring.remaining_s(A) == 0.0
            assert now() + ring.remaining_s(B) < began_s + 5  # it has stopped by then
            assert ring.remaining_s(B) > 1
            assert ring.valid(C)
            await asyncio.sleep(10 * LEASE_S)
            assert ring.losses() == [(A, "broken"), (B, "broken")]
            assert ring.valid(C)
            assert (await ring.take({A: ""}))[A].epoch == 2

    play(story)


def test_an_operator_can_ask_for_a_key_and_for_the_whole_holder_to_leave() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B) as ring, scene.ring() as other:
            assert await scene.store.request_hand_over(A, epoch=1, to=other.holder)
            await asyncio.sleep(LEASE_S)
            assert ring.asked == [(A, other.holder)]
            assert ring.valid(A)  # it is asked, not taken
            assert await scene.store.request_leave(ring.holder)
            await asyncio.sleep(LEASE_S)
            assert ring.asked == [(A, other.holder), ("", None)]

    play(story)


@pytest.mark.parametrize("between_s", [0.0, LEASE_S])
def test_the_same_question_is_heard_again_of_the_next_reservation(between_s: float) -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring, scene.ring() as other:
            for epoch in (1, 2, 3):
                # Before, or after, a renewal has shown that nobody asks for the new one.
                await asyncio.sleep(between_s)
                assert await scene.store.request_hand_over(A, epoch=epoch, to=other.holder)
                await asyncio.sleep(LEASE_S)
                assert ring.asked == [(A, other.holder)] * epoch
                await ring.release({A: ""})
                assert (await ring.take({A: ""}))[A].epoch == epoch + 1

    play(story)


@pytest.mark.spec("B5")
def test_writes_of_one_whose_key_was_taken_from_it_are_refused_and_that_is_a_loss() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B, C) as ring:
            for key in (A, B):
                await scene.store.break_(key, epoch=1, after=timedelta(0))
            place = Position(sequence_number=1)
            assert await ring.mark({A: place, C: place}) == {A: Refusal.FENCED}
            assert await ring.annotate({B: "words", C: "words"}) == [B]
            assert ring.losses() == [(A, "fenced"), (B, "fenced")]
            assert await scene.store.fenced_writes(GROUP) == 2
            # Nothing is sent for what is not held.
            scene.store.calls.clear()
            assert await ring.mark({A: place}) == {A: Refusal.FENCED}
            assert await ring.annotate({A: "words"}) == [A]
            assert not scene.store.calls
            assert await ring.mark({C: Position(sequence_number=0)}) == {C: Refusal.BEHIND}
            assert (await ring.checkpoints())[C].position == place
            with pytest.raises(UsageError):
                await ring.annotate({C: "x" * 2000})
            assert await scene.notes(C) == ["words"]

    play(story)


def test_who_is_called_off_while_it_takes_a_key_leaves_it_to_others() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring:
            await ring.release({A: ""})
            scene.store.answer_s = 0.1
            for moment_s in (0.05, 0.1):  # before the answer, and with it
                taking = asyncio.create_task(ring.take({A: ""}))
                await asyncio.sleep(moment_s)
                taking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await taking
                await asyncio.sleep(0.3)
                assert not ring.valid(A)
                assert (await scene.store.resources(GROUP))[A].holder is None

    play(story)


@pytest.mark.spec("J1")
def test_leaving_releases_all_at_once_and_renews_nothing_any_more() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A, B) as ring, scene.ring() as other:
            await ring.leave()
            assert not ring.valid(A)
            assert set(await other.take({A: "", B: ""})) == {A, B}
            assert not ring.told  # it was given back, not lost
            with pytest.raises(LeaseLost):
                await ring.take({C: ""})
            await ring.leave()
            await other.leave()
            scene.store.calls.clear()
            await asyncio.sleep(10 * LEASE_S)
            assert not scene.store.calls
            assert not await scene.store.members(GROUP)

    play(story)


def test_keys_beside_the_jobs_are_taken_in_the_same_way() -> None:
    async def story(scene: Scene) -> None:
        key = "wanted/a"
        async with scene.ring() as ring, scene.ring() as other:
            for first, second in ((ring, other), (other, ring), (ring, other)):
                assert set(await first.take({key: "", A: ""})) == {key, A}
                assert await second.take({key: ""}) == {}
                place = Position(sequence_number=int(now()))
                assert await first.mark({key: place}) == {}
                await asyncio.sleep(LEASE_S)
                assert first.valid(key)
                await first.release({key: "", A: ""})
            stored = (await scene.store.checkpoints("wanted"))[key]
            assert stored.position.sequence_number == 20

    play(story)


def test_without_a_fresh_look_what_the_last_renewal_showed_decides() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring, scene.ring() as other:
            scene.store.calls.clear()
            assert await other.take({A: "", B: ""}, fresh=False) == {}
            assert not scene.store.calls
            await ring.release({A: ""})
            assert await other.take({A: ""}, fresh=False) == {}
            await other.news()
            assert set(await other.take({A: ""}, fresh=False)) == {A}

    play(story)


def test_a_key_that_was_forgotten_meanwhile_is_declared_again() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring(A) as ring:
            await ring.release({A: ""})
            await scene.store.forget([A])
            assert (await ring.take({A: ""}))[A].epoch == 2

    play(story)


def test_one_that_watches_sees_the_end_of_a_lease_when_it_comes() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ring() as other:
            async with scene.ring(A):
                await asyncio.sleep(3.3)
            died_s = 2.5  # its last renewal
            await until(lambda: (seen := other.resource(A)) is not None and seen.holder is None)
            assert now() == pytest.approx(died_s + LEASE_S, abs=0.1)

    play(story)
