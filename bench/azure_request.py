"""What one request to the blob service costs the process that makes it, in CPU.

Ours is the store's own client, theirs azure-storage-blob at its defaults. Both sign with the key of
the account, keep their connection, and ask the same Azurite for the same, in this process and by
turns, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING
from uuid import UUID

from azure.core import MatchConditions
from azure.storage.blob import BlobClient, BlobLeaseClient
from bench.report import Row, cost
from tests.support.azurite import azurite

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.container import CREATED, OK, Container
from leasehold.azure.blob_store.credentials import credential_for
from leasehold.azure.blob_store.http import HttpClient
from leasehold.clock import SystemClock, new_token, system_random

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.azurite import Azurite

_NEVER = threading.Event()
_LEASE_S = 60
_WARM = 5
# About what the positions of 32 partitions are on a slip.
_POSITIONS = {"marks": "x" * 600, "mark": "0123456789abcdef"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """The same request by both; each returns when it is done, and raises if it was refused."""

    ours: Callable[[], None]
    theirs: Callable[[], None]


def requests(*, each: int, rounds: int) -> Sequence[Row]:
    """A renewal and a writing of positions, ``each`` times by both sides in each round."""
    with azurite() as service, ExitStack() as stack:
        renewal, positions = _pairs(service, stack)
        named = "peer: azure-storage-blob"
        return [
            _row(f"renew a blob lease: CPU ms per request; {named}", renewal, each, rounds),
            _row("set a blob's metadata: CPU ms per request", positions, each, rounds),
        ]


def _pairs(service: Azurite, stack: ExitStack) -> tuple[_Pair, _Pair]:
    """Each side has a blob of its own in one container, with a lease on it for renewals."""
    clock, address = SystemClock(), BlobAddress.of(service.new_store_url(), {})
    http_client = HttpClient(
        address, credential_for(address, clock), clock=clock, rng=system_random()
    )
    stack.callback(http_client.close)
    container = Container(address, http_client)
    container.prepare(_NEVER)
    etags = {
        name: container.put(name, b"", etag=None, metadata={}, cancelled=_NEVER) or ""
        for name in ("ours", "our-slip", "theirs", "their-slip")
    }
    lease_id = str(UUID(hex=new_token()))
    taken = container.lease(
        "ours", "acquire", _NEVER, proposed_lease_id=lease_id, lease_duration=_LEASE_S
    )
    assert taken.status == CREATED

    def client(name: str) -> BlobClient:
        found = BlobClient.from_connection_string(
            service.connection_string, address.container, name
        )
        return stack.enter_context(found)

    lease, slip = BlobLeaseClient(client("theirs")), client("their-slip")
    lease.acquire(lease_duration=_LEASE_S)

    def renew() -> None:
        assert container.lease("ours", "renew", _NEVER, lease_id=lease_id).status == OK

    def their_renew() -> None:
        lease.renew()

    def write() -> None:
        etag = container.set_metadata(
            "our-slip", _POSITIONS, etag=etags["our-slip"], cancelled=_NEVER
        )
        assert etag is not None
        etags["our-slip"] = etag

    def their_write() -> None:
        done = slip.set_blob_metadata(
            _POSITIONS,
            etag=etags["their-slip"],
            match_condition=MatchConditions.IfNotModified,
        )
        etags["their-slip"] = str(done["etag"])

    return _Pair(ours=renew, theirs=their_renew), _Pair(ours=write, theirs=their_write)


def _row(what: str, pair: _Pair, each: int, rounds: int) -> Row:
    """The ratio is the median of those of neighbouring measurements."""
    for _ in range(_WARM):
        pair.ours()
        pair.theirs()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(_cpu_ms(pair.ours, each))
        theirs.append(_cpu_ms(pair.theirs, each))
    row = cost(what, median(ours), median(theirs))
    ratio = median(other / one for one, other in zip(ours, theirs, strict=True))
    return Row(what=row.what, ours=row.ours, peer=row.peer, ratio=float(f"{ratio:.3g}"))


def _cpu_ms(request: Callable[[], None], times: int) -> float:
    began_s = time.process_time()
    for _ in range(times):
        request()
    return (time.process_time() - began_s) / times * 1e3
