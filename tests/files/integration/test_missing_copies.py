"""Copies that are missing are made again: by the monitor, at once, and after any failure."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.namespaces import (
    ATTEMPT_S,
    OPTIONS,
    World,
    blocks,
    content,
    steps,
)

from leasehold.errors import (
    DataDamaged,
    FencedWrite,
    LeaseholdError,
    StoreUnavailable,
    TailUncertain,
    UsageError,
    VolumeUnusable,
)
from leasehold.files import Namespace
from leasehold.files.disk import SystemDisk
from leasehold.files.repair import RepairPass
from leasehold.files.volumes import Volume
from leasehold.testing.disk import (
    FailedSyncDisk,
    PassingDisk,
    PowerCutDisk,
    RecordingDisk,
)

DATA = bytes(range(256)) * 40


class Died(BaseException):
    """The process is gone."""


class DyingDisk(RecordingDisk):
    """From the point on, the process that uses it is gone: it changes nothing more."""

    def __init__(self, disk: PassingDisk, point: str, nth: int) -> None:
        super().__init__(disk)
        self._point, self._left, self._dead = point, nth, False

    def passed(self, point: str) -> None:
        super().passed(point)
        self._left -= point == self._point
        self._dead |= not self._left and point == self._point
        if self._dead:
            raise Died(point)


def _write(files: Namespace, path: str, *, replication: int | None = None) -> None:
    """A file of three blocks and several pieces."""
    with files.create(path, replication=replication, block_bytes=4096) as writer:
        for start in range(0, len(DATA), 1000):
            writer.write(DATA[start : start + 1000])
            writer.flush()


def _empty(root: Path) -> None:
    """The volume has lost its blocks; it still says whose it is."""
    shutil.rmtree(root / "blocks")


def _repair(world: World, files: Namespace) -> RepairPass:
    """Passes of the monitor until nothing is left to do."""
    copied = copied_bytes = failed = 0
    world.pass_s(3600)
    for _ in range(1000):
        done = files.repairer.run_once()
        copied, failed = copied + done.copied, failed + done.failed
        copied_bytes += done.copied_bytes
        if not (done.left or done.copied or done.failed):
            return RepairPass(copied=copied, copied_bytes=copied_bytes, failed=failed)
    raise AssertionError("it never ends")


def _names(root: Path) -> set[str]:
    return {path.name for path in root.glob("blocks/*/*")}


def _listed(files: Namespace, *paths: str) -> dict[Path, set[str]]:
    """The names of files that the journal's replicas have, by volume."""
    found: dict[Path, set[str]] = {Path(volume.root): set() for volume in files.volumes}
    for path in paths:
        for block in blocks(files, path):
            for volume in files.volumes:
                if volume.id in block.volumes:
                    names = {volume.data_of(block), volume.meta_of(block)}
                    found[Path(volume.root)] |= {Path(each).name for each in names}
    return found


def _check(world: World, files: Namespace, *paths: str) -> None:
    """Every copy is there and sound, each volume alone has all, and nothing else is left over."""
    files.monitor.run_once()
    for path in paths:
        assert files.verify(path) == []
        assert list(files.missing_copies(path, compare=True)) == []
        assert content(files, path) == DATA
        for volume in files.volumes:
            for block in blocks(files, path):
                if volume.id in block.volumes:
                    data = Path(volume.data_of(block)).read_bytes()
                    assert data == DATA[block.start : block.start + block.length]
    for root, names in _listed(files, *paths).items():
        assert _names(root) == names


