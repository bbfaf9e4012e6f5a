"""The socket of an owner: who comes there with nonsense harms nobody else."""

from __future__ import annotations

import errno
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import UsageError
from leasehold.events import Event
from leasehold.events.event import sent_batch
from leasehold.log import Log, LogOptions
from leasehold.log import segment_format as frame_module
from leasehold.log.owner_address import address_in
from leasehold.log.owner_link import (
    InvalidOwnerMessage,
    OwnerRequest,
    OwnerServer,
    receive_reply,
    receive_request,
    send_request,
)
from leasehold.log.producer_batch import ProducerBatch, StoredBatch, StoredPart, StreamPartition
from leasehold.log.segment_format import ProducerStamp
from leasehold.log.streams import segment_path

SOON_S = 120
HEAD = struct.Struct("<8sIQ")
ID = b"0123456789abcdef"
LOAD = bytes(sent_batch([Event(body=b"a")]).serialize().to_pybytes())


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Log]]:
    """Opens one log, each time as another process would."""
    options = LogOptions(socket_directory=str(tmp_path))
    with ExitStack() as stack:

        def another() -> Log:
            url = f"sqlite:///{tmp_path}/log.db"
            log = Log.open(url, volumes=[tmp_path / "a"], options=options)
            log.create("orders", partitions=1)
            return stack.enter_context(log)

        yield another


@pytest.fixture
def lines() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        for each in (one, two):
            each.settimeout(SOON_S)
        yield one, two


def request(**changed: Any) -> bytes:
    """A request for the first partition as bytes, its words changed."""
    header = {
        "stream": "orders",
        "partition": 0,
        "durable": True,
        "beat_s": 1.0,
        "parcels": [[ID.hex(), 0, len(LOAD), False]],
    }
    text = json.dumps(header | changed).encode()
    return HEAD.pack(b"LHPARCL2", len(text), len(LOAD)) + text + LOAD


def path_of(log: Log) -> str:
    return log.files.status(segment_path("orders", 0, 0)).address.removeprefix("unix:")


def test_an_event_that_can_not_be_stored_fails_alone(
    opened: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, second = opened(), opened()
    monkeypatch.setattr(frame_module, "MAX_BODY_BYTES", 100_000)  # stands for a gibibyte
    with log.producer("orders") as owner, second.producer("orders") as other:
        owner.send(Event(body=b"a")).result(SOON_S)
        for producer in (owner, other):
            with pytest.raises(UsageError, match="a frame holds 100000"):
                producer.send(Event(body=bytes(200_000))).result(SOON_S)
            producer.send(Event(body=b"b")).result(SOON_S)
    assert log.counts().taken == 1
    assert log.counts().fenced == 0
    assert log.info("orders").parts[0].next_sequence == 3


@pytest.mark.parametrize(
    "header",
    [
        {"parcels": []},
        {"parcels": [["", 0, len(LOAD), False]]},
        {"parcels": [[ID.hex() + "00", 0, len(LOAD), False]]},
        {"parcels": [[ID.hex(), -1, len(LOAD), False]]},
        {"parcels": [[ID.hex(), 2**63, len(LOAD), False]]},
        {"beat_s": float("nan")},
        {"beat_s": float("inf")},
    ],
)
def test_what_could_not_be_stored_is_refused(
    header: dict[str, Any], lines: tuple[socket.socket, socket.socket]
) -> None:
    here, there = lines
    here.sendall(request(**header))
    with pytest.raises(InvalidOwnerMessage):
        receive_request(there)


def test_a_header_that_is_nested_too_deep_is_refused(
    lines: tuple[socket.socket, socket.socket],
) -> None:
    here, there = lines
    text = b"[" * 100_000
    here.sendall(HEAD.pack(b"LHPARCL2", len(text), 0) + text)
    with pytest.raises(InvalidOwnerMessage, match="no JSON"):
        receive_request(there)


def test_a_big_request_arrives_whole(lines: tuple[socket.socket, socket.socket]) -> None:
    here, there = lines
    batch = sent_batch([Event(body=bytes([number]) * (1 << 20)) for number in range(5)])
    producer_batch = ProducerBatch(stamp=ProducerStamp(producer=ID, sequence=7), batch=batch)
    sent = OwnerRequest(
        partition=StreamPartition(stream="orders", number=0),
        batches=[producer_batch],
        durable=True,
        heartbeat_s=1e9,
    )
    speaker = threading.Thread(target=send_request, args=(here, sent))
    speaker.start()
    got = receive_request(there)
    speaker.join(SOON_S)
    assert got is not None
    assert got.batches[0].batch.equals(batch)
    assert got.heartbeat_s == 60.0


def test_a_server_without_a_free_descriptor_accepts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[OSError] = []
    accept = socket.socket.accept

    def failing_once(line: socket.socket) -> tuple[socket.socket, Any]:
        if not refused:
            refused.append(OSError(errno.EMFILE, "too many open files"))
            raise refused[0]
        return accept(line)

    def stored(_: OwnerRequest) -> Future[tuple[StoredBatch, ...]]:
        answer: Future[tuple[StoredBatch, ...]] = Future()
        answer.set_result((StoredBatch(parts=(StoredPart(count=1, first_sequence=3),)),))
        return answer

    monkeypatch.setattr(socket.socket, "accept", failing_once)
    address = address_in(str(tmp_path), name="door")
    server = OwnerServer(address, stored)
    server.open()
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SOON_S)
            line.connect(address.removeprefix("unix:"))
            line.sendall(request())
            assert receive_reply(line).stored == (
                StoredBatch(parts=(StoredPart(count=1, first_sequence=3),)),
            )
    finally:
        server.close()
    assert refused


def test_the_sockets_of_the_dead_are_removed_and_those_of_the_living_stay(
    opened: Callable[[], Log],
) -> None:
    log, second = opened(), opened()
    with log.producer("orders") as owner:
        owner.send(Event(body=b"a")).result(SOON_S)
    living = Path(path_of(log))
    dead = living.with_name("dead.sock")
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(dead))
    assert dead.exists()

    second.create("others", partitions=1)
    with second.producer("others") as other:
        other.send(Event(body=b"b")).result(SOON_S)
        assert len(list(living.parent.iterdir())) == 2
    assert not dead.exists()
    assert living.exists()
