"""Requests to the blob service: kept connections, one deadline, one ladder of retries.

A request is sent by a thread. It is tried again after trouble of the server or the network only
where twice is the same as once; else the trouble is raised, and whether it was done is *unknown*.
The time of every answer is kept: the service's clock is the store's clock.

One kept connection of HTTP/1.1: a request goes out, its answer comes back, nothing else.

Small on purpose: reading an answer with ``http.client`` costs three times the CPU. Every length is
bounded, and whatever is not an answer of HTTP closes the connection.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from leasehold.azure.blob_store.credentials import ended_on
from leasehold.core.backoff import Backoff
from leasehold.errors import StoreUnavailable, StoreUnusable, UsageError

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Mapping

    from leasehold.azure.blob_store.address import BlobAddress
    from leasehold.azure.blob_store.credentials import BlobCredential
    from leasehold.clock import Clock

_LONGEST_HEAD_BYTES = 1 << 16
_LONGEST_BODY_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 16
_WITHOUT_BODY = frozenset((204, 304))
_MIN_FINAL = 200


class BadResponse(OSError):
    """What came is no answer of HTTP."""


class HttpConnection:
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
        while status < _MIN_FINAL:
            status, headers = self._head()
        keep = headers.get("connection", "").lower() != "close"
        if status in _WITHOUT_BODY:
            return status, headers, b"", keep
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return status, headers, self._chunks(), keep
        if "content-length" in headers:
            return status, headers, self._exactly(_number(headers["content-length"], 10)), keep
        raise BadResponse("an answer without a length")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _head(self) -> tuple[int, Mapping[str, str]]:
        while b"\r\n\r\n" not in self._read:
            if len(self._read) > _LONGEST_HEAD_BYTES:
                raise BadResponse("the head of the answer has no end")
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if not first.startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():  # noqa: PLR2004
            raise BadResponse("an answer that is not of HTTP")
        pairs = (line.partition(":") for line in lines)
        return int(words[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            size = _number(self._line().partition(";")[0], 16)
            total += size
            if total > _LONGEST_BODY_BYTES:
                raise BadResponse("the body of the answer is too long")
            if not size:
                while self._line():  # trailers
                    pass
                return b"".join(parts)
            parts.append(self._exactly(size))
            self._line()

    def _line(self) -> str:
        while b"\r\n" not in self._read:
            if len(self._read) > _LONGEST_HEAD_BYTES:
                raise BadResponse("a line of the answer has no end")
            self._more()
        line, _, self._read = self._read.partition(b"\r\n")
        return line.decode("latin-1")

    def _exactly(self, size: int) -> bytes:
        if size > _LONGEST_BODY_BYTES:
            raise BadResponse("the body of the answer is too long")
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
            raise BadResponse("the connection was ended before the answer was")
        return found


def _number(text: str, base: int) -> int:
    try:
        found = int(text.strip(), base)
    except ValueError:
        found = -1
    if found < 0:
        raise BadResponse("a length that is no number")
    return found


SERVICE_VERSION = "2021-12-02"
_TLS_PORT, _PORT = 443, 80
_LIMIT_S = 10.0
_ANSWER_S = 4.0
_TRIES = 4
_LADDER = Backoff(base_s=0.1, max_s=1.0)
_BUSY = frozenset((408, 429, 500, 502, 503, 504))
_MIN_ERROR = 500
_REFUSED = {
    400: "the service does not understand the request",
    401: "the service does not know who asks",
    403: "there is no right to do this",
    405: "the service does not do this",
}
_NOT_LET_IN = frozenset((401, 403))
_ADVICE = (
    "see that the account, the key or SAS (its permissions: read, add, create, write, delete, "
    "list; its end) or the role (Storage Blob Data Contributor), the firewall and the clock of "
    "this machine are right"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """What the service said, and when, by its clock and by ours."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    date_s: float
    sent_s: float
    received_s: float

    @property
    def code(self) -> str:
        """The service's own word for a refusal."""
        return self.headers.get("x-ms-error-code", "")

    @property
    def etag(self) -> str:
        """Without its quotes: listings have none."""
        return self.headers.get("etag", "").strip('"')