@pytest.mark.spec("F9")
@pytest.mark.parametrize("what", ["blocks", "directories", "some"])
def test_a_volume_that_comes_back_empty_gets_its_copies_again(both: World, what: str) -> None:
    files = both.open()
    _write(files, "/a")
    _write(files, "/b")
    if what == "directories":
        _empty(both.roots[1])
    else:
        for number, path in enumerate(sorted(both.roots[1].glob("blocks/*/*.data"))):
            if what == "blocks" or number == 1:
                path.unlink()
    assert files.verify("/a") or files.verify("/b")
    lost = 1 if what == "some" else 6
    assert len(list(files.missing_copies())) == lost
    watcher = both.open("watcher")
    done = _repair(both, watcher)
    assert (done.copied, done.failed) == (lost, 0)
    _check(both, watcher, "/a", "/b")
    assert steps(watcher, "/a").count("copied") + steps(watcher, "/b").count("copied") == lost
    for root in (both.roots[0], both.roots[2]):  # the copies alone are enough
        _empty(root)
    assert content(both.open(), "/a") == content(both.open(), "/b") == DATA


@pytest.mark.spec("F9")
def test_a_volume_that_was_dropped_from_blocks_gets_its_copies_again(both: World) -> None:
    files, watcher = both.open(), both.open("watcher")
    writer = files.create("/a")
    writer.write(DATA[:3000])
    writer.sync()
    both.disk.fail(both.roots[2])
    writer.write(DATA[3000:])
    writer.sync()
    writer.close()
    (block,) = blocks(files, "/a")
    assert len(block.volumes) == 2
    assert [each.trouble == "" for each in files.missing_copies("/a")] == [False]
    assert _repair(both, watcher) == RepairPass()  # it is still broken
    both.disk.heal(both.roots[2])
    assert _repair(both, watcher) == RepairPass(copied=1, copied_bytes=len(DATA))
    _check(both, watcher, "/a")
    assert len(blocks(files, "/a")[0].volumes) == 3


@pytest.mark.spec("F9")
@pytest.mark.parametrize("at_old_path", [True, False])
def test_a_replaced_volume_gets_the_copies_of_the_old_one(both: World, at_old_path: bool) -> None:
    files, running = both.open(), both.open("running")
    _write(files, "/a")
    old = next(volume for volume in files.volumes if volume.root == str(both.roots[1]))
    with pytest.raises(UsageError, match="it need not be replaced"):
        files.replace_volume(old.id, both.roots[1])
    shutil.rmtree(both.roots[1])
    root = both.roots[1] if at_old_path else both.roots[1].with_name("new")
    both.roots[1].mkdir()  # the empty mount point
    assert _repair(both, running) == RepairPass()  # it may only be unmounted
    assert _names(both.roots[1]) == set()
    new = files.replace_volume(old.id, root)
    assert new != old.id
    assert _repair(both, running).copied == 3
    _check(both, running, "/a")
    assert {volume.id for volume in running.volumes} == {volume.id for volume in files.volumes}
    assert old.id not in {volume.id for volume in running.volumes}
    assert all(new in block.volumes for block in blocks(files, "/a"))
    _write(running, "/b")
    assert all(new in block.volumes for block in blocks(files, "/b"))


