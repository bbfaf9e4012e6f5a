"""What is said over the socket between a producer and the owner of a partition.

A message is a head of 20 bytes (magic, length of the words, length of the load), the words as
JSON, and the load: Arrow IPC messages of ``SENT_SCHEMA`` one after the other. Both sides run on one
machine as one user; whoever says something else is hung up on.
"""

from __future__ import annotations

import json
import math
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
_GROWTH_BYTES = 1 << 20
_BEATS_S = (0.01, 60.0)
_PRODUCER_ID_BYTES = 16
_MOST_NUMBERS = 1 << 63


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
    """``stored``, or why not: ``moved``, or ``refused`` for good; nothing: still at work on it."""

    stored: tuple[Stored, ...] = ()
    moved: str = ""
    refused: str = ""


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
            parcels.append(Parcel(stamp=_stamp(producer, sequence, batch.num_rows), batch=batch))
            at += size
        if not parcels:
            raise Garbled("no request: there is no parcel in it")
        return Request(
            partition=Partition(stream=str(words["stream"]), number=int(words["partition"])),
            parcels=parcels,
            durable=bool(words["durable"]),
            beat_s=_beat_s(words["beat_s"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise Garbled(f"no request: {error}") from error


def _stamp(producer: Any, sequence: Any, count: int) -> Stamp:
    """Who sent a parcel. Raises ``Garbled`` where it could not be stored, and errors of types."""
    stamp = Stamp(producer=bytes.fromhex(producer), sequence=int(sequence))
    if len(stamp.producer) != _PRODUCER_ID_BYTES:
        raise Garbled(f"a producer's id has {_PRODUCER_ID_BYTES} bytes, not {len(stamp.producer)}")
    if not 0 <= stamp.sequence < _MOST_NUMBERS - count:
        raise Garbled(f"a producer's number lies between 0 and 2^63, not at {stamp.sequence}")
    return stamp


def _beat_s(value: Any) -> float:
    beat_s = float(value)
    if not math.isfinite(beat_s):
        raise Garbled(f"a sign of life every {beat_s} s can not be given")
    least_s, most_s = _BEATS_S
    return min(max(beat_s, least_s), most_s)


def send_reply(line: socket.socket, reply: Reply) -> None:
    """Say it. Raises ``OSError``."""
    stored = [[each.first_sequence, each.skipped, each.stored_as] for each in reply.stored]
    _send(line, {"stored": stored, "moved": reply.moved, "refused": reply.refused}, [])


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
        moved, refused = str(message[0]["moved"]), str(message[0]["refused"])
        return Reply(stored=stored, moved=moved, refused=refused)
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
    except (ValueError, RecursionError) as error:
        raise Garbled(f"the words are no JSON: {error}") from error
    if not isinstance(words, dict):
        raise Garbled("the words are no object")
    return words, load


def _exactly(line: socket.socket, size: int) -> memoryview:
    """So many bytes, or none if the other side hung up. Raises ``OSError``.

    Room is made as they come: whoever only says that there will be many costs nothing.
    """
    room, at = bytearray(min(size, _GROWTH_BYTES)), 0
    while at < size:
        if at == len(room):
            room.extend(bytes(min(size - at, at)))
        with memoryview(room)[at:] as free:
            got = line.recv_into(free)
        if not got:
            return memoryview(b"")
        at += got
    return memoryview(room)
