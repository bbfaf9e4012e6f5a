"""What is said when the blob service lets nobody in: a SAS whose time is over is named as such."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime

import pytest

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.credentials import credential_for, expired_on
from leasehold.azure.blob_store.http import HttpClient
from leasehold.errors import StoreUnusable
from leasehold.testing.clock import ManualClock

SIGNED = "sv=2021&sig=top%2Fsecret"
ENDED = f"{SIGNED}&se=2020-01-01T00%3A00%3A00Z"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Refusing:
    """A connection whose other side answers every request with this status."""

    def __init__(self, status: int) -> None:
        self._status = status

    def exchange(self, request: bytes) -> tuple[int, dict[str, str], bytes, bool]:
        assert b"sig=top%2Fsecret" in request
        return self._status, {"x-ms-error-code": "AuthenticationFailed"}, b"", False

    def close(self) -> None:
        pass


def _refusal(address: BlobAddress, status: int, monkeypatch: pytest.MonkeyPatch) -> str:
    clock = ManualClock()
    http_client = HttpClient(
        address, credential_for(address, clock), clock=clock, rng=random.Random(1)
    )
    monkeypatch.setattr(http_client, "_connection", lambda: Refusing(status))
    with pytest.raises(StoreUnusable) as caught:
        http_client.request("GET", "/c01", retry=True, cancelled=threading.Event())
    assert "top" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_sas_whose_time_is_over_is_told_with_its_end(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quoted = ENDED.replace("%", "%25").replace("&", "%26")
    for url, environment in (
        (f"azure-blob://acme/c01?sas={quoted}", {}),
        ("azure-blob://acme/c01", {"AZURE_STORAGE_SAS_TOKEN": f"?{ENDED}"}),
    ):
        said = _refusal(BlobAddress.of(url, environment), status, monkeypatch)
        assert said.endswith("the SAS ended on 2020-01-01T00:00:00Z: make a new one")


@pytest.mark.parametrize(
    ("sas", "status"), [(f"{SIGNED}&se=2999-01-01", 403), (SIGNED, 403), (ENDED, 400)]
)
def test_else_all_is_named_that_may_be_wrong(
    sas: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = BlobAddress.of("azure-blob://acme/c01", {"AZURE_STORAGE_SAS_TOKEN": sas})
    said = _refusal(address, status, monkeypatch)
    assert "ended on" not in said
    assert "Storage Blob Data Contributor" in said


@pytest.mark.parametrize(
    ("said", "end"),
    [
        ("2020-01-01", "2020-01-01T00:00:00Z"),
        ("2020-01-01T10:30Z", "2020-01-01T10:30:00Z"),
        ("2020-01-01T10:30:00.1234567Z", "2020-01-01T10:30:00Z"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:01Z", ""),
        ("secret", ""),
        ("", ""),
    ],
)
def test_the_end_of_a_sas_is_read_in_each_of_its_forms(said: str, end: str) -> None:
    assert expired_on(f"sv=2021&se={said}&sig=x", NOW) == end
