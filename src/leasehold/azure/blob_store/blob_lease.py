"""The lease of one blob, as the service has it: for partitions and jobs that are a blob each.

This is not the store. It has no epochs, no groups and no history, only the five states of the
service. Not getting a lease is a result. Having lost one is ``LeaseLost``, whether the service
answers 409, 412 or 404. A write shows the lease id and is refused when the lease is over. But the
service lets any process write a blob whose lease is over, without a lease id.
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
from leasehold.azure.blob_store.credentials import credential_for
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
    """A blob as any process sees it: its content and the state of its lease."""

    body: bytes = field(repr=False)
    metadata: Mapping[str, str]
    state: State


class BlobLease:
    """The lease of one blob. It holds no state: the process that has the lease id has the lease."""

    def __init__(self, container: Container, name: str) -> None:
        """Of the blob ``name``; ``open_blobs`` makes them."""
        self.name = name
        self._container = container

    async def create(self, body: bytes = b"", *, metadata: Mapping[str, str] | None = None) -> bool:
        """Create the blob unless it exists; return whether it was created.

        Raises:
            UsageError: the metadata cannot be stored.
        """
        kept = _checked(metadata)
        put = partial(self._container.put, self.name, body, etag=None, metadata=kept)
        return await _in_thread(lambda cancelled: put(cancelled=cancelled)) is not None

    async def read(self) -> BlobRecord | None:
        """Read the blob; None if it does not exist."""
        found = await _in_thread(partial(self._container.get, self.name))
        if found is None:
            return None
        return BlobRecord(
            body=found.body, metadata=found.metadata, state=State(found.lease_state or "available")
        )

    async def acquire(self, duration: timedelta | None, *, lease_id: str = "") -> str | None:
        """Take the lease; return its id, or None if another process has it.

        The duration is 15 to 60 seconds, or None for a lease without end. With the id of the
        running lease, its time starts again: so a call whose answer was lost may be repeated.

        Raises:
            InvalidDuration: the duration is out of range; the message names the range.
            UnknownResource: the blob does not exist.
        """
        seconds = _ENDLESS if duration is None else int(lease_s(duration))
        proposed = lease_id or str(UUID(hex=new_token()))
        response = await self._lease("acquire", proposed_lease_id=proposed, lease_duration=seconds)
        if response.status == NOT_FOUND:
            raise UnknownResource(f"there is no blob {self.name}: make it first")
        return proposed if response.status == CREATED else None

    async def renew(self, lease_id: str) -> None:
        """Start the time of the lease again.

        The service also renews a lease that has expired, if no process has touched the blob since.

        Raises:
            LeaseLost: another lease runs, or none.
        """
        self._check(await self._lease("renew", lease_id=lease_id), OK)

    async def change(self, lease_id: str, *, to: str = "") -> str:
        """Give the lease another id, and return it. The old id is void; its time continues.

        Raises:
            LeaseLost: another lease runs, or none.
        """
        proposed = to or str(UUID(hex=new_token()))
        response = await self._lease("change", lease_id=lease_id, proposed_lease_id=proposed)
        self._check(response, OK)
        return proposed

    async def release(self, lease_id: str) -> bool:
        """Make the blob available immediately; False if this lease does not run."""
        return (await self._lease("release", lease_id=lease_id)).status == OK

    async def break_(self, *, after: timedelta | None = None) -> timedelta | None:
        """End the lease of any holder; return its remaining time, or None if there is no lease.

        ``after`` is from 0 to 60 seconds. Without it a lease runs to its end, and a lease without
        end ends now. A second break can only shorten the time.

        Raises:
            InvalidDuration: ``after`` is out of range.
        """
        more: dict[str, int] = {}
        if after is not None:
            seconds = seconds_of(after, what="break period", min_s=0.0, max_s=LONGEST_S)
            more["lease_break_period"] = -int(-seconds // 1)
        response = await self._lease("break", **more)
        if response.status != ACCEPTED:
            return None
        return timedelta(seconds=int(response.headers.get("x-ms-lease-time", "0")))

    async def write(
        self, body: bytes, *, lease_id: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Replace the content and the metadata of the blob, under the lease.

        Raises:
            FencedWrite: another lease runs, or none; nothing was written.
            UsageError: the metadata cannot be stored.
        """
        put = partial(
            self._container.put_leased,
            self.name,
            body,
            lease_id=_plain(lease_id, "a lease id"),
            metadata=_checked(metadata),
        )
        response = await _in_thread(lambda cancelled: put(cancelled=cancelled))
        if response.status != CREATED:
            raise FencedWrite(self._lost_message(response), key=self.name, reason="fenced")

    async def _lease(self, action: str, **more: str | int) -> HttpResponse:
        for each in more.values():
            _plain(str(each), "a lease id")
        return await _in_thread(
            lambda cancelled: self._container.lease(self.name, action, cancelled, **more)
        )

    def _check(self, response: HttpResponse, expected: int) -> None:
        if response.status != expected:
            raise LeaseLost(self._lost_message(response), key=self.name, reason="not_held")

    def _lost_message(self, response: HttpResponse) -> str:
        return (
            f"the lease of {self.name} is lost ({response.status} {response.code}): stop the work, "
            "then acquire it anew"
        )


class Blobs:
    """The blobs of one container, below one prefix."""

    def __init__(self, container: Container) -> None:
        self._container = container

    def lease(self, name: str) -> BlobLease:
        """Return the lease of one blob, which need not exist yet.

        Raises:
            UsageError: the name is empty.
        """
        if not name:
            raise UsageError("a blob has a name, such as jobs/nightly")
        return BlobLease(self._container, name)


@asynccontextmanager
async def open_blobs(
    url: str, *, environment: Mapping[str, str], clock: Clock | None = None
) -> AsyncIterator[Blobs]:
    """Open the container that the URL names, as for the store; create it if it does not exist.

    Raises:
        InvalidUrl: the URL cannot be used, or there is no credential.
        StoreUnavailable: the service does not answer.
        StoreUnusable: the service refuses access.
    """
    address, clock = BlobAddress.of(url, environment), clock or SystemClock()
    http_client = HttpClient(
        address, credential_for(address, clock), clock=clock, rng=system_random()
    )
    container = Container(address, http_client)
    try:
        await _in_thread(container.prepare)
        yield Blobs(container)
    finally:
        http_client.close()


async def _in_thread(call: Callable[[threading.Event], T]) -> T:
    cancelled = threading.Event()
    try:
        return await to_thread.run_sync(call, cancelled, abandon_on_cancel=True)
    finally:
        cancelled.set()


def _checked(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    for name, value in (metadata or {}).items():
        if not name.isascii() or not name.isidentifier():
            raise UsageError(f"metadata are named by letters, digits and _, not {name[:80]!r}")
        _plain(value, f"the metadata {name}")
    return metadata or {}


def _plain(text: str, what: str) -> str:
    """Check text that goes into a header: nothing else may get there with it."""
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise UsageError(f"{what} must be of printable ASCII, without spaces around it")
    return text
