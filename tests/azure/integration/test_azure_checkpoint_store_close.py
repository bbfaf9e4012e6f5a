"""The end of Azure's ``CheckpointStore`` on a store: closed, closed with failures, forked."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from leasehold import azure
from leasehold.azure import AsyncCheckpointStore
from leasehold.azure.interop.record_layout import ConsumerGroup
from leasehold.errors import StoreUnavailable, UsageError
from leasehold.stores import open_store

KEYS = ConsumerGroup(namespace="ns", hub="orders", group="$Default")
CONSUMER_GROUP = (KEYS.namespace, KEYS.hub, KEYS.group)


def row(partition: str, owner: str) -> dict[str, Any]:
    return {**KEYS.ids(), "partition_id": partition, "owner_id": owner}


def test_a_store_that_was_closed_grants_nothing_to_a_client_that_still_asks() -> None:
    """Their client sleeps its interval out after it was closed, and may ask once more."""

    async def story() -> None:
        async with open_store("memory://") as leases:
            store = AsyncCheckpointStore(leases)
            assert await store.claim_ownership([row("0", "a")])
            await store.close()
            await store.close()
            with pytest.raises(UsageError, match="closed"):
                await store.claim_ownership([row("0", "a")])
            late = {**KEYS.ids(), "partition_id": "0", "sequence_number": 5, "offset": "500"}
            with pytest.raises(UsageError, match="closed"):
                await store.update_checkpoint(late)
            assert await leases.members(KEYS.keys_group) == {}

    asyncio.run(story())


def test_all_leases_are_ended_even_if_one_of_them_can_not_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with open_store("memory://") as leases:
            store, failures = AsyncCheckpointStore(leases), [StoreUnavailable("no answer")]
            await store.claim_ownership([row("0", "a"), row("1", "b")])
            revoke = leases.revoke

            async def failing(lease: Any) -> None:
                if failures:
                    raise failures.pop()
                await revoke(lease)

            monkeypatch.setattr(leases, "revoke", failing)
            with pytest.raises(StoreUnavailable):
                await store.close()
            assert len(await leases.members(KEYS.keys_group)) == 1

    asyncio.run(story())


@pytest.mark.process
def test_a_forked_process_is_told_to_make_a_blocking_store_of_its_own(tmp_path: Path) -> None:
    """Its thread is not there any more, so every answer would be waited for in vain."""
    store = azure.CheckpointStore(f"sqlite:///{tmp_path}/leases.db")
    assert list(store.list_ownership(*CONSUMER_GROUP)) == []
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            store.list_ownership(*CONSUMER_GROUP)
        except UsageError as error:
            store.close()
            os._exit(7 if "forked" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert list(store.list_ownership(*CONSUMER_GROUP)) == []
    store.close()
