"""The files room for asynchronous programs: the same calls, awaited."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.namespaces import OPTIONS, SOON, World

from leasehold.errors import FencedWrite
from leasehold.files import AsyncNamespace, RecoveryProgress


@pytest.mark.anyio
async def test_all_of_it_can_be_awaited(both: World) -> None:
    settings: dict[str, Any] = {
        "volumes": both.roots,
        "options": OPTIONS,
        "run_monitor": False,
        "clock": both.clock,
        "disk": both.disk,
    }
    async with await AsyncNamespace.open(both.url, name="async", **settings) as files:
        async with await files.create("/a") as writer:
            assert await writer.write(b"abc") == 3
            assert await writer.flush() == 3
            reader = await files.read("/a")
            assert (reader.length, await reader.read()) == (3, b"abc")
            await writer.write(b"def")
            assert await writer.sync() == 6
            assert (writer.path, writer.acknowledged) == ("/a", 6)
            assert await reader.refresh() == 6
            assert await reader.read_at(3, 2) == b"de"
            assert [each.path for each in await files.list_open()] == ["/a"]
            assert [each.open_files for each in await files.holders()] == [1]
            assert not await files.is_closed("/a")
        assert await files.is_closed("/a")
        assert [part async for part in (await files.read("/a")).chunks(4)] == [b"abcd", b"ef"]
        appended = await files.append("/a")
        assert appended.epoch > writer.epoch
        reported: list[RecoveryProgress] = []
        assert (await files.recover("/a", timeout=SOON, progress=reported.append)).length == 6
        assert [entry.step for entry in await files.history("/a", limit=1)] == ["tail dropped"]
        with pytest.raises(FencedWrite):
            await appended.close()
        assert await files.rename("/a", "/b") == 1
        assert [each.path for each in await files.list()] == ["/b"]
        assert (await files.status("/b")).length == 6
        assert await files.verify("/b") == []
        assert await files.delete("/b") == 1