@pytest.mark.spec("F9")
def test_an_open_file_of_a_replaced_volume_is_read_recovered_and_copied(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(DATA)
    writer.sync()
    writer.leave_behind()
    (old,) = (volume.id for volume in files.volumes if volume.root == str(one.roots[0]))
    shutil.rmtree(one.roots[0])
    files.replace_volume(old, one.roots[0])
    others = one.open("other", volumes=())
    assert content(others, "/a") == DATA
    others.recover("/a", timeout=timedelta(0))
    assert _repair(one, others).copied == 1
    _check(one, others, "/a")


@pytest.mark.spec("F9")
def test_pieces_come_from_whichever_copy_has_them(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    block = blocks(files, "/a")[0]
    for number, volume in enumerate(files.volumes):
        for path, at in (
            (volume.data_of(block), 1000 * number),
            (volume.meta_of(block), 150 + 32 * number),
        ):
            raw = bytearray(Path(path).read_bytes())
            raw[at] ^= 1
            Path(path).write_bytes(raw)
    assert list(files.missing_copies("/a")) == []  # all files are there
    found = list(files.missing_copies("/a", compare=True))
    assert len(found) == 3
    assert not any(each.trouble for each in found)
    for each in found:
        files.repair(each)
    _check(one, files, "/a")


@pytest.mark.spec("F9")
def test_what_no_volume_has_is_said_and_holds_up_no_other(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    _write(files, "/b")
    _empty(one.roots[0])
    lost = blocks(files, "/a")[1]
    for path in (Path(volume.data_of(lost)) for volume in files.volumes):
        if path.exists():
            path.write_bytes(b"x" + path.read_bytes()[1:])
    watcher = one.open("watcher")
    done = _repair(one, watcher)
    assert done.copied == 5
    assert done.failed >= 1
    found = list(files.missing_copies("/a", compare=True))
    assert {each.block.id for each in found} == {lost.id}
    assert all("no volume that answers has" in each.trouble for each in found)
    with pytest.raises(DataDamaged):
        files.repair(found[0])
    assert list(files.missing_copies("/b", compare=True)) == []


def _points(one: World, files: Namespace) -> Iterator[tuple[str, int]]:
    recording = RecordingDisk(one.disk)
    _repair(one, one.open("recording", disk=recording))
    for point, times in Counter(recording.points).items():
        if point.split()[-1] in {"copy", "mark", "volume", "removed", "check"}:
            yield from ((point, nth) for nth in range(1, min(times, 3) + 1))


@pytest.mark.spec("F9")
def test_killed_at_each_step_the_next_process_makes_the_copies(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    points = list(_points(one, files))
    assert {"after write copy", "after sync copy", "after sync_directory copy"} <= {
        point for point, _ in points
    }
    for point, nth in points:
        _empty(one.roots[1])
        dying = one.open("dying", disk=DyingDisk(one.disk, point, nth))
        with suppress(Died):
            _repair(one, dying)
        watcher = one.open("watcher")
        one.pass_s(ATTEMPT_S + 1)
        _repair(one, watcher)
        _check(one, watcher, "/a")


@pytest.mark.spec("F9")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["copy begun", "copied"])
@pytest.mark.parametrize("how", ["died", "no answer"])
def test_killed_or_cut_off_at_each_step_of_the_journal(
    both: World, step: str, moment: str, how: str
) -> None:
    files = both.open()
    _write(files, "/a")
    _empty(both.roots[1])
    left = [1]

    def hook(name: str, when: str) -> None:
        if (name, when) == (step, moment) and left:
            left.pop()
            raise Died if how == "died" else StoreUnavailable("no answer")

    dying = both.open("dying", hook=hook)
    with suppress(Died, LeaseholdError):
        _repair(both, dying)
    assert not left
    if how == "no answer":  # the same process goes on
        both.pass_s(ATTEMPT_S + 1)
        _repair(both, dying)
        _check(both, dying, "/a")
        return
    watcher = both.open("watcher")
    both.pass_s(ATTEMPT_S + 1)
    _repair(both, watcher)
    _check(both, watcher, "/a")


@pytest.mark.spec("F9", "F8")
@pytest.mark.parametrize("seed", range(12))
def test_a_copy_that_the_journal_has_survives_a_power_cut(one: World, seed: int) -> None:
    rng = random.Random(seed)
    power = PowerCutDisk(SystemDisk())
    files = one.open(disk=power)
    _write(files, "/a")
    for path in one.roots[1].glob("blocks/*/*"):
        path.unlink()
    power = PowerCutDisk(SystemDisk())
    point, nth = rng.choice(
        [
            ("after write copy", rng.randint(1, 6)),
            ("after sync copy", rng.randint(1, 3)),
            ("before sync_directory copy", rng.randint(1, 3)),
            ("after sync_directory copy", rng.randint(1, 3)),
        ]
    )
    dying = one.open("dying", disk=DyingDisk(power, point, nth))
    with suppress(Died):
        _repair(one, dying)
    power.cut(rng)
    committed = {
        block.id for block in blocks(files, "/a") if any(epoch for _, epoch in block.copies)
    }
    others = one.open("other")
    broken = {each.block.id for each in others.missing_copies("/a", compare=True)}
    assert not committed & broken
    one.pass_s(ATTEMPT_S + 1)
    _repair(one, others)
    _check(one, others, "/a")


@pytest.mark.spec("F9", "F8")
def test_after_a_failed_sync_nothing_of_the_copy_is_believed(one: World) -> None:
    _write(one.open(), "/a")
    _empty(one.roots[1])
    disk = FailedSyncDisk(SystemDisk())
    watcher = one.open("watcher", disk=disk)
    one.pass_s(3600)
    disk.fail_syncs(one.roots[1], 3)
    done = [watcher.repairer.run_once() for _ in range(2)]
    assert sum(each.failed for each in done) == 3
    assert _repair(one, watcher).copied == 3
    disk.remount()
    _check(one, one.open(), "/a")


@pytest.mark.spec("F9")
def test_a_file_that_is_deleted_while_it_is_copied_leaves_nothing(both: World) -> None:
    files = both.open()
    _write(files, "/a")
    _write(files, "/keep")
    _empty(both.roots[1])
    watcher = both.open("watcher", options=replace(OPTIONS, repair_bytes=1))
    assert watcher.repairer.run_once().left  # the first piece of a copy
    files.delete("/a")
    _repair(both, watcher)
    _check(both, watcher, "/keep")
    assert files.delete("/keep") == 1  # one that was copied
    for root in both.roots:
        assert _names(root) == set()


class Refusing(PassingDisk):
    """Fails at the nth write of a copy, once."""

    def __init__(self, disk: PassingDisk, number: int, nth: int) -> None:
        super().__init__(disk)
        self._number, self._left = number, nth

    def write_at(self, fd: int, data: object, offset: int, *, what: str) -> None:
        if what == "copy":
            self._left -= 1
            if self._left == 0:
                raise OSError(self._number, os.strerror(self._number), self.paths[fd])
        super().write_at(fd, data, offset, what=what)  # type: ignore[arg-type]


@pytest.mark.spec("F9")
@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_volume_that_fails_while_it_is_copied_to_is_tried_again_later(
    one: World, number: int, nth: int
) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    watcher = one.open("watcher", disk=Refusing(one.disk, number, nth))
    with suppress(LeaseholdError):  # EMFILE is an error of the process
        done = watcher.repairer.run_once()
        assert (done.copied, done.failed) == (2, 1)
    assert not any(
        "+" in name for name in _names(one.roots[1]) - _listed(files, "/a")[one.roots[1]]
    )
    assert watcher.repairer.run_once() == RepairPass() or number == errno.EMFILE
    _repair(one, watcher)
    _check(one, watcher, "/a")


@pytest.mark.spec("F9")
def test_a_volume_that_is_full_is_not_copied_to(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    one.disk.fail(one.roots[1], errno.ENOSPC)
    assert _repair(one, one.open("watcher")) == RepairPass()
    assert all(each.trouble for each in files.missing_copies("/a"))
    one.disk.heal(one.roots[1])
    assert _repair(one, one.open("watcher")).copied == 3


@pytest.mark.spec("F9")
def test_a_volume_that_goes_away_while_it_is_copied_to_is_waited_for(both: World) -> None:
    files = both.open()
    _write(files, "/a")
    _empty(both.roots[1])
    watcher = both.open("watcher", options=replace(OPTIONS, repair_bytes=1))
    assert watcher.repairer.run_once().left
    away = both.roots[1].with_suffix(".away")
    both.roots[1].rename(away)
    _repair(both, watcher)
    found = list(files.missing_copies("/a"))
    assert len(found) == 3
    assert all("is not at" in each.trouble or "can not be used" in each.trouble for each in found)
    away.rename(both.roots[1])
    _repair(both, watcher)
    _check(both, watcher, "/a")


@pytest.mark.spec("F9")
def test_two_monitors_at_once_make_each_copy_once(both: World) -> None:
    files = both.open()
    for number in range(8):
        _write(files, f"/{number}")
    _empty(both.roots[1])
    watchers = [both.open("left"), both.open("right")]
    both.pass_s(3600)
    threads = [threading.Thread(target=each.repairer.run_once) for each in watchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in watchers:
        _repair(both, each)
    paths = [f"/{number}" for number in range(8)]
    assert sum(steps(files, path).count("copied") for path in paths) == 24
    _check(both, files, *paths)


@pytest.mark.spec("F9", "B5")
def test_a_copier_that_slept_too_long_is_refused_and_changes_nothing(both: World) -> None:
    files = both.open()
    _write(files, "/a")
    _empty(both.roots[1])
    zombie = both.open("zombie", options=replace(OPTIONS, repair_bytes=1))
    assert zombie.repairer.run_once().left
    both.pass_s(ATTEMPT_S + 1)
    watcher = both.open("watcher")
    assert _repair(both, watcher).copied == 3
    _check(both, watcher, "/a")
    refused = watcher.refused()
    done = zombie.repairer.run_once()
    while done.left:
        done = zombie.repairer.run_once()
    assert watcher.refused() > refused
    _check(both, watcher, "/a")


@pytest.mark.spec("F9", "B5")
def test_a_commit_after_the_claim_was_ended_is_refused(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, watcher = both.open(), both.open("watcher")
    _write(files, "/a")
    _empty(both.roots[1])
    journal = files._context.journal
    commit = journal.commit_copy

    def late(*args: object) -> None:
        both.pass_s(ATTEMPT_S + 1)
        _repair(both, watcher)
        commit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "commit_copy", late)
    with pytest.raises(FencedWrite, match="has ended"):
        files.repair(next(iter(files.missing_copies("/a"))))
    _check(both, watcher, "/a")
    assert steps(watcher, "/a").count("copied") == 3


@pytest.mark.spec("F9")
def test_one_that_removes_what_was_given_up_long_ago_does_not_remove_a_new_copy(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, sleeper = both.open(), both.open("sleeper")
    writer = files.create("/a")
    writer.write(DATA)
    writer.sync()
    both.disk.fail(both.roots[2])
    writer.write(DATA)
    writer.sync()
    writer.close()
    both.disk.heal(both.roots[2])
    journal = sleeper._context.journal
    given_up = journal.trash(limit=9)
    assert len(given_up) == 1
    assert _repair(both, both.open("watcher")).copied == 1
    files.monitor.run_once()
    lists = iter([given_up])
    monkeypatch.setattr(journal, "trash", lambda **_: next(lists, []))
    sleeper.monitor.run_once()  # it had looked before
    assert files.verify("/a") == []
    assert len(blocks(files, "/a")[0].volumes) == 3


@pytest.mark.spec("F9")
def test_nothing_is_copied_to_a_volume_that_is_newer_than_the_database(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    (volume,) = (each for each in files.volumes if each.root == str(one.roots[1]))
    volume.raise_mark(1 << 40, 1 << 40, disk=one.disk)
    before = _names(one.roots[1])
    assert _repair(one, one.open("watcher")) == RepairPass()
    assert _names(one.roots[1]) == before
    assert all("newer" in each.trouble for each in files.missing_copies("/a"))


@pytest.mark.spec("F9")
def test_a_copy_raises_the_mark_of_its_volume_first(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    recording = RecordingDisk(one.disk)
    _repair(one, one.open("watcher", disk=recording))
    points = [point for point in recording.points if point.endswith((" mark", " copy"))]
    assert points.index("after sync mark") < points.index("before create copy")
    (volume,) = (each for each in files.volumes if each.root == str(one.roots[1]))
    epochs = [epoch for block in blocks(files, "/a") for _, epoch in block.copies]
    assert volume.mark().epoch == max(epochs)


@pytest.mark.spec("F9")
def test_a_pass_copies_so_many_bytes_and_the_next_goes_on_in_the_same_copy(one: World) -> None:
    files = one.open()
    with files.create("/a") as writer:
        for _ in range(5):
            writer.write(bytes(1 << 20))
            writer.flush()
    _empty(one.roots[1])
    watcher = one.open("watcher", options=replace(OPTIONS, repair_bytes=2 << 20))
    assert watcher.repairer.run_once() == RepairPass(copied_bytes=2 << 20, left=True)
    one.pass_s(ATTEMPT_S - 1)  # the claim is renewed in the next pass
    assert watcher.repairer.run_once() == RepairPass(copied_bytes=2 << 20, left=True)
    one.pass_s(ATTEMPT_S - 1)
    other = one.open("other")
    assert other.repairer.run_once().copied == 0
    assert watcher.repairer.run_once() == RepairPass(copied=1, copied_bytes=1 << 20)
    assert files.verify("/a") == []


@pytest.mark.spec("F9")
def test_a_pass_ends_after_its_budget_of_time(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    files = one.open()
    for number in range(5):
        _write(files, f"/{number}", replication=3)
    _empty(one.roots[1])
    watcher = one.open("watcher")
    journal = watcher._context.journal
    begin = journal.begin_copy

    def slow(*args: object, **more: object) -> object:
        one.pass_s(0.4)  # of a budget of one second
        return begin(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "begin_copy", slow)
    done = watcher.repairer.run_once()
    assert done.left
    assert done.copied in {2, 3}


@pytest.mark.spec("F9")
def test_while_nothing_is_missing_it_looks_now_and_then_and_writes_nothing(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = one.open()
    for number in range(4):
        _write(files, f"/{number}")
    written: list[str] = []
    watcher = one.open("watcher", hook=lambda step, moment: written.append(step))
    written.clear()
    monkeypatch.setattr("leasehold.files.repair.PAGE", 5)
    looked: list[int] = []
    journal = watcher._context.journal
    after = journal.blocks_after

    def counted(at: int, *, limit: int) -> object:
        looked.append(at)
        return after(at, limit=limit)

    monkeypatch.setattr(journal, "blocks_after", counted)
    interval_s = OPTIONS.repair_interval.total_seconds()
    for _ in range(4):
        assert watcher.repairer.run_once() == RepairPass()
        assert watcher.repairer.run_once() == RepairPass()
        one.pass_s(interval_s)
    assert looked == [0, 5, 10, 0]  # 12 blocks, then from the beginning
    assert written == []


@pytest.mark.spec("F9")
def test_a_reader_that_was_open_before_finds_the_copies(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    reader = files.read("/a")
    _empty(one.roots[0])
    _repair(one, one.open("watcher"))
    for root in one.roots[1:]:
        _empty(root)
    assert reader.read() == DATA  # from the copy that it did not know


@pytest.mark.spec("F9")
def test_the_thread_copies_by_itself_and_survives_trouble_with_the_store(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    options = replace(
        OPTIONS,
        monitor_interval=timedelta(milliseconds=10),
        repair_interval=timedelta(milliseconds=10),
    )
    watcher = one.open("watcher", options=options)
    journal = watcher._context.journal
    commit, committed, troubles = journal.commit_copy, threading.Semaphore(0), [1, 2]

    def failing(*args: object) -> None:
        if troubles:
            troubles.pop()
            one.pass_s(3600)
            raise StoreUnavailable("not just now")
        commit(*args)  # type: ignore[arg-type]
        one.pass_s(3600)
        committed.release()

    monkeypatch.setattr(journal, "commit_copy", failing)
    watcher.repairer.start()
    for _ in range(3):
        assert committed.acquire(timeout=120)
    watcher.repairer.close()
    _check(one, files, "/a")


@pytest.mark.spec("F9")
def test_with_no_bytes_allowed_nothing_is_copied_unasked(one: World) -> None:
    files = one.open(options=replace(OPTIONS, repair_bytes=0), run_monitor=True)
    assert files.repairer._thread is None


@pytest.mark.spec("F9")
def test_no_descriptor_is_left_open(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for each in files.missing_copies("/a"):
        files.repair(each)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.spec("F9")
def test_a_closing_process_gives_up_its_copy_and_another_makes_it_at_once(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    leaving = one.open("leaving", options=replace(OPTIONS, repair_bytes=1))
    assert leaving.repairer.run_once().left
    leaving.close()
    watcher = one.open("watcher")
    assert watcher.repairer.run_once().copied == 3
    _check(one, watcher, "/a")


def test_a_volume_of_another_directory_does_not_take_the_place(one: World) -> None:
    files = one.open()
    (old,) = (each.id for each in files.volumes if each.root == str(one.roots[0]))
    shutil.rmtree(one.roots[0])
    with pytest.raises(UsageError, match="a directory of its own"):
        files.replace_volume(old, one.roots[1])
    foreign = one.roots[0].with_name("foreign")
    foreign.mkdir()
    (foreign / "mine").write_text("x")
    with pytest.raises(VolumeUnusable, match="is not empty"):
        files.replace_volume(old, foreign)
    with pytest.raises(UsageError, match="there is no volume"):
        files.replace_volume("nobody", one.roots[0])


def test_a_volume_that_only_moved_keeps_its_id_and_its_copies(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    (old,) = (each.id for each in files.volumes if each.root == str(one.roots[0]))
    moved = one.roots[0].with_name("moved")
    one.roots[0].rename(moved)
    assert files.replace_volume(old, moved) == old
    assert list(files.missing_copies("/a", compare=True)) == []
    assert isinstance(files.volumes[0], Volume)


def test_a_writer_without_a_monitor_learns_of_the_new_volume_when_the_old_one_fails(
    one: World,
) -> None:
    files, writing = one.open(), one.open("writing")
    (old,) = (each.id for each in files.volumes if each.root == str(one.roots[0]))
    shutil.rmtree(one.roots[0])
    new = files.replace_volume(old, one.roots[0].with_name("new"))
    one.pass_s(10)
    _write(writing, "/a")
    assert all(new in block.volumes for block in blocks(files, "/a"))
    _check(one, files, "/a")


@pytest.mark.spec("F9")
def test_while_another_process_copies_a_block_the_pauses_do_not_grow(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    holding = one.open("holding", options=replace(OPTIONS, repair_bytes=1))
    assert holding.repairer.run_once().left
    watcher = one.open("watcher")
    for _ in range(6):
        watcher.repairer.run_once()
        one.pass_s(11)
    holding.repairer.close()
    one.pass_s(11)
    assert sum(watcher.repairer.run_once().copied for _ in range(3)) >= 1
    _check(one, watcher, "/a")


@pytest.mark.spec("F9", "F8")
def test_a_volume_that_lost_an_open_block_does_not_say_that_there_was_none(one: World) -> None:
    files = one.open()
    _write(files, "/a")
    writer = files.create("/open", replication=1)
    writer.write(DATA)
    writer.sync()
    writer.leave_behind()
    (lost,) = (each for each in files.volumes if each.id in blocks(files, "/open")[0].volumes)
    _empty(Path(lost.root))
    watcher = one.open("watcher")
    assert _repair(one, watcher).copied == 3  # none of them is in the directory of the open block
    with pytest.raises(TailUncertain):
        watcher.recover("/open", timeout=timedelta(0))
    assert not watcher.is_closed("/open")
    watcher.delete("/open")
    _repair(one, watcher)
    assert lost.missing_directories() == set()
    _check(one, watcher, "/a")


@pytest.mark.spec("F9")
def test_a_slow_disk_does_not_cost_the_claim_where_recoveries_are_short(one: World) -> None:
    short = replace(OPTIONS, recovery_timeout=timedelta(seconds=15), repair_bytes=1)
    files = one.open()
    _write(files, "/a")
    _empty(one.roots[1])
    slow, other = one.open("slow", options=short), one.open("other", options=short)
    refused = slow.refused()
    for _ in range(30):
        slow.repairer.run_once()
        one.pass_s(60)  # one piece and its sync
        other.monitor.run_once()  # it ends the claims that ran out
    assert slow.refused() == refused
    _check(one, other, "/a")
