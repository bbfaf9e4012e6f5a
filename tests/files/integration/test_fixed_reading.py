"""Faults of opening, naming and reading files that were found once: each of them stays fixed."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.namespaces import OPTIONS, World, blocks, content, steps

from leasehold.errors import (
    DataDamaged,
    InvalidName,
    InvalidOptions,
    StoreUnavailable,
    VolumeUnusable,
)
from leasehold.files import AsyncNamespace, Namespace
from leasehold.testing.disk import PassingDisk

PATIENCE_S = 120.0


# ------------------------------------------------------------- opening


@pytest.mark.parametrize(
    "settings",
    [
        {"block_bytes": -5},
        {"block_bytes": "x"},
        {"block_bytes": 1.5},
        {"replication": 0},
        {"replication": 99},
    ],
    ids=str,
)
def test_a_create_with_settings_that_can_not_be_makes_no_file(
    one: World, settings: dict[str, Any]
) -> None:
    files = one.open()
    with pytest.raises(InvalidOptions, match=next(iter(settings))):
        files.create("/a", **settings)
    assert files.list() == []


@pytest.mark.spec("F2")
@pytest.mark.parametrize("way", ["create", "append"])
def test_an_opening_whose_answer_was_lost_gives_the_file_when_it_is_asked_for_again(
    both: World, way: str
) -> None:
    lost: list[str] = []

    def hook(step: str, moment: str) -> None:
        if (step, moment) == (way, "after") and not lost:
            lost.append(step)
            raise StoreUnavailable("the answer was lost")

    files = both.open(hook=hook)
    if way == "append":
        files.create("/a").close()
    opening = getattr(files, way)
    with pytest.raises(StoreUnavailable):
        opening("/a")
    assert files.status("/a").holder == files.holder  # it was carried out
    with opening("/a") as writer:
        writer.write(b"once")
    assert content(files, "/a") == b"once"
    assert steps(files, "/a").count(way) == 1


@pytest.mark.spec("F5")
def test_a_create_that_nobody_waits_for_any_more_leaves_no_open_file(one: World) -> None:
    made, answer, closed = threading.Event(), threading.Event(), threading.Event()

    def hook(step: str, moment: str) -> None:
        if (step, moment) == ("create", "after"):
            made.set()
            assert answer.wait(PATIENCE_S)
        if (step, moment) == ("close", "after"):
            closed.set()

    async def program() -> None:
        files = await AsyncNamespace.open(
            one.url,
            volumes=one.roots,
            options=OPTIONS,
            run_monitor=False,
            clock=one.clock,
            disk=one.disk,
            hook=hook,
        )
        async with files:
            creating = asyncio.ensure_future(files.create("/a"))
            assert await asyncio.to_thread(made.wait, PATIENCE_S)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(creating, 0)
            assert not await files.is_closed("/a")
            answer.set()
            assert await asyncio.to_thread(closed.wait, PATIENCE_S)
            assert await files.is_closed("/a")
            assert await files.holders() == []

    asyncio.run(program())


# -------------------------------------------------------------- naming


@pytest.mark.parametrize("way", ["closed", "open"])
def test_a_directory_is_not_renamed_if_a_path_below_it_would_be_too_long(
    both: World, way: str
) -> None:
    files = both.open()
    short, long = "/d/a", "/d/" + "x" * 1000
    files.create(short).close()
    writer = files.create(long)
    writer.write(b"kept")
    writer.close() if way == "closed" else writer.flush()
    with pytest.raises(InvalidName, match="1202 characters"):
        files.rename("/d", "/" + "y" * 200)
    assert [each.path for each in files.list()] == [short, long]
    assert content(files, long) == b"kept"
    assert files.rename("/d", "/e") == 2
    assert content(files, "/e" + long[2:]) == b"kept"


# ------------------------------------------------------------- reading


def _two_pieces(one: World) -> tuple[Namespace, list[Path]]:
    """A file of two pieces of three bytes on two volumes, and where its bytes are."""
    files = one.open(volumes=one.roots[:2])
    with files.create("/a") as writer:
        for part in (b"one", b"two"):
            writer.write(part)
            writer.flush()
    block = blocks(files, "/a")[0]
    return files, [Path(f"{root}/blocks/{block.id:02x}/{block.id:016x}.data") for root in one.roots]


def _damage(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_pieces_that_are_damaged_on_different_volumes_are_read_from_the_other(
    one: World, caplog: pytest.LogCaptureFixture
) -> None:
    files, data = _two_pieces(one)
    _damage(data[0], 1)
    _damage(data[1], 4)
    with caplog.at_level(logging.WARNING, "leasehold.files"):
        assert content(files, "/a") == b"onetwo"
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "/a was read from volume" in said
    assert "bytes 0 to 3" in said or "bytes 3 to 6" in said


def test_a_piece_that_is_damaged_on_every_volume_is_never_handed_out(one: World) -> None:
    files, data = _two_pieces(one)
    _damage(data[0], 4)
    _damage(data[1], 5)
    reader = files.read("/a")
    assert reader.read(3) == b"one"
    with pytest.raises(DataDamaged, match=r"from byte 3 on it is damaged on every volume"):
        reader.read(3)


def test_a_damaged_piece_whose_other_copy_is_away_is_not_given_up(one: World) -> None:
    files, data = _two_pieces(one)
    _damage(data[0], 1)
    one.disk.fail(one.roots[1])
    reader = files.read("/a")
    with pytest.raises(VolumeUnusable, match="bring that volume back"):
        reader.read()
    one.disk.heal(one.roots[1])
    assert reader.read() == b"onetwo"


class _Counting(PassingDisk):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        found = super().read_at(fd, size, offset)
        self.read_bytes += len(found)
        return found


def test_whoever_follows_a_file_of_many_small_flushes_reads_only_what_is_new(one: World) -> None:
    disk = _Counting(one.disk)
    writer = one.open().create("/a")
    reader, costs = None, []
    following = one.open("reader", disk=disk)
    for number in range(100):
        writer.write(b"%04d" % number)
        writer.flush()
        before = disk.read_bytes
        reader = reader or following.read("/a")
        reader.refresh()
        assert reader.read() == b"%04d" % number
        costs.append(disk.read_bytes - before)
    assert len(set(costs[1:])) == 1  # the last look costs what the second did
