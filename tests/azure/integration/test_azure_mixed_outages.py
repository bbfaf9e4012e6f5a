"""A mixed group when the storage of Azure's clients hangs, or comes back late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from tests.support.azure_sim import CLIENT_CYCLE_S, CONSUMERS, EXPIRY_S, GROUP, HUB, Group, play

from leasehold.azure.interop.records import is_stand_in
from leasehold.errors import InvalidDuration
from leasehold.model import CheckpointWrite, Ownership, Position
from leasehold.names import partition_key

pytestmark = pytest.mark.spec("B8")

KEY = partition_key(HUB, CONSUMERS, "3")


def checkpoint_write(ownership: Ownership, number: int) -> CheckpointWrite:
    position = Position(sequence_number=number, offset=str(100 * number))
    return CheckpointWrite(ownership=ownership, position=position)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make calls to their store hang, which is what storage without a route does."""

    def hang(group: Group) -> None:
        async def call(*_: object, **__: object) -> Iterable[Mapping[str, Any]]:
            await asyncio.Event().wait()
            raise AssertionError

        for name in (
            "list_ownership",
            "claim_ownership",
            "update_checkpoint",
            "list_checkpoints",
        ):
            monkeypatch.setattr(group.azure_store, name, call)

    return hang


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let our store give leases of 60 s at most, as that of Azure Blob does."""

    def shorten(group: Group) -> None:
        grant = group.store.grant

        async def checked(*, duration: timedelta, **given: Any) -> Any:
            if duration > timedelta(seconds=60):
                raise InvalidDuration("60 s at most")
            return await grant(duration=duration, **given)

        monkeypatch.setattr(group.store, "grant", checked)

    return shorten


async def stand_ins(group: Group) -> dict[str, int]:
    """What the store says that clients of Azure hold, and the epoch of each."""
    found = await group.store.resources(GROUP)
    return {key: each.epoch for key, each in found.items() if is_stand_in(each.holder or "")}


def test_a_stand_in_lives_as_long_as_its_client_where_no_lease_is_as_long_as_the_expiry(
    short: Any,
) -> None:
    async def story(group: Group) -> None:
        short(group)
        group.host()
        group.client("f")
        await group.cycles_until(lambda: group.even(2) and group.agrees())
        await asyncio.sleep(2 * CLIENT_CYCLE_S)
        before = await stand_ins(group)
        assert len(before) == 4
        for _ in range(int(EXPIRY_S)):
            await asyncio.sleep(1)
            assert await stand_ins(group) == before

    play(story)


def test_a_stand_in_lives_on_while_their_records_can_not_be_read(never: Any, short: Any) -> None:
    async def story(group: Group) -> None:
        short(group)
        group.host()
        group.client("f")
        await group.cycles_until(lambda: group.even(2) and group.agrees())
        await asyncio.sleep(2 * CLIENT_CYCLE_S)
        before = await stand_ins(group)
        never(group)
        for _ in range(int(EXPIRY_S / 3)):
            await asyncio.sleep(1)
            assert await stand_ins(group) == before
        assert len(before) == 4

    play(story)


def test_ours_go_on_while_their_storage_hangs_and_stop_before_it_is_too_late(never: Any) -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        never(group)
        await asyncio.sleep(EXPIRY_S / 3)
        assert len(host.held()) == 8
        assert group.work[host].ended == []
        await asyncio.sleep(EXPIRY_S / 3)
        assert host.held() == []

    play(story)


def test_a_checkpoint_is_taken_while_their_storage_hangs(never: Any) -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        never(group)
        async with asyncio.timeout(3):
            for number in (7, 8):
                writes = [checkpoint_write(each, number) for each in host.held()]
                assert await host._store.checkpoint(writes) == {}
        found = await group.store.checkpoints(KEY.rpartition("/")[0])
        assert found[KEY].resumes_at == 9

    play(story)


@pytest.mark.parametrize("successor", ["client", "host"])
def test_a_checkpoint_that_comes_late_never_overwrites_that_of_a_successor(successor: str) -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        store, write = host._store, group.azure_store.update_checkpoint

        async def fail(*_: object, **__: object) -> None:
            raise ConnectionError("away")

        group.azure_store.update_checkpoint = fail  # type: ignore[method-assign]
        writes = [checkpoint_write(each, 7) for each in host.held()]
        assert await store.checkpoint(writes) == {}
        if successor == "client":
            row = dict(group.azure_store.owners["3"])
            assert await group.azure_store.claim_ownership([{**row, "owner_id": "theirs"}])
            moved = "3"
        else:
            other = group.host()
            await group.cycles_until(lambda: group.even(2))
            moved = other.held()[0].key.rpartition("/")[2]
        await write({"partition_id": moved, "offset": "900", "sequence_number": 9})
        group.azure_store.update_checkpoint = write  # type: ignore[method-assign]
        await asyncio.sleep(20)
        assert group.azure_store.positions[moved]["sequence_number"] == 9
        kept = host.held()[0].key.rpartition("/")[2]
        assert group.azure_store.positions[kept]["sequence_number"] == 7

    play(story)
