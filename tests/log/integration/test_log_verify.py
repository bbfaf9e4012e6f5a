"""Verify looks at every byte of a stream, and at how its segments join."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log_segments import Owner, StreamEnv, open_stream_env

from leasehold.log import StreamSettings
from leasehold.log.log import verify


@pytest.fixture
def env(tmp_path: Path) -> Iterator[StreamEnv]:
    made = open_stream_env(tmp_path, settings=StreamSettings(partitions=2))
    yield made
    made.close()


def filled(env: StreamEnv, partition: int = 0) -> Owner:
    owner = env.owner(partition)
    for _ in range(3):
        owner.many(4, size=200, key="k")
        owner.many(4, size=200)
        owner.roll()
    owner.many(2)
    return owner


def findings(env: StreamEnv) -> list[str]:
    return verify(env.stream, files=env.files)


def data_files(env: StreamEnv, path: str) -> list[Path]:
    block = env.files.read(path).blocks[0]
    return [Path(volume.data_path(block.id)) for volume in env.files.volumes]


def test_a_sound_stream_has_no_findings_and_its_bytes_are_told(env: StreamEnv) -> None:
    filled(env)
    filled(env, 1)
    reported: list[int] = []

    assert verify(env.stream, files=env.files, progress=reported.append) == []

    files = env.files.list("/")
    replicas = sum(2 * status.length for status in files)
    frames = sum(env.files.read(status.path).length for status in files)
    assert sum(reported) == replicas + frames


@pytest.mark.spec("F8")
def test_a_stream_with_recovered_and_empty_segments_is_sound(env: StreamEnv) -> None:
    owner = filled(env)
    heir = env.owner()
    heir.take_over()
    assert heir.next_sequence == owner.next_sequence
    heir.many(3)
    heir.roll(index=False)
    heir.open()

    assert findings(env) == []


@pytest.mark.parametrize("volume", [0, 1])
def test_a_bit_that_flipped_on_one_volume_is_found_wherever_it_is(
    env: StreamEnv, volume: int
) -> None:
    filled(env)
    path = env.files.list("/")[1].path
    file = data_files(env, path)[volume]
    whole = file.read_bytes()
    rng = random.Random(3)
    for at in [0, 63, 64, len(whole) - 1, *rng.sample(range(len(whole)), 20)]:
        broken = bytearray(whole)
        broken[at] ^= 1 << rng.randrange(8)
        file.write_bytes(broken)
        found = findings(env)
        assert found, at
        assert all("orders, partition 0, 00000000000000000008.seg: " in each for each in found)
        assert any("volume" in each for each in found)
    file.write_bytes(whole)
    assert findings(env) == []


@pytest.mark.parametrize("volume", [0, 1])
def test_a_bit_that_flipped_in_the_open_segment_is_found_on_each_volume(
    env: StreamEnv, volume: int
) -> None:
    owner = env.owner()
    owner.many(4, size=200, key="k")
    file = data_files(env, owner.path)[volume]
    name = env.files.volumes[volume].id
    for at in (0, 64, 64 + 128, file.stat().st_size - 1):
        _flip(file, at)
        found = findings(env)
        assert found, at
        assert all(f".seg: volume {name}: " in each for each in found)
        _flip(file, at)
    assert findings(env) == []


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as data:
        data.seek(at)
        [byte] = data.read(1)
        data.seek(at)
        data.write(bytes([byte ^ 4]))


def test_a_missing_replica_is_found(env: StreamEnv) -> None:
    filled(env)
    data_files(env, env.files.list("/")[0].path)[0].unlink()

    found = findings(env)

    assert len(found) == 1
    assert "no data file" in found[0]


def test_a_missing_segment_is_found_at_the_next_one(env: StreamEnv) -> None:
    filled(env)
    env.files.delete(env.files.list("/")[1].path, by_log=True)

    found = findings(env)

    assert "begins with event 16, and the segment before it ends before 8" in found[0]
    assert "begins at offset" in found[1]
    assert len(found) == 2


def test_offsets_that_do_not_go_on_are_found(env: StreamEnv) -> None:
    owner = env.owner()
    owner.many(2)
    owner.roll()
    owner.next_offset += 64
    owner.many(2)

    assert len(findings(env)) == 1
    assert "begins at offset" in findings(env)[0]


def test_a_segment_in_the_directory_of_another_partition_is_found(env: StreamEnv) -> None:
    owner = filled(env)
    assert owner.writer is not None
    owner.roll()
    with sqlite3.connect(env.files.url.removeprefix("sqlite:///")) as journal:  # past the log
        journal.execute("UPDATE fs_file SET path = replace(path, '/orders/0/', '/orders/1/')")
    journal.close()

    found = findings(env)

    assert len(found) == 4
    assert all("belongs to partition 0 by its header" in each for each in found)


def test_a_segment_that_is_no_segment_is_found_and_does_not_hide_the_others(
    env: StreamEnv,
) -> None:
    filled(env)
    with env.files.create("/orders/1/00000000000000000000.seg") as file:
        file.write(b"something else that is long enough to have been a header of a segment" * 2)

    found = findings(env)

    assert len(found) == 1
    assert "orders, partition 1" in found[0]
    assert "no segment" in found[0]
