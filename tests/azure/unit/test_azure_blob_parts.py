"""Parts of the Azure Blob store that need no service: names, documents, credentials, time."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.azure.blob_store import service_time
from leasehold.azure.blob_store.credentials import AccountKey, Bearer
from leasehold.azure.blob_store.document_json import at_wall, from_json, to_json
from leasehold.azure.blob_store.group_document import GroupDocument
from leasehold.azure.blob_store.naming import LeaseLocation, lease_id, part
from leasehold.core.token_digest import token_digest
from leasehold.errors import InvalidUrl, StoreUnusable
from leasehold.model import CheckpointWrite, HandOver, KeyClaim, Lease, MemberInfo, Note, Position
from leasehold.stores.rows import LeaseRow
from leasehold.testing.clock import ManualClock

NOW, WALL = 1_000_000.0, datetime(2026, 1, 1, tzinfo=UTC)
QUICK = settings(max_examples=150, derandomize=True, database=None)


@QUICK
@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_two_names_are_never_alike(one: str, other: str) -> None:
    one, other = (text.encode(errors="ignore").decode() for text in (one, other))
    assert (part(one) == part(other)) is (one == other)
    for text in (part(one), part(other)):
        assert len(text) <= 160
        assert not set(text) & set("/.%?#\\ ")


def test_a_name_that_looks_like_a_cut_one_is_not_taken_for_it() -> None:
    cut = part("x" * 1000)
    assert cut != part(cut)
    assert part("a.b") == "a=2Eb"
    assert part("a=b") == "a=3Db"


def test_tokens_leave_only_digests() -> None:
    assert "token" not in token_digest("token") + lease_id("token")
    assert lease_id("token") != lease_id("token ")
    assert len(lease_id("token")) == 36


def _lived() -> GroupDocument:
    """A document with something of everything in it."""
    document = GroupDocument(LeaseLocation("p/g"))
    keys = [f"p/g/{name}" for name in ("a", "b", "c", "d", "été 🚀", "e")]
    document.declare(keys)
    leases = [
        Lease(holder=f"h{n}", token=f"t{n}", group=group, duration_s=30.0)
        for n, group in enumerate(("p/g", "p/g", "p/g", "", "other"))
    ]
    for lease in leases:
        document.grant(lease, MemberInfo(host="é", most=3, loads={"k": 0.5}), NOW, WALL)

    def steal(number: int, key: str) -> None:
        wanted = [KeyClaim(key=key, seen_epoch=1, note="begun")]
        document.claim(leases[number], wanted, force=True, now=NOW, wall=WALL)

    mine = document.claim(
        leases[0],
        [KeyClaim(key=key, seen_epoch=0) for key in keys],
        force=False,
        now=NOW,
        wall=WALL,
    )
    steal(3, keys[1])
    steal(4, keys[2])
    document.hand_over([HandOver(ownership=mine[0], to="h1", note="over")], 50.0, NOW, WALL)
    document.break_(keys[3], 1, 20.0, NOW, WALL)
    document.ask(leases[1], KeyClaim(key=keys[4], seen_epoch=1), NOW, WALL)
    document.checkpoint(
        [CheckpointWrite(ownership=mine[4], position=Position(sequence_number=7, offset="o"))],
        NOW,
        WALL,
    )
    document.checkpoint(
        [CheckpointWrite(ownership=mine[1], position=Position(sequence_number=7))], NOW, WALL
    )
    document.annotate([Note(ownership=mine[4], text="half")], NOW)
    document.release([mine[5]], {}, NOW, WALL)
    document.forget([keys[5]], NOW, WALL)
    document.reset({}, NOW, WALL)
    document.request_leave("h1", NOW, WALL)
    document.revoke(leases[2], NOW, WALL)
    document.note_group_elsewhere("h1", "x/y")
    document.apply_changes_elsewhere(
        "h1", "x/y", {"x/y/1": 4}, [(3, document.history(keys[5], 1)[0])]
    )
    document.archived.add(keys[0])
    return document


def test_a_document_is_read_as_it_was_written() -> None:
    document = _lived()
    body = to_json(document)
    again = from_json(document.location, body)
    assert to_json(again) == body
    for each in (document, again):
        each.apply_liveness(NOW, {"h3"})
    assert again.resources("p/g", NOW) == document.resources("p/g", NOW)
    assert again.members("p/g", NOW) == document.members("p/g", NOW)
    assert again.checkpoints("p/g") == document.checkpoints("p/g")
    assert again.fenced == document.fenced == 1
    me = Lease(holder="h1", token="t1", group="p/g", duration_s=30.0)
    changes = [each.renew(me, 0, None, NOW, WALL) for each in (document, again)]
    assert changes[0] == changes[1]
    assert changes[0].ended
    assert again.changed_elsewhere("h1", 0) == {"x/y": ["x/y/1"]}
    assert to_json(again) == to_json(document)


def test_the_time_of_writing_is_all_that_changes() -> None:
    document = _lived()
    document.wall_s = 17
    body = to_json(document)
    assert at_wall(body, document, 18) == to_json(document) != body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "damaged"),
        (b"{}", "damaged"),
        (b'{"format":3}', "bring the program up to date"),
        (b'{"format":1,"group":"else"}', "another group"),
        (b"\xff\xfe", "damaged"),
        (b"[]", "damaged"),
    ],
)
def test_a_document_that_is_none_is_said_to_be_so(body: bytes, message: str) -> None:
    with pytest.raises(StoreUnusable, match=message):
        from_json(LeaseLocation("p/g"), body)


def test_a_request_is_signed_as_the_service_reads_it() -> None:
    blob_credential = AccountKey("acme", "a2V5")
    headers = {"x-ms-date": "now", "x-ms-version": "v", "Content-Length": "0", "If-Match": '"e"'}
    found = blob_credential.headers("PUT", "/acme/c/b", {"comp": "lease", "a": "b"}, headers)
    text = 'PUT\n\n\n\n\n\n\n\n"e"\n\n\n\nx-ms-date:now\nx-ms-version:v\n/acme/acme/c/b\na:b\n'
    text += "comp:lease"
    expected = base64.b64encode(hmac.digest(b"key", text.encode(), hashlib.sha256)).decode()
    assert found == {"Authorization": f"SharedKey acme:{expected}"}


def test_a_key_that_is_none_is_not_quoted() -> None:
    with pytest.raises(InvalidUrl, match="acme") as caught:
        AccountKey("acme", "not base 64!")
    assert "not base" not in str(caught.value)


@dataclass
class Credential:
    clock: ManualClock
    asked: int = 0
    fails: bool = False

    def get_token(self, scope: str) -> SimpleNamespace:
        assert scope.startswith("https://storage")
        if self.fails:
            raise RuntimeError("no way in")
        self.asked += 1
        ends = self.clock.utc_now() + timedelta(hours=1)
        return SimpleNamespace(token=f"t{self.asked}", expires_on=int(ends.timestamp()))


def test_a_token_is_replaced_before_its_end() -> None:
    clock = ManualClock()
    credential = Credential(clock)
    blob_credential = Bearer(credential, clock)
    seen = []
    for _ in range(8):
        seen.append(blob_credential.headers("GET", "/", {}, {})["Authorization"])
        clock.advance(600)
    assert seen == ["Bearer t1"] * 6 + ["Bearer t2"] * 2
    credential.fails = True
    clock.advance(3600)
    with pytest.raises(StoreUnusable, match="AZURE_STORAGE_KEY"):
        blob_credential.headers("GET", "/", {}, {})


def test_time_lies_between_two_bounds() -> None:
    clock = ManualClock()
    start = clock.boottime_s()
    http_client = SimpleNamespace(
        latest=SimpleNamespace(date_s=5000.0, sent_s=start - 0.5, received_s=start)
    )
    clock.advance(2)
    found = service_time.service_time_now(http_client, clock)  # type: ignore[arg-type]
    assert found is not None
    # Two seconds by a clock that may be wrong by a twentieth.
    assert (found.low_s, found.high_s) == pytest.approx((5001.9, 5003.625))
    assert found.slack_s == pytest.approx(1.725)
    clock.advance(60)
    assert service_time.service_time_now(http_client, clock) is None  # type: ignore[arg-type]


def test_guests_that_have_nothing_are_not_kept_for_ever() -> None:
    document = _lived()
    for number in range(300):
        lease = Lease(holder=f"g{number}", token="t", group="", duration_s=30.0)
        row = replace_row(document, lease)
        document.add_outsider(row)
        key = "p/g/new"
        document.declare([key])
        epoch = document._resources[key].epoch
        (taken,) = document.claim(
            lease, [KeyClaim(key=key, seen_epoch=epoch)], force=True, now=NOW, wall=WALL
        )
        document.release([taken], {}, NOW, WALL)
    kept = {row.lease.holder for row in document.leases_to_store()}
    assert "g299" in kept
    assert "g0" not in kept
    assert {"h0", "h1", "h3", "h4"} <= kept


def replace_row(document: GroupDocument, lease: Lease) -> LeaseRow:
    row = document.lease_row("h0")
    assert row is not None
    return replace(row, lease=lease, ends_at=NOW + 30, owned={}, abroad={}, ended_terms=[])
