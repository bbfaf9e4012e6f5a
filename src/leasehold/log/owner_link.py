"""The Unix socket between producers and the owner of a partition: messages, client and server.

A message is a prefix of 20 bytes (magic, length of the header, length of the payload), the header
as JSON, and the payload: Arrow IPC messages of ``SENT_SCHEMA``. Both sides run on one machine as
one user. A connection that sends anything else is closed.

The server listens before the first segment is opened and until the last one is closed. So a process
that finds a segment held either reaches its owner, or knows that the owner has crashed.
``owner_address`` says which sockets are used: only those of this user.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import struct
import threading
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from leasehold.errors import StoreUnavailable, StoreUnusable, UsageError
from leasehold.events.event import SENT_SCHEMA
from leasehold.log.owner_address import (
    SCHEME,
    connect_to_owner,
    is_same_user,
    listen_at,
    remove_stale_sockets,
)
from leasehold.log.producer_batch import (
    OwnerMoved,
    OwnerSilent,
    ProducerBatch,
    StoredBatch,
    StoredPart,
    StoreOutcome,
    StreamPartition,
)
from leasehold.log.segment_format import ProducerStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.clock import Clock
    from leasehold.log.partition_owner import Answer

log = logging.getLogger("leasehold.log")

_PREFIX = struct.Struct("<8sIQ")
_MAGIC = b"LHPARCL2"
_MAX_HEADER_BYTES = 1 << 20
_MAX_PAYLOAD_BYTES = 1 << 31
_FIRST_BUFFER_BYTES = 1 << 20
_HEARTBEAT_RANGE_S = (0.01, 60.0)
_PRODUCER_ID_BYTES = 16
_MAX_NUMBERS = 1 << 63


class InvalidOwnerMessage(Exception):
    """The message is not valid, or the connection was closed within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRequest:
    """Producer batches for one partition; the owner answers at least every ``heartbeat_s``."""

    partition: StreamPartition
    batches: Sequence[ProducerBatch]
    durable: bool
    heartbeat_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReply:
    """``stored``, or why not: ``moved``, or ``refused`` for good; nothing: still in progress."""

    stored: tuple[StoredBatch, ...] = ()
    moved: str = ""
    refused: str = ""


def send_request(connection: socket.socket, request: OwnerRequest) -> None:
    """Send a request."""
    payload = [producer_batch.batch.serialize() for producer_batch in request.batches]
    header = {
        "stream": request.partition.stream,
        "partition": request.partition.number,
        "durable": request.durable,
        "beat_s": request.heartbeat_s,
        "parcels": [
            [each.stamp.producer.hex(), each.stamp.sequence, body.size, each.in_order]
            for each, body in zip(request.batches, payload, strict=True)
        ],
    }
    _send(connection, header, payload)


