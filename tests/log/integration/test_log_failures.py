"""Logs and producers in trouble: a fork, a recoverer that dies, a lane that ends, damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import InvalidDuration, UsageError
from leasehold.events import Event
from leasehold.files import FileState
from leasehold.log import Log, ProducerOptions
from leasehold.log import producer as producer_module
from leasehold.log.partition_router import PartitionRouter
from leasehold.log.streams import segment_path

SOON_S = 120
DIES_IN_RECOVERY = """
import os, signal, sys
from datetime import timedelta
from leasehold.files import recovery
from leasehold.files.model import FileOptions
from leasehold.events import Event
from leasehold.log import Log, LogOptions

url, path = sys.argv[1:]
options = LogOptions(files=FileOptions(recovery_timeout=timedelta(seconds=0.5)))
owner, other = Log.open(url, options=options), Log.open(url, options=options)
owner.producer("one").send(Event(body=b"a")).result()
recovery.fence = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
other.files.recover(path, timeout=timedelta(seconds=120))
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(f"sqlite:///{tmp_path}/log.db", volumes=[tmp_path / "a"]) as opened:
        opened.create("orders", partitions=4)
        opened.create("one", partitions=1)
        yield opened


def bodies(log: Log, stream: str, partition: int) -> list[bytes]:
    with log.reader(stream, partition) as reader:
        return [event.body for batch in reader.batches() for event in batch]


@pytest.mark.process
def test_one_that_dies_while_it_recovers_a_segment_is_waited_for_and_replaced(log: Log) -> None:
    path = segment_path("one", 0, 0)
    arguments = [sys.executable, "-c", DIES_IN_RECOVERY, log.files.url, path]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    assert log.files.status(path).state is FileState.RECOVERING

    with log.producer("one") as producer:
        producer.send(Event(body=b"b")).result(SOON_S)

    assert bodies(log, "one", 0) == [b"a", b"b"]
    assert (log.counts().taken, log.counts().recovered) == (1, 1)


def test_what_a_producer_sends_again_goes_the_way_it_went_before(log: Log) -> None:
    options = ProducerOptions(producer_id=b"0123456789abcdef")
    for count in (6, 10):
        with log.producer("orders", options) as producer:
            for number in range(count):
                producer.send(Event(body=b"%d" % number))
    found = [body for number in range(4) for body in bodies(log, "orders", number)]
    assert sorted(found) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("partition", [True, False, 1.0, "1", 4, -1])
def test_what_is_no_partition_is_refused(log: Log, partition: Any) -> None:
    with log.producer("orders") as producer:
        for what in (Event(body=b"a"), [Event(body=b"a")]):
            with pytest.raises(UsageError, match="there is no partition"):
                producer.send(what, partition=partition)


def test_an_event_too_big_for_a_frame_is_refused_at_once(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "MAX_BODY_BYTES", 3 << 20)  # stands for a gibibyte
    with log.producer("one") as producer:
        for what in (Event(body=bytes(3 << 20)), [Event(body=bytes(3 << 20))]):
            with pytest.raises(UsageError, match="may have 2097152"):
                producer.send(what)


def test_small_events_that_wait_count_with_what_they_take(log: Log) -> None:
    options = ProducerOptions(
        linger=timedelta(seconds=20),
        batch_bytes=1000,
        max_pending_bytes=100_000,
        send_timeout=timedelta(seconds=0.05),
    )
    with log.producer("one", options) as producer:
        for _ in range(40):
            producer.send(Event(body=b""))
        assert producer.waiting_bytes > 40 * 2048
        assert producer.flush()
        assert producer.waiting_bytes == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_send_queue_that_ends_makes_room_for_others(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ProducerOptions(batch_bytes=5000, max_pending_bytes=5000)
    with log.producer("orders", options) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(
                PartitionRouter, "deliver", lambda *_, **__: ()
            )  # an answer of the wrong length
            with pytest.raises(RuntimeError, match="the lane has ended"):
                producer.send(Event(body=bytes(2000)), partition=0).result(SOON_S)
            patch.setattr(PartitionRouter, "deliver", lambda *_, **__: _interrupted())
            with pytest.raises(RuntimeError, match="the lane has ended"):
                producer.send(Event(body=bytes(2000)), partition=1).result(SOON_S)
        assert producer.waiting_bytes == 0
        producer.send(Event(body=bytes(2000)), partition=2).result(SOON_S)


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_a_number_is_no_timeout(log: Log) -> None:
    with log.producer("one") as producer, pytest.raises(InvalidDuration, match="timedelta"):
        producer.flush(5)  # type: ignore[arg-type]


@pytest.mark.process
def test_after_a_fork_the_child_is_told_to_open_its_own(log: Log) -> None:
    with log.producer("one") as producer:
        producer.send(Event(body=b"a")).result(SOON_S)
        calls = (
            lambda: producer.send(Event(body=b"b")),
            producer.flush,
            producer.close,
            lambda: log.producer("one"),
            log.close,
        )
        child = os.fork()
        if not child:
            signal.alarm(SOON_S)  # it must end, whatever it does
            os._exit(sum(_is_refused(call) for call in calls))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == len(calls)
        producer.send(Event(body=b"c")).result(SOON_S)
    assert bodies(log, "one", 0) == [b"a", b"c"]


def _is_refused(call: Any) -> bool:
    try:
        call()
    except UsageError as error:
        return "before this process was forked" in str(error)
    return False


def test_info_tells_what_it_can_of_a_stream_with_a_damaged_segment(
    log: Log, tmp_path: Path
) -> None:
    with log.producer("orders") as producer:
        for partition in (0, 1):
            producer.send(Event(body=b"a"), partition=partition).result(SOON_S)
    log.close()
    with Log.open(log.files.url) as again:
        path = segment_path("orders", 0, 0)
        block = again.files.read(path).blocks[0]
        (volume,) = again.files.volumes
        with Path(volume.data_path(block.id)).open("r+b") as data:
            data.write(bytes(64))
        parts = again.info("orders").parts
        assert [(part.segments, part.next_sequence) for part in parts] == [
            (1, 0),
            (1, 1),
            (0, 0),
            (0, 0),
        ]
        assert parts[0].bytes > 0
        assert again.verify("orders")
