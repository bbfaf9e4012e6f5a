"""The Azure Blob store: real blob leases, and one JSON document for each group.

* Each **holder** has its own blob with a real blob lease. The lease id follows from the holder's
  token. A renewal is the service's own *renew*: one for each host and cycle, whatever it owns.
* Each **group** has one **group document**, a blob of JSON. It has the keys with their epochs and
  terms, the members and the checkpoints. Every change is one conditional write (``If-Match``). The
  second of two writers reads the document again and repeats its step. The steps are those of the
  memory store.
* A holder that writes **checkpoints** often has a *checkpoint blob*, which the document names. The
  positions of its keys are the metadata of that blob, so a checkpoint is one cheap write. Before
  another process takes one of the keys, it seals the blob and merges the positions into the
  document (``checkpoint_blobs``).
* The service's timer alone decides **who is alive**. One listing of a group shows the lease of
  every member and whether the document has changed. Members take turns to list (``blob_leases``);
  the others poll the document alone. So a quiet cycle is two requests.
* **No lease is ended by a guess.** Before a document says that a lease has ended, the blob of that
  lease is deleted without a lease id: the service does that only while no lease runs on it. A late
  renewal finds nothing to renew, so the end is final.
* **Old terms** move to a history blob of their key, before the document is written without them.
* **Time** is the service's ``Date``, in whole seconds. What is due at some time may come up to two
  seconds late, and never early. The time of a break counts from when the service wrote it
  (``Last-Modified``), however long the process that ordered it was paused before.
* **Outsiders** are holders without a group or of another group. The document whose key they own
  lists them, and their own document lists that group.

Secrets are never shown. Tokens are never stored, only digests of them.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.container import Container
from leasehold.azure.blob_store.credentials import credential_for
from leasehold.azure.blob_store.document_cache import DocumentCache, StepContext, no_holders
from leasehold.azure.blob_store.group_document import GroupDocument
from leasehold.azure.blob_store.http import HttpClient
from leasehold.azure.blob_store.lease_calls import LeaseCalls, with_safe_break_time
from leasehold.azure.blob_store.lease_lengths import lease_s
from leasehold.azure.blob_store.naming import LeaseLocation
from leasehold.azure.blob_store.ownerships import OwnershipCalls
from leasehold.azure.blob_store.service_time import LeaseProofs
from leasehold.clock import system_random
from leasehold.model import Lease
from leasehold.names import check_group, check_name, group_of
from leasehold.stores.validation import (
    check_hand_over_request,
    checked_keys,
    checked_notes,
    checked_positions,
    limit_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from leasehold.clock import Clock
    from leasehold.model import (
        Changes,
        Checkpoint,
        CheckpointWrite,
        HandOver,
        KeyClaim,
        MemberInfo,
        MemberRecord,
        Note,
        Ownership,
        Position,
        Refusal,
        Resource,
        Term,
    )

__all__ = ["AzureBlobStore", "open_url"]


T = TypeVar("T")

# The store's own threads, so that a program that fills the common pool with slow work does not
# delay a renewal.
_THREADS = 16


class AzureBlobStore:
    """A ``Store`` in a container. Its clock is the service's.

    A call that is cancelled may still be carried out: to its caller the result is *unknown*, as the
    contract says of a lost response.
    """

    def __init__(self, address: BlobAddress, *, clock: Clock) -> None:
        """Over a container that is there; ``AzureBlobStore.open`` makes one."""
        self._url = address.url
        rng = system_random()
        self.http_client = HttpClient(address, credential_for(address, clock), clock=clock, rng=rng)
        self._container = Container(address, self.http_client)
        self._cache = DocumentCache(self._container, clock=clock, rng=rng)
        proofs = LeaseProofs(clock)
        self._leases = LeaseCalls(self._cache, proofs, clock)
        self._ownerships = OwnershipCalls(self._cache, proofs, clock)
        self._threads = CapacityLimiter(_THREADS)

    @classmethod
    async def open(
        cls, address: BlobAddress, *, clock: Clock, create: bool = True
    ) -> AzureBlobStore:
        """Open the container; with ``create``, create it if it does not exist.

        Raises:
            InvalidUrl: there is no credential.
            StoreUnavailable: the service does not answer.
            StoreUnusable: the service refuses access.
        """
        store = cls(address, clock=clock)
        try:
            await store._in_thread(partial(store._container.prepare, create=create))
        except BaseException:
            store.http_client.close()
            raise
        return store

    @property
    def url(self) -> str:
        return self._url

    # ----------------------------------------------------------- changes

    async def declare(self, keys: Sequence[str]) -> int:
        return await self._in_thread(partial(self._ownerships.declare, checked_keys(keys)))

    async def forget(self, keys: Sequence[str]) -> int:
        return await self._in_thread(partial(self._ownerships.forget, checked_keys(keys)))

    def check_lease(self, duration: timedelta) -> None:
        lease_s(duration)

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """See ``Store``. The duration is 15 to 60 whole seconds."""
        check_name(holder, what="holder")
        check_name(token, what="token")
        if group:
            check_group(group)
        lease = Lease(holder=holder, token=token, group=group, duration_s=lease_s(duration))
        return await self._in_thread(partial(self._leases.grant, lease, info))

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """See ``Store``. From four members of a stream on, they take turns to check who is alive.

        So an expired lease may be ended later than by the first renewal after its end: at the
        latest by a renewal a whole lease after its own last check.
        """
        return await self._in_thread(partial(self._leases.renew, lease, since, info))

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        await self._in_thread(partial(self._leases.revoke, lease, lapsed=lapsed))

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        return await self._in_thread(partial(self._ownerships.claim, lease, wanted, force=force))

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        return await self._in_thread(partial(self._ownerships.ask, lease, wanted))

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        limit_seconds = limit_s(limit, what="hand-over limit")
        return await self._in_thread(partial(self._ownerships.hand_over, hand_overs, limit_seconds))

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        checked = checked_notes(ownerships, notes)
        return await self._in_thread(partial(self._ownerships.release, ownerships, checked))

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        after_s = limit_s(after, what="break period")
        return await self._in_thread(partial(self._ownerships.break_, key, epoch, after_s))

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """See ``Store``. One request for each group, however many checkpoints there are."""
        return await self._in_thread(partial(self._ownerships.checkpoint, marks))

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        return await self._in_thread(partial(self._ownerships.annotate, notes))

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        check_hand_over_request(key, epoch=epoch, to=to)
        return await self._in_thread(partial(self._ownerships.request_hand_over, key, epoch, to))

    async def request_leave(self, holder: str) -> bool:
        check_name(holder, what="holder")
        return await self._in_thread(partial(self._ownerships.request_leave, holder))

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """See ``Store``. Keys of several groups are changed group by group."""
        checked = checked_positions(positions)
        return await self._in_thread(partial(self._ownerships.reset, checked))

    # ------------------------------------------------------------- reads

    async def groups(self) -> Sequence[str]:
        return await self._in_thread(self._ownerships.groups)

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        return await self._in_thread(partial(self._cache.checkpoints, LeaseLocation(group)))

    async def resources(self, group: str) -> Mapping[str, Resource]:
        def shown(context: StepContext) -> Mapping[str, Resource]:
            found = context.document.resources(group, context.now)
            return {key: with_safe_break_time(each, context) for key, each in found.items()}

        return await self._read(group, shown, alive=True)

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """See ``Store``. How long a lease still runs is not known: at most its duration."""
        return await self._read(
            group, lambda context: context.document.members(group, context.now), alive=True
        )

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        def terms(context: StepContext) -> tuple[list[Term], bool]:
            found = list(context.document.history(key, limit))
            return found, len(found) < limit and key in context.document.archived

        found, more = await self._read(group_of(key), terms)
        if more:
            older = partial(self._cache.archive.history, key, found[::-1])
            found = (await self._in_thread(older))[: -limit - 1 : -1]
        return found

    async def fenced_writes(self, group: str) -> int:
        return await self._read(group, lambda context: context.document.fenced_writes(group))

    async def close(self) -> None:
        """See ``Store``. A call that still runs ends on its own."""
        self.http_client.close()

    # ------------------------------------------------------------- parts

    async def _read(
        self, group: str, look_up: Callable[[StepContext], T], *, alive: bool = False
    ) -> T:
        liveness_of = GroupDocument.live_holders if alive else no_holders
        return await self._in_thread(
            partial(self._cache.read, LeaseLocation(group), look_up, liveness_of=liveness_of)
        )

    async def _in_thread(self, call: Callable[[threading.Event], T]) -> T:
        cancelled = threading.Event()
        try:
            return await to_thread.run_sync(
                call, cancelled, abandon_on_cancel=True, limiter=self._threads
            )
        finally:
            # Cancelled while it waits for its turn: it need not wait any longer.
            cancelled.set()


async def open_url(url: str, clock: Clock, *, create: bool = True) -> AzureBlobStore:
    """Open the store that the URL names; ``address`` describes the URLs.

    Without ``create`` a container that does not exist is not created.

    Raises:
        InvalidUrl: the URL cannot be used, or there is no credential.
        StoreUnavailable: the service does not answer.
        StoreUnusable: the service refuses access.
    """
    return await AzureBlobStore.open(BlobAddress.of(url, os.environ), clock=clock, create=create)
