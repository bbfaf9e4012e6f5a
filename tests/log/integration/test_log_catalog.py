"""The catalog of streams, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.postgres import fresh_database

from leasehold.clock import SystemClock
from leasehold.errors import InvalidName, InvalidOptions, ReaderDisplaced, UnknownStream
from leasehold.log import StreamSettings
from leasehold.log.streams import Catalog
from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Position
from leasehold.names import partition_key
from leasehold.stores import open_store


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db" if request.param == "sqlite" else fresh_database()


@pytest.fixture
def catalog(url: str) -> Iterator[Catalog]:
    opened = Catalog.open(url, clock=SystemClock())
    yield opened
    opened.close()


def test_a_stream_is_found_as_it_was_created(catalog: Catalog) -> None:
    settings = StreamSettings(
        partitions=3,
        segment_bytes=1 << 20,
        segment_age_s=1.5,
        replication=2,
        retain_age_s=60.0,
        retention_bytes=1 << 33,
    )
    made = catalog.create("orders", settings)
    assert made.settings == settings
    assert made.partitions == 3
    assert catalog.get("orders") == made
    assert catalog.list() == [made]


def test_creating_again_is_harmless_and_with_other_numbers_refused(catalog: Catalog) -> None:
    made = catalog.create("orders", StreamSettings(partitions=3))
    assert catalog.create("orders", StreamSettings(partitions=3)) == made
    with pytest.raises(InvalidOptions, match="partitions is 3 there and 4 here"):
        catalog.create("orders", StreamSettings(partitions=4))
    assert catalog.get("orders") == made


def test_an_unknown_stream_is_told_with_those_there_are(catalog: Catalog) -> None:
    with pytest.raises(UnknownStream, match="none yet"):
        catalog.get("order")
    catalog.create("orders", StreamSettings())
    catalog.create("billing", StreamSettings())
    with pytest.raises(UnknownStream, match="'billing', 'orders'"):
        catalog.get("order")
    with pytest.raises(InvalidName):
        catalog.create("", StreamSettings())


def test_a_deleted_stream_is_gone_with_its_readers(catalog: Catalog) -> None:
    catalog.create("orders", StreamSettings())
    catalog.claim_reader("orders", 0, "g", 7, "ann")
    assert catalog.delete("orders")
    assert not catalog.delete("orders")
    assert catalog.list() == []
    catalog.create("orders", StreamSettings(partitions=9))
    catalog.claim_reader("orders", 0, "g", 1, "bob")


@pytest.mark.spec("E2")
def test_the_highest_epoch_alone_may_read(catalog: Catalog) -> None:
    catalog.check_reader("orders", 0, "g", None, "free")
    catalog.claim_reader("orders", 0, "g", 5, "ann")
    catalog.check_reader("orders", 0, "g", 5, "ann")
    with pytest.raises(ReaderDisplaced, match="'ann' with epoch 5") as refused:
        catalog.claim_reader("orders", 0, "g", 4, "bob")
    assert refused.value.now_held_by == "ann"
    with pytest.raises(ReaderDisplaced):
        catalog.check_reader("orders", 0, "g", None, "free")
    catalog.claim_reader("orders", 0, "g", 6, "bob")
    with pytest.raises(ReaderDisplaced, match="'bob' with epoch 6"):
        catalog.check_reader("orders", 0, "g", 5, "ann")


@pytest.mark.spec("E2")
def test_of_two_readers_with_one_epoch_the_newer_wins(catalog: Catalog) -> None:
    catalog.claim_reader("orders", 0, "g", 5, "ann")
    catalog.claim_reader("orders", 0, "g", 5, "bob")
    with pytest.raises(ReaderDisplaced, match="bob"):
        catalog.check_reader("orders", 0, "g", 5, "ann")
    catalog.claim_reader("orders", 0, "g", 5, "bob")
    catalog.check_reader("orders", 0, "g", 5, "bob")


def test_groups_and_partitions_are_independent(catalog: Catalog) -> None:
    catalog.claim_reader("orders", 0, "g", 5, "ann")
    catalog.claim_reader("orders", 1, "g", 1, "bob")
    catalog.claim_reader("orders", 0, "h", 1, "cid")
    catalog.check_reader("orders", 0, "g", 5, "ann")
    catalog.check_reader("orders", 2, "g", None, "dan")


async def _checkpointed(url: str, positions: dict[str, int]) -> None:
    async with open_store(url) as store:
        await store.declare(list(positions))
        lease = await store.grant(
            holder="h",
            token="t" * 32,
            group="",
            duration=timedelta(seconds=30),
            info=MemberInfo(),
        )
        wanted = [KeyClaim(key=key, seen_epoch=0) for key in positions]
        owned = await store.claim(lease, wanted)
        marks = [
            CheckpointWrite(ownership=each, position=Position(sequence_number=positions[each.key]))
            for each in owned
        ]
        assert not await store.checkpoint(marks)


def test_the_least_checkpoint_of_all_groups_is_told(catalog: Catalog, url: str) -> None:
    long = "ü" * 80  # kept under a short name by PostgreSQL
    positions = {
        partition_key("orders", "billing", "0"): 120,
        partition_key("orders", "audit", "0"): 90,
        partition_key("orders", "billing", "11"): 7,
        partition_key("orders/eu", "billing", "0"): 1,
        partition_key("orders2", "billing", "0"): 2,
        partition_key("orders", long, "3"): 3,
    }
    asyncio.run(_checkpointed(url, positions))
    assert catalog.checkpoints("orders") == {0: 90, 3: 3, 11: 7}
    assert catalog.checkpoints("orders/eu") == {0: 1}
    assert catalog.checkpoints("nothing") == {}
    assert sorted(catalog.positions("orders")) == [
        (0, "audit", 90),
        (0, "billing", 120),
        (3, long, 3),
        (11, "billing", 7),
    ]
