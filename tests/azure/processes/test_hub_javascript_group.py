"""Processes with the unmodified client of npm in one consumer group: alone, and beside ours.

They are stock: ``@azure/event-hubs`` with ``@azure/eventhubs-checkpointstore-blob`` on Azurite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.azure_group import until
from tests.support.hub_js.child import node_child
from tests.support.hub_js.group import PARTITIONS, Group, group, owned, share_and_part

from leasehold import LeaseTiming
from leasehold.azure import BlobRecords, EventHubsSource, MixedStore, SharedSource
from leasehold.events import EventBatch
from leasehold.processor import EventProcessor, ProcessorOptions

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]
MEMBER = partial(node_child, "member.js")


def test_processes_share_a_hub_and_go_on_for_one_that_leaves_and_one_that_is_killed(
    tmp_path: Path,
) -> None:
    with group(tmp_path, MEMBER) as them:
        share_and_part(them, ends=["left", "killed"])


@asynccontextmanager
async def _host(them: Group, url: str, seen: dict[str, set[int]]) -> AsyncIterator[EventProcessor]:
    """One of ours in their group, started; it writes down what it is given."""

    async def on_batch(context: Any, batch: EventBatch) -> None:
        seen[context.partition].update(event.sequence_number for event in batch)

    address = f"eventhubs:///hub?connection={quote(them.hub.url(), safe='')}"
    records = BlobRecords.from_connection_string(them.azurite.connection_string, them.container)
    store = MixedStore(
        url,
        records,
        namespace="127.0.0.1",  # this client leaves the port out, the one of Python does not
        hub="hub",
        expiry=timedelta(seconds=them.expiry_s),
    )
    timing = LeaseTiming(lease_s=them.expiry_s / 2, renew_s=0.6, margin_s=1.0, call_s=5.0)
    # Their cycle is short here, and so is the time after which a receiver may be taken back.
    source = SharedSource(EventHubsSource(address), grace=timedelta(seconds=3))
    host = EventProcessor(
        source, store, "$Default", on_batch=on_batch, options=ProcessorOptions(timing=timing)
    )
    await host.start()
    try:
        yield host
    finally:
        await host.stop()
        await source.close()
        await store.close()
        await records.close()


@pytest.mark.anyio
@pytest.mark.spec("B8")
async def test_a_process_of_theirs_and_one_of_ours_have_equal_shares(tmp_path: Path) -> None:
    seen: dict[str, set[int]] = defaultdict(set)
    with group(tmp_path, MEMBER) as them:
        them.expiry_s = 30.0
        async with _host(them, f"sqlite:///{tmp_path}/leases.db", seen) as host:
            await until(lambda: len(host.held()) == PARTITIONS)
            with them.member() as theirs:

                def even() -> bool:
                    return len(owned(theirs)) == len(host.held()) == PARTITIONS / 2

                await until(even)
                them.store()
                await until(lambda: all(them.seen(each, *seen[each]) for each in them.partitions))
                theirs.do("leave")
                await until(lambda: len(host.held()) == PARTITIONS)
                them.store()
                await until(lambda: all(them.seen(each, *seen[each]) for each in them.partitions))
