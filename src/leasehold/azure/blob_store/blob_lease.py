"""The lease of one blob, as the service has it: for partitions and jobs that are a blob each.

This is not the store: there are no epochs, no groups and no history, only the five states of the
service. Not getting a lease is an answer. Having lost one is ``LeaseLost``, whichever of 409, 412
and 404 the service says. A write shows the lease and is refused when that is over; but the service
lets anybody write a blob whose lease is over, without showing one.
"""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from anyio import to_thread

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.container import ACCEPTED, CREATED, NOT_FOUND, OK, Container
from leasehold.azure.blob_store.credentials import right_for
from leasehold.azure.blob_store.http import HttpClient
from leasehold.azure.blob_store.lease_lengths import LONGEST_S, lease_s
from leasehold.clock import SystemClock, new_token, system_random
from leasehold.errors import FencedWrite, LeaseLost, UnknownResource, UsageError
from leasehold.model import State
from leasehold.names import seconds_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from leasehold.azure.blob_store.http import HttpResponse
    from leasehold.clock import Clock

T = TypeVar("T")

_ENDLESS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRecord:
    """A blob as anybody sees it: what is in it, and the state of its lease."""

    body: bytes = field(repr=False)
    metadata: Mapping[str, str]
    state: State


class BlobLease:
    """The lease of one blob. Knows nothing of its own: who has the lease id has the lease."""

    def __init__(self, container: Container, name: str) -> None:
        """Of the blob ``name``; ``open_blobs`` makes them."""
        self.name = name
        self._container = container

    async def create(self, body: bytes = b"", *, metadata: Mapping[str, str] | None = None) -> bool:
        """Make the blob unless it is there; whether it was made.

        Raises:
            UsageError: the metadata can not be kept.
        """
        kept = _checked(metadata)
        put = partial(self._container.put, self.name, body, etag=None, metadata=kept)
        return await _in_thread(lambda given_up: put(given_up=given_up)) is not None

    async def read(self) -> BlobRecord | None:
        """The blob as it is now; None if there is none."""
        found = await _in_thread(partial(self._container.get, self.name))
        if found is None:
            return None
        return BlobRecord(
            body=found.body, metadata=found.metadata, state=State(found.lease_state or "available")
        )

    async def acquire(self, duration: timedelta | None, *, lease_id: str = "") -> str | None:
        """Take the lease; its id, or None if somebody has it.

        For 15 to 60 seconds, or for ever (None). With the id of the lease that runs it begins
        anew: so a call whose answer was lost may be made again.

        Raises:
            InvalidDuration: neither; the message names the range.
            UnknownResource: there is no such blob.
        """
        seconds = _ENDLESS if duration is None else int(lease_s(duration))
        proposed = lease_id or str(UUID(hex=new_token()))
        answer = await self._lease("acquire", proposed_lease_id=proposed, lease_duration=seconds)
        if answer.status == NOT_FOUND:
            raise UnknownResource(f"there is no blob {self.name}: make it first")
        return proposed if answer.status == CREATED else None

    async def renew(self, lease_id: str) -> None:
        """Begin the time of the lease anew.

        The service also renews a lease that has run out, if nobody has touched the blob since.

        Raises:
            LeaseLost: it is not this lease that runs.
        """
        self._check(await self._lease("renew", lease_id=lease_id), OK)

    async def change(self, lease_id: str, *, to: str = "") -> str:
        """Give the lease another id, which is returned: the old one is dead. Its time goes on.

        Raises:
            LeaseLost: it is not this lease that runs.
        """
        proposed = to or str(UUID(hex=new_token()))
        answer = await self._lease("change", lease_id=lease_id, proposed_lease_id=proposed)
        self._check(answer, OK)
        return proposed

    async def release(self, lease_id: str) -> bool:
        """Make the blob available at once; False if it was not this lease that it had."""
        return (await self._lease("release", lease_id=lease_id)).status == OK

    async def break_(self, *, after: timedelta | None = None) -> timedelta | None:
        """End the lease for whoever has it; how long it still lasts. None if there is none.

        ``after`` is from 0 to 60 seconds. Without it a lease runs to its end, and an endless one
        ends now. A second break can only shorten the time.

        Raises:
            InvalidDuration: ``after`` is out of range.
        """
        more: dict[str, int] = {}
        if after is not None:
            seconds = seconds_of(after, what="break period", min_s=0.0, max_s=LONGEST_S)
            more["lease_break_period"] = -int(-seconds // 1)
        answer = await self._lease("break", **more)
        if answer.status != ACCEPTED:
            return None
        return timedelta(seconds=int(answer.headers.get("x-ms-lease-time", "0")))

    async def write(
        self, body: bytes, *, lease_id: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Replace what is in the blob, and its metadata, under the lease.

        Raises:
            FencedWrite: it is not this lease that runs; nothing was written.
            UsageError: the metadata can not be kept.
        """
        put = partial(
            self._container.put_leased,
            self.name,
            body,
            lease_id=_plain(lease_id, "a lease id"),
            metadata=_checked(metadata),
        )
        answer = await _in_thread(lambda given_up: put(given_up=given_up))
        if answer.status != CREATED:
            raise FencedWrite(self._words(answer), key=self.name, reason="fenced")

    async def _lease(self, action: str, **more: str | int) -> HttpResponse:
        for each in more.values():
            _plain(str(each), "a lease id")
        return await _in_thread(
            lambda given_up: self._container.lease(self.name, action, given_up, **more)
        )

    def _check(self, answer: HttpResponse, expected: int) -> None:
        if answer.status != expected:
            raise LeaseLost(self._words(answer), key=self.name, reason="not_held")

    def _words(self, answer: HttpResponse) -> str:
        return (
            f"the lease of {self.name} is lost ({answer.status} {answer.code}): stop the work, "
            "then acquire it anew"
        )


class Blobs:
    """The blobs of one container, below one prefix."""

    def __init__(self, container: Container) -> None:
        """Over a container that is there."""
        self._container = container

    def lease(self, name: str) -> BlobLease:
        """The lease of one blob, which need not be there yet.

        Raises:
            UsageError: that is no name.
        """
        if not name:
            raise UsageError("a blob has a name, such as jobs/nightly")
        return BlobLease(self._container, name)


@asynccontextmanager
async def open_blobs(
    url: str, *, environment: Mapping[str, str], clock: Clock | None = None
) -> AsyncIterator[Blobs]:
    """Open the container that the URL names, as for the store; made if it is not there.

    Raises:
        InvalidUrl: the URL can not be used, or there is no right.
        StoreUnavailable: there is no answer.
        StoreUnusable: the service refuses us.
    """
    address, clock = BlobAddress.of(url, environment), clock or SystemClock()
    wire = HttpClient(address, right_for(address, clock), clock=clock, rng=system_random())
    container = Container(address, wire)
    try:
        await _in_thread(container.make)
        yield Blobs(container)
    finally:
        wire.close()


async def _in_thread(call: Callable[[threading.Event], T]) -> T:
    given_up = threading.Event()
    try:
        return await to_thread.run_sync(call, given_up, abandon_on_cancel=True)
    finally:
        given_up.set()


def _checked(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    for name, value in (metadata or {}).items():
        if not name.isascii() or not name.isidentifier():
            raise UsageError(f"metadata are named by letters, digits and _, not {name[:80]!r}")
        _plain(value, f"the metadata {name}")
    return metadata or {}


def _plain(text: str, what: str) -> str:
    """It goes into the head of a request: nothing else must get there with it."""
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise UsageError(f"{what} must be of printable ASCII, without spaces around it")
    return text
