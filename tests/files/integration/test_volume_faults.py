"""Volumes that are full, read-only, gone, foreign or damaged: what is kept, and what is said."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.namespaces import (
    AT_ONCE,
    HARD_S,
    OPTIONS,
    SOFT_S,
    World,
    blocks,
    content,
    steps,
)

from leasehold.errors import DataDamaged, FileHeld, TailUncertain, VolumeUnusable
from leasehold.files import FileState, Namespace
from leasehold.files.disk import SystemDisk
from leasehold.testing.clock import ManualClock


@contextmanager
def _no_file_longer_than(size: int) -> Iterator[None]:
    """The kernel itself refuses longer files, of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _away(root: Path) -> Path:
    return root.rename(root.with_suffix(".away"))


def _id_at(files: Namespace, root: Path) -> str:
    return next(volume.id for volume in files.volumes if volume.root == str(root))


def _files(files: Namespace, path: str, *, data: bool) -> dict[str, Path]:
    """By volume, the data or the meta file of the last block."""
    last = blocks(files, path)[-1]
    return {
        volume.id: Path(
            volume.data_path(last.id) if data else volume.meta_path(last.id, last.generation)
        )
        for volume in files.volumes
        if volume.id in last.volumes
    }


# ---------------------------------------------------------------- full


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_one_volume_fails_and_is_dropped_before_anything_more_is_acknowledged(
    one: World, number: int
) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(b"one ")
    writer.flush()
    one.disk.fail(one.roots[1], number)
    lost = _id_at(files, one.roots[1])
    writer.write(b"two ")
    assert writer.flush() == 8
    assert lost not in writer.volumes
    assert len(writer.volumes) == 2
    newest = files.history("/a", limit=1)[0]
    assert newest.step == "drop volumes"
    assert newest.detail == f"block {blocks(files, '/a')[0].id:#x} lost {lost}"
    writer.write(b"three")
    writer.close()
    assert content(files, "/a") == b"one two three"
    one.disk.heal(one.roots[1])
    assert [fault.what for fault in files.verify("/a")] == [
        f"block {blocks(files, '/a')[0].id:#x} is on 2 of 3 volumes"
    ]
    files.monitor.run_once()  # what it had is of no use to anybody
    assert list(one.roots[1].glob("blocks/*/*")) == []


