"""A door in front of a PostgreSQL server that can be shut at the very moment of a COMMIT."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMMIT = b"COMMIT\x00"
_LIMIT_S = 120.0


class Proxy:
    """Passes everything on. What it does when it sees a COMMIT can be set before.

    ``cut_before``: the server never sees it. ``cut_after``: the server answers, and the answer is
    dropped. ``cut_after_once``: the same, but only the first time. ``hold``: it is kept until
    ``go`` is set; ``seen`` tells that it has come. ``late_s``: each answer comes so much later.
    ``over`` tells that the server has ended a session, and that its client has heard all it said.
    """

    def __init__(self, url: str) -> None:
        given = conninfo_to_dict(url)
        self._host, self._port = str(given["host"]), int(str(given.get("port", 5432)))
        self._door = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self.at_commit = "pass"
        self.late_s = 0.0
        self.seen, self.go, self.over = (threading.Event() for _ in range(3))
        user, database = given.get("user", "postgres"), given["dbname"]
        port = self._door.getsockname()[1]
        self.url = f"postgresql://{user}@127.0.0.1:{port}/{database}"
        if "password" in given:
            self.url += f"?password={given['password']}"
        self._start(self._accept)

    def close(self) -> None:
        self.go.set()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        with self._lock:
            for end in self._ends:
                _shut(end)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = self._server()
                with self._lock:
                    self._ends += [client, server]
                self._start(self._to_server, client, server)
                self._start(self._to_client, client, server)

    def _server(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if _COMMIT in data and self.at_commit != "pass":
                    self.seen.set()
                    if self.at_commit == "cut_before":
                        break
                    if self.at_commit == "hold":
                        self.go.wait(_LIMIT_S)
                server.sendall(data)
        _shut(client)
        _shut(server)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self.at_commit.startswith("cut_after") and self.seen.is_set():
                    if self.at_commit == "cut_after_once":
                        self.at_commit = "pass"
                    break
                if self.late_s:
                    threading.Event().wait(self.late_s)
                client.sendall(data)
        self.over.set()
        _shut(client)
        _shut(server)


@contextmanager
def proxy(url: str) -> Iterator[Proxy]:
    made = Proxy(url)
    try:
        yield made
    finally:
        made.close()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
