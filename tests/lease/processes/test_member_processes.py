"""Members as real processes on real stores, with real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.pausing import pause
from tests.support.postgres import database

from leasehold.errors import StoreUnavailable
from leasehold.model import EndReason, Resource
from leasehold.names import partition_group, partition_key
from leasehold.stores import open_store
from leasehold.stores.sqlite.database import Database

pytestmark = pytest.mark.anyio

GROUP = partition_group("orders", "billing")
KEYS = [partition_key("orders", "billing", str(number)) for number in range(6)]
# Whoever is killed or sleeps has a lease that ends soon; nobody else may lose one.
SHORT_S, LONG_S = 4.0, 60.0
Start = Callable[..., "Process"]


class Process:
    """A member in a process; its words can be waited for."""

    def __init__(self, url: str, name: str, lease_s: float) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.member_process", url, GROUP, name, str(lease_s)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        self.heard: list[dict[str, Any]] = []

    async def says(self, event: str, *, times: int) -> None:
        """Wait until it has said this so many times more."""
        await anyio.to_thread.run_sync(self._until, event, times)

    def _until(self, event: str, times: int) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.heard.append(json.loads(line))
            times -= self.heard[-1]["event"] == event
            if times <= 0:
                return
        pytest.fail(f"ended without the expected words: {self.heard}")

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def rest(self) -> list[dict[str, Any]]:
        """All its words, when it has ended."""
        assert self._popen.stdout is not None
        self.heard += [json.loads(line) for line in self._popen.stdout]
        self._popen.wait()
        return self.heard

    def end(self) -> None:
        self._popen.kill()
        self._popen.send_signal(signal.SIGCONT)
        self.rest()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """SQLite, unless a test asks for PostgreSQL by its parameter."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db"
    else:
        with database() as made:
            yield made


@pytest.fixture
async def start(url: str) -> Any:
    async with open_store(url) as store:
        await store.declare(KEYS)
    with ExitStack() as processes:

        def begin(name: str, lease_s: float = LONG_S) -> Process:
            process = Process(url, name, lease_s)
            processes.callback(process.end)
            return process

        yield begin


async def _resources(url: str) -> dict[str, Resource]:
    async with open_store(url) as store:
        return dict(await store.resources(GROUP))


async def _shares(url: str) -> list[int]:
    holders = [resource.holder for resource in (await _resources(url)).values()]
    return sorted(holders.count(each) for each in {h for h in holders if h})


@pytest.mark.spec("B2", "B7", "P4")
async def test_three_processes_share_evenly(url: str, start: Start) -> None:
    first = start("first")
    await first.says("opened", times=6)
    others = [start("second"), start("third")]
    for other in others:
        await other.says("opened", times=2)
    assert await _shares(url) == [2, 2, 2]


@pytest.mark.spec("B2", "B10", "L1")
async def test_a_killed_process_is_replaced_when_its_lease_has_ended(
    url: str, start: Start
) -> None:
    victim = start("victim", SHORT_S)
    await victim.says("opened", times=6)
    heir = start("heir")
    await heir.says("opened", times=3)
    victim.send(signal.SIGKILL)
    await heir.says("opened", times=3)
    assert await _shares(url) == [6]
    async with open_store(url) as store:
        reasons = [(await store.history(key))[1].reason for key in KEYS]
    assert sorted(str(reason) for reason in reasons) == sorted(
        map(str, [EndReason.HANDED_OVER] * 3 + [EndReason.EXPIRED] * 3)
    )


@pytest.mark.spec("L7", "L4", "P5", "B9")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_process_that_slept_through_its_lease_writes_nothing_any_more(
    url: str, start: Start
) -> None:
    """SIGSTOP, take-over, SIGCONT: it notices by its own clock, and comes back as a new holder."""
    sleeper = start("sleeper", SHORT_S)
    await sleeper.says("opened", times=6)
    pause(sleeper.pid, url)
    heir = start("heir")
    await heir.says("opened", times=6)
    await heir.says("wrote", times=6)
    taken = await _resources(url)
    sleeper.send(signal.SIGCONT)
    await sleeper.says("closed", times=6)
    async with open_store(url) as store:
        checkpoints = await store.checkpoints(GROUP)
    assert {key: each.epoch >= taken[key].epoch for key, each in checkpoints.items()} == (
        dict.fromkeys(KEYS, True)
    )
    await sleeper.says("opened", times=3)
    assert await _shares(url) == [3, 3]


@pytest.mark.spec("L5", "B2")
async def test_sigterm_hands_everything_over_and_ends_the_lease(url: str, start: Start) -> None:
    leaver = start("leaver")
    await leaver.says("opened", times=6)
    heir = start("heir")
    await heir.says("opened", times=3)
    leaver.send(signal.SIGTERM)
    await heir.says("opened", times=3)
    words = await anyio.to_thread.run_sync(leaver.rest)
    assert words[-1] == {"event": "left"}
    assert await _shares(url) == [6]
    async with open_store(url) as store:
        assert len(await store.members(GROUP)) == 1
        ends = {(await store.history(key))[1].reason for key in KEYS}
    assert ends == {EndReason.HANDED_OVER}


STOPS_IN_A_TRANSACTION = """
import os, signal, sys
from pathlib import Path
from leasehold.stores.sqlite.database import Database

database = Database(Path(sys.argv[1]), busy_limit_s=120.0)

def work(tx):
    version, _ = tx.meta()
    tx.run("meta_write", version=version)
    os.kill(os.getpid(), signal.SIGSTOP)

database.write(work)
"""


def _stopped_in_a_transaction(path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", STOPS_IN_A_TRANSACTION, str(path)])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    return process


@pytest.mark.spec("L4", "B7")
async def test_a_process_stopped_in_a_transaction_is_named_and_members_stop_by_themselves(
    url: str, start: Start, tmp_path: Path
) -> None:
    """It halts the group; nothing is owned twice, and all goes on when it does or has ended."""
    path = tmp_path / "leases.db"
    member = start("member", SHORT_S)
    await member.says("opened", times=6)
    stopped = _stopped_in_a_transaction(path)
    try:
        await member.says("closed", times=6)
        assert {each["reason"] for each in member.heard if each["event"] == "closed"} == {
            "local_deadline"
        }
        named = rf"locked by process {stopped.pid}, which is stopped in a transaction"
        with pytest.raises(StoreUnavailable, match=rf"{named} .*`kill -CONT {stopped.pid}`"):
            Database(path, busy_limit_s=0.0).write(lambda tx: tx.meta())
        async with open_store(url, create=False) as store:  # to look needs no lock
            assert set(await store.resources(GROUP)) == set(KEYS)
    finally:
        stopped.send_signal(signal.SIGCONT)
        assert await anyio.to_thread.run_sync(stopped.wait) == 0
    await member.says("opened", times=6)
