"""Hosts to be measured, each in a process that does nothing else: ``host``, ``idle``, and so on."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processor_scene import STREAM

from leasehold.core.balance import Strategy
from leasehold.core.lease_timing import LeaseTiming
from leasehold.log import LogSource
from leasehold.processor import EventProcessor, ProcessorOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.events import Event, EventBatch
    from leasehold.processor import AsyncPartitionContext, CloseReason

_GROUP = "bench"


def host(given: argparse.Namespace) -> None:
    """Write down what is opened, handled and closed, until SIGTERM."""
    notes = os.open(given.notes, os.O_WRONLY | os.O_APPEND)

    def note(*words: object) -> None:
        os.write(notes, " ".join(map(str, words)).encode() + b"\n")

    async def on_open(context: AsyncPartitionContext) -> None:
        note("open", context.partition, context.epoch, time.monotonic())

    async def on_close(context: AsyncPartitionContext, reason: CloseReason) -> None:
        note("close", context.partition, context.epoch, reason.value)

    async def on_batch(context: AsyncPartitionContext, batch: EventBatch) -> None:
        note("batch", context.partition, batch.first_sequence, batch.last_sequence)

    EventProcessor(
        LogSource.open(given.url, STREAM),
        given.url,
        _GROUP,
        on_batch=on_batch,
        on_partition_open=on_open,
        on_partition_close=on_close,
        options=ProcessorOptions(
            timing=LeaseTiming.of(lease=timedelta(seconds=given.lease_s)),
            strategy=Strategy(given.strategy),
        ),
    ).run()


async def latency(given: argparse.Namespace) -> None:
    """Say when it has begun, then the milliseconds of each event."""
    taken_ms: list[float] = []
    opened, over = asyncio.Event(), asyncio.Event()

    async def on_open(_: AsyncPartitionContext) -> None:
        opened.set()

    async def on_event(_: AsyncPartitionContext, event: Event) -> None:
        (sent_ns,) = struct.unpack_from(">q", event.body)
        taken_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
        if len(taken_ms) == given.events:
            over.set()

    async with (
        LogSource.open(given.url, STREAM) as source,
        EventProcessor(source, given.url, _GROUP, on_event=on_event, on_partition_open=on_open),
    ):
        await opened.wait()
        print(json.dumps("opened"), flush=True)
        await over.wait()
    print(json.dumps(taken_ms), flush=True)


async def idle(given: argparse.Namespace) -> None:
    """Take all partitions and the events that are there; then say what doing nothing costs."""
    handled = 0
    settled = asyncio.Event()

    async def on_batch(_: AsyncPartitionContext, batch: EventBatch) -> None:
        nonlocal handled
        handled += len(batch)
        if handled == given.events:
            settled.set()

    async with (
        LogSource.open(given.url, STREAM) as source,
        EventProcessor(source, given.url, _GROUP, on_batch=on_batch) as processor,
    ):
        await settled.wait()
        await asyncio.sleep(given.settle_s)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        await asyncio.sleep(given.window_s)
        spent_s = time.process_time() - began_cpu_s
        share = spent_s / (time.monotonic() - began_s)
        print(json.dumps({"share": share, "held": len(processor.held())}), flush=True)


async def slow(given: argparse.Namespace) -> None:
    """Handle next to nothing. To each line that is read, say what memory is taken."""
    loop = asyncio.get_running_loop()
    options = ProcessorOptions(
        batch_bytes=given.batch_bytes,
        prefetch_bytes=given.prefetch_bytes,
        stall_after=timedelta(hours=1),
        give_up_after=None,
    )
    opened: set[str] = set()
    all_opened = asyncio.Event()

    async def on_open(context: AsyncPartitionContext) -> None:
        opened.add(context.partition)
        if len(opened) == given.partitions:
            all_opened.set()

    async def on_batch(_: AsyncPartitionContext, batch: EventBatch) -> None:
        await asyncio.sleep(5.0)
        del batch  # it was held until now

    async with (
        LogSource.open(given.url, STREAM) as source,
        EventProcessor(
            source,
            given.url,
            _GROUP,
            on_batch=on_batch,
            on_partition_open=on_open,
            options=options,
        ) as processor,
    ):
        await all_opened.wait()
        while await loop.run_in_executor(None, sys.stdin.readline):
            waiting = sum(each.waiting_events for each in processor.status())
            print(json.dumps(_memory() | {"waiting": waiting}), flush=True)


def _memory() -> dict[str, int]:
    """In bytes: what is this process's own, and what else of files is mapped and at hand."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return {"own": found["Anonymous"], "mapped": found["Rss"] - found["Anonymous"]}


def _main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.processor_child", description=__doc__)
    parser.add_argument("what", choices=("host", "latency", "idle", "slow"))
    parser.add_argument("url")
    parser.add_argument("--notes", type=Path)
    parser.add_argument("--lease-s", type=float)
    parser.add_argument("--strategy")
    parser.add_argument("--events", type=int)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--settle-s", type=float)
    parser.add_argument("--window-s", type=float)
    parser.add_argument("--batch-bytes", type=int)
    parser.add_argument("--prefetch-bytes", type=int)
    given = parser.parse_args(argv)
    if given.what == "host":
        host(given)
    else:
        asyncio.run({"latency": latency, "idle": idle, "slow": slow}[given.what](given))


if __name__ == "__main__":
    _main()
