"""Nothing begins after the partition was lost: in a thread that took long, or at a late caller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from leasehold.clock import SystemClock
from leasehold.processor.context import AsyncPartitionContext, PartitionContext
from leasehold.processor.events import CloseReason
from leasehold.processor.handlers import HandlerCall, Handlers, PartitionClient
from leasehold.runtime.worker_threads import WorkerThreads
from leasehold.testing.source import MemorySource

pytestmark = [pytest.mark.anyio, pytest.mark.spec("P2")]


class Ownership:
    """A partition that is owned until a test says otherwise."""

    def __init__(self) -> None:
        self.valid = True
        self.partition = "0"
        self.ownership = SimpleNamespace(holder="me", epoch=1, key="partition/orders/billing/0")


def contexts(handle: Ownership) -> tuple[AsyncPartitionContext, PartitionContext]:
    calls: Any = SimpleNamespace(handle=handle)
    return (
        AsyncPartitionContext(calls, stream="orders", group="billing"),
        PartitionContext(calls, stream="orders", group="billing"),
    )


@pytest.mark.parametrize("kind", ["on_batch", "on_event"])
@pytest.mark.parametrize("timeout_s", [None, 60.0])
async def test_no_call_begins_in_a_thread_after_the_partition_was_lost(
    kind: str, timeout_s: float | None
) -> None:
    source = MemorySource()
    source.append("0", b"a", b"b")
    handle, begun = Ownership(), []

    def handler(context: PartitionContext, _events: object) -> None:
        begun.append(context.partition)

    threads = anyio.CapacityLimiter(1)
    functions: dict[str, Any] = {kind: handler}
    handlers = Handlers(timeout_s=timeout_s, threads=WorkerThreads(threads), **functions)
    call, clock = HandlerCall(began_s=0.0), SystemClock()
    busy = object()
    await threads.acquire_on_behalf_of(busy)  # no thread is free
    async with anyio.create_task_group() as tasks:
        batch = source.batch("0", 0, 2)
        tasks.start_soon(handlers.handle, call, contexts(handle), batch, clock, lambda: None)
        while not threads.statistics().tasks_waiting:
            await anyio.lowlevel.checkpoint()
        handle.valid = False  # lost while it waits
        threads.release_on_behalf_of(busy)
    assert begun == []
    assert call.done == 0


@pytest.mark.spec("P14")
async def test_a_batch_that_waits_for_its_caller_is_not_given_out_after_the_loss() -> None:
    """The caller comes after a pause of the process: the lease is over, and nobody said so yet."""
    source = MemorySource()
    source.append("0", b"a")
    handle = Ownership()
    client = PartitionClient(contexts(handle)[0])
    taken: list[object] = []

    async def caller() -> None:
        taken.extend([batch async for batch in client])

    async with anyio.create_task_group() as pump, anyio.create_task_group() as callers:
        pump.start_soon(client.offer, source.batch("0", 0, 1))
        await anyio.wait_all_tasks_blocked()
        handle.valid = False
        callers.start_soon(caller)
        await anyio.wait_all_tasks_blocked()
        client.end(CloseReason.LOST)
    assert taken == []
