"""A store serves the process that opened it and refuses a child that was forked since."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import postgres
from tests.support.azurite import shared_azurite

PROGRAM = """
import os, sys
from datetime import timedelta

import anyio

from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Position
from leasehold.stores import open_store

GROUP, KEY = "partition/orders/billing", "partition/orders/billing/0"


async def attempt(name, call):
    try:
        with anyio.fail_after(20):
            await call
    except ValueError as error:
        return "" if "opened before this process was forked" in str(error) else f"{name}: {error}"
    except BaseException as error:
        return f"{name}: {error!r}"
    return f"{name} answered"


async def child(store, lease, mine):
    write = CheckpointWrite(ownership=mine, position=Position(sequence_number=7))
    said = [
        await attempt("resources", store.resources(GROUP)),
        await attempt("renew", store.renew(lease)),
        await attempt("claim", store.claim(lease, [KeyClaim(key=KEY, seen_epoch=mine.epoch)])),
        await attempt("checkpoint", store.checkpoint([write])),
    ]
    await store.close()
    print("; ".join(filter(None, said)) or "refused", flush=True)


async def main(url):
    async with open_store(url) as store:
        await store.declare([KEY])
        lease = await store.grant(
            holder="a",
            token="t" * 32,
            group=GROUP,
            duration=timedelta(seconds=60),
            info=MemberInfo(),
        )
        (mine,) = await store.claim(lease, [KeyClaim(key=KEY, seen_epoch=0)])
        pid = os.fork()
        if pid == 0:
            try:
                anyio.run(child, store, lease, mine)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        found = (await store.resources(GROUP))[KEY]
        checkpoints = await store.checkpoints(GROUP)
        print(found.holder, found.epoch, len(checkpoints), flush=True)


anyio.run(main, sys.argv[1])
"""


@pytest.fixture(
    params=[
        pytest.param("memory", marks=pytest.mark.process),
        pytest.param("sqlite", marks=pytest.mark.process),
        pytest.param("postgres", marks=pytest.mark.server),
        pytest.param("azure", marks=pytest.mark.server),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with postgres.database() as made:
            yield made
    elif request.param == "azure":
        yield shared_azurite().new_store_url()
    else:
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/leases.db"


@pytest.mark.spec("B7")
def test_a_forked_child_is_refused_and_its_parent_is_not_disturbed(url: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, url],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["refused", "a 1 0"], ran.stderr
