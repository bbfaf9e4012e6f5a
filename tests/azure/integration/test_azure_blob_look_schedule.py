"""Who checks who is alive: members take turns, and record it in the document for the others."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.azure_blob_scene import LEASE, ManualTimeScene, granted, opened, sent

pytestmark = [pytest.mark.anyio, pytest.mark.server]


@pytest.mark.spec("B4", "P3")
@pytest.mark.parametrize(("members", "looks"), [(1, 6), (3, 6), (4, 3), (5, 3), (6, 2), (8, 2)])
async def test_the_more_members_the_less_often_each_looks_who_is_alive(
    members: int, looks: int
) -> None:
    world = ManualTimeScene()
    world.pass_time(15 - world.clock.utc_now().timestamp() % 10)  # the middle of a turn
    async with opened(world.url, world.clock) as store:
        leases = [
            await granted(store, f"host{n}", duration=timedelta(seconds=30)) for n in range(members)
        ]
        for lease in leases:
            await store.renew(lease)
        listings = 0
        for _ in range(6):
            world.pass_time(10)
            for lease in leases:
                with sent() as lines:
                    await store.renew(lease)
                assert len(lines) == 2
                listings += lines[0].count("comp=list")
        assert listings == looks * members


@pytest.mark.spec("P3")
async def test_one_that_looks_tells_all_the_others_by_the_document() -> None:
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        leases = [await granted(store, f"host{n}", duration=LEASE) for n in range(5)]
        versions = [(await store.renew(lease)).version for lease in leases]
        dying = leases.pop()
        world.pass_time(10)
        for lease in leases:
            await store.renew(lease)
        world.pass_time(6)
        ended_holders: list[list[str]] = []
        for lease, version in zip(leases, versions, strict=False):
            changes = await store.renew(lease, since=version)
            ended_holders.append([each.holder for each in changes.members if not each.alive])
        assert ended_holders == [[dying.holder]] * 4