def test_all_volumes_are_full_and_what_was_acknowledged_is_kept(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(b"kept")
    assert writer.flush() == 4
    for root in one.roots:
        one.disk.fail(root, errno.ENOSPC)
    writer.write(b" lost")
    with pytest.raises(VolumeUnusable) as caught:
        writer.flush()
    said = str(caught.value)
    assert said.startswith("/a: 0 volumes are left and 1 are needed (")
    assert "No space left on device" in said
    assert said.endswith(
        "what was acknowledged is kept; make room or repair a volume, then append to the file"
    )
    with pytest.raises(VolumeUnusable):
        writer.write(b"again")
    assert writer.acknowledged == 4
    assert content(files, "/a") == b"kept"  # reading needs no room
    with pytest.raises(TailUncertain):  # to seal needs a little room too
        writer.close()
    for root in one.roots:
        one.disk.heal(root)
    with files.append("/a") as more:
        more.write(b" and more")
    found = content(files, "/a")
    assert found.startswith(b"kept")
    assert found.endswith(b" and more")
    assert files.verify("/a") == []


def test_close_seals_what_was_acknowledged_after_a_failure_that_has_passed(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(b"kept")
    writer.flush()
    for root in one.roots:
        one.disk.fail(root, errno.ENOSPC)
    writer.write(b" lost")
    with pytest.raises(VolumeUnusable):
        writer.flush()
    for root in one.roots:
        one.disk.heal(root)
    status = writer.close()  # the caller was told: this is no news
    assert status is not None
    assert (status.state, status.length) == (FileState.CLOSED, 4)
    assert content(files, "/a") == b"kept"
    assert steps(files, "/a")[-1] == "recovered"


def test_a_close_that_can_not_write_the_rest_says_so(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(b"kept")
    writer.flush()
    writer.write(b" never written")
    write_at = one.disk.write_at

    def full(fd: int, data: bytes, offset: int, *, what: str) -> None:
        if what == "data":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_at(fd, data, offset, what=what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.disk, "write_at", full)
        with pytest.raises(VolumeUnusable, match="what was acknowledged is kept; make room"):
            writer.close()
    assert files.is_closed("/a")
    assert content(files, "/a") == b"kept"


def test_a_limit_of_the_kernel_is_met_by_real_files_and_nothing_acknowledged_is_lost(
    one: World,
) -> None:
    files = one.open(disk=SystemDisk())
    line = bytes(range(256)) * 4096  # one piece
    with _no_file_longer_than(3 * len(line) + len(line) // 2):
        writer = files.create("/a")
        for _ in range(3):
            writer.write(line)
            writer.sync()
        with pytest.raises(VolumeUnusable, match="File too large"):
            writer.write(line)
        assert writer.acknowledged == 3 * len(line)
        status = writer.close()  # the records still fit: it seals what was acknowledged
        assert status is not None
        assert status.length == 3 * len(line)
    assert content(files, "/a") == line * 3
    assert files.verify("/a") == []
    assert [path.stat().st_size for path in _files(files, "/a", data=True).values()] == [
        3 * len(line)
    ] * 3
    with files.append("/a") as more:
        more.write(b"there is room again")
    assert files.status("/a").length == 3 * len(line) + 19


def test_the_volumes_of_the_next_block_fail_and_the_lengths_stay_right(one: World) -> None:
    files = one.open()
    writer = files.create("/a", block_bytes=4096)
    writer.write(b"a" * 4000)
    create = one.disk.create

    def full(path: str, *, what: str) -> int:
        if what == "meta":
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return create(path, what=what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.disk, "create", full)
        with pytest.raises(VolumeUnusable, match="0 volumes are left and 1 are needed"):
            writer.write(b"b" * 200)
    assert (writer.length, writer.acknowledged) == (4096, 4096)
    status = writer.close()
    assert status is not None
    assert status.length == 4096
    assert content(files, "/a") == b"a" * 4000 + b"b" * 96


def test_fewer_volumes_than_asked_for_stop_the_writer(one: World) -> None:
    files = one.open(options=replace(OPTIONS, min_replicas=2, replication=3))
    writer = files.create("/a")
    writer.write(b"kept")
    writer.flush()
    one.disk.fail(one.roots[0])
    writer.write(b" on two")
    assert writer.flush() == 11
    one.disk.fail(one.roots[1])
    writer.write(b" on one")
    with pytest.raises(VolumeUnusable, match=r"^/a: 1 volumes are left and 2 are needed"):
        writer.flush()
    assert content(files, "/a") == b"kept on two"


# ---------------------------------------------------------------- gone or foreign


def test_a_volume_directory_is_removed_while_it_is_written(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(b"one ")
    writer.flush()
    _away(one.roots[2])
    writer.write(b"two")
    writer.close()
    assert content(files, "/a") == b"one two"
    assert "drop volumes" in steps(files, "/a")
    with files.create("/b") as second:  # and new files do without it
        assert len(second.volumes) == 2


def test_a_volume_that_is_away_at_the_opening_is_not_made_anew(one: World) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"before")
    kept = _away(one.roots[0])
    one.roots[0].mkdir()  # the mount point of the disk that is away
    again = one.open("again")  # names all three
    assert content(again, "/a") == b"before"
    with again.create("/b") as writer:
        writer.write(b"on two")
        assert len(writer.volumes) == 2
    assert list(one.roots[0].iterdir()) == []
    lost = _id_at(again, one.roots[0])
    assert [fault.volume for fault in again.verify("/a")] == [lost]
    one.roots[0].rmdir()
    kept.rename(one.roots[0])
    assert again.verify("/a") == []


def test_no_volume_can_be_used_and_each_says_why(one: World) -> None:
    files = one.open()
    one.disk.fail(one.roots[0], errno.EROFS)
    one.disk.fail(one.roots[1], errno.ENOSPC)
    _away(one.roots[2])
    with pytest.raises(VolumeUnusable) as caught:
        files.create("/a")
    said = str(caught.value)
    assert said.startswith("0 of 3 volumes can be used")
    for word in ("Read-only file system", "No space left on device", "Is the disk mounted?"):
        assert word in said
    assert "Repair or mount it, or take it out of service." in said
    assert files.list() == []


def test_a_volume_of_another_namespace_in_its_place_is_left_alone(
    one: World, tmp_path: Path
) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"ours")
    other = tmp_path / "other"
    theirs = Namespace.open(
        f"sqlite:///{tmp_path}/other.db", volumes=[other], run_monitor=False, options=OPTIONS
    )
    theirs.close()
    _away(one.roots[0])
    other.rename(one.roots[0])
    before = sorted(path for path in one.roots[0].rglob("*") if path.is_file())
    one.pass_s(60)  # a volume that was found good just now is not looked at again
    with files.create("/b") as writer:
        writer.write(b"ours too")
        assert len(writer.volumes) == 2
    assert sorted(path for path in one.roots[0].rglob("*") if path.is_file()) == before
    assert [fault.volume for fault in files.verify("/a")] == [_id_at(files, one.roots[0])]
    assert content(files, "/a") == b"ours"
    for root in one.roots[1:]:
        _away(root)
    one.pass_s(60)
    with pytest.raises(VolumeUnusable, match=r"not '\w+' of '\w+'\. Mount the right disk there\."):
        files.create("/c")


def test_a_directory_of_another_namespace_is_refused_at_the_opening(
    one: World, tmp_path: Path
) -> None:
    one.open()
    with pytest.raises(VolumeUnusable, match=r"is a volume of another namespace .*choose another"):
        Namespace.open(
            f"sqlite:///{tmp_path}/other.db",
            volumes=[one.roots[0]],
            run_monitor=False,
            options=OPTIONS,
        )


def test_two_volumes_that_changed_places_are_both_left_out(one: World) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"ours")
    first, second = one.roots[:2]
    aside = _away(first)
    second.rename(first)
    aside.rename(second)
    one.pass_s(60)
    assert content(files, "/a") == b"ours"
    with files.create("/b") as writer:
        assert len(writer.volumes) == 1


def test_a_directory_with_something_else_in_it_is_never_touched(one: World, tmp_path: Path) -> None:
    one.open()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years")
    with pytest.raises(VolumeUnusable, match=r"is not empty \(it has 'thesis.txt'\)"):
        one.open("another", volumes=[precious])
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


# ---------------------------------------------------------------- damaged by hand


@pytest.mark.parametrize("data", [True, False])
def test_a_file_cut_by_hand_before_recovery_gets_its_end_from_another_volume(
    one: World, data: bool
) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    for part in (b"first ", b"second"):
        writer.write(part)
        writer.flush()
    path = next(iter(_files(files, "/a", data=data).values()))
    os.truncate(path, path.stat().st_size - 5)
    one.pass_s(SOFT_S + 1)
    assert others.recover("/a", timeout=AT_ONCE).length == 12
    assert content(others, "/a") == b"first second"
    assert len(blocks(others, "/a")[0].volumes) == 3
    assert others.verify("/a") == []


@pytest.mark.parametrize("data", [True, False])
def test_a_file_cut_by_hand_after_closing_is_read_from_another_volume(
    one: World, data: bool
) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"x" * 1000)
    (block,) = blocks(files, "/a")
    found = _files(files, "/a", data=data)
    for number, (volume, path) in enumerate(found.items(), start=1):
        os.truncate(path, 140)
        faults = files.verify("/a")
        assert volume in {fault.volume for fault in faults}
        assert len({fault.volume for fault in faults}) == number
        if number < 3:
            assert content(files, "/a") == b"x" * 1000
    if data:
        assert files.verify("/a")[0].what == f"block {block.id:#x} has 140 bytes of 1000"
    with pytest.raises(
        DataDamaged, match=r"^/a: from byte 0 on it is damaged on every volume \("
    ) as caught:
        content(files, "/a")
    assert all(volume in str(caught.value) for volume in found)


def test_a_flipped_bit_is_never_given_to_a_reader(one: World) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"x" * 1000)
    found = _files(files, "/a", data=True)
    for path in list(found.values())[:2]:
        raw = bytearray(path.read_bytes())
        raw[500] ^= 1
        path.write_bytes(raw)
    assert content(files, "/a") == b"x" * 1000
    assert {fault.volume for fault in files.verify("/a")} == set(list(found)[:2])


