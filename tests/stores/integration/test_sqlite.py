"""The SQLite store among processes: locks, cancelled calls, forks, restarts, a bad disk."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support import run_directory

from leasehold.errors import LeaseLost, StoreUnavailable, StoreUnusable, UsageError
from leasehold.model import (
    EndReason,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    State,
)
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from leasehold.clock import Clock
    from leasehold.stores.sqlite.database import Transaction

pytestmark = pytest.mark.anyio

GROUP = "partition/orders/billing"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@asynccontextmanager
async def opened(
    path: Path, clock: Clock | None = None, *, boot_id: str = "boot-1", busy_limit_s: float = 60.0
) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(
        path, clock=clock or ManualClock(), boot_id=boot_id, busy_limit_s=busy_limit_s
    )
    try:
        yield store
    finally:
        await store.close()


async def granted(store: SqliteStore, holder: str, *, group: str = GROUP) -> Lease:
    return await store.grant(
        holder=holder,
        token=f"token of {holder}",
        group=group,
        duration=timedelta(seconds=10),
        info=MemberInfo(host=holder),
    )


def keys(count: int) -> list[str]:
    return [f"{GROUP}/{number}" for number in range(count)]


async def owned(store: SqliteStore, lease: Lease, names: Sequence[str]) -> Sequence[Ownership]:
    await store.declare(names)
    return await store.claim(lease, [KeyClaim(key=key, seen_epoch=0) for key in names])


def raw(store: SqliteStore) -> sqlite3.Connection:
    assert store._database._connection is not None
    return store._database._connection


# ------------------------------------------------------------------ other processes

PRELUDE = """
import os, sys, anyio, json, resource
from datetime import timedelta
from pathlib import Path
from leasehold.clock import SystemClock
from leasehold.model import MemberInfo, KeyClaim
from leasehold.stores.sqlite import SqliteStore

def say(word): print(word, flush=True)
def hear(): return sys.stdin.readline().strip()
async def opened(path): return await SqliteStore.open(path, clock=SystemClock(), boot_id="boot-1")
path = sys.argv[1]
"""

# Takes the write lock, changes something, says so, and commits when it is told to.
HOLDER = """
def work(tx):
    tx.run("meta_write", version=999)
    say("inside")
    hear()

async def main():
    store = await opened(path)
    store._database.write(work)
    say("done")
    await store.close()

anyio.run(main)
"""


@contextmanager
def process(script: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python of its own that runs ``script``; killed at the end if it is still there."""
    command = [sys.executable, "-c", PRELUDE + script, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else has the write lock: to SQLite another connection is as another process."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def heard(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go on\n")
    child.stdin.flush()


@pytest.mark.spec("B7")
@pytest.mark.process
async def test_processes_open_a_new_file_at_once_and_share_it(path: Path) -> None:
    script = """
async def main():
    say("ready"); hear()
    store = await opened(path)
    keys = [f"job/all/{n}" for n in range(40)]
    new = await store.declare(keys)
    lease = await store.grant(holder=f"h-{os.getpid()}", token="t", group="job/all",
                              duration=timedelta(seconds=60), info=MemberInfo())
    taken = []
    for key in keys:
        taken += await store.claim(lease, [KeyClaim(key=key, seen_epoch=0)])
    say(json.dumps([new, [(each.key, each.epoch) for each in taken]]))
    await store.close()

anyio.run(main)
"""
    with ExitStack() as stack:
        children = [stack.enter_context(process(script, path)) for _ in range(4)]
        assert [heard(child) for child in children] == ["ready"] * 4
        for child in children:
            tell(child)
        answers = [json.loads(heard(child)) for child in children]
        assert [child.wait() for child in children] == [0] * 4
    taken = sorted(tuple(each) for _, each_taken in answers for each in each_taken)
    assert sum(new for new, _ in answers) == 40
    assert taken == sorted((f"job/all/{n}", 1) for n in range(40)), "each key once, each at epoch 1"


@pytest.mark.spec("B7")
@pytest.mark.process
async def test_a_process_killed_inside_a_transaction_leaves_nothing(path: Path) -> None:
    async with opened(path) as store:
        lease = await granted(store, "a")
        before = (await store.renew(lease)).version
        with process(HOLDER, path) as child:
            assert heard(child) == "inside"
            child.kill()
            child.wait()
            assert await store.declare(keys(3)) == 3, "the lock went with the process"
        assert (await store.renew(lease)).version == before + 1


