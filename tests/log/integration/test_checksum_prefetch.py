"""A reader with much to read: helped by a thread, and told of damage exactly as without one.

And what a reader sees of a segment that another machine writes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log_segments import Owner, StreamEnv, number_in, numbered, open_stream_env

from leasehold.clock import SystemClock
from leasehold.errors import DataDamaged
from leasehold.events import Start
from leasehold.files import FileOptions, Namespace
from leasehold.files import namespace as namespace_module
from leasehold.log import PartitionReader
from leasehold.log import reader as reader_module
from leasehold.log.segment_format import FrameHeader, View, read_body

FRAME_BYTES = 300 << 10
FRAMES = 60
OTHER_BOOT = "6f1e1e0c-5d3c-4b58-9a0e-2f3f0f5f7c11"
LATE = 50  # a frame that the thread comes to


class Compared:
    """The frames that the thread has begun to compare."""

    def __init__(self) -> None:
        self.headers: list[FrameHeader] = []
        self.threads: set[str] = set()
        self.late = threading.Event()

    def read_body(self, view: View, header: FrameHeader) -> memoryview:
        self.headers.append(header)
        self.threads.add(threading.current_thread().name)
        if header.base_sequence >= LATE:
            self.late.set()
        return read_body(view, header)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[StreamEnv]:
    made = open_stream_env(tmp_path)
    yield made
    made.close()


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Compared:
    noted = Compared()
    monkeypatch.setattr(reader_module, "read_body", noted.read_body)
    return noted


def fill(owner: Owner, count: int = FRAMES) -> list[int]:
    """Frames of one large event; return where each begins in the segment."""
    positions = [
        owner.add([numbered(owner.next_sequence, size=FRAME_BYTES)], sync=False).header.position
        for _ in range(count)
    ]
    assert owner.writer is not None
    owner.writer.sync()
    return positions


def flip(env: StreamEnv, volume: int, *, at: int, path: str) -> None:
    block = env.files.read(path).blocks[0]
    wanted = sorted(env.files.volumes, key=lambda each: block.volumes.index(each.id))[volume]
    with Path(wanted.data_path(block.id)).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def read_on(reader: PartitionReader, compared: Compared | None = None) -> Iterator[int]:
    """The numbers of all events; before the late ones the thread gets the time it needs."""
    while True:
        if compared is not None and reader.position == LATE - 20:
            assert compared.late.wait(120)
        batch = reader.read()
        if batch is None:
            return
        yield from (number_in(event) for event in batch)


def helpers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("leasehold-ahead")]


@pytest.mark.parametrize("closed", [True, False])
def test_a_backlog_is_read_whole_and_in_order_with_one_thread(
    env: StreamEnv, compared: Compared, closed: bool
) -> None:
    owner = env.owner()
    fill(owner)
    if closed:
        owner.roll()
        fill(owner)
    reader = env.reader()

    assert list(read_on(reader, compared)) == list(range(owner.next_sequence))

    assert compared.threads == {"leasehold-ahead_0"}
    assert len(helpers()) == 1
    reader.close()
    assert not helpers()


def test_what_the_thread_has_found_damaged_is_read_from_the_other_volume(
    env: StreamEnv, compared: Compared
) -> None:
    owner = env.owner()
    positions = fill(owner)
    flip(env, 0, at=positions[LATE] + 500, path=owner.path)

    assert list(read_on(env.reader(), compared)) == list(range(FRAMES))
    assert LATE in {header.base_sequence for header in compared.headers}


def test_what_is_damaged_on_all_volumes_is_said_and_all_before_it_is_read(
    env: StreamEnv, compared: Compared
) -> None:
    owner = env.owner()
    positions = fill(owner)
    for volume in (0, 1):
        flip(env, volume, at=positions[LATE] + 500, path=owner.path)
    reader = env.reader()
    seen: list[int] = []

    with pytest.raises(DataDamaged, match="damaged on every volume"):
        seen.extend(read_on(reader, compared))

    assert seen == list(range(LATE))


def test_each_volume_is_compared_for_itself(env: StreamEnv, compared: Compared) -> None:
    """The thread has seen a late frame sound on one volume; on the other one it is not."""
    owner = env.owner()
    positions = fill(owner)
    flip(env, 0, at=positions[LATE - 10] + 500, path=owner.path)
    flip(env, 1, at=positions[LATE + 5] + 500, path=owner.path)

    assert list(read_on(env.reader())) == list(range(FRAMES))


def test_a_segment_that_grows_meanwhile_is_read_to_its_end(
    env: StreamEnv, compared: Compared
) -> None:
    owner, reader = env.owner(), env.reader()
    seen: list[int] = []
    fill(owner)
    for number in read_on(reader, compared):
        seen.append(number)
        if number in {20, 40}:
            fill(owner, 30)

    assert seen == list(range(FRAMES + 60))


def test_who_seeks_back_reads_the_same_again(env: StreamEnv, compared: Compared) -> None:
    fill(env.owner())
    reader = env.reader()
    assert list(read_on(reader, compared)) == list(range(FRAMES))

    reader.seek(Start.sequence(7))

    assert list(read_on(reader)) == list(range(7, FRAMES))


def test_a_reader_that_compares_nothing_has_no_thread(env: StreamEnv, compared: Compared) -> None:
    fill(env.owner())
    reader = PartitionReader(
        env.stream,
        0,
        files=env.files,
        catalog=env.catalog,
        start=Start.earliest(),
        clock=SystemClock(),
        verify=False,
    )

    assert list(read_on(reader)) == list(range(FRAMES))
    reader.close()

    assert not compared.headers


def test_the_first_frames_need_no_thread(env: StreamEnv) -> None:
    fill(env.owner())
    reader = env.reader()
    for _ in range(3):
        reader.read()

    assert not helpers()


def test_who_reads_here_and_there_needs_no_thread(env: StreamEnv) -> None:
    fill(env.owner())
    reader = env.reader()
    for number in range(30):
        reader.seek(Start.sequence(number))
        reader.read()

    assert not helpers()


def test_what_another_machine_has_acknowledged_is_seen_though_a_volume_is_away(
    env: StreamEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setattr(namespace_module, "boot_id", lambda: OTHER_BOOT)
        there.setattr(namespace_module, "host_name", lambda: "elsewhere")
        files = Namespace.open(env.url, options=FileOptions(), run_monitor=False)
    with files:
        owner = Owner(files=files, stream=env.stream.name)
        owner.many(2)
        reader = env.reader()
        assert list(read_on(reader)) == [0, 1]
        owner.add([numbered(2)], sync=False)
        assert owner.writer is not None
        owner.writer.flush()  # visible, and not durable yet
        away = Path(list(env.files.volumes)[1].root)
        away.rename(f"{away}.away")

        seen = list(read_on(reader))

        Path(f"{away}.away").rename(away)
    assert seen == [2]
