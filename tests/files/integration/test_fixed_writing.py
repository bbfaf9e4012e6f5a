"""Faults of writing and recovering that were found once: each of them stays fixed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.namespaces import AT_ONCE, OPTIONS, SOFT_S, World, blocks, content

from leasehold.errors import StoreUnavailable, TailUncertain, UnknownFile, VolumeUnusable
from leasehold.files import FileState, Namespace
from leasehold.files.disk import SystemDisk
from leasehold.testing.disk import KillingDisk, PassingDisk

PATIENCE_S = 120.0


def _interrupt() -> None:
    raise KeyboardInterrupt


def _data(files: Namespace, path: str, root: Path) -> Path:
    """The bytes of the file's last block on the volume at ``root``."""
    volume = next(each for each in files.volumes if each.root == str(root))
    return Path(volume.data_path(blocks(files, path)[-1].id))


def _open_below(roots: Sequence[Path]) -> int:
    """How many descriptors of this process are of a file on one of these volumes."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(descriptor.readlink())
    return sum(link.is_relative_to(root) for link in links for root in roots)


def _run(script: str, directory: Path) -> dict[str, object]:
    """Run a program of its own; it prints what it found."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


# ------------------------------------------------------------- volumes


@pytest.mark.parametrize(
    "point",
    ["before make_directory volume", "before unlink volume", "before link volume"],
)
def test_of_two_makers_of_one_volume_the_second_keeps_the_identity_of_the_first(
    one: World, point: str
) -> None:
    root = one.roots[:1]
    known: list[str] = []

    def first() -> None:
        files = one.open("first", volumes=root)
        known.extend(volume.id for volume in files.volumes)
        with files.create("/a") as writer:
            writer.write(b"precious")

    second = one.open("second", volumes=root, disk=KillingDisk(SystemDisk(), point, 1, first))
    assert [volume.id for volume in second.volumes] == known
    assert content(second, "/a") == b"precious"
    assert content(one.open("third", volumes=()), "/a") == b"precious"


@pytest.mark.spec("F8")
def test_a_volume_that_another_process_added_is_read_and_recovered_from(both: World) -> None:
    before = both.open("before", volumes=both.roots[:1])
    later = both.open("later", volumes=both.roots[1:2])
    for path in ("/b", "/c"):  # one on each volume: they take turns
        with later.create(path, replication=1) as single:
            single.write(path.encode())
    assert {blocks(later, path)[0].volumes[0] for path in ("/b", "/c")} == {
        volume.id for volume in later.volumes
    }
    writer = later.create("/a", replication=2)
    writer.write(b"on both")
    writer.sync()
    assert content(before, "/a") == b"on both"
    assert before.recover("/a", timeout=AT_ONCE).length == 7
    assert len(blocks(before, "/a")[0].volumes) == 2
    assert (content(before, "/b"), content(before, "/c")) == (b"/b", b"/c")


def test_a_volume_below_a_directory_that_is_missing_is_refused_by_name(
    one: World, tmp_path: Path
) -> None:
    missing = tmp_path / "no" / "such"
    with pytest.raises(VolumeUnusable, match=r"no/such.*Create the directory above it"):
        one.open(volumes=[missing])
    assert not missing.parent.exists()


@pytest.mark.parametrize("looked_at_just_now", [True, False])
def test_create_append_and_the_next_block_keep_to_min_replicas(
    one: World, looked_at_just_now: bool
) -> None:
    options = replace(OPTIONS, min_replicas=2)
    files = one.open(volumes=one.roots[:2], options=options)
    files.create("/old").close()
    rolling = files.create("/rolling", block_bytes=4096)
    rolling.write(b"x" * 4000)
    rolling.sync()
    if not looked_at_just_now:
        one.pass_s(60)
    one.disk.fail(one.roots[1])
    with pytest.raises(VolumeUnusable, match="2 are needed"):
        files.create("/new")
    with pytest.raises(VolumeUnusable, match="2 are needed"):
        files.append("/old")
    with pytest.raises(VolumeUnusable, match="2 are needed"):
        rolling.write(b"x" * 200)
    assert rolling.acknowledged == 4000
    assert [each.path for each in files.list_open()] == ["/rolling"]


def test_creates_that_fail_on_a_volume_give_their_descriptors_back(one: World) -> None:
    files = one.open(options=replace(OPTIONS, min_replicas=3))
    files.create("/good").close()  # the volumes are trusted from now on, and time stands still
    one.disk.fail(one.roots[1])
    before = _open_below(one.roots)
    for number in range(10):
        with pytest.raises(VolumeUnusable):
            files.create(f"/{number}")
    assert _open_below(one.roots) == before


# ------------------------------------------------------------ recovery


