"""Faults of the parts of the Azure Blob store that need no service to be seen."""

from __future__ import annotations

import resource
import socket
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from tests.support.hub import until

from leasehold.azure import BlobLease
from leasehold.azure.blob_store.blob_lease import Blobs
from leasehold.azure.blob_store.container import ReadBlob
from leasehold.azure.blob_store.credentials import Bearer
from leasehold.azure.blob_store.document_cache import HistoryArchive
from leasehold.azure.blob_store.document_json import from_json, to_json
from leasehold.azure.blob_store.group_document import GroupDocument
from leasehold.azure.blob_store.http import HttpConnection
from leasehold.azure.blob_store.naming import LeaseLocation
from leasehold.errors import UsageError
from leasehold.model import KeyClaim, Lease, MemberInfo
from leasehold.testing.clock import ManualClock

NOW, WALL = 1_000_000.0, datetime(2026, 1, 1, tzinfo=UTC)
NEVER = threading.Event()
NOTHING = SimpleNamespace(put=None, put_leased=None, lease=None)
# select() knows no descriptor from here on.
MANY_FILES = 1024


# ------------------------------------------------------------------ connections


def test_a_process_with_many_open_files_keeps_its_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.fail(f"this machine lets a process have {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    many: list[socket.socket] = []
    try:
        while not many or many[-1].fileno() < MANY_FILES:
            many.append(socket.socket())
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            connection = HttpConnection("127.0.0.1", port, tls=None, timeout_s=90.0)
            peer, _ = server.accept()
            assert not connection.ended()
            peer.close()
            until(connection.ended)
            connection.close()
    finally:
        for each in many:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ------------------------------------------------------------------ old terms


@dataclass
class _Blobs:
    """Of a container only what the spill asks for; counts the requests."""

    kept: dict[str, bytes] = field(default_factory=dict)
    calls: int = 0

    def get(self, name: str, _given_up: threading.Event) -> ReadBlob | None:
        self.calls += 1
        body = self.kept.get(name)
        return None if body is None else ReadBlob(body=body, etag="e", metadata={})

    def put(self, name: str, body: bytes, **_named: object) -> str:
        self.calls += 1
        self.kept[name] = body
        return "e"


def test_old_terms_leave_a_big_document_little_by_little() -> None:
    """All keys of a group change owners together: no call moves the terms of all of them."""
    document, blobs = GroupDocument(LeaseLocation("p/g")), _Blobs()
    archive = HistoryArchive(blobs)  # type: ignore[arg-type]
    names = [f"p/g/{number}" for number in range(100)]
    document.declare(names)
    leases = [Lease(holder=f"h{n}", token="t", group="p/g", duration_s=30.0) for n in range(2)]
    for lease in leases:
        document.grant(lease, MemberInfo(), NOW, WALL)
    max_calls, max_terms = 0, 0
    for epoch in range(120):
        wanted = [KeyClaim(key=key, seen_epoch=epoch) for key in names]
        taken = document.claim(leases[epoch % 2], wanted, force=True, now=NOW, wall=WALL)
        assert len(taken) == len(names)
        before = blobs.calls
        archive.archive_old_terms(document, NEVER)
        max_calls = max(max_calls, blobs.calls - before)
        max_terms = max(max_terms, *(len(row.terms) for row in document.rows))
    assert max_calls <= 2 * (1 + len(names) // 32)
    assert max_terms < 64
    for key in (names[0], names[-1]):
        terms = archive.history(key, list(document.history(key, 100))[::-1], NEVER)
        assert [term.epoch for term in terms[-100:]] == list(range(21, 121))


# ------------------------------------------------------------------ when a break is due


def test_a_break_is_due_by_the_time_at_which_it_was_written() -> None:
    document = GroupDocument(LeaseLocation("p/g"))
    document.declare(["p/g/a"])
    lease = Lease(holder="h", token="t", group="p/g", duration_s=15.0)
    document.grant(lease, MemberInfo(), NOW, WALL)
    document.claim(lease, [KeyClaim(key="p/g/a", seen_epoch=0)], force=False, now=NOW, wall=WALL)
    document.break_after("p/g/a", 1, 40.0, slack_s=1.0, now=NOW, wall=WALL)
    again = from_json(document.location, to_json(document), modified_s=NOW + 100)
    (row,) = again.rows
    assert row.break_at == NOW + 100 + 1 + 15  # from then on, and one lease at most
    later = from_json(document.location, to_json(again), modified_s=NOW + 200)
    assert next(iter(later.rows)).break_at == row.break_at
    later.apply_liveness(NOW + 105, ())
    later.break_after("p/g/a", 1, 40.0, slack_s=1.0, now=NOW + 105, wall=WALL)
    assert to_json(later) == to_json(again)


# ------------------------------------------------------------------ rights


@dataclass
class Credential:
    clock: ManualClock
    asked: int = 0
    fails: bool = False

    def get_token(self, _scope: str) -> SimpleNamespace:
        self.asked += 1
        if self.fails:
            raise RuntimeError("no way in")
        ends = self.clock.utc_now() + timedelta(hours=1)
        return SimpleNamespace(token=f"t{self.asked}", expires_on=int(ends.timestamp()))


def test_a_token_that_is_still_good_is_used_while_there_is_no_new_one() -> None:
    clock = ManualClock()
    credential = Credential(clock)
    blob_credential = Bearer(credential, clock)
    assert blob_credential.headers("GET", "/", {}, {}) == {"Authorization": "Bearer t1"}
    credential.fails = True
    clock.advance(3500)
    for _ in range(9):
        assert blob_credential.headers("GET", "/", {}, {}) == {"Authorization": "Bearer t1"}
    assert credential.asked == 2  # and not for each call anew
    credential.fails = False
    clock.advance(60)
    assert blob_credential.headers("GET", "/", {}, {}) == {"Authorization": "Bearer t3"}


def test_nobody_waits_for_a_new_token_while_the_old_one_is_good() -> None:
    clock, entered, leave = ManualClock(), threading.Event(), threading.Event()
    credential = Credential(clock)
    blob_credential = Bearer(credential, clock)
    blob_credential.headers("GET", "/", {}, {})
    real = credential.get_token

    def slow(scope: str) -> SimpleNamespace:
        entered.set()
        assert leave.wait(90)
        return real(scope)

    clock.advance(3500)
    asking = threading.Thread(target=blob_credential.headers, args=("GET", "/", {}, {}))
    with patch.object(credential, "get_token", slow):
        asking.start()
        assert entered.wait(90)
        assert blob_credential.headers("GET", "/", {}, {}) == {"Authorization": "Bearer t1"}
        leave.set()
        asking.join()
    assert blob_credential.headers("GET", "/", {}, {}) == {"Authorization": "Bearer t2"}


# ------------------------------------------------------------------ heads of requests


@pytest.mark.anyio
@pytest.mark.parametrize(
    "metadata",
    [{"owner": "me\r\nx-ms-lease-id: other"}, {"owner": "é"}, {"own er": "me"}, {"a": " b"}],
)
async def test_metadata_that_can_not_be_kept_are_refused(metadata: dict[str, str]) -> None:
    blob = BlobLease(NOTHING, "jobs/nightly")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        await blob.create(metadata=metadata)
    with pytest.raises(UsageError):
        await blob.write(b"", lease_id="x", metadata=metadata)


@pytest.mark.anyio
async def test_a_lease_id_that_is_none_is_refused_and_not_shown() -> None:
    blob = BlobLease(NOTHING, "jobs/nightly")  # type: ignore[arg-type]
    for attempt in (blob.renew, blob.change, blob.release):
        with pytest.raises(UsageError) as caught:
            await attempt("secret\r\nx-ms-date: never")
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="has a name"):
        Blobs(NOTHING).lease("")  # type: ignore[arg-type]
