"""The socket on which the owner of partitions takes parcels from other processes.

It listens before the first segment is opened and until the last one is closed: whoever finds a
segment held by us finds us here, or knows that we are dead. The directory belongs to the user and
nobody else can enter it.

What is said over the socket between a producer and the owner of a partition.

A message is a head of 20 bytes (magic, length of the words, length of the load), the words as
JSON, and the load: Arrow IPC messages of ``SENT_SCHEMA`` one after the other. Both sides run on one
machine as one user; whoever says something else is hung up on.

Carries parcels to the owner of a partition in another process of this machine.
"""

from __future__ import annotations

import json
import math
import os
import socket
import stat
import struct
import tempfile
import threading
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from leasehold.errors import StoreUnavailable, StoreUnusable, UsageError
from leasehold.events.event import SENT_SCHEMA
from leasehold.log.producer_batch import (
    OwnerGone,
    OwnerMoved,
    OwnerSilent,
    ProducerBatch,
    StoredBatch,
    StreamPartition,
)
from leasehold.log.segment_format import ProducerStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.clock import Clock
    from leasehold.log.partition_owner import Answer

_HEAD = struct.Struct("<8sIQ")
_MAGIC = b"LHPARCL1"
_MAX_WORDS_BYTES = 1 << 20
_MAX_LOAD_BYTES = 1 << 31
_GROWTH_BYTES = 1 << 20
_BEATS_S = (0.01, 60.0)
_PRODUCER_ID_BYTES = 16
_MAX_NUMBERS = 1 << 63