@pytest.mark.spec("F8")
@pytest.mark.parametrize("accept_loss", [False, True])
def test_a_cut_copy_does_not_decide_while_another_volume_is_away(
    both: World, accept_loss: bool
) -> None:
    files = both.open(volumes=both.roots[:2])
    writer = files.create("/a")
    for part in (b"one", b"TWO"):
        writer.write(part)
        writer.sync()
    os.truncate(_data(files, "/a", both.roots[0]), 4)
    both.disk.fail(both.roots[1])
    other = both.open("other", volumes=())
    with pytest.raises(TailUncertain, match=r"cut short on .*no answer from .*accept_loss"):
        other.recover("/a", timeout=AT_ONCE)
    if not accept_loss:
        both.disk.heal(both.roots[1])
    assert other.recover("/a", timeout=AT_ONCE, accept_loss=accept_loss).state is FileState.CLOSED
    assert content(other, "/a") == (b"one" if accept_loss else b"oneTWO")


@pytest.mark.spec("F4")
def test_the_monitor_passes_over_a_file_that_it_can_not_begin(one: World) -> None:
    files = one.open()
    for path in ("/bad", "/good"):
        writer = files.create(path)
        writer.write(b"kept")
        writer.flush()
    with closing(sqlite3.connect(one.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE fs_file SET path = ? WHERE path = '/bad'", ["/" + "y" * 2000])
    one.pass_s(OPTIONS.hard_limit.total_seconds() + 1)
    done = one.open("other").monitor.run_once()
    assert (done.recovered, done.failed) == (1, 1)
    assert content(files, "/good") == b"kept"
    assert files.is_closed("/good")


@pytest.mark.spec("F8")
@pytest.mark.parametrize("way", ["overwrite", "rename over", "delete"])
def test_the_writer_of_a_file_that_was_replaced_is_refused_at_its_next_flush(
    both: World, way: str
) -> None:
    files, other = both.open(), both.open("other")
    writer = files.create("/a")
    writer.write(b"old")
    writer.flush()
    with other.create("/b") as source:
        source.write(b"new")
    acts: dict[str, Callable[[], object]] = {
        "overwrite": lambda: other.create("/a", overwrite=True).close(),
        "rename over": lambda: other.rename("/b", "/a", overwrite=True),
        "delete": lambda: other.delete("/a"),
    }
    acts[way]()
    writer.write(b"late")
    with pytest.raises(UnknownFile, match="deleted or overwritten"):
        writer.flush()
    assert writer.acknowledged == 3
    if way == "delete":
        with pytest.raises(UnknownFile):
            other.read("/a")
    else:
        assert content(other, "/a") == (b"new" if way == "rename over" else b"")


@pytest.mark.spec("F8")
def test_a_delete_reaches_the_writer_also_behind_much_that_waits_to_be_removed(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.files.monitor._MAX_PER_PASS", 2)
    files, other = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"old")
    writer.flush()
    for number in range(5):  # the block that was begun and not used is left to be removed
        files.create(f"/empty/{number}").close()
    assert len(files._journal.trash(limit=100)) == 15
    other.delete("/a")
    writer.write(b"late")
    with pytest.raises(UnknownFile, match="deleted or overwritten"):
        writer.flush()


# ---------------------------------------------------------- interrupted


def test_a_close_that_could_not_tell_what_it_lost_tells_it_when_it_is_called_again(
    both: World,
) -> None:
    silent: list[str] = []

    def hook(step: str, moment: str) -> None:
        if silent and (step, moment) == ("check", "before"):
            silent.clear()
            raise StoreUnavailable("no answer")

    # One volume fails at the next bytes; the other has them then, and no record of them yet.
    disk = KillingDisk(both.disk, "before write data", 3, lambda: both.disk.fail(both.roots[1]))
    files = both.open(volumes=both.roots[:2], disk=disk, hook=hook)
    writer = files.create("/a")
    writer.write(b"one")
    writer.sync()
    writer.write(b"two")
    silent.append("now")
    with pytest.raises(StoreUnavailable):
        writer.close()
    with pytest.raises(VolumeUnusable, match="6 bytes were written and 3 are kept"):
        writer.close()
    assert files.is_closed("/a")
    assert content(files, "/a") == b"one"


@pytest.mark.spec("F8")
@pytest.mark.parametrize(
    "point",
    ["before write data", "after write data", "before write record", "after write record"],
)
def test_after_an_interrupt_in_a_flush_the_writer_stops_and_keeps_what_was_acknowledged(
    one: World, point: str
) -> None:
    files = one.open(disk=KillingDisk(one.disk, point, 5, _interrupt))  # the second of three
    writer = files.create("/a")
    writer.write(b"one")
    writer.sync()
    writer.write(b"two")
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    calls: tuple[Callable[[], object], ...] = (
        writer.flush,
        writer.sync,
        lambda: writer.write(b"x"),
    )
    for call in calls:
        with pytest.raises(VolumeUnusable, match="interrupted"):
            call()
    closed = writer.close()
    assert closed is not None
    assert (closed.state, closed.length) == (FileState.CLOSED, 3)
    with files.append("/a") as again:
        again.write(b"!")
    assert content(files, "/a") == b"one!"


@pytest.mark.spec("F8")
def test_an_interrupt_while_the_next_block_is_begun_leaves_a_file_that_can_be_closed(
    one: World,
) -> None:
    armed: list[str] = []

    def hook(step: str, moment: str) -> None:
        if armed and (step, moment) == ("next block", "after"):
            armed.clear()
            raise KeyboardInterrupt

    files = one.open(hook=hook)
    writer = files.create("/a", block_bytes=4096)
    armed.append("now")
    with pytest.raises(KeyboardInterrupt):
        writer.write(b"x" * 5000)
    with pytest.raises(VolumeUnusable, match="interrupted"):
        writer.flush()
    writer.close()
    assert files.is_closed("/a")
    assert content(files, "/a") == b"x" * 4096


@pytest.mark.spec("F6")
def test_the_renewer_closes_one_interrupted_file_after_the_other_and_lives(one: World) -> None:
    closed = threading.Semaphore(0)
    armed: list[str] = []

    def hook(step: str, moment: str) -> None:
        if (step, moment) == ("recovered", "after"):
            closed.release()

    class Interrupting(PassingDisk):
        def write_at(
            self, fd: int, data: bytes | bytearray | memoryview, offset: int, *, what: str
        ) -> None:
            if armed and what == "data":
                armed.clear()
                raise KeyboardInterrupt
            super().write_at(fd, data, offset, what=what)

    often = replace(OPTIONS, check_interval=timedelta(milliseconds=10))
    files = one.open(disk=Interrupting(one.disk), hook=hook, options=often)
    for path in ("/a", "/b", "/c"):
        writer = files.create(path)
        writer.write(b"one")
        writer.sync()
        writer.write(b"two")
        armed.append("now")
        with pytest.raises(KeyboardInterrupt):
            writer.close()
        assert closed.acquire(timeout=PATIENCE_S)
        assert content(files, path) == b"one"
    assert files.list_open() == []


@pytest.mark.spec("F6")
def test_a_close_that_hangs_does_not_stop_the_renewal_of_other_files(one: World) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    class Hanging(PassingDisk):
        def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
            if threading.current_thread().name.startswith("hanging"):
                hangs.set()
                assert goes_on.wait(PATIENCE_S)
            return super().sync(fds, what=what)

    files = one.open(disk=Hanging(one.disk))
    other, slow = files.create("/other"), files.create("/slow")
    slow.write(b"slow")
    with ThreadPoolExecutor(1, "hanging") as hanging, ThreadPoolExecutor(1) as renewing:
        try:
            ending = hanging.submit(slow.close)
            assert hangs.wait(PATIENCE_S)
            one.pass_s(SOFT_S / 2)
            assert renewing.submit(files._renewer.run_once).result(timeout=PATIENCE_S / 2)
            assert files.status("/other").idle_s == 0.0
        finally:
            goes_on.set()
        ending.result()
    other.write(b"goes on")
    assert other.sync() == 7


# ------------------------------------------------- programs of their own

_FORK = """
import json, os, sys
from leasehold.errors import UsageError
from leasehold.files.namespace import Namespace

def refused(call):
    try:
        call()
    except UsageError as error:
        return "forked" in str(error)
    return False

where = sys.argv[1]
files = Namespace.open(f"sqlite:///{where}/store.db", volumes=[f"{where}/v"], run_monitor=False)
writer = files.create("/a")
writer.write(b"one")
writer.flush()
child = os.fork()
if child == 0:
    calls = [lambda: writer.write(b"child"), writer.flush, writer.sync, writer.close]
    os._exit(sum(refused(call) for call in calls))
refusals = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
writer.write(b"two")
writer.close()
print(json.dumps({"refusals": refusals, "content": files.read("/a").read().decode()}))
files.close()
"""

_INTERRUPTS = """
import json, random, signal, sys, threading
from leasehold.files.namespace import Namespace

where = sys.argv[1]
files = Namespace.open(f"sqlite:///{where}/store.db", volumes=[f"{where}/v"], run_monitor=False)
rng, stop = random.Random(7), threading.Event()

def beside():
    while not stop.is_set():
        files._journal.enlist(files._holder)

def interrupted():
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.004))
        for _ in range(1000):
            files._journal.enlist(files._holder)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return 1
    return 0

signal.signal(signal.SIGALRM, signal.default_int_handler)
thread = threading.Thread(target=beside)
thread.start()
count = sum(interrupted() for _ in range(60))
with files.create("/a") as writer:
    writer.write(b"after")
stop.set()
thread.join()
print(json.dumps({"interrupts": count, "content": files.read("/a").read().decode()}))
files.close()
"""


@pytest.mark.spec("F8")
@pytest.mark.process
def test_after_a_fork_only_the_parent_writes(tmp_path: Path) -> None:
    assert _run(_FORK, tmp_path) == {"refusals": 4, "content": "onetwo"}


@pytest.mark.process
def test_interrupts_in_journal_steps_do_not_hang_later_ones(tmp_path: Path) -> None:
    found = _run(_INTERRUPTS, tmp_path)
    assert found["content"] == "after"
    assert found["interrupts"] == 60
