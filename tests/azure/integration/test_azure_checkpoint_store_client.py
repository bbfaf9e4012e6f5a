"""The client of azure-eventhub on stores of Leasehold: it shares, leaves, and loses nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import LoadBalancingStrategy
from tests.support.azure_group import (
    CONSUMERS,
    HUB,
    LEFT_OPEN,
    BlockingReader,
    Client,
    Hub,
    hub,
    until,
)

from leasehold import azure
from leasehold.azure import AsyncCheckpointStore

pytestmark = [
    pytest.mark.server,
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.spec("B8"),
    *LEFT_OPEN,
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "azure_checkpoint_store.py"
LEASE = timedelta(minutes=5)  # nobody ever loses one here
# A client may claim its partitions once more while it is closed: then its lease has to end. The
# shorter its cycle the more often it does.
LEASE_OF_LEAVING = timedelta(seconds=20)
INTERVAL_S = 0.4


async def share_and_leave(h: Hub, first: Any, second: Any) -> None:
    """Two share the partitions, one leaves, and the other goes on from its checkpoints."""
    half = len(h.partitions) // 2
    await h.send(20)
    one: Client | BlockingReader = first.start()
    await h.all_seen()
    assert one.owned == set(h.partitions)
    two: Client | BlockingReader = second.start()
    await until(lambda: len(two.owned) == len(one.owned) == half)
    await h.send(20)
    await h.all_seen()
    assert h.deliveries.by(two.name) >= half * 20
    before = h.deliveries.by(one.name)
    await two.stop()
    await until(lambda: len(one.owned) == len(h.partitions))
    await h.send(20)
    await h.all_seen()
    # All that was given again to the one that stayed would be counted here.
    assert h.deliveries.by(one.name) - before == len(h.partitions) * 20
    await one.stop()


async def test_two_asynchronous_clients_share_and_the_one_that_stays_goes_on(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/owners.db"
    async with hub(tmp_path, partitions=4) as h:
        async with (
            AsyncCheckpointStore(url, lease=LEASE) as a,
            AsyncCheckpointStore(url, lease=LEASE_OF_LEAVING) as b,
        ):
            options = {"load_balancing_interval": INTERVAL_S}
            await share_and_leave(h, h.client("a", a, **options), h.client("b", b, **options))
        async with AsyncCheckpointStore(url) as store:
            found = await store.list_checkpoints(h.namespace, HUB, CONSUMERS)
            owners = await store.list_ownership(h.namespace, HUB, CONSUMERS)
        assert {(each["partition_id"], each["sequence_number"]) for each in found} == {
            (each, 59) for each in h.partitions
        }
        assert {each["owner_id"] for each in owners} == {""}


async def test_two_blocking_clients_share_and_the_one_that_stays_goes_on(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/owners.db"
    async with hub(tmp_path, partitions=2) as h:
        with (
            azure.CheckpointStore(url, lease=LEASE) as a,
            azure.CheckpointStore(url, lease=LEASE_OF_LEAVING) as b,
        ):
            options = {
                "load_balancing_interval": INTERVAL_S,
                "load_balancing_strategy": LoadBalancingStrategy.BALANCED,
            }
            first = h.blocking_client("a", a, **options)
            await share_and_leave(h, first, h.blocking_client("b", b, **options))


@pytest.mark.process
async def test_the_example_consumes_and_leaves_in_good_order(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/owners.db"
    async with hub(tmp_path, partitions=1) as h:
        await h.send(5)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLE),
            h.server.connection_string(HUB),
            url,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"consuming: Ctrl-C to end\n"
            assert await process.stdout.readline() == b"partition 0: 5 events\n"
            await h.send(1)
            assert await process.stdout.readline() == b"partition 0: 1 event\n"
            process.send_signal(signal.SIGINT)
            assert await process.stdout.read() == b"left\n"
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        async with AsyncCheckpointStore(url) as store:
            (found,) = await store.list_checkpoints(h.namespace, HUB, CONSUMERS)
            (owned,) = await store.list_ownership(h.namespace, HUB, CONSUMERS)
        assert (found["sequence_number"], owned["owner_id"]) == (5, "")
