"""Comparing ahead of a reader: what is said to be sound, when a thread begins, and how it ends."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest
from tests.support.segment_bytes import Assembly

from leasehold.events import Event
from leasehold.log import reader as reader_module
from leasehold.log.reader import ChecksumPrefetch
from leasehold.log.segment import Segment
from leasehold.log.segment_format import FrameHeader

FRAME_BYTES = 4096
FRAMES = 40


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "LARGE_BYTES", FRAME_BYTES)
    monkeypatch.setattr(reader_module, "RUN_BYTES", 4 * FRAME_BYTES)
    monkeypatch.setattr(reader_module, "SPAN_BYTES", 30 * FRAME_BYTES)


@pytest.fixture
def prefetch() -> Iterator[ChecksumPrefetch]:
    made = ChecksumPrefetch()
    yield made
    made.close()


def segment(count: int = FRAMES, size: int = FRAME_BYTES) -> bytearray:
    assembly = Assembly()
    for number in range(count):
        assembly.add(Event(body=bytes([number]) * size))
    return assembly.data


def frames(view: memoryview) -> list[FrameHeader]:
    return list(Segment(view).frames())


def helpers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("leasehold-ahead")]


def answers(prefetch: ChecksumPrefetch, view: memoryview) -> list[bool]:
    """What it says of each frame, when the thread always has all the time it needs."""
    said = []
    for header in frames(view):
        said.append(prefetch.is_verified(view, header))
        settle(prefetch)
    return said


def settle(prefetch: ChecksumPrefetch) -> None:
    if prefetch._executor is not None:
        prefetch._executor.submit(int).result(timeout=120)


def test_the_second_half_of_each_span_is_compared_for_the_reader(
    prefetch: ChecksumPrefetch,
) -> None:
    said = answers(prefetch, memoryview(segment()))

    assert not any(said[:15])
    assert all(said[20:28])
    assert 10 < sum(said) < 30


def test_a_reader_that_never_finds_the_thread_done_is_told_nothing(
    prefetch: ChecksumPrefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    monkeypatch.setattr(reader_module, "read_body", lambda *_: free.wait(120))
    view = memoryview(segment())

    said = [prefetch.is_verified(view, header) for header in frames(view)]

    free.set()
    assert not any(said)
    assert len(helpers()) == 1


@pytest.mark.parametrize("where", ["body", "header"])
def test_a_damaged_frame_is_never_called_sound(prefetch: ChecksumPrefetch, where: str) -> None:
    data = segment()
    bad = frames(memoryview(data))[22]
    read = frames(memoryview(bytes(data)))
    data[bad.position + (200 if where == "body" else 20)] ^= 1
    view = memoryview(data)

    said = []
    for header in read:
        said.append(prefetch.is_verified(view, header))
        settle(prefetch)

    assert all(said[20:22])
    assert not said[22]


def test_another_frame_at_the_same_place_is_not_the_one_that_was_compared(
    prefetch: ChecksumPrefetch,
) -> None:
    view = memoryview(segment())
    headers = frames(view)
    for header in headers[:22]:
        prefetch.is_verified(view, header)
        settle(prefetch)

    assert not prefetch.is_verified(view, headers[22]._replace(body_crc=headers[22].body_crc ^ 1))
    assert prefetch.is_verified(view, headers[23]) is False  # it began anew after the stranger


def test_answers_hold_only_for_the_view_that_was_compared(prefetch: ChecksumPrefetch) -> None:
    data = segment()
    view, other = memoryview(data), memoryview(data)
    headers = frames(view)
    for header in headers[:22]:
        prefetch.is_verified(view, header)
        settle(prefetch)
    assert prefetch.is_verified(view, headers[22])

    assert not prefetch.is_verified(other, headers[23])
    assert not prefetch.is_verified(view, headers[24])


def test_who_leaves_a_view_stops_the_thread_at_the_next_frame(
    prefetch: ChecksumPrefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, free = threading.Event(), threading.Event()
    compared: list[FrameHeader] = []

    def slow(_: memoryview, header: FrameHeader) -> None:
        compared.append(header)
        begun.set()
        free.wait(120)

    monkeypatch.setattr(reader_module, "read_body", slow)
    view = memoryview(segment())
    for header in frames(view)[:8]:
        prefetch.is_verified(view, header)
    assert begun.wait(120)

    prefetch.reset()
    free.set()
    settle(prefetch)

    assert len(compared) == 1


@pytest.mark.parametrize(
    ("count", "size"),
    [(FRAMES, FRAME_BYTES // 4), (6, FRAME_BYTES), (1, 40 * FRAME_BYTES)],
    ids=["small frames", "little left", "one frame"],
)
def test_no_thread_begins_where_it_could_not_help(
    prefetch: ChecksumPrefetch, count: int, size: int
) -> None:
    assert not any(answers(prefetch, memoryview(segment(count, size))))
    assert not helpers()


def test_no_thread_begins_for_who_reads_a_little_here_and_there(prefetch: ChecksumPrefetch) -> None:
    view = memoryview(segment())
    for header in frames(view)[:30]:
        prefetch.reset()
        prefetch.is_verified(view, header)

    assert not helpers()


def test_closing_ends_the_thread() -> None:
    prefetch = ChecksumPrefetch()
    answers(prefetch, memoryview(segment()))
    assert len(helpers()) == 1

    prefetch.close()

    assert not helpers()


def test_one_that_is_forgotten_ends_its_thread() -> None:
    prefetch = ChecksumPrefetch()
    answers(prefetch, memoryview(segment()))
    (helper,) = helpers()

    del prefetch
    gc.collect()
    helper.join(timeout=120)

    assert not helper.is_alive()


def test_where_no_thread_can_begin_the_reader_goes_on_alone(
    prefetch: ChecksumPrefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    view = memoryview(segment())

    assert not any(prefetch.is_verified(view, header) for header in frames(view))


@pytest.mark.process
def test_after_a_fork_the_child_goes_on_alone(prefetch: ChecksumPrefetch) -> None:
    view = memoryview(segment())
    headers = frames(view)
    for header in headers[:10]:
        prefetch.is_verified(view, header)
    child = os.fork()
    if not child:
        signal.alarm(120)  # it must end, whatever it does
        for header in headers[10:]:
            prefetch.is_verified(view, header)
        prefetch.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