def test_a_damaged_file_whose_good_volume_is_away_says_both(one: World) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"x" * 1000)
    for volume, path in _files(files, "/a", data=True).items():
        if volume == _id_at(files, one.roots[0]):
            continue
        os.truncate(path, 10)
    _away(one.roots[0])
    with pytest.raises(VolumeUnusable, match=r"bring that volume back"):
        content(files, "/a")


def test_a_file_that_no_volume_can_give_says_which_and_why(one: World) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"x")
    for root in one.roots:
        _away(root)
    with pytest.raises(VolumeUnusable) as caught:
        content(files, "/a")
    assert str(caught.value).startswith("/a can not be read from any volume: ")
    assert all(volume.id in str(caught.value) for volume in files.volumes)


def test_a_volume_that_is_read_only_can_still_be_read(one: World) -> None:
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"still there")
    for root in one.roots:
        one.disk.fail(root, errno.EROFS)
    assert content(files, "/a") == b"still there"
    assert files.verify("/a") == []


# ---------------------------------------------------------------- the wall clock


class _WrongWall(ManualClock):
    """The calendar is set as one likes; the time since the start of the machine goes on."""

    wall = datetime(2026, 1, 1, tzinfo=UTC)

    def utc_now(self) -> datetime:
        return self.wall


def test_a_wall_clock_that_is_set_back_or_forward_decides_nothing(one: World) -> None:
    clock = _WrongWall()
    files, others = one.open(clock=clock), one.open("other", clock=clock)
    writer = files.create("/a")
    for year in (1999, 2099, 1970):
        clock.wall = datetime(year, 1, 1, tzinfo=UTC)
        clock.advance(SOFT_S / 4)
        with pytest.raises(FileHeld) as caught:
            others.append("/a")
        assert 0 < caught.value.retry_after_s < SOFT_S
        assert others.monitor.run_once().recovered == 0
        writer.write(b"x")
        writer.flush()
    clock.advance(HARD_S)
    assert others.monitor.run_once().recovered == 1
    assert content(others, "/a") == b"xxx"
    numbers = [entry.number for entry in others.history("/a")]
    assert numbers == sorted(numbers, reverse=True)
