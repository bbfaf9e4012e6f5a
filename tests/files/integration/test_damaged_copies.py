"""Copies that are stale or damaged: pieces come from whichever copy has them, losses are errors."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from tests.support.namespaces import AT_ONCE, World, blocks, content, steps

from leasehold.errors import TailUncertain
from leasehold.files import Namespace
from leasehold.files.block_meta import HEADER_BYTES, RECORD_BYTES

PIECES = [b"%02d" % number for number in range(41)]


def _written(files: Namespace, path: str, *, sync: bool = True) -> None:
    """A file of 41 pieces, each acknowledged; its writer ends without closing it."""
    writer = files.create(path)
    for piece in PIECES:
        writer.write(piece)
        if sync:
            writer.sync()
        else:
            writer.flush()
    writer.leave_behind()


def _paths(files: Namespace, path: str) -> tuple[list[Path], list[Path]]:
    """The data and the meta file of the open block, by volume."""
    (block,) = blocks(files, path)
    volumes = [volume for volume in files.volumes if volume.id in block.volumes]
    return (
        [Path(volume.data_path(block.id)) for volume in volumes],
        [Path(volume.meta_path(block.id, block.generation)) for volume in volumes],
    )


def _flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def _flip_record(meta: Path, position: int) -> None:
    _flip(meta, HEADER_BYTES + RECORD_BYTES * position + 9)


@pytest.mark.spec("F8")
@pytest.mark.parametrize("sync", [True, False])
def test_one_stale_replica_does_not_take_back_what_was_acknowledged(
    one: World, tmp_path: Path, sync: bool
) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"old ")
    writer.sync()
    stale = one.roots[0]
    shutil.copytree(stale, tmp_path / "snapshot")
    writer.write(b"acknowledged")
    acknowledged = writer.sync() if sync else writer.flush()
    writer.leave_behind()
    shutil.rmtree(stale)
    shutil.copytree(tmp_path / "snapshot", stale)
    assert others.recover("/a", timeout=AT_ONCE).length == acknowledged
    assert content(others, "/a") == b"old acknowledged"
    assert others.verify("/a") == []
    assert len(blocks(others, "/a")[0].volumes) == 3  # the stale one was made whole


@pytest.mark.spec("F8")
def test_one_record_is_damaged_on_each_volume_and_nothing_is_lost(one: World) -> None:
    files, others = one.open(), one.open("other")
    _written(files, "/a")
    for number, meta in enumerate(_paths(files, "/a")[1]):
        _flip_record(meta, 5 + number)
    assert others.recover("/a", timeout=AT_ONCE).length == 82
    assert content(others, "/a") == b"".join(PIECES)
    assert others.verify("/a") == []


@pytest.mark.spec("F8")
@pytest.mark.parametrize("damage_records", [True, False])
def test_one_copy_is_damaged_late_and_one_early_and_nothing_is_lost(
    one: World, damage_records: bool
) -> None:
    files = one.open(volumes=one.roots[:2])
    others = one.open("other")
    _written(files, "/a")
    (late, early), metas = _paths(files, "/a")
    _flip(late, 80)
    if damage_records:
        _flip_record(metas[1], 2)
    else:
        _flip(early, 4)
    assert others.recover("/a", timeout=AT_ONCE).length == 82
    others.monitor.run_once()
    assert content(others, "/a") == b"".join(PIECES)


@pytest.mark.spec("F8")
def test_the_last_synced_piece_is_damaged_on_every_volume_and_that_is_an_error(
    both: World, caplog: pytest.LogCaptureFixture
) -> None:
    files, others = both.open(), both.open("other")
    _written(files, "/a")
    for data in _paths(files, "/a")[0]:
        _flip(data, 81)
    with caplog.at_level(logging.ERROR, logger="leasehold.files"):
        assert others.recover("/a", timeout=AT_ONCE).length == 80
    (record,) = caplog.records
    assert "/a: 2 bytes after byte 80 had been acknowledged and are lost" in record.getMessage()
    assert steps(others, "/a")[-2:] == ["lost", "recovered"]
    assert others.history("/a")[1].detail == "2 acknowledged bytes from byte 80 on"
    (loss,) = others.losses("/a")
    assert (loss.start, loss.lost_bytes) == (80, 2)
    (fault,) = others.verify("/a")
    assert (fault.volume, fault.what) == ("-", loss.message)
    with others.append("/a") as more:
        more.write(b"more")
    assert [each.what for each in others.verify("/a")] == [loss.message]  # it stays known


@pytest.mark.spec("F8")
def test_something_durable_is_damaged_everywhere_and_an_operator_keeps_the_rest(
    one: World,
) -> None:
    files, others = one.open(), one.open("other")
    _written(files, "/a")
    for meta in _paths(files, "/a")[1]:
        _flip_record(meta, 30)
    with pytest.raises(TailUncertain):
        others.recover("/a", timeout=AT_ONCE)
    assert others.recover("/a", timeout=AT_ONCE, accept_loss=True).length == 60
    assert content(others, "/a") == b"".join(PIECES[:30])
    assert others.history("/a")[1].detail == "22 acknowledged bytes from byte 60 on"


@pytest.mark.spec("F8")
def test_what_only_an_absent_volume_had_is_a_loss_once_it_is_given_up(one: World) -> None:
    files, others = one.open(volumes=one.roots[:1]), one.open("other", volumes=one.roots[:1])
    _written(files, "/a")
    volume = files.volumes[0]
    shutil.rmtree(volume.root)
    with pytest.raises(TailUncertain):
        others.recover("/a", timeout=AT_ONCE)
    assert not others.losses("/a")
    assert others.recover("/a", timeout=AT_ONCE, accept_loss=True).length == 0
    (loss,) = others.losses("/a")
    assert (loss.start, loss.lost_bytes) == (0, 0)
    assert "an unknown number of acknowledged bytes" in loss.message
    assert volume.id in loss.message
    assert [each.what for each in others.verify("/a")] == [loss.message]
    assert steps(others, "/a").count("lost") == 1


@pytest.mark.spec("F8")
def test_a_known_loss_says_that_an_absent_volume_may_have_had_more(one: World) -> None:
    files, others = one.open(volumes=one.roots[:2]), one.open("other", volumes=one.roots[:2])
    _written(files, "/a")
    gone = next(volume for volume in files.volumes if volume.root == str(one.roots[0]))
    _flip_record(_paths(files, "/a")[1][files.volumes.index(gone) - 1], 30)
    shutil.rmtree(gone.root)
    with pytest.raises(TailUncertain):
        others.recover("/a", timeout=AT_ONCE)
    assert others.recover("/a", timeout=AT_ONCE, accept_loss=True).length == 60
    (loss,) = others.losses("/a")
    assert (loss.start, loss.lost_bytes) == (60, 22)
    assert f"volume {gone.id} did not answer" in loss.message
    assert loss.message in [each.what for each in others.verify("/a")]


@pytest.mark.spec("F8")
def test_a_loss_that_need_not_be_accepted_is_none_while_a_volume_is_absent(one: World) -> None:
    files, others = one.open(volumes=one.roots[:2]), one.open("other", volumes=one.roots[:2])
    _written(files, "/a")
    shutil.rmtree(one.roots[0])
    assert others.recover("/a", timeout=AT_ONCE, accept_loss=True).length == 82
    assert not others.losses("/a")
