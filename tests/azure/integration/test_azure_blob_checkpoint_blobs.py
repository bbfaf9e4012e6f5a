"""Positions beside the document: one cheap call each, and never lost when a key changes hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import anyio.from_thread
import pytest
from tests.support.azure_blob_scene import (
    GROUP,
    LEASE,
    NEVER,
    ManualTimeScene,
    granted,
    keys,
    opened,
    owned,
    sent,
)
from tests.support.azurite import shared_azurite

from leasehold.azure import blob_store as store_module
from leasehold.azure.blob_store import AzureBlobStore
from leasehold.azure.blob_store import checkpoint_blobs as checkpoint_blobs_module
from leasehold.azure.blob_store import ownerships as ownerships_module
from leasehold.azure.blob_store.checkpoint_blobs import CheckpointBlobs
from leasehold.azure.blob_store.container import Container
from leasehold.azure.blob_store.naming import LeaseLocation
from leasehold.errors import StoreUnavailable, StoreUnusable
from leasehold.model import (
    CheckpointWrite,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
    Refusal,
)

pytestmark = [pytest.mark.anyio, pytest.mark.server]
LOCATION = LeaseLocation(GROUP)


@pytest.fixture
def url() -> str:
    return shared_azurite().new_store_url()


async def write_checkpoint(
    store: AzureBlobStore, ownership: Ownership, number: int, offset: str = ""
) -> Refusal | None:
    position = Position(sequence_number=number, offset=offset)
    refused = await store.checkpoint([CheckpointWrite(ownership=ownership, position=position)])
    return refused.get(ownership.key)


async def reached(store: AzureBlobStore) -> dict[str, int]:
    found = await store.checkpoints(GROUP)
    return {key: each.position.sequence_number for key, each in found.items()}


async def writing_host(store: AzureBlobStore, name: str = "host") -> tuple[Lease, list[Ownership]]:
    """A host with two keys and a checkpoint blob, which has the position of the first key: 5."""
    lease = await granted(store, name)
    mine = await owned(store, lease, 2)
    for number in range(1, 6):
        assert await write_checkpoint(store, mine[0], number) is None
    assert checkpoint_blobs_of(store)
    return lease, mine


def checkpoint_blobs_of(store: AzureBlobStore) -> list[str]:
    return sorted(store._container.list(LOCATION.checkpoint_prefix, NEVER))


@pytest.mark.spec("C2", "B4")
async def test_positions_of_a_host_that_writes_often_are_one_cheap_call_each(url: str) -> None:
    async with opened(url) as store, opened(url) as reader:
        lease = await granted(store)
        mine = await owned(store, lease, 256)

        async def all_at(number: int) -> list[str]:
            position = Position(sequence_number=10**12 + number, offset=str(10**15 + 77 * number))
            with sent() as lines:
                writes = [CheckpointWrite(ownership=each, position=position) for each in mine]
                assert not await store.checkpoint(writes)
            return lines

        assert len(await all_at(1)) == 1, "it goes into the document"
        assert len(await all_at(2)) == 1
        assert len(await all_at(3)) == 2, "the third makes the checkpoint blob"
        for number in range(4, 6):
            (line,) = await all_at(number)
            assert "/slips/" in line
            assert "comp=metadata" in line
        assert set((await reached(reader)).values()) == {10**12 + 5}
        assert await write_checkpoint(store, mine[7], 4) is Refusal.BEHIND
        assert (await reached(reader))[mine[7].key] == 10**12 + 5


async def _stolen(store: AzureBlobStore, lease: Lease, mine: list[Ownership]) -> None:
    thief = await granted(store, "thief")
    wanted = [KeyClaim(key=mine[0].key, seen_epoch=mine[0].epoch)]
    assert await store.claim(thief, wanted, force=True)


async def _released(store: AzureBlobStore, lease: Lease, mine: list[Ownership]) -> None:
    assert await store.release(mine[:1]) == [mine[0].key]


async def _handed_over(store: AzureBlobStore, lease: Lease, mine: list[Ownership]) -> None:
    await granted(store, "heir")
    passed = [HandOver(ownership=mine[0], to="heir")]
    assert await store.hand_over(passed, limit=timedelta(seconds=9)) == [mine[0].key]


async def _revoked(store: AzureBlobStore, lease: Lease, mine: list[Ownership]) -> None:
    await store.revoke(lease)


async def _broken(store: AzureBlobStore, lease: Lease, mine: list[Ownership]) -> None:
    assert await store.break_(mine[0].key, epoch=mine[0].epoch, after=timedelta(0))


@pytest.mark.spec("C3", "L7")
@pytest.mark.parametrize("end", [_stolen, _released, _handed_over, _revoked, _broken])
async def test_however_a_key_is_lost_its_position_is_kept_and_no_later_one_is_taken(
    url: str, end: Callable[[AzureBlobStore, Lease, list[Ownership]], Awaitable[None]]
) -> None:
    async with opened(url) as store, opened(url) as other:
        lease, mine = await writing_host(store)
        await end(other, lease, mine)
        assert await write_checkpoint(store, mine[0], 99) is Refusal.FENCED
        assert (await reached(other))[mine[0].key] == 5
        assert await other.fenced_writes(GROUP) == 1


@pytest.mark.spec("C3", "L7")
async def test_a_write_that_was_paused_on_its_way_comes_too_late(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        lease, mine = await writing_host(store)
        real = Container.set_metadata
        paused: list[str] = []

        def late(self: Container, name: str, *given: object, **named: object) -> str | None:
            if self is store._container and not paused:
                paused.append(name)
                anyio.from_thread.run(_stolen, other, lease, mine)
            return real(self, name, *given, **named)  # type: ignore[arg-type]

        with patch.object(Container, "set_metadata", late):
            assert await write_checkpoint(store, mine[0], 99) is Refusal.FENCED
        assert paused
        assert (await reached(other))[mine[0].key] == 5


@pytest.mark.spec("C3", "B5")
async def test_the_positions_of_a_host_that_died_go_to_whoever_takes_its_keys() -> None:
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store, opened(world.url, world.clock) as other:
        lease = await granted(store, duration=LEASE)
        (mine,) = await owned(store, lease, 1)
        for number in range(1, 6):
            assert await write_checkpoint(store, mine, number) is None
        heir = await granted(other, "heir")
        world.pass_time(16)
        (taken,) = await other.claim(heir, [KeyClaim(key=mine.key, seen_epoch=1)])
        assert (await reached(other))[mine.key] == 5
        assert await write_checkpoint(store, mine, 6) is Refusal.FENCED
        assert await write_checkpoint(other, taken, 7) is None
        assert not checkpoint_blobs_of(other)


@pytest.mark.spec("B5")
async def test_who_seals_a_checkpoint_blob_and_dies_costs_its_holder_nothing(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        _, mine = await writing_host(store)
        with other._cache.copy(LOCATION) as known:
            assert known is None, "it has read nothing yet"
        await other.checkpoints(GROUP)
        with other._cache.copy(LOCATION) as known:
            assert known is not None
            assert other._cache.checkpoint_blobs.sealed(LOCATION, known[0], ["host"], NEVER)
        (sealed,) = checkpoint_blobs_of(store)
        assert (await reached(other))[mine[0].key] == 5
        assert await write_checkpoint(store, mine[0], 6) is None
        assert sealed not in checkpoint_blobs_of(store)
        with sent() as lines:
            assert await write_checkpoint(store, mine[1], 7) is None
        assert len(lines) == 1
        assert await reached(other) == {mine[0].key: 6, mine[1].key: 7}


@pytest.mark.parametrize("done", [True, False], ids=["answer lost", "request lost"])
async def test_an_answer_that_is_lost_is_found_out_about(url: str, done: bool) -> None:
    async with opened(url) as store:
        _, mine = await writing_host(store)
        real = Container.set_metadata
        lost: list[str] = []

        def deaf(self: Container, name: str, *given: object, **named: object) -> str | None:
            if lost:
                return real(self, name, *given, **named)  # type: ignore[arg-type]
            lost.append(name)
            if done:
                real(self, name, *given, **named)  # type: ignore[arg-type]
            raise StoreUnavailable("the line is dead")

        with patch.object(Container, "set_metadata", deaf):
            assert await write_checkpoint(store, mine[0], 6) is None
        assert lost
        # One that never came is written in the document, behind a seal: it cannot come later.
        assert (lost[0] in checkpoint_blobs_of(store)) == done
        assert (await reached(store))[mine[0].key] == 6
        assert await write_checkpoint(store, mine[0], 7) is None
        assert (await reached(store))[mine[0].key] == 7


async def test_what_does_not_fit_on_a_checkpoint_blob_goes_into_the_document(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        mine = await owned(store, lease, 12)
        for number, ownership in enumerate(mine * 4, start=1):
            offset = "".join(chr(0x4E00 + (number * 977 + n * n * 31) % 20_000) for n in range(900))
            assert await write_checkpoint(store, ownership, number, offset) is None
        found = await store.checkpoints(GROUP)
        assert {each.position.sequence_number for each in found.values()} == set(range(37, 49))
        assert {len(each.position.offset) for each in found.values()} == {900}


async def test_a_checkpoint_blob_that_goes_while_it_is_read_is_looked_for_in_the_document(
    url: str,
) -> None:
    async with opened(url) as store, opened(url) as other:
        lease, mine = await writing_host(store)
        real, gone = Container.list, list[str]()

        def after_a_release(self: Container, path: str, cancelled: object) -> object:
            if self is other._container and path == LOCATION.checkpoint_prefix and not gone:
                gone.append(path)
                anyio.from_thread.run(_released, store, lease, mine)
            return real(self, path, cancelled)  # type: ignore[arg-type]

        with patch.object(Container, "list", after_a_release):
            assert (await reached(other))[mine[0].key] == 5
        assert gone


async def test_a_damaged_checkpoint_blob_is_said_to_be_so(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        await writing_host(store)
        (name,) = checkpoint_blobs_of(store)
        found = store._container.get(name, NEVER)
        assert found is not None
        damaged = {**found.metadata, "marks": "bm8="}
        assert store._container.set_metadata(name, damaged, etag=found.etag, cancelled=NEVER)
        with pytest.raises(StoreUnusable, match="is damaged"):
            await other.checkpoints(GROUP)


async def test_checkpoint_blobs_that_were_left_behind_are_swept_and_no_others() -> None:
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        old, sealed = (
            store._cache.checkpoint_blobs.create(LOCATION, "gone", NEVER) for _ in range(2)
        )
        assert sealed
        store._cache.checkpoint_blobs._seal(
            LOCATION, LOCATION.checkpoint_blob("gone", sealed), NEVER
        )
        world.pass_time(2 * 3600 + 10)
        new = store._cache.checkpoint_blobs.create(LOCATION, "gone", NEVER)
        assert old
        assert new
        lease = await granted(store)
        assert checkpoint_blobs_of(store) == [LOCATION.checkpoint_blob("gone", new)]
        (mine,) = await owned(store, lease, 1)
        for number in range(1, 6):
            assert await write_checkpoint(store, mine, number) is None
        named = [each for each in checkpoint_blobs_of(store) if "/host-" in each]
        for _ in range(300):
            world.pass_time(30)
            await store.renew(lease)
        await granted(store, "next")
        assert checkpoint_blobs_of(store) == named


async def test_a_job_that_writes_twice_in_each_run_needs_no_checkpoint_blob(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        await store.declare(keys(1))
        for run in range(4):
            with sent() as lines:
                (mine,) = await store.claim(lease, [KeyClaim(key=keys(1)[0], seen_epoch=run)])
                assert await write_checkpoint(store, mine, 2 * run) is None
                assert await write_checkpoint(store, mine, 2 * run + 1) is None
                await store.release([mine])
            assert len(lines) == 4
        assert not checkpoint_blobs_of(store)


async def test_keys_that_are_written_one_by_one_share_a_checkpoint_blob(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        mine = await owned(store, lease, 16)
        for number in range(3):
            for each in mine:
                assert await write_checkpoint(store, each, number) is None
        with sent() as lines:
            for each in mine:
                assert await write_checkpoint(store, each, 3) is None
        assert len(lines) == 16
        assert all("comp=metadata" in line for line in lines)


async def test_many_calls_at_once_share_one_checkpoint_blob_from_the_start(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        mine = await owned(store, lease, 8)

        async def write(each: Ownership) -> None:
            for number in range(12):
                assert await write_checkpoint(store, each, number) is None

        with (
            patch.object(ownerships_module, "_LOCK_TIMEOUT_S", 60.0),
            patch.object(checkpoint_blobs_module, "_LOCK_TIMEOUT_S", 60.0),
            sent() as lines,
        ):
            async with anyio.create_task_group() as tasks:
                for each in mine:
                    tasks.start_soon(write, each)
        assert len(checkpoint_blobs_of(store)) == 1
        assert sum("/slips/" in line and "comp=" not in line for line in lines) == 1
        assert sum("/book" in line for line in lines) < 4 * len(mine)
        assert await reached(store) == {each.key: 11 for each in mine}


def test_all_calls_that_may_run_at_once_get_their_turn_though_the_service_is_far() -> None:
    """A write to the document takes the blob from all other calls, which then go there too."""
    assert (
        min(checkpoint_blobs_module._LOCK_TIMEOUT_S, ownerships_module._LOCK_TIMEOUT_S)
        >= 0.1 * store_module._THREADS
    )


@pytest.mark.spec("C3")
async def test_two_threads_that_write_one_key_never_take_it_back(url: str) -> None:
    """The slower one has compared its position before the faster one has written."""
    async with opened(url) as store:
        _, mine = await writing_host(store)
        real, inside = CheckpointBlobs.write, list[int]()

        def slow(self: CheckpointBlobs, *given: Any) -> bool:
            inside.append(1)
            if len(inside) == 1:
                assert anyio.from_thread.run(write_checkpoint, store, mine[0], 20) is None
            return real(self, *given)

        with patch.object(CheckpointBlobs, "write", slow):
            assert await write_checkpoint(store, mine[0], 10) is Refusal.BEHIND
        assert len(inside) == 2
        assert (await reached(store))[mine[0].key] == 20


@pytest.mark.spec("B5")
async def test_who_writes_without_a_pause_can_be_robbed_from_far_away(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        lease, mine = await writing_host(store)
        real, robbed = other.http_client._send_once, anyio.Event()

        def far(*given: Any) -> Any:
            anyio.from_thread.run(anyio.sleep, 0.02)
            return real(*given)

        async def write() -> None:
            number = 5
            while not robbed.is_set():
                number += 1
                assert await write_checkpoint(store, mine[1], number) is None

        async with anyio.create_task_group() as tasks:
            with patch.object(other.http_client, "_send_once", far):
                tasks.start_soon(write)
                await _stolen(other, lease, mine)
            robbed.set()
        assert (await reached(other))[mine[0].key] == 5
        assert await write_checkpoint(store, mine[0], 99) is Refusal.FENCED


@pytest.mark.spec("C3", "L7")
async def test_a_thread_that_slept_does_not_write_on_a_checkpoint_blob_that_was_made_since(
    url: str,
) -> None:
    """Its term is over. The host owns the key again, and has a new blob for the new term."""
    async with opened(url) as store, opened(url) as other:
        lease, mine = await writing_host(store)
        key, real, inside = mine[0].key, CheckpointBlobs.write, list[int]()

        async def lost_and_had_again() -> None:
            await _stolen(other, lease, mine)
            (again,) = await store.claim(lease, [KeyClaim(key=key, seen_epoch=2)], force=True)
            for number in range(6, 10):
                assert await write_checkpoint(store, again, number) is None

        def slow(self: CheckpointBlobs, *given: Any) -> bool:
            inside.append(1)
            if len(inside) == 1:
                anyio.from_thread.run(lost_and_had_again)
            return real(self, *given)

        with patch.object(CheckpointBlobs, "write", slow):
            assert await write_checkpoint(store, mine[0], 99) is Refusal.FENCED
        assert len(inside) > 1, "the new checkpoint blob is in use"
        assert (await reached(other))[key] == 9


async def test_outsiders_and_who_may_not_write_leave_no_checkpoint_blobs_behind(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        alone = await store.grant(
            holder="alone", token="t", group="", duration=LEASE, info=MemberInfo()
        )
        await store.declare(keys(2))
        (outside,) = await store.claim(alone, [KeyClaim(key=keys(2)[1], seen_epoch=0)])
        lease = await granted(store)
        (mine,) = await store.claim(lease, [KeyClaim(key=keys(2)[0], seen_epoch=0)])
        await _stolen(other, lease, [mine])
        for number in range(6):
            assert await write_checkpoint(store, outside, number) is None
            assert await write_checkpoint(store, mine, number) is Refusal.FENCED
        assert not checkpoint_blobs_of(store)


async def test_a_checkpoint_blob_that_the_document_does_not_name_after_all_is_removed(
    url: str,
) -> None:
    async with opened(url) as store, opened(url) as other:
        lease = await granted(store)
        mine = await owned(store, lease, 1)
        for number in (1, 2):
            assert await write_checkpoint(store, mine[0], number) is None
        real = CheckpointBlobs.create

        def and_the_key_is_stolen(self: CheckpointBlobs, *given: Any) -> str | None:
            name = real(self, *given)
            anyio.from_thread.run(_stolen, other, lease, mine)
            return name

        with patch.object(CheckpointBlobs, "create", and_the_key_is_stolen):
            assert await write_checkpoint(store, mine[0], 3) is Refusal.FENCED
        assert not checkpoint_blobs_of(store)
        assert (await reached(other))[mine[0].key] == 2


@pytest.mark.spec("P3", "B4")
async def test_many_that_die_at_once_are_ended_by_one_renewal_with_their_positions() -> None:
    world, hosts = ManualTimeScene(), 24
    async with opened(world.url, world.clock) as store, opened(world.url, world.clock) as other:
        watcher = await granted(other, "watcher")
        await store.declare(keys(hosts))
        for number, key in enumerate(keys(hosts)):
            lease = await granted(store, f"host{number}", duration=LEASE)
            (mine,) = await store.claim(lease, [KeyClaim(key=key, seen_epoch=0)])
            for position in range(5):
                assert await write_checkpoint(store, mine, position) is None
        assert len(checkpoint_blobs_of(store)) == hosts
        world.pass_time(16)
        with sent() as lines:
            changes = await other.renew(watcher)
        assert sum(not each.alive for each in changes.members) == hosts
        assert len(lines) <= 5 + 4 * hosts  # a fence, a look, a seal and a removal for each
        assert set((await reached(other)).values()) == {4}
        assert not checkpoint_blobs_of(other)


@pytest.mark.spec("C3")
async def test_checkpoint_blobs_of_two_holders_may_have_the_same_name() -> None:
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        await store.declare(keys(2))
        for number, key in enumerate(keys(2)):
            lease = await granted(store, f"host{number}", duration=LEASE)
            (mine,) = await store.claim(lease, [KeyClaim(key=key, seen_epoch=0)])
            with patch(
                "leasehold.azure.blob_store.checkpoint_blobs.new_suffix", lambda: "c0ffee00"
            ):
                for position in range(5):
                    assert await write_checkpoint(store, mine, position) is None
        assert len(checkpoint_blobs_of(store)) == 2
        watcher = await granted(store, "watcher")
        world.pass_time(16)
        await store.renew(watcher)
        assert await reached(store) == dict.fromkeys(keys(2), 4)


async def test_a_checkpoint_blob_that_somebody_removed_counts_as_empty(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        _, mine = await writing_host(store)
        (name,) = checkpoint_blobs_of(store)
        assert store._container.delete(name, NEVER)
        assert (await reached(other))[mine[0].key] == 3, "what the document has"
        assert await write_checkpoint(store, mine[0], 7) is None
        assert (await reached(other))[mine[0].key] == 7
