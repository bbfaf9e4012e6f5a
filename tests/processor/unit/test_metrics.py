"""The numbers of a processor as Prometheus reads them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from leasehold import LeaseTiming
from leasehold.processor import AsyncPartitionContext, EventProcessor, ProcessorOptions
from leasehold.processor.metrics import ProcessorMetrics
from leasehold.testing.source import MemorySource

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[3] / "docs" / "processor.md"


@pytest.mark.spec("P15")
async def test_all_sums_and_states_are_shown_with_stream_group_and_name(tmp_path: Path) -> None:
    source = MemorySource("orders", partitions=2)
    source.append("0", b"a", b"b")
    registry = CollectorRegistry()
    seen = anyio.Event()

    async def opened(context: AsyncPartitionContext) -> None:
        seen.set()

    options = ProcessorOptions(timing=LeaseTiming.of(lease=timedelta(seconds=1)))
    processor = EventProcessor(
        source,
        f"sqlite:///{tmp_path}/leases.db",
        "billing",
        on_batch=lambda context, batch: None,
        on_partition_open=opened,
        options=options,
        name="host",
    )
    metrics = ProcessorMetrics(processor, registry=registry)
    async with processor:
        await seen.wait()
    text = generate_latest(registry).decode()
    where = 'group="billing",name="host",stream="orders"'
    assert f"leasehold_events_handled_total{{{where}}}" in text
    assert (
        'leasehold_partitions{group="billing",name="host",state="waiting",stream="orders"} 0.0'
        in text
    )
    assert f'leasehold_store_calls_total{{call="grant",{where}}} 1.0' in text
    manual = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"^# HELP (\w+)", text, re.MULTILINE):
        assert f"`{name}`" in manual, name
    metrics.close()
    assert generate_latest(registry) == b""