@pytest.mark.spec("B7")
async def test_locked_for_longer_than_the_limit_is_unavailable(path: Path) -> None:
    async with opened(path, busy_limit_s=0.2) as store:
        await store.declare(keys(2))
        with locked(path):
            with pytest.raises(
                StoreUnavailable, match=r"locked by another connection of this process for 0\.2 s"
            ) as e:
                await store.declare(keys(3))
            assert isinstance(e.value.__cause__, sqlite3.OperationalError)
            assert len(await store.resources(GROUP)) == 2, "reading needs no lock"
        assert await store.declare(keys(3)) == 1


async def test_a_writer_waits_for_the_lock_and_gets_it(path: Path) -> None:
    async with opened(path) as store, anyio.create_task_group() as tasks:
        with locked(path):
            tasks.start_soon(store.declare, keys(2))
            await anyio.wait_all_tasks_blocked()
        assert await store.declare(keys(3)) in {1, 3}
    async with opened(path) as store:
        assert len(await store.resources(GROUP)) == 3


async def test_a_cancelled_call_returns_at_once_and_blocks_nobody(path: Path) -> None:
    async with opened(path, busy_limit_s=60.0) as store:
        with locked(path):
            with anyio.move_on_after(0.05) as scope:
                await store.declare(keys(1))
            assert scope.cancelled_caught
            with anyio.move_on_after(0.05) as scope:
                await store.declare(keys(1))
            assert scope.cancelled_caught
            assert await store.resources(GROUP) == {}, "its connection is free again"
        assert await store.declare(keys(2)) == 2, "both were given up before they began"


async def test_closing_in_a_cancelled_scope_still_closes(path: Path) -> None:
    store = await SqliteStore.open(path, clock=ManualClock(), boot_id="boot-1")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.close()
    await store.close()
    with pytest.raises(UsageError, match="is closed"):
        await store.resources(GROUP)


async def test_calls_of_one_store_take_turns(path: Path) -> None:
    async with opened(path) as store:
        lease = await granted(store, "a")
        await store.declare(keys(30))
        taken: list[str] = []

        async def claim(key: str) -> None:
            taken.extend(o.key for o in await store.claim(lease, [KeyClaim(key=key, seen_epoch=0)]))

        async with anyio.create_task_group() as tasks:
            for key in keys(30):
                tasks.start_soon(claim, key)
        assert sorted(taken) == sorted(keys(30))


@pytest.mark.process
async def test_a_store_opened_before_a_fork_refuses_to_work_after_it(path: Path) -> None:
    script = """
store = anyio.run(opened, path)
pid = os.fork()
if pid == 0:
    try:
        anyio.run(store.declare, ["job/a"])
    except ValueError as error:
        say(f"{type(error).__name__}: {error}")
    anyio.run(store.close)
    os._exit(0)
os.waitpid(pid, 0)
say(anyio.run(store.declare, ["job/a"]))
anyio.run(store.close)
"""
    with process(script, path) as child:
        assert re.match(r"UsageError: .*opened before this process was forked", heard(child))
        assert heard(child) == "1", "the parent goes on, though the child has closed the store"


# -------------------------------------------------------------------- the machine's clock


@pytest.mark.spec("B7", "L4", "B10")
async def test_after_a_restart_of_the_machine_all_leases_have_ended(path: Path) -> None:
    late = ManualClock()
    late.advance(90_000.0)  # the machine has been up for long; after the restart it counts anew
    async with opened(path, late) as store:
        a, b = await granted(store, "a"), await granted(store, "b")
        first, second = await owned(store, a, keys(2))
        await store.break_(first.key, epoch=1, after=timedelta(seconds=5))
        handed = HandOver(ownership=second, to="b")
        assert await store.hand_over([handed], limit=timedelta(seconds=60)) == [second.key]
        known = (await store.renew(b)).version
    clock = ManualClock()
    async with opened(path, clock, boot_id="boot-2") as store:
        assert await store.members(GROUP) == {}
        seen = await store.resources(GROUP)
        assert {each.state for each in seen.values()} == {State.AVAILABLE}
        assert {each.handed_to for each in seen.values()} == {None}
        (term,) = await store.history(first.key)
        assert (term.reason, term.ended_at) == (EndReason.EXPIRED, clock.utc_now())
        with pytest.raises(LeaseLost) as lost:
            await store.renew(a)
        assert lost.value.reason == "expired"
        c = await granted(store, "c")
        wanted = [KeyClaim(key=key, seen_epoch=1) for key in keys(2)]
        assert {each.epoch for each in await store.claim(c, wanted)} == {2}
        changes = await store.renew(c, since=known)
        assert {(peer.holder, peer.alive) for peer in changes.members} == {
            ("a", False),
            ("b", False),
            ("c", True),
        }
        clock.advance(8 * 24 * 3600.0)
        await granted(store, "d")
        left = raw(store).execute("SELECT holder FROM lease ORDER BY 1").fetchall()
        assert left == [("c",), ("d",)], "the ended ones are purged by the new seconds"


