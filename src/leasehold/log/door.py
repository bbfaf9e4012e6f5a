"""The socket on which the owner of partitions takes parcels from other processes.

It listens before the first segment is opened and until the last one is closed: whoever finds a
segment held by us finds us here, or knows that we are dead. The directory belongs to the user and
nobody else can enter it.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnusable, UsageError
from leasehold.log.parcel import Moved
from leasehold.log.wire import Garbled, Reply, receive_request, send_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.log.owner import Answer
    from leasehold.log.wire import Request

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


class Door:
    """Passes what comes in to ``take``, and its answers back. Starts with ``open``."""

    def __init__(self, address: str, take: Callable[[Request], Answer]) -> None:
        """``take`` raises ``Moved`` when this process does not own the partition."""
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
            with suppress(OSError, Garbled):
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
                    send_reply(line, Reply())
                reply = Reply(stored=answer.result())
            except Moved as error:
                reply = Reply(moved=str(error))
            except UsageError as error:
                reply = Reply(refused=str(error))
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
