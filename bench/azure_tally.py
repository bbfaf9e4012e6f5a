"""Requests to the blob service, by what they cost, for both sides.

Kinds are those of Azure's price list for general-purpose v2 accounts ("Map each REST operation to
a price", 2025-05-14): setting metadata and all that is done with leases is *other*, a listing has
the price of its own, a deletion is free.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from azure.core.pipeline.transport import RequestsTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.azure.blob_store import AzureBlobStore


class Kind(StrEnum):
    WRITE = "write"
    LIST = "list"
    READ = "read"
    OTHER = "other"
    DELETE = "delete"


class Bill(Counter[Kind]):
    """How many requests of each kind; fractions are means."""

    def times(self, factor: float) -> Bill:
        return Bill({kind: count * factor for kind, count in self.items()})

    def plus(self, *others: Bill) -> Bill:
        total = Bill(self)
        for other in others:
            total.update(other)
        return total

    def less(self, other: Bill) -> Bill:
        """What is left of each kind, at least nothing."""
        return Bill({kind: max(count - other[kind], 0) for kind, count in self.items()})


def kind_of(method: str, query: str, *, of_container: bool) -> Kind:
    """What the price list calls a request."""
    comp = parse_qs(query).get("comp", [""])[0]
    if of_container or comp == "list":
        return Kind.LIST
    if method == "GET" and not comp:
        return Kind.READ
    if method == "PUT" and not comp:
        return Kind.WRITE
    return Kind.DELETE if method == "DELETE" else Kind.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What one host takes in one cycle: in which it looks who is alive, and in which it does not.

    Theirs always look.
    """

    look: Bill
    glance: Bill

    def mean(self, looks: float) -> Bill:
        """If it looks in this part of its cycles."""
        return self.look.times(looks).plus(self.glance.times(1 - looks))


_DOING: ContextVar[Bill | None] = ContextVar("_DOING", default=None)
LOOKING = " with a listing"


class Tally:
    """Requests, by what was being done when they were made, and how often that was done."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self._bills: dict[str, Bill] = {}
        self._lock = threading.Lock()

    @contextmanager
    def doing(self, what: str, *, looking: str = "") -> Iterator[None]:
        """``looking`` is put to the name of what was done if a listing was a part of it."""
        bill = Bill()
        before = _DOING.set(bill)
        try:
            yield
        finally:
            _DOING.reset(before)
            with self._lock:
                name = what + (looking if bill[Kind.LIST] else "")
                self.done[name] += 1
                self._bills.setdefault(name, Bill()).update(bill)

    def note(self, kind: Kind) -> None:
        with self._lock:
            bill = _DOING.get()
            (self._bills.setdefault("", Bill()) if bill is None else bill)[kind] += 1

    def of(self, what: str) -> Bill:
        """All requests that were made by doing this."""
        return Bill(self._bills.get(what, ()))

    def mean(self, what: str) -> Bill:
        """What doing it once takes; nothing if it was not done."""
        return self.of(what).times(1 / max(self.done[what], 1))

    def total(self) -> Bill:
        return Bill().plus(*self._bills.values())

    def clear(self) -> None:
        with self._lock:
            self.done.clear()
            self._bills.clear()


class WatchedStore:
    """A store of ours whose requests go into a tally, each under the name of the store's method."""

    def __init__(self, store: AzureBlobStore, tally: Tally) -> None:
        self._store = store
        self._tally = tally
        ask = store.http_client.request

        def counted(method: str, path: str, **how: Any) -> Any:
            query = how.get("query") or {}
            text = "&".join(f"{name}={value}" for name, value in query.items())
            tally.note(kind_of(method, text, of_container="restype" in query))
            return ask(method, path, **how)

        store.http_client.request = counted  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        async def watched(*given: Any, **named: Any) -> Any:
            with self._tally.doing(name, looking=LOOKING):  # the threads of the store inherit it
                return await found(*given, **named)

        return watched


class CountingTransport(RequestsTransport):  # type: ignore[misc]
    """The transport of Azure's own clients, which notes each request that it sends."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def send(self, request: Any, **how: Any) -> Any:
        query = urlsplit(request.url).query
        of_container = "restype=container" in query
        self._tally.note(kind_of(request.method, query, of_container=of_container))
        return super().send(request, **how)
