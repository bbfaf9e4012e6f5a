"""Ends that overtake each other: each reported opening has a reported end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.processors import CuttableStore, host_group, options

from leasehold.processor import CloseReason
from leasehold.processor.events import PartitionClosed

pytestmark = pytest.mark.anyio


@pytest.mark.spec("P2", "P14")
async def test_a_partition_whose_receiver_is_slow_to_close_is_told_closed_after_the_lease_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store is away, the processor is stopped: its lease ends before its pumps do."""
    reasons: list[CloseReason] = []
    closing, closes = asyncio.Event(), asyncio.Event()

    async def on_close(context: Any, reason: CloseReason) -> None:
        reasons.append(reason)

    async with host_group(events=3) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]
        host = s.make(store=link.store, on_partition_close=on_close, setting=options(lease_s=2.0))
        await host.start()
        await s.seen.count(3)
        receiver = s.source.receivers[0]
        close = receiver.close

        async def close_slowly() -> None:
            closing.set()
            await closes.wait()
            await close()

        monkeypatch.setattr(receiver, "close", close_slowly, raising=True)
        link.cut = True
        stopping = asyncio.create_task(host.stop())
        await closing.wait()
        await host._ended.wait()  # the lease has ended, and all that is left is cancelled
        await asyncio.sleep(0)
        closes.set()
        await stopping
        assert len(reasons) == 1
        assert [each.reason for each in s.watch.of(PartitionClosed)] == reasons
