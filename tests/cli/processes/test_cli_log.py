"""``leasehold log`` as a process: it follows a stream, and takes what trickles in."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command import started

from leasehold.events import Event
from leasehold.log import Log, LogOptions


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def log(store: str, tmp_path: Path) -> Iterator[Log]:
    options = LogOptions(run_monitor=False)
    with Log.open(store, volumes=[tmp_path / "one"], options=options) as log:
        log.create("orders", partitions=2)
        yield log


def test_tail_follows_until_ctrl_c(log: Log, store: str) -> None:
    with started("log", "tail", "orders", "-oraw", store=store) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"following 2 partitions of orders")
        with log.producer("orders") as producer:
            producer.send(Event(body=b"one"), partition=0).result()
            assert process.stdout.readline() == b"one\n"
            producer.send(Event(body=b"two"), partition=1).result()
            assert process.stdout.readline() == b"two\n"
        process.send_signal(signal.SIGINT)
        rest = process.communicate()
        assert (process.returncode, rest) == (0, (b"", b""))


def test_tail_into_a_closed_pipe_says_nothing(log: Log, store: str) -> None:
    with started("log", "tail", "orders", "-oraw", store=store) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.readline()
        process.stdout.close()
        with log.producer("orders") as producer:
            producer.send(Event(body=b"one"), partition=0).result()
        said = process.stderr.read()
        assert (process.wait(), said) == (0, b"")


def test_what_trickles_in_is_stored_at_once(log: Log, store: str) -> None:
    out, into = os.pipe()
    words = ("log", "append", "orders", "--partition", "0", "-ojson")
    with (
        os.fdopen(into, "wb", buffering=0) as pipe,
        log.reader("orders", 0) as reader,
        os.fdopen(out, "rb") as end,
        started(*words, store=store, stdin=end.fileno()) as process,
    ):
        batches = reader.batches(follow=True)
        for body in (b"one", b"two"):
            pipe.write(body + b"\n")
            assert [event.body for event in next(batches)] == [body]
        pipe.close()
        told, said = process.communicate()
        assert (process.returncode, said) == (0, b"")
        assert json.loads(told)[0]["events"] == 2