async def test_another_boot_under_us_makes_the_store_unusable(path: Path) -> None:
    async with opened(path) as store:
        lease = await granted(store, "a")
        async with opened(path, boot_id="boot-2"):
            pass
        with pytest.raises(StoreUnusable, match="another machine or after a restart"):
            await store.renew(lease)
        with pytest.raises(StoreUnusable, match="another machine or after a restart"):
            await store.resources(GROUP)


# -------------------------------------------------------------------- trouble with the disk

# As root, file modes mean nothing: become somebody else, once all modules are loaded.
READER = """
async def main():
    warm = await opened(Path(path).parent.parent / "warm.db")
    await warm.close()
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        await opened(path)
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
        say(type(error.__cause__).__name__)

anyio.run(main)
"""


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that another user can reach, which ``tmp_path`` is not."""
    with TemporaryDirectory(dir=run_directory.begun().parent) as name:
        (Path(name) / "inner").mkdir()
        Path(name).chmod(0o755)
        yield Path(name) / "inner"


def set_modes(path: Path, *, folder: int, file: int) -> None:
    path.chmod(file)
    path.parent.chmod(folder)


@pytest.mark.process
@pytest.mark.parametrize("folder_mode", [0o777, 0o555])
async def test_a_read_only_file_or_directory_is_unusable(public: Path, folder_mode: int) -> None:
    path = public / "leases.db"
    async with opened(path):
        pass
    set_modes(path, folder=folder_mode, file=0o444)
    with process(READER, path) as child:
        assert re.match("StoreUnusable: .*right to write", heard(child))
        assert heard(child) == "OperationalError"
    set_modes(path, folder=0o755, file=0o644)


@pytest.mark.spec("B7")
async def test_a_full_disk_changes_nothing_and_passes(path: Path) -> None:
    async with opened(path) as store:
        lease = await granted(store, "a")
        await owned(store, lease, keys(10))
        before = await store.resources(GROUP), (await store.renew(lease)).version
        pages = raw(store).execute("PRAGMA page_count").fetchone()[0]
        raw(store).execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreUnusable, match="the disk is full") as e:
            await store.declare(keys(5000))
        assert isinstance(e.value.__cause__, sqlite3.OperationalError)
        assert (await store.resources(GROUP), (await store.renew(lease)).version) == before
        raw(store).execute("PRAGMA max_page_count = 1000000")
        assert await store.declare(keys(5000)) == 4990


@pytest.mark.process
async def test_a_write_that_the_system_refuses_changes_nothing(path: Path) -> None:
    script = """
def allow(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main():
    store = await opened(path)
    await store.declare(["job/a"])
    allow(os.path.getsize(path + "-wal") + 8192)
    try:
        await store.declare([f"job/{n}" for n in range(5000)])
    except Exception as error:
        allow(resource.RLIM_INFINITY)
        say(f"{type(error).__name__}: {error}")
    say(len(await store.resources("job")))
    say(await store.declare([f"job/{n}" for n in range(5000)]))
    await store.close()

anyio.run(main)
"""
    with process(script, path) as child:
        assert heard(child).startswith("StoreUnusable: ")
        assert heard(child) == "1", "the failed one left nothing"
        assert heard(child) == "5000", "and the store goes on"


async def test_a_commit_that_fails_is_rolled_back(path: Path) -> None:
    async with opened(path) as store:
        raw(store).execute("CREATE TEMP TABLE parent (id INTEGER PRIMARY KEY)")
        raw(store).execute(
            "CREATE TEMP TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )
        raw(store).execute("PRAGMA foreign_keys = ON")

        def work(tx: Transaction) -> None:
            tx.run("meta_write", version=999)
            tx.script("INSERT INTO temp.child VALUES (1)")  # noticed at COMMIT, which then fails

        with pytest.raises(StoreUnusable):
            store._database.write(work)
        assert not raw(store).in_transaction
        assert store._database.read(lambda tx: tx.meta())[0] < 999
        assert await store.declare(keys(1)) == 1
