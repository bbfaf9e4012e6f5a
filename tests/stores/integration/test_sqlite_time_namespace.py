"""A SQLite store serves a machine, and so all containers of it, whatever their time namespace."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from leasehold.model import KeyClaim, MemberInfo, State
from leasehold.stores import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.process, pytest.mark.spec("L1")]

LEASE = timedelta(minutes=30)
LOOK = """
import sys
import anyio
from leasehold.stores import open_store

async def look():
    async with open_store(sys.argv[1]) as store:
        print((await store.resources("group"))["group/key"].state.value)

anyio.run(look)
"""


@pytest.mark.parametrize("ahead_s", [-1000, 1_000_000])
async def test_a_lease_is_alive_in_another_time_namespace(tmp_path: Path, ahead_s: int) -> None:
    """Where the kernel does not permit one to make a namespace, the same without one."""
    url = f"sqlite:///{tmp_path}/leases.db"
    enters = ["unshare", "--time", "--boottime", str(ahead_s), "--fork"]
    if (await anyio.run_process([*enters, "true"], check=False)).returncode:
        enters = []
    async with open_store(url) as store:
        await store.declare(["group/key"])
        lease = await store.grant(
            holder="a", token="t" * 32, group="group", duration=LEASE, info=MemberInfo()
        )
        assert await store.claim(lease, [KeyClaim(key="group/key", seen_epoch=0)])
        look = [*enters, sys.executable, "-c", LOOK, url]
        done = await anyio.run_process(look)
        assert done.stdout.decode().strip() == State.LEASED.value
        assert (await store.renew(lease)).ended == ()
