"""Hosts on one blob service, one request at a time, in an order that a seed decides.

The service is a small one of our own that does what is documented. Each request of each host stops
before it takes effect and again before its answer is heard, and answers get lost, so every schedule
of pauses can come up. The hosts are the real store, by its threads; their clocks go wrong a little.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import unquote
from xml.sax.saxutils import escape

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.container import Container
from leasehold.azure.blob_store.credentials import Sas
from leasehold.azure.blob_store.document_cache import DocumentCache
from leasehold.azure.blob_store.http import HttpClient, HttpResponse, date_s
from leasehold.azure.blob_store.lease_calls import LeaseCalls
from leasehold.azure.blob_store.ownerships import OwnershipCalls
from leasehold.azure.blob_store.service_time import LeaseProofs
from leasehold.testing.clock import ManualClock

ROOT = "/c01/"
START_S = 1_800_000_000.25
TIMEOUT_S = 90.0


@dataclass
class Blob:
    body: bytes
    etag: str
    metadata: dict[str, str]
    modified_s: float
    lease_id: str = ""
    duration_s: float = 0.0
    until_s: float = 0.0

    def locked(self, now_s: float) -> bool:
        return bool(self.lease_id) and now_s < self.until_s


@dataclass
class Service:
    """The documented behaviour, as far as the store asks for it."""

    now_s: float = START_S
    blobs: dict[str, Blob] = field(default_factory=dict)
    written: int = 0
    on_document: Callable[[str, dict[str, object]], None] = lambda _name, _document: None
    on_checkpoint_blob: Callable[[str, Mapping[str, str], Mapping[str, str]], None] = lambda *_: (
        None
    )

    def do(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> tuple[int, dict[str, str], bytes]:
        name = unquote(path).removeprefix(ROOT)
        if query.get("comp") == "list":
            return 200, {}, self._list(query["prefix"])
        if query.get("comp") == "lease":
            return self._lease(name, headers)
        if query.get("comp") == "metadata":
            return self._set_metadata(name, headers)
        return {"GET": self._get, "PUT": self._put, "DELETE": self._delete}[method](
            name, headers, body
        )

    def _list(self, prefix: str) -> bytes:
        reply = []
        for name in sorted(self.blobs):
            if name.startswith(prefix):
                blob = self.blobs[name]
                state = "leased" if blob.locked(self.now_s) else "expired"
                state = state if blob.lease_id else "available"
                more = "".join(f"<{k}>{escape(v)}</{k}>" for k, v in blob.metadata.items())
                reply.append(
                    f"<Blob><Name>{escape(name)}</Name><Properties><Etag>{blob.etag}</Etag>"
                    f"<Last-Modified>{http_date(blob.modified_s)}</Last-Modified>"
                    f"<LeaseState>{state}</LeaseState></Properties>"
                    f"<Metadata>{more}</Metadata></Blob>"
                )
        return f"<R><Blobs>{''.join(reply)}</Blobs><NextMarker/></R>".encode()

    def _get(
        self, name: str, headers: Mapping[str, str], _body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        blob = self.blobs.get(name)
        if blob is None:
            return 404, {}, b""
        reply = {"etag": f'"{blob.etag}"', "last-modified": http_date(blob.modified_s)}
        if headers.get("If-None-Match") == reply["etag"]:
            return 304, reply, b""
        return 200, reply | {f"x-ms-meta-{k}": v for k, v in blob.metadata.items()}, blob.body

    def _put(
        self, name: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        blob = self.blobs.get(name)
        if blob is not None and headers.get("If-None-Match") == "*":
            return 409, {}, b""
        if "If-Match" in headers and (blob is None or headers["If-Match"] != f'"{blob.etag}"'):
            return 412, {}, b""
        if blob is not None and blob.locked(self.now_s):
            return 412, {}, b""
        self.written += 1
        self.blobs[name] = Blob(body, f"e{self.written}", _metadata(headers), self.now_s)
        if name.endswith("/book"):
            self.on_document(name, json.loads(body))
        return 201, {"etag": f'"e{self.written}"'}, b""

    def _set_metadata(
        self, name: str, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        blob = self.blobs.get(name)
        if blob is None:
            return 404, {}, b""
        if headers["If-Match"] != f'"{blob.etag}"' or blob.locked(self.now_s):
            return 412, {}, b""
        self.written += 1
        before, blob.metadata = blob.metadata, _metadata(headers)
        blob.etag, blob.modified_s = f"e{self.written}", self.now_s
        self.on_checkpoint_blob(name, before, blob.metadata)
        return 200, {"etag": f'"{blob.etag}"'}, b""

    def _delete(
        self, name: str, headers: Mapping[str, str], _body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        blob, shown = self.blobs.get(name), headers.get("x-ms-lease-id", "")
        if blob is None:
            return 404, {}, b""
        if blob.locked(self.now_s) != bool(shown) or (shown and shown != blob.lease_id):
            return 412, {}, b""
        del self.blobs[name]
        return 202, {}, b""

    def _lease(self, name: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        blob = self.blobs.get(name)
        if blob is None:
            return 404, {}, b""
        if headers["x-ms-lease-action"] == "acquire":
            wanted = headers["x-ms-proposed-lease-id"]
            if blob.locked(self.now_s) and blob.lease_id != wanted:
                return 409, {}, b""
            blob.lease_id, blob.duration_s = wanted, float(headers["x-ms-lease-duration"])
        elif blob.lease_id != headers["x-ms-lease-id"]:
            return 409, {}, b""
        lasts_s = blob.duration_s if blob.duration_s > 0 else math.inf
        blob.until_s = self.now_s + lasts_s  # an expired one too: nobody has touched it
        return 201 if headers["x-ms-lease-action"] == "acquire" else 200, {}, b""


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    return {k[10:]: v for k, v in headers.items() if k.startswith("x-ms-meta-")}


def http_date(moment_s: float) -> str:
    return format_datetime(datetime.fromtimestamp(int(moment_s), UTC), usegmt=True)


class HostClock(ManualClock):
    """Of one host: its rate is a little wrong, and its wall clock wildly."""

    def __init__(self, service: Service, rate: float) -> None:
        super().__init__()
        self._service, self._rate = service, rate

    def boottime_s(self) -> float:
        return (self._service.now_s - START_S) * self._rate + 5000.0

    def utc_now(self) -> datetime:
        return datetime.fromtimestamp(self._service.now_s, UTC) + timedelta(days=1000 * self._rate)


class Stop(Exception):
    """The schedule is over."""


@dataclass(eq=False)
class Call:
    """A call of a host in a thread of its own, which stops at each request."""

    work: Callable[[threading.Event], object]
    cancelled: threading.Event = field(default_factory=threading.Event)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    over: bool = False
    dropped: bool = False
    answer: object = None
    error: Exception | None = None

    def run(self) -> None:
        try:
            self.pause()
            self.answer = self.work(self.cancelled)
        except Stop:
            pass
        except Exception as error:  # noqa: BLE001 - judged by who called
            self.error = error
        self.over = True
        self.stopped.release()

    def pause(self) -> None:
        self.stopped.release()
        if not self.go.acquire(timeout=TIMEOUT_S) or self.dropped:
            raise Stop

    def step(self) -> None:
        """Let it go on until its next stop."""
        self.go.release()
        assert self.stopped.acquire(timeout=TIMEOUT_S)


CURRENT = threading.local()


def started(work: Callable[[threading.Event], object]) -> Call:
    call = Call(work)

    def run() -> None:
        CURRENT.call = call
        call.run()

    threading.Thread(target=run, daemon=True).start()
    assert call.stopped.acquire(timeout=TIMEOUT_S)
    return call


class ScheduledHttpClient(HttpClient):
    """Asks the service in the order of the schedule. Some answers are lost."""

    def __init__(self, service: Service, clock: HostClock, rng: random.Random) -> None:
        address = BlobAddress.of("azure-blob://acme/c01?sas=x", {})
        super().__init__(address, Sas(""), clock=clock, rng=rng)
        self.service, self.rng, self.limbo = service, rng, list[Callable[[], object]]()

    def _send_once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> tuple[HttpResponse | None, Exception | None]:
        call, sent_s = CURRENT.call, self._clock.boottime_s()
        call.pause()
        luck = self.rng.random()
        if luck < 0.04:  # it is lost, or comes much later
            if luck < 0.02:
                self.limbo.append(lambda: self.service.do(method, path, query, headers, body))
            return None, ConnectionResetError("lost on the way")
        status, reply, content = self.service.do(method, path, query, headers, body)
        reply["date"] = http_date(self.service.now_s)
        call.pause()
        if luck > 0.97:
            return None, ConnectionResetError("the answer is lost")
        answer = HttpResponse(
            status=status,
            headers=reply,
            body=content,
            date_s=date_s(reply["date"]),
            sent_s=sent_s,
            received_s=self._clock.boottime_s(),
        )
        self._latest = answer
        return answer, None


class HostStore:
    """The calls of the store as its threads make them."""

    def __init__(self, service: Service, rng: random.Random) -> None:
        self.clock = HostClock(service, rng.uniform(0.97, 1.03))
        self.http_client = ScheduledHttpClient(service, self.clock, rng)
        self.cache = DocumentCache(
            Container(BlobAddress.of("azure-blob://acme/c01?sas=x", {}), self.http_client),
            clock=self.clock,
            rng=rng,
        )
        proofs = LeaseProofs(self.clock)
        self.leases = LeaseCalls(self.cache, proofs, self.clock)
        self.ownerships = OwnershipCalls(self.cache, proofs, self.clock)
