"""What is said over the socket between a producer and the owner of a partition.

A message is a head of 20 bytes (magic, length of the words, length of the load), the words as
JSON, and the load: Arrow IPC messages of ``SENT_SCHEMA`` one after the other. Both sides run on one
machine as one user; whoever says something else is hung up on.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from leasehold.log.events import SENT_SCHEMA
from leasehold.log.frame import Stamp
from leasehold.log.parcel import Parcel, Partition, Stored

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_HEAD = struct.Struct("<8sIQ")
_MAGIC = b"LHPARCL1"
_MOST_WORDS_BYTES = 1 << 20
_MOST_LOAD_BYTES = 1 << 31


class Garbled(Exception):
    """The other side does not speak this language, or hung up in the middle of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Parcels for one partition; a sign of life is wanted every ``beat_s``."""

    partition: Partition
    parcels: Sequence[Parcel]
    durable: bool
    beat_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """``stored``, or why not: ``moved``; neither: still at work on it."""

    stored: tuple[Stored, ...] = ()
    moved: str = ""


def send_request(line: socket.socket, request: Request) -> None:
    """Say it. Raises ``OSError``."""
    load = [parcel.batch.serialize() for parcel in request.parcels]
    words = {
        "stream": request.partition.stream,
        "partition": request.partition.number,
        "durable": request.durable,
        "beat_s": request.beat_s,
        "parcels": [
            [parcel.stamp.producer.hex(), parcel.stamp.sequence, body.size]
            for parcel, body in zip(request.parcels, load, strict=True)
        ],
    }
    _send(line, words, load)


def receive_request(line: socket.socket) -> Request | None:
    """The next request; ``None`` when the other side hung up. Raises ``Garbled``, ``OSError``."""
    message = _receive(line)
    if message is None:
        return None
    words, load = message
    try:
        parcels, at = [], 0
        for producer, sequence, size in words["parcels"]:
            batch = pa.ipc.read_record_batch(pa.py_buffer(load[at : at + size]), SENT_SCHEMA)
            batch.validate()
            stamp = Stamp(producer=bytes.fromhex(producer), sequence=int(sequence))
            parcels.append(Parcel(stamp=stamp, batch=batch))
            at += size
        return Request(
            partition=Partition(stream=str(words["stream"]), number=int(words["partition"])),
            parcels=parcels,
            durable=bool(words["durable"]),
            beat_s=float(words["beat_s"]),
        )
    except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise Garbled(f"no request: {error}") from error


def send_reply(line: socket.socket, reply: Reply) -> None:
    """Say it. Raises ``OSError``."""
    stored = [[each.first_sequence, each.skipped, each.stored_as] for each in reply.stored]
    _send(line, {"stored": stored, "moved": reply.moved}, [])


def receive_reply(line: socket.socket) -> Reply:
    """The next reply. Raises ``Garbled``, ``OSError``."""
    message = _receive(line)
    if message is None:
        raise Garbled("the other side hung up without an answer")
    try:
        stored = tuple(
            Stored(first_sequence=int(first), skipped=int(skipped), stored_as=int(stored_as))
            for first, skipped, stored_as in message[0]["stored"]
        )
        return Reply(stored=stored, moved=str(message[0]["moved"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Garbled(f"no reply: {error}") from error


def _send(line: socket.socket, words: dict[str, Any], load: Sequence[pa.Buffer]) -> None:
    text = json.dumps(words).encode()
    head = _HEAD.pack(_MAGIC, len(text), sum(part.size for part in load))
    line.sendall(head + text)
    for part in load:
        line.sendall(memoryview(part))


def _receive(line: socket.socket) -> tuple[dict[str, Any], memoryview] | None:
    head = _exactly(line, _HEAD.size)
    if not head:
        return None
    magic, words_bytes, load_bytes = _HEAD.unpack(head)
    if magic != _MAGIC or words_bytes > _MOST_WORDS_BYTES or load_bytes > _MOST_LOAD_BYTES:
        raise Garbled("the head of a message is not ours")
    text, load = _exactly(line, words_bytes), _exactly(line, load_bytes)
    if len(text) != words_bytes or len(load) != load_bytes:
        raise Garbled("the message was cut short")
    try:
        words = json.loads(bytes(text))
    except ValueError as error:
        raise Garbled(f"the words are no JSON: {error}") from error
    if not isinstance(words, dict):
        raise Garbled("the words are no object")
    return words, load


def _exactly(line: socket.socket, size: int) -> memoryview:
    """So many bytes, or none if the other side hung up. Raises ``OSError``."""
    room = memoryview(bytearray(size))
    at = 0
    while at < size:
        got = line.recv_into(room[at:])
        if not got:
            return room[:0]
        at += got
    return room