class InvalidOwnerMessage(Exception):
    """The other side does not speak this language, or hung up in the middle of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRequest:
    """Parcels for one partition; a sign of life is wanted every ``beat_s``."""

    partition: StreamPartition
    parcels: Sequence[ProducerBatch]
    durable: bool
    beat_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReply:
    """``stored``, or why not: ``moved``, or ``refused`` for good; nothing: still at work on it."""

    stored: tuple[StoredBatch, ...] = ()
    moved: str = ""
    refused: str = ""


def send_request(line: socket.socket, request: OwnerRequest) -> None:
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


def receive_request(line: socket.socket) -> OwnerRequest | None:
    """Return the next request; None when the other side has closed the connection."""
    message = _receive(line)
    if message is None:
        return None
    words, load = message
    try:
        parcels, at = [], 0
        for producer, sequence, size in words["parcels"]:
            batch = pa.ipc.read_record_batch(pa.py_buffer(load[at : at + size]), SENT_SCHEMA)
            batch.validate()
            parcels.append(
                ProducerBatch(stamp=_stamp(producer, sequence, batch.num_rows), batch=batch)
            )
            at += size
        if not parcels:
            raise InvalidOwnerMessage("no request: there is no parcel in it")
        return OwnerRequest(
            partition=StreamPartition(stream=str(words["stream"]), number=int(words["partition"])),
            parcels=parcels,
            durable=bool(words["durable"]),
            beat_s=_beat_s(words["beat_s"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise InvalidOwnerMessage(f"no request: {error}") from error


def _stamp(producer: Any, sequence: Any, count: int) -> ProducerStamp:
    """Return who sent a batch; raise ``InvalidOwnerMessage`` if it could not be stored."""
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


def _beat_s(value: Any) -> float:
    beat_s = float(value)
    if not math.isfinite(beat_s):
        raise InvalidOwnerMessage(f"a sign of life every {beat_s} s can not be given")
    min_s, max_s = _BEATS_S
    return min(max(beat_s, min_s), max_s)


def send_reply(line: socket.socket, reply: OwnerReply) -> None:
    """Say it. Raises ``OSError``."""
    stored = [[each.first_sequence, each.skipped, each.stored_as] for each in reply.stored]
    _send(line, {"stored": stored, "moved": reply.moved, "refused": reply.refused}, [])


def receive_reply(line: socket.socket) -> OwnerReply:
    """The next reply. Raises ``InvalidOwnerMessage``, ``OSError``."""
    message = _receive(line)
    if message is None:
        raise InvalidOwnerMessage("the other side hung up without an answer")
    try:
        stored = tuple(
            StoredBatch(first_sequence=int(first), skipped=int(skipped), stored_as=int(stored_as))
            for first, skipped, stored_as in message[0]["stored"]
        )
        moved, refused = str(message[0]["moved"]), str(message[0]["refused"])
        return OwnerReply(stored=stored, moved=moved, refused=refused)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOwnerMessage(f"no reply: {error}") from error


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
    if magic != _MAGIC or words_bytes > _MAX_WORDS_BYTES or load_bytes > _MAX_LOAD_BYTES:
        raise InvalidOwnerMessage("the head of a message is not ours")
    text, load = _exactly(line, words_bytes), _exactly(line, load_bytes)
    if len(text) != words_bytes or len(load) != load_bytes:
        raise InvalidOwnerMessage("the message was cut short")
    try:
        words = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise InvalidOwnerMessage(f"the words are no JSON: {error}") from error
    if not isinstance(words, dict):
        raise InvalidOwnerMessage("the words are no object")
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


_TIMEVAL = struct.Struct("@ll")
BEATS = 4  # so many signs of life are due in the time after which an owner counts as dead


class OwnerClient:
    """One line to one owner at a time. For one thread."""

    def __init__(self, *, clock: Clock, owner_timeout_s: float) -> None:
        """Connect to nobody yet."""
        self._clock = clock
        self.owner_timeout_s = owner_timeout_s
        self._address = ""
        self._line: socket.socket | None = None

    def carry(self, request: OwnerRequest, *, to: str, until_s: float) -> tuple[StoredBatch, ...]:
        """Hand parcels over and wait until they are stored.

        Raises:
            NobodyThere: nobody listens there.
            Silent: no sign came for ``owner_timeout``.
            Moved: it is not the owner, or the line broke.
            StoreUnavailable: it is alive and at work, and ``until_s`` has come.
            StoreUnusable: the socket belongs to another user.
            UsageError: they can not be stored, now or later.
        """
        try:
            line = self._connected(to)
            send_request(line, request)
            return self._answer(line, until_s)
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

    def _answer(self, line: socket.socket, until_s: float) -> tuple[StoredBatch, ...]:
        while True:
            reply = receive_reply(line)
            if reply.moved:
                raise OwnerMoved(reply.moved)
            if reply.refused:
                raise UsageError(reply.refused)
            if reply.stored:
                return reply.stored
            if self._clock.boottime_s() > until_s:
                raise StoreUnavailable(
                    f"the owner at {self._address} is alive and could not store the events in "
                    "time; they may be stored yet"
                )

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connected(self, address: str) -> socket.socket:
        if self._line is not None and self._address == address:
            return self._line
        self.close()
        path = address.removeprefix(SCHEME)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Limits in the kernel: they also hold for a connection that is not accepted.
        seconds = int(self.owner_timeout_s)
        limit = _TIMEVAL.pack(seconds, int((self.owner_timeout_s - seconds) * 1_000_000))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            line.connect(path)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            line.close()
            with suppress(OSError):
                Path(path).unlink()  # left behind by the dead
            raise OwnerGone(f"nobody listens at {address}") from error
        except PermissionError as error:
            line.close()
            raise StoreUnusable(
                f"the owner of the partition, at {address}, runs as another user: producers of one "
                "partition must run as the same user"
            ) from error
        except OSError:
            line.close()
            raise
        self._address, self._line = address, line
        return line


SCHEME = "unix:"
_PRIVATE = 0o700
_LONGEST_PATH_BYTES = 100  # the system has room for 108, and the socket is made under a longer name
_BACKLOG = 128
_PAUSE_S = 0.1


def address_in(directory: str, *, name: str) -> str:
    """Where a socket called ``name`` would lie; the directory is made if need be.

    Raises:
        StoreUnusable: the directory is somebody else's, can not be made, or its path is too long.
    """
    base = directory or os.environ.get("XDG_RUNTIME_DIR", "") or tempfile.gettempdir()
    home = Path(base) / f"leasehold-{os.getuid()}"
    path = home / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise StoreUnusable(
            f"{path} is too long for a socket: give a shorter socket_directory in LogOptions"
        )
    try:
        home.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        found = home.lstat()
    except OSError as error:
        raise StoreUnusable(
            f"no socket can be made in {home} ({error}): give a socket_directory in LogOptions"
        ) from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & ~_PRIVATE:
        raise StoreUnusable(
            f"{home} is open to other users: remove it, or give a socket_directory in LogOptions"
        )
    return f"{SCHEME}{path}"


class OwnerServer:
    """Passes what comes in to ``take``, and its answers back. Starts with ``open``."""

    def __init__(self, address: str, take: Callable[[OwnerRequest], Answer]) -> None:
        """``take`` raises ``OwnerMoved`` when this process does not own the partition."""
        self._path = address.removeprefix(SCHEME)
        self._take = take
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._lines: set[socket.socket] = set()
        self._closed = threading.Event()

    def open(self) -> None:
        """Listen, unless it does already.

        Raises:
            StoreUnusable: the socket can not be made.
        """
        with self._lock:
            if self._socket is not None or self._closed.is_set():
                return
            path = Path(self._path)
            _sweep(path.parent)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # Under its name it listens already: who finds it silent there may remove it.
                listening.bind(f"{path}.new")
                listening.listen(_BACKLOG)
                Path(f"{path}.new").rename(path)
            except OSError as error:
                listening.close()
                raise StoreUnusable(f"{self._path} can not be listened on: {error}") from error
            self._socket = listening
            self._start(self._listen, listening, "door")

    def close(self) -> None:
        """Hang up everywhere and end all threads."""
        with self._lock:
            self._closed.set()
            if self._socket is None:
                return
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            for line in self._lines:
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()
        self._socket.close()
        with suppress(OSError):
            Path(self._path).unlink()

    def _start(self, run: Callable[[socket.socket], None], line: socket.socket, what: str) -> None:
        thread = threading.Thread(
            target=self._until_over, args=(run, line), name=f"leasehold-{what}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _until_over(self, run: Callable[[socket.socket], None], line: socket.socket) -> None:
        try:
            # A line that breaks or makes no sense is the other side's trouble: it asks again.
            with suppress(OSError, InvalidOwnerMessage):
                run(line)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                self._lines.discard(line)
            if line is not self._socket:
                line.close()

    def _listen(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                line, _ = listening.accept()
            except OSError:  # no descriptor is free, for one: whoever knocks waits meanwhile
                self._closed.wait(_PAUSE_S)
                continue
            with self._lock:
                if self._closed.is_set():
                    line.close()
                    return
                self._lines.add(line)
                self._start(self._talk, line, "line")

    def _talk(self, line: socket.socket) -> None:
        while (request := receive_request(line)) is not None:
            try:
                answer = self._take(request)
                while not wait((answer,), timeout=request.beat_s).done:
                    send_reply(line, OwnerReply())
                reply = OwnerReply(stored=answer.result())
            except OwnerMoved as error:
                reply = OwnerReply(moved=str(error))
            except UsageError as error:
                reply = OwnerReply(refused=str(error))
            send_reply(line, reply)


def _sweep(directory: Path) -> None:
    """Remove the sockets of processes that are dead: nobody listens there."""
    for path in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.setblocking(False)
            try:
                line.connect(str(path))
            except ConnectionRefusedError:
                with suppress(OSError):
                    path.unlink()
            except OSError:
                continue  # alive and busy, or gone meanwhile