def receive_request(connection: socket.socket) -> OwnerRequest | None:
    """Return the next request; None when the other side has closed the connection."""
    message = _receive(connection)
    if message is None:
        return None
    header, payload = message
    try:
        batches, at = [], 0
        for producer, sequence, size, in_order in header["parcels"]:
            batch = pa.ipc.read_record_batch(pa.py_buffer(payload[at : at + size]), SENT_SCHEMA)
            batch.validate()
            stamp = _stamp(producer, sequence, batch.num_rows)
            batches.append(ProducerBatch(stamp=stamp, batch=batch, in_order=bool(in_order)))
            at += size
        if not batches:
            raise InvalidOwnerMessage("no request: there is no parcel in it")
        return OwnerRequest(
            partition=StreamPartition(
                stream=str(header["stream"]), number=int(header["partition"])
            ),
            batches=batches,
            durable=bool(header["durable"]),
            heartbeat_s=_checked_heartbeat_s(header["beat_s"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise InvalidOwnerMessage(f"no request: {error}") from error


def _stamp(producer: Any, sequence: Any, count: int) -> ProducerStamp:
    """Return the producer of a batch; raise ``InvalidOwnerMessage`` if it could not be stored."""
    stamp = ProducerStamp(producer=bytes.fromhex(producer), sequence=int(sequence))
    if len(stamp.producer) != _PRODUCER_ID_BYTES:
        raise InvalidOwnerMessage(
            f"a producer's id has {_PRODUCER_ID_BYTES} bytes, not {len(stamp.producer)}"
        )
    if not 0 <= stamp.sequence < _MAX_NUMBERS - count:
        raise InvalidOwnerMessage(
            f"a producer's number lies between 0 and 2^63, not at {stamp.sequence}"
        )
    return stamp


def _checked_heartbeat_s(value: Any) -> float:
    heartbeat_s = float(value)
    if not math.isfinite(heartbeat_s):
        raise InvalidOwnerMessage(f"a sign of life every {heartbeat_s} s can not be given")
    min_s, max_s = _HEARTBEAT_RANGE_S
    return min(max(heartbeat_s, min_s), max_s)


def send_reply(connection: socket.socket, reply: OwnerReply) -> None:
    """Send a reply."""
    stored = [
        [[part.count, part.first_sequence, part.outcome.value] for part in each.parts]
        for each in reply.stored
    ]
    _send(connection, {"stored": stored, "moved": reply.moved, "refused": reply.refused}, [])


def receive_reply(connection: socket.socket) -> OwnerReply:
    """Return the next reply."""
    message = _receive(connection)
    if message is None:
        raise InvalidOwnerMessage("the other side hung up without an answer")
    try:
        stored = tuple(
            StoredBatch(
                parts=tuple(
                    StoredPart(
                        count=int(count), first_sequence=int(first), outcome=StoreOutcome(said)
                    )
                    for count, first, said in parts
                )
            )
            for parts in message[0]["stored"]
        )
        moved, refused = str(message[0]["moved"]), str(message[0]["refused"])
        return OwnerReply(stored=stored, moved=moved, refused=refused)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOwnerMessage(f"no reply: {error}") from error


def _send(connection: socket.socket, header: dict[str, Any], payload: Sequence[pa.Buffer]) -> None:
    text = json.dumps(header).encode()
    prefix = _PREFIX.pack(_MAGIC, len(text), sum(part.size for part in payload))
    connection.sendall(prefix + text)
    for part in payload:
        connection.sendall(memoryview(part))


def _receive(connection: socket.socket) -> tuple[dict[str, Any], memoryview] | None:
    prefix = _receive_exactly(connection, _PREFIX.size)
    if not prefix:
        return None
    magic, header_bytes, payload_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC or header_bytes > _MAX_HEADER_BYTES or payload_bytes > _MAX_PAYLOAD_BYTES:
        raise InvalidOwnerMessage("the head of a message is not ours")
    text, payload = (
        _receive_exactly(connection, header_bytes),
        _receive_exactly(connection, payload_bytes),
    )
    if len(text) != header_bytes or len(payload) != payload_bytes:
        raise InvalidOwnerMessage("the message was cut short")
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise InvalidOwnerMessage(f"the words are no JSON: {error}") from error
    if not isinstance(header, dict):
        raise InvalidOwnerMessage("the words are no object")
    return header, payload


def _receive_exactly(connection: socket.socket, size: int) -> memoryview:
    """Receive ``size`` bytes, or none if the connection was closed.

    The buffer grows as they come: an announced length alone costs no memory.
    """
    buffer, at = bytearray(min(size, _FIRST_BUFFER_BYTES)), 0
    while at < size:
        if at == len(buffer):
            buffer.extend(bytes(min(size - at, at)))
        with memoryview(buffer)[at:] as free:
            got = connection.recv_into(free)
        if not got:
            return memoryview(b"")
        at += got
    return memoryview(buffer)


_TIMEVAL = struct.Struct("@ll")
# How many replies are due in the time after which an owner counts as crashed.
HEARTBEATS_PER_TIMEOUT = 4


class OwnerClient:
    """One connection to one owner at a time. For one thread."""

    def __init__(self, *, clock: Clock, owner_timeout_s: float) -> None:
        self._clock = clock
        self.owner_timeout_s = owner_timeout_s
        self._address = ""
        self._connection: socket.socket | None = None

    def send(self, request: OwnerRequest, *, to: str, deadline_s: float) -> tuple[StoredBatch, ...]:
        """Send producer batches and wait until they are stored."""
        try:
            connection = self._connect(to)
            send_request(connection, request)
            return self._wait_for_answer(connection, deadline_s)
        except BlockingIOError as error:
            self.close()
            raise OwnerSilent(
                f"the owner at {to} gave no sign for {self.owner_timeout_s:g} s"
            ) from error
        except (OSError, InvalidOwnerMessage) as error:
            self.close()
            raise OwnerMoved(f"the line to {to} broke: {error}") from error
        except StoreUnavailable:
            self.close()
            raise

    def _wait_for_answer(
        self, connection: socket.socket, deadline_s: float
    ) -> tuple[StoredBatch, ...]:
        while True:
            reply = receive_reply(connection)
            if reply.moved:
                raise OwnerMoved(reply.moved)
            if reply.refused:
                raise UsageError(reply.refused)
            if reply.stored:
                return reply.stored
            if self._clock.boottime_s() > deadline_s:
                raise StoreUnavailable(
                    f"the owner at {self._address} is alive and could not store the events in "
                    "time; they may be stored yet"
                )

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, address: str) -> socket.socket:
        if self._connection is not None and self._address == address:
            return self._connection
        self.close()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Limits in the kernel: they also hold for a connection that is not accepted.
        seconds = int(self.owner_timeout_s)
        limit = _TIMEVAL.pack(seconds, int((self.owner_timeout_s - seconds) * 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            connect_to_owner(connection, address)
        except BaseException:
            connection.close()
            raise
        self._address, self._connection = address, connection
        return connection


_BACKLOG = 128
_ACCEPT_PAUSE_S = 0.1


class OwnerServer:
    """Passes requests to ``submit``, and its answers back. Starts with ``open``."""

    def __init__(self, address: str, submit: Callable[[OwnerRequest], Answer]) -> None:
        """``submit`` raises ``OwnerMoved`` when this process does not own the partition."""
        self._path = address.removeprefix(SCHEME)
        self._submit = submit
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()

    def open(self) -> None:
        """Start to listen, unless it listens already."""
        with self._lock:
            if self._socket is not None or self._closed.is_set():
                return
            remove_stale_sockets(str(Path(self._path).parent))
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listen_at(listening, self._path, backlog=_BACKLOG)
            except OSError as error:
                listening.close()
                raise StoreUnusable(f"{self._path} can not be listened on: {error}") from error
            self._socket = listening
            self._start(self._listen, listening, "owner-server")

    def close(self) -> None:
        """Close all connections and end all threads."""
        with self._lock:
            self._closed.set()
            if self._socket is None:
                return
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()
        self._socket.close()
        with suppress(OSError):
            Path(self._path).unlink()

    def _start(
        self, run: Callable[[socket.socket], None], connection: socket.socket, what: str
    ) -> None:
        thread = threading.Thread(
            target=self._run_thread, args=(run, connection), name=f"leasehold-{what}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _run_thread(self, run: Callable[[socket.socket], None], connection: socket.socket) -> None:
        try:
            # A broken connection or an invalid message concerns the other side, which retries.
            with suppress(OSError, InvalidOwnerMessage):
                run(connection)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                self._connections.discard(connection)
            if connection is not self._socket:
                connection.close()

    def _listen(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:  # for example, no descriptor is free: clients wait in the backlog
                self._closed.wait(_ACCEPT_PAUSE_S)
                continue
            if not is_same_user(connection):
                log.warning("%s: a connection of another user was refused", self._path)
                connection.close()
                continue
            with self._lock:
                if self._closed.is_set():
                    connection.close()
                    return
                self._connections.add(connection)
                self._start(self._serve, connection, "owner-connection")

    def _serve(self, connection: socket.socket) -> None:
        while (request := receive_request(connection)) is not None:
            try:
                answer = self._submit(request)
                while not wait((answer,), timeout=request.heartbeat_s).done:
                    send_reply(connection, OwnerReply())
                reply = OwnerReply(stored=answer.result())
            except OwnerMoved as error:
                reply = OwnerReply(moved=str(error))
            except UsageError as error:
                reply = OwnerReply(refused=str(error))
            send_reply(connection, reply)