class HttpClient:
    """Sends requests. Safe to use from several threads."""

    def __init__(
        self, address: BlobAddress, right: BlobCredential, *, clock: Clock, rng: random.Random
    ) -> None:
        """Connect when there is something to send."""
        self.calls = 0
        self._address = address
        self._right = right
        self._clock = clock
        self._rng = rng
        self._idle: deque[HttpConnection] = deque()
        self._closed = False
        self._pid = os.getpid()
        self._latest: HttpResponse | None = None
        self._host = address.host + (f":{address.port}" if address.port else "")
        self._tls = ssl.create_default_context() if address.tls else None

    @property
    def latest(self) -> HttpResponse | None:
        """The last answer that came: what time it is."""
        return self._latest

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        again: bool,
        given_up: threading.Event,
    ) -> HttpResponse:
        """The answer, which may be a refusal of the request by the state of things.

        Raises:
            StoreUnavailable: no answer in time, a busy service, or a call that was given up before
                this was sent. Unless ``again`` the request was sent once at most, and may have
                been carried out.
            StoreUnusable: the service refuses us.
        """
        until_s = self._clock.boottime_s() + _LIMIT_S
        for tried in range(1, _TRIES + 1):
            # Nobody waits for it any more: what it would do now may be out of date.
            if given_up.is_set():
                raise StoreUnavailable(f"the call was given up before {method} was sent")
            answer, trouble = self._tried(method, path, query or {}, headers or {}, body)
            if answer is not None and answer.status not in _BUSY:
                return self._checked(answer, method)
            words = f"it says {answer.status} {answer.code}" if answer else str(trouble)
            if isinstance(trouble, ssl.SSLCertVerificationError):
                words += " (SSL_CERT_FILE names a file of certificates to trust)"
            elif isinstance(trouble, ssl.SSLError):
                words += " (an endpoint without TLS needs ?tls=0 in the URL)"
            over = tried == _TRIES or self._clock.boottime_s() >= until_s
            if not again or over or given_up.wait(_LADDER.pause_s(tried, self._rng)):
                raise StoreUnavailable(
                    f"no answer from the blob service at {self._where()} to {method}: {words}; "
                    "see that the endpoint is right and reachable"
                ) from trouble
        raise AssertionError("the last try raises")

    def close(self) -> None:
        """Give all connections back. Again is harmless."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _tried(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> tuple[HttpResponse | None, Exception | None]:
        self._check_usable()
        named = dict(headers)
        named["x-ms-version"] = SERVICE_VERSION
        named["x-ms-date"] = format_datetime(self._clock.utc_now(), usegmt=True)
        named["Content-Length"] = str(len(body))
        named |= self._right.headers(method, path, query, named)
        asked = "&".join(filter(None, (urlencode(query, quote_via=quote), self._right.query)))
        lines = [f"{method} {path}?{asked} HTTP/1.1" if asked else f"{method} {path} HTTP/1.1"]
        lines.append(f"Host: {self._host}")
        lines += [f"{name}: {value}" for name, value in named.items()]
        request = "\r\n".join((*lines, "", "")).encode("latin-1") + body
        connection: HttpConnection | None = None
        try:
            connection = self._connection()
            sent_s = self._clock.boottime_s()
            status, found, content, keep = connection.exchange(request)
        except OSError as error:
            if connection is not None:
                connection.close()
            return None, error
        if keep and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        self.calls += 1
        answer = HttpResponse(
            status=status,
            headers=found,
            body=content,
            date_s=date_s(found.get("date", "")),
            sent_s=sent_s,
            received_s=self._clock.boottime_s(),
        )
        if answer.date_s:
            self._latest = answer
        return answer, None

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("the store is closed: open it anew")
        if os.getpid() != self._pid:
            raise UsageError(
                "the store was opened before this process was forked: its connections must not be "
                "shared; open it anew in each process"
            )

    def _connection(self) -> HttpConnection:
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:
                break
            if not kept.ended():
                return kept
            kept.close()
        port = self._address.port or (_TLS_PORT if self._address.tls else _PORT)
        return HttpConnection(self._address.host, port, tls=self._tls, answer_s=_ANSWER_S)

    def _checked(self, answer: HttpResponse, method: str) -> HttpResponse:
        if answer.status in _REFUSED or answer.status >= _MIN_ERROR:
            what = _REFUSED.get(answer.status, "the service can not do this")
            ended = ended_on(self._address.sas, self._clock.utc_now())
            advice = f"the SAS ended on {ended}: make a new one" if ended else _ADVICE
            raise StoreUnusable(
                f"{what} ({method} at {self._where()}: {answer.status} {answer.code}): "
                f"{advice if answer.status in _NOT_LET_IN else _ADVICE}"
            )
        return answer

    def _where(self) -> str:
        return f"{self._host}, container {self._address.container}"


@lru_cache(maxsize=64)
def date_s(text: str) -> float:
    """A date of HTTP in seconds since 1970; 0 if it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return 0.0
