"""HTTP requests to the blob service: kept connections, one deadline, retries with backoff.

A request is sent in the caller's thread. After a failure of the server or the network it is
repeated only where repeating changes nothing; otherwise the failure is raised, and whether the
request took effect is *unknown*. The time of every response is kept: the service's clock is the
store's clock.

The connection is small on purpose: reading a response with ``http.client`` costs three times the
CPU. Every length is bounded, and anything that is not an HTTP response closes the connection.
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

from leasehold.azure.blob_store.credentials import expired_on
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
    """The server sent something that is not a valid HTTP response."""


class HttpConnection:
    """A connection to one server; for one thread at a time."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        """Connect."""
        made = socket.create_connection((host, port), timeout=timeout_s)
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
        """Return whether the server has closed it: anything readable while idle means that."""
        return bool(self._read or self._poll.poll(0))

    def exchange(self, request: bytes) -> tuple[int, Mapping[str, str], bytes, bool]:
        """Return status, headers in lower case, body, and whether the connection can be reused."""
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
        """Close the connection."""
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
_REQUEST_TIMEOUT_S = 10.0
_RESPONSE_TIMEOUT_S = 4.0
_MAX_ATTEMPTS = 4
_BACKOFF = Backoff(base_s=0.1, max_s=1.0)
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
    """A response, with its time by the service's clock and by this host's."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    date_s: float
    sent_s: float
    received_s: float

    @property
    def code(self) -> str:
        """The service's error code."""
        return self.headers.get("x-ms-error-code", "")

    @property
    def etag(self) -> str:
        """The ETag without quotes, as in listings."""
        return self.headers.get("etag", "").strip('"')


class HttpClient:
    """Sends requests. Safe to use from several threads."""

    def __init__(
        self, address: BlobAddress, right: BlobCredential, *, clock: Clock, rng: random.Random
    ) -> None:
        self.calls = 0
        self._address = address
        self._credential = right
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
        """The last response: it has the time."""
        return self._latest

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        retry: bool,
        cancelled: threading.Event,
    ) -> HttpResponse:
        """Send a request and return the response, which may be a conflict with the blob's state.

        Raises:
            StoreUnavailable: no response in time, a busy service, or a call that was cancelled
                before
                this was sent. Without ``retry`` the request was sent at most once, and may have
                taken effect.
            StoreUnusable: the service refuses access.
        """
        until_s = self._clock.boottime_s() + _REQUEST_TIMEOUT_S
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            # The caller no longer waits for it: what it would do now may be out of date.
            if cancelled.is_set():
                raise StoreUnavailable(f"the call was given up before {method} was sent")
            response, error = self._send_once(method, path, query or {}, headers or {}, body)
            if response is not None and response.status not in _BUSY:
                return self._checked(response, method)
            words = f"it says {response.status} {response.code}" if response else str(error)
            if isinstance(error, ssl.SSLCertVerificationError):
                words += " (SSL_CERT_FILE names a file of certificates to trust)"
            elif isinstance(error, ssl.SSLError):
                words += " (an endpoint without TLS needs ?tls=0 in the URL)"
            over = attempt == _MAX_ATTEMPTS or self._clock.boottime_s() >= until_s
            if not retry or over or cancelled.wait(_BACKOFF.pause_s(attempt, self._rng)):
                raise StoreUnavailable(
                    f"no answer from the blob service at {self._where()} to {method}: {words}; "
                    "see that the endpoint is right and reachable"
                ) from error
        raise AssertionError("the last try raises")

    def close(self) -> None:
        """Close all connections. Safe to call twice."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _send_once(
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
        named |= self._credential.headers(method, path, query, named)
        asked = "&".join(filter(None, (urlencode(query, quote_via=quote), self._credential.query)))
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
        response = HttpResponse(
            status=status,
            headers=found,
            body=content,
            date_s=date_s(found.get("date", "")),
            sent_s=sent_s,
            received_s=self._clock.boottime_s(),
        )
        if response.date_s:
            self._latest = response
        return response, None

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
        return HttpConnection(
            self._address.host, port, tls=self._tls, timeout_s=_RESPONSE_TIMEOUT_S
        )

    def _checked(self, response: HttpResponse, method: str) -> HttpResponse:
        if response.status in _REFUSED or response.status >= _MIN_ERROR:
            what = _REFUSED.get(response.status, "the service can not do this")
            ended = expired_on(self._address.sas, self._clock.utc_now())
            advice = f"the SAS ended on {ended}: make a new one" if ended else _ADVICE
            raise StoreUnusable(
                f"{what} ({method} at {self._where()}: {response.status} {response.code}): "
                f"{advice if response.status in _NOT_LET_IN else _ADVICE}"
            )
        return response

    def _where(self) -> str:
        return f"{self._host}, container {self._address.container}"


@lru_cache(maxsize=64)
def date_s(text: str) -> float:
    """Parse an HTTP date into seconds since 1970; 0 if it is not valid."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return 0.0
