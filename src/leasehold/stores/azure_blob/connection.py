"""One kept connection of HTTP/1.1: a request goes out, its answer comes back, nothing else.

Small on purpose: reading an answer with ``http.client`` costs three times the CPU. Every length is
bounded, and whatever is not an answer of HTTP closes the connection.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

_LONGEST_HEAD_BYTES = 1 << 16
_LONGEST_BODY_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 16
_WITHOUT_BODY = frozenset((204, 304))
_LEAST_FINAL = 200


class BadAnswer(OSError):
    """What came is no answer of HTTP."""


class Connection:
    """To one server; for one thread at a time."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, answer_s: float
    ) -> None:
        """Connect.

        Raises:
            OSError: there is nobody, or not in time.
        """
        made = socket.create_connection((host, port), timeout=answer_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket = made if tls is None else tls.wrap_socket(made, server_hostname=host)
        except OSError:
            made.close()
            raise
        self._read = b""
        # Not select(): that knows no descriptor above 1,023.
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def ended(self) -> bool:
        """Whether the other side has ended it: all that can be read while nothing was asked."""
        return bool(self._read or self._poll.poll(0))

    def exchange(self, request: bytes) -> tuple[int, Mapping[str, str], bytes, bool]:
        """Status, headers in small letters, body, and whether the connection may be used again.

        Raises:
            OSError: it broke, or there was no answer in time.
        """
        self._socket.sendall(request)
        status, headers = self._head()
        while status < _LEAST_FINAL:
            status, headers = self._head()
        keep = headers.get("connection", "").lower() != "close"
        if status in _WITHOUT_BODY:
            return status, headers, b"", keep
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return status, headers, self._chunks(), keep
        if "content-length" in headers:
            return status, headers, self._exactly(_number(headers["content-length"], 10)), keep
        raise BadAnswer("an answer without a length")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _head(self) -> tuple[int, Mapping[str, str]]:
        while b"\r\n\r\n" not in self._read:
            if len(self._read) > _LONGEST_HEAD_BYTES:
                raise BadAnswer("the head of the answer has no end")
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if not first.startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():  # noqa: PLR2004
            raise BadAnswer("an answer that is not of HTTP")
        pairs = (line.partition(":") for line in lines)
        return int(words[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            size = _number(self._line().partition(";")[0], 16)
            total += size
            if total > _LONGEST_BODY_BYTES:
                raise BadAnswer("the body of the answer is too long")
            if not size:
                while self._line():  # trailers
                    pass
                return b"".join(parts)
            parts.append(self._exactly(size))
            self._line()

    def _line(self) -> str:
        while b"\r\n" not in self._read:
            if len(self._read) > _LONGEST_HEAD_BYTES:
                raise BadAnswer("a line of the answer has no end")
            self._more()
        line, _, self._read = self._read.partition(b"\r\n")
        return line.decode("latin-1")

    def _exactly(self, size: int) -> bytes:
        if size > _LONGEST_BODY_BYTES:
            raise BadAnswer("the body of the answer is too long")
        parts, have = [self._read], len(self._read)
        while have < size:
            found = self._received()
            parts.append(found)
            have += len(found)
        whole = b"".join(parts)
        self._read = whole[size:]
        return whole[:size]

    def _more(self) -> None:
        self._read += self._received()

    def _received(self) -> bytes:
        found = self._socket.recv(_CHUNK_BYTES)
        if not found:
            raise BadAnswer("the connection was ended before the answer was")
        return found


def _number(text: str, base: int) -> int:
    try:
        found = int(text.strip(), base)
    except ValueError:
        found = -1
    if found < 0:
        raise BadAnswer("a length that is no number")
    return found
