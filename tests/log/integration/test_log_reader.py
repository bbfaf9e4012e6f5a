"""Reading a partition: order, borders, seeks, damage, and what is never seen."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.log_segments import Owner, StreamEnv, number_in, numbered, open_stream_env

from leasehold.errors import DataDamaged, Trimmed, UnknownStream, UsageError
from leasehold.events import Event, Start
from leasehold.log import PartitionReader, StreamSettings
from leasehold.log import segment as segments_module
from leasehold.log.segment_format import FRAME_HEADER_BYTES, FrameHeader, View, parse_header
from leasehold.log.streams import segment_path

SOON = timedelta(seconds=120)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[StreamEnv]:
    made = open_stream_env(tmp_path)
    yield made
    made.close()


def all_of(reader: PartitionReader) -> list[int]:
    return [number_in(event) for batch in reader.batches() for event in batch]


def test_an_empty_partition_has_nothing_to_read(env: StreamEnv) -> None:
    reader = env.reader()

    assert reader.read() is None
    assert reader.position == 0
    assert reader.lag() == 0
    assert list(reader.batches()) == []


def test_events_come_in_order_over_the_borders_of_segments(env: StreamEnv) -> None:
    owner = env.owner()
    for count in (3, 1, 5):
        owner.many(count)
        owner.many(count)
        owner.roll()
    owner.many(2)
    reader = env.reader()

    events = [event for batch in reader.batches() for event in batch]

    assert [event.sequence_number for event in events] == list(range(20))
    assert [number_in(event) for event in events] == list(range(20))
    assert [event.offset for event in events] == [event.offset for event in owner.stored]
    assert {event.partition for event in events} == {"0"}
    assert reader.position == 20


def test_the_open_segment_is_read_up_to_what_is_acknowledged(env: StreamEnv) -> None:
    owner = env.owner()
    owner.many(2)
    reader = env.reader()
    assert all_of(reader) == [0, 1]

    owner.add([numbered(2)], sync=False)
    assert reader.read() is None

    owner.add([numbered(3)])
    assert all_of(reader) == [2, 3]
    assert reader.read() is None


def test_a_recovered_segment_without_an_index_is_read_and_the_next_owner_goes_on(
    env: StreamEnv,
) -> None:
    first = env.owner()
    first.many(4)
    reader = env.reader()
    assert all_of(reader) == [0, 1, 2, 3]

    heir = env.owner()
    heir.take_over()
    heir.many(3)

    assert all_of(reader) == [4, 5, 6]
    assert all_of(env.reader()) == list(range(7))
    assert env.reader(Start.sequence(5)).read() is not None


def test_an_empty_segment_that_the_next_owner_replaces_does_not_stop_a_reader(
    env: StreamEnv,
) -> None:
    first = env.owner()
    first.many(2)
    first.roll()
    first.open()
    reader = env.reader()
    assert all_of(reader) == [0, 1]

    heir = env.owner()
    heir.take_over()
    heir.many(2)

    assert all_of(reader) == [2, 3]


@pytest.mark.parametrize("how", ["appended", "replaced"])
def test_a_closed_segment_without_events_does_not_stop_a_reader(env: StreamEnv, how: str) -> None:
    first = env.owner()
    first.many(2)
    first.roll()
    path = segment_path("orders", 0, 2)
    with env.files.create(path, block_bytes=1 << 20):
        pass
    reader, searched = env.reader(), env.reader(Start.latest())
    assert all_of(reader) == [0, 1]
    assert searched.read() is None
    assert reader.lag() == 0

    if how == "appended":
        first.writer = env.files.append(path)
        first.begin()
    else:
        env.files.delete(path, by_log=True)
    first.many(2)

    assert reader.lag() == 2
    assert all_of(reader) == [2, 3]
    assert all_of(searched) == [2, 3]


def test_an_open_segment_of_somebody_who_was_too_late_does_not_hide_that_events_are_gone(
    env: StreamEnv,
) -> None:
    owner = env.owner()
    for _ in range(3):
        owner.many(2)
        owner.roll()
    for status in env.files.list("/")[:2]:
        env.files.delete(status.path, by_log=True)
    env.files.create(segment_path("orders", 0, 2), block_bytes=1 << 20)

    for start in (Start.earliest(), Start.sequence(3)):
        with pytest.raises(Trimmed) as reported:
            env.reader(start).read()
        assert reported.value.earliest == 4


def test_read_returns_as_many_as_were_asked_for_without_copying(env: StreamEnv) -> None:
    env.owner().many(10, size=100)
    reader = env.reader()

    parts = []
    while batch := reader.read(max_events=4):
        parts.append(batch)
    body = parts[0].arrow.column("body").buffers()[2]

    assert [len(part) for part in parts] == [4, 4, 2]
    assert [part.first_sequence for part in parts] == [0, 4, 8]
    assert all(part.arrow.column("body").buffers()[2].address == body.address for part in parts)


def test_read_keeps_to_its_bytes_but_returns_at_least_one_event(env: StreamEnv) -> None:
    env.owner().many(10, size=1000)
    reader = env.reader()

    assert len(reader.read(max_bytes=5000) or ()) == 4
    assert len(reader.read(max_bytes=1) or ()) == 1


def test_batches_outlive_their_segment_and_their_reader(env: StreamEnv) -> None:
    owner = env.owner()
    owner.many(50, size=10_000)
    owner.roll()
    owner.many(1)
    reader = env.reader()
    batch = reader.read()
    assert batch is not None

    reader.close()
    env.files.delete(env.files.list("/")[0].path, by_log=True)

    assert [number_in(event) for event in batch] == list(range(50))


def filled(owner: Owner, rng: random.Random) -> None:
    """Several segments of unequal frames; times stand still now and then, and never go back."""
    for segment in range(5):
        for _ in range(rng.randrange(1, 6)):
            keys = [rng.choice(["a", "b", "c", None]) for _ in range(rng.randrange(1, 9))]
            first = owner.next_sequence
            owner.add([numbered(first + at, key=key) for at, key in enumerate(keys)], sync=False)
            owner.now_us += rng.choice([0, 0, 1, 1000])
        if segment < 4:
            owner.roll(index=rng.random() < 0.7)
    assert owner.writer is not None
    owner.writer.sync()


def test_seeks_find_what_a_search_through_everything_finds(env: StreamEnv) -> None:
    owner = env.owner()
    filled(owner, random.Random(7))
    stored = owner.stored
    reader = env.reader()

    def first(start: Start) -> int:
        reader.seek(start)
        batch = reader.read()
        return batch.first_sequence if batch is not None else reader.position

    def wanted(found: list[Event]) -> int:
        return found[0].sequence_number if found else len(stored)

    for number in range(len(stored)):
        assert first(Start.sequence(number)) == number
    for offset in {at + by for event in stored for at in [event.offset] for by in (-1, 0, 1)}:
        after = [event for event in stored if event.offset >= offset]
        assert first(Start.offset(offset)) == wanted(after), offset
    times = {event.enqueued_at for event in stored if event.enqueued_at is not None}
    for at in {at + timedelta(microseconds=by) for at in times for by in (-1, 0, 1)}:
        later = [event for event in stored if event.enqueued_at and event.enqueued_at >= at]
        assert first(Start.time(at)) == wanted(later), at
    assert first(Start.earliest()) == 0
    assert first(Start.latest()) == len(stored)


def test_events_are_found_by_their_key_from_the_position_on(env: StreamEnv) -> None:
    owner = env.owner()
    filled(owner, random.Random(11))

    for key in ("a", "b", "never"):
        for since in (0, 1, len(owner.stored) // 2, len(owner.stored)):
            reader = env.reader(Start.sequence(since))
            found = [event.sequence_number for batch in reader.find(key) for event in batch]
            assert found == [
                event.sequence_number for event in owner.stored[since:] if event.key == key
            ]
            assert reader.position == since


def test_a_seek_in_a_big_partition_touches_few_frames(
    env: StreamEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = env.owner()
    for _ in range(8):
        for number in range(100):
            owner.add([numbered(0, size=40_000, key=f"key{number}")] * 4, sync=False)
            owner.now_us += 1000
        owner.roll()
    touched: list[int] = []

    def counted(view: View, position: int) -> FrameHeader:
        touched.append(position)
        return parse_header(view, position)

    monkeypatch.setattr(segments_module, "parse_header", counted)
    event = owner.stored[-556]  # the first one of its frame, and of its time
    assert event.enqueued_at is not None
    for start in (
        Start.sequence(event.sequence_number),
        Start.offset(event.offset),
        Start.time(event.enqueued_at),
    ):
        touched.clear()
        batch = env.reader(start).read()
        assert batch is not None
        assert batch.first_sequence == event.sequence_number
        assert 0 < len(touched) < 40  # of 800 frames


def test_a_number_beyond_the_end_is_refused_with_the_next_one(env: StreamEnv) -> None:
    env.owner().many(3)

    assert env.reader(Start.sequence(3)).read() is None
    with pytest.raises(UsageError, match="the next one will be 3"):
        env.reader(Start.sequence(4))


def test_a_partition_that_is_not_there_is_refused(env: StreamEnv) -> None:
    with pytest.raises(UsageError, match="no partition 1"):
        env.reader(partition=1)


def test_lag_counts_what_was_not_read(env: StreamEnv) -> None:
    owner = env.owner()
    owner.many(3)
    owner.roll()
    owner.many(4)
    reader = env.reader()
    assert reader.lag() == 7

    reader.read()
    assert reader.lag() == 4
    owner.many(2)
    assert reader.lag() == 6


def flip(env: StreamEnv, volume: int, *, at: int, path: str) -> None:
    block = env.files.read(path).blocks[0]
    wanted = sorted(env.files.volumes, key=lambda each: block.volumes.index(each.id))[volume]
    with Path(wanted.data_path(block.id)).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("at", [20, 200, 700])
def test_a_bit_that_flipped_on_one_volume_is_read_from_the_other(env: StreamEnv, at: int) -> None:
    owner = env.owner()
    owner.many(20, size=100)
    path = owner.path
    owner.roll()

    flip(env, 0, at=at, path=path)
    assert all_of(env.reader()) == list(range(20))

    flip(env, 1, at=at, path=path)
    with pytest.raises(DataDamaged, match=r"00000\.seg"):
        all_of(env.reader())


@pytest.mark.parametrize("at", ["header", "events"])
def test_damage_is_told_again_to_whoever_asks_again(env: StreamEnv, at: str) -> None:
    owner = env.owner()
    owner.add([numbered(0)])
    header = owner.add([numbered(1, size=1000)]).header
    reader = env.reader()
    assert reader.read() is not None
    where = header.position + (10 if at == "header" else FRAME_HEADER_BYTES + 1000)
    for volume in (0, 1):
        flip(env, volume, at=where, path=owner.path)
    for _ in range(3):
        with pytest.raises(DataDamaged):
            reader.read()
    for volume in (0, 1):  # mended by hand
        flip(env, volume, at=where, path=owner.path)
    batch = reader.read()
    assert batch is not None
    assert [event.sequence_number for event in batch] == [1]


@pytest.mark.parametrize("verify", [True, False])
def test_who_needs_no_bodies_reads_all_else_though_they_are_damaged(
    env: StreamEnv, verify: bool
) -> None:
    owner = env.owner()
    header = owner.add([numbered(number, size=1000) for number in range(200)]).header
    assert header.bodies_bytes > 190_000
    middle = header.position + FRAME_HEADER_BYTES + header.bodies_at + 100_000
    for volume in (0, 1):
        flip(env, volume, at=middle, path=owner.path)

    with pytest.raises(DataDamaged, match="damaged on every volume"):
        all_of(env.reader())
    batch = env.reader(bodies=False, verify=verify).read()
    assert batch is not None
    assert [event.sequence_number for event in batch] == list(range(200))
    assert {event.body for event in batch} == {b""}

    for volume in (0, 1):  # and now a bit of the numbers
        flip(env, volume, at=header.position + FRAME_HEADER_BYTES + 1000, path=owner.path)
    with pytest.raises(DataDamaged, match="damaged on every volume"):
        env.reader(bodies=False).read()


def test_who_needs_no_bodies_finds_by_key_though_they_are_damaged(env: StreamEnv) -> None:
    owner = env.owner()
    header = owner.add([numbered(n, size=1000, key=f"k{n % 10}") for n in range(200)]).header
    owner.add([numbered(200, key="k3")])
    middle = header.position + FRAME_HEADER_BYTES + header.bodies_at + 100_000
    for volume in (0, 1):
        flip(env, volume, at=middle, path=owner.path)

    with pytest.raises(DataDamaged, match="damaged on every volume"):
        list(env.reader().find("k3"))
    found = [event for batch in env.reader(bodies=False).find("k3") for event in batch]
    assert [event.sequence_number for event in found] == [*range(3, 200, 10), 200]
    assert {event.body for event in found} == {b""}


def test_a_missing_segment_is_said_and_not_skipped(env: StreamEnv) -> None:
    owner = env.owner()
    for _ in range(3):
        owner.many(2)
        owner.roll()
    env.files.delete(env.files.list("/")[1].path, by_log=True)
    reader = env.reader()
    reader.read()

    with pytest.raises(DataDamaged, match="missing"):
        reader.read()


def test_a_missing_event_inside_a_segment_is_said_and_not_skipped(env: StreamEnv) -> None:
    owner = env.owner()
    owner.many(2)
    owner.next_sequence += 1
    owner.many(2)
    reader = env.reader()
    reader.read()

    with pytest.raises(DataDamaged, match="event 2 is missing"):
        reader.read()


def test_the_reader_of_a_deleted_stream_is_told(env: StreamEnv) -> None:
    env.owner().many(2)
    reader = env.reader()
    assert all_of(reader) == [0, 1]

    env.files.delete("/orders", recursive=True, by_log=True)
    env.catalog.delete("orders")

    with pytest.raises(UnknownStream, match="no stream 'orders'"):
        reader.wait(SOON)


def test_a_closed_reader_says_so_and_wakes_who_waits_in_it(env: StreamEnv) -> None:
    env.owner().many(1)
    reader = env.reader(Start.latest())
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(reader.wait(SOON)))
    waiting.start()
    while not reader.polls:
        pass

    reader.close()
    waiting.join(timeout=120)

    assert answers == [False]
    with pytest.raises(UsageError, match="is closed"):
        reader.read()


def test_a_partition_on_three_volumes_is_read_when_two_are_gone(tmp_path: Path) -> None:
    env = open_stream_env(tmp_path, volumes=3, settings=StreamSettings(partitions=1))
    owner = env.owner()
    owner.many(5)
    for volume in list(env.files.volumes)[:2]:
        Path(volume.root).rename(f"{volume.root}.away")

    assert all_of(env.reader()) == list(range(5))
    env.close()


def test_a_segment_seen_before_its_first_event_is_read_when_others_follow_it(
    env: StreamEnv,
) -> None:
    owner, reader = env.owner(), env.reader()
    owner.many(1)
    owner.roll()
    owner.add([numbered(1)], sync=False)  # the segment is there, and nothing in it is visible
    assert [len(batch) for batch in reader.batches()] == [1]
    assert reader.position == 1

    owner.many(1)
    owner.roll()
    owner.many(1)

    found = [number_in(event) for batch in reader.batches() for event in batch]
    assert found == [1, 2, 3]


@pytest.mark.parametrize("partition", [True, 0.0, "0", -1, 1])
def test_what_is_no_partition_is_not_read(env: StreamEnv, partition: Any) -> None:
    with pytest.raises(UsageError, match="there is no partition"):
        env.reader(partition=partition)
