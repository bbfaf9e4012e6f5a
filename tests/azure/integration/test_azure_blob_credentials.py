"""Credentials of the Azure Blob store on a real Azurite: connection strings, Entra ID by https.

Of a token Azurite looks at the issuer, the audience and the times, and not at the signature.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from tests.support.azure_blob_scene import GROUP, granted, keys, opened, owned
from tests.support.azurite import Azurite, shared_azurite, shared_azurite_with_tokens
from tests.support.hub import certificate

from leasehold.azure.blob_store import AzureBlobStore
from leasehold.clock import Clock, SystemClock
from leasehold.errors import InvalidUrl, StoreUnavailable, StoreUnusable
from leasehold.model import CheckpointWrite, Position
from leasehold.stores import open_store
from leasehold.testing.clock import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.server]

HOUR_S = 3600
STORAGE = "https://storage.azure.com"
RIGHTS = ("SAS_TOKEN", "KEY", "CONNECTION_STRING")


@pytest.fixture(autouse=True)
def _no_rights(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in RIGHTS:
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


async def use(store: AzureBlobStore) -> None:
    """Requests of all kinds: a lease, ownerships, positions in the document and in a blob."""
    lease = await granted(store)
    taken = await owned(store, lease, 2)
    for number in range(5):
        position = Position(sequence_number=number)
        assert not await store.checkpoint(
            [CheckpointWrite(ownership=o, position=position) for o in taken]
        )
    await store.renew(lease)
    stored = await store.checkpoints(GROUP)
    assert [stored[key].position.sequence_number for key in keys(2)] == [4, 4]
    assert set(await store.members(GROUP)) == {lease.holder}
    await store.release(taken)
    await store.revoke(lease)
    assert await store.members(GROUP) == {}


def chain_text(error: BaseException) -> str:
    """All that a program could show of it."""
    return f"{error!r}{''.join(traceback.format_exception(error))}"


# ------------------------------------------------------------------ connection strings


def by_key(service: Azurite, key: str) -> tuple[str, str]:
    """A connection string as the portal shows it with the keys, and the secret in it."""
    return service.connection_string.replace(service.key, key), key


def by_sas(service: Azurite, key: str) -> tuple[str, str]:
    """As the portal writes it for a SAS: endpoints of other services, and no account's name."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    sas = generate_account_sas(
        service.account,
        account_key=key,
        resource_types=ResourceTypes(container=True, object=True),
        permission=AccountSasPermissions(
            read=True, add=True, create=True, write=True, delete=True, list=True
        ),
        expiry=SystemClock().utc_now() + timedelta(hours=1),
    )
    text = (
        f"BlobEndpoint={service.url}/;QueueEndpoint=https://acme.queue.example/;"
        f"SharedAccessSignature={sas}"
    )
    return text, sas.partition("sig=")[2].partition("&")[0]


@pytest.mark.parametrize("written", [by_key, by_sas])
async def test_a_connection_string_is_enough_and_is_not_shown(
    written: Callable[[Azurite, str], tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from azure.storage.blob import ContainerClient

    service = shared_azurite()
    container = urlsplit(service.new_store_url()).path.rpartition("/")[2]
    # Where the account is stands in the connection string only.
    url = f"azure-blob://{service.account}/{container}/here"
    text, secret = written(service, service.key)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    async with opened(url) as store:
        await use(store)
        at = f"127.0.0.1:{service.port}/{service.account}"
        assert store.url == f"azure-blob://{at}/{container}/here?tls=0"
        shown = f"{store.url} {store!r} {store.http_client!r} {caplog.text}"
    with ContainerClient.from_connection_string(text, container) as client:
        names = [each.name for each in client.list_blobs()]
    assert [name for name in names if name.startswith("here/groups/") and name.endswith("/book")]

    caplog.clear()  # what azure-storage-blob logs
    wrong, wrong_secret = written(service, "d3JvbmcgYnV0IHNlY3JldA==")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
    with pytest.raises(StoreUnusable, match=r"no right.*: 403 .*the key or SAS") as caught:
        async with open_store(url):
            pass
    shown += f"{chain_text(caught.value)} {caplog.text}"
    for each in (secret, wrong_secret):
        assert each not in shown
        assert unquote(each) not in shown


# ------------------------------------------------------------------ Entra ID


@dataclass
class Entra:
    """Gives tokens of one hour, as ``DefaultAzureCredential`` does; keeps those that it gave."""

    clock: Clock
    claims: dict[str, object] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)

    def get_token(self, *scopes: str) -> SimpleNamespace:
        assert scopes == (f"{STORAGE}/.default",)
        now_s = int(self.clock.utc_now().timestamp())
        claims = {"aud": STORAGE, "iss": "https://sts.windows.net/tenant/", "oid": "me"}
        times = {"iat": now_s, "nbf": now_s, "exp": now_s + HOUR_S}
        parts = ({"alg": "RS256", "typ": "JWT"}, claims | times | self.claims)
        quoted = [base64.urlsafe_b64encode(json.dumps(each).encode()) for each in parts]
        self.given.append(".".join(each.decode().rstrip("=") for each in quoted) + ".c2lnbmVk")
        return SimpleNamespace(token=self.given[-1], expires_on=now_s + HOUR_S)


@dataclass
class World:
    """A service that takes tokens; its clock and ours, and who gives the tokens."""

    service: Azurite
    url: str
    clock: ManualClock
    entra: Entra

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.set_clock(self.clock.utc_now())


@pytest.fixture
def service() -> Azurite:
    return shared_azurite_with_tokens()


@pytest.fixture
def world(service: Azurite, monkeypatch: pytest.MonkeyPatch) -> World:
    clock = ManualClock()
    entra = Entra(clock)
    monkeypatch.setattr("azure.identity.DefaultAzureCredential", lambda: entra)
    monkeypatch.setenv("SSL_CERT_FILE", str(service.cert))
    made = World(service=service, url=service.new_store_url(), clock=clock, entra=entra)
    made.pass_time(0.9)
    return made


async def test_a_token_is_enough_and_is_not_shown(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(world.url, world.clock) as store:
        await use(store)
        shown = f"{store.url} {store!r} {store.http_client!r} {caplog.text}"
    (token,) = world.entra.given
    assert token not in shown
    assert store.url == world.url


async def test_a_lease_goes_on_while_tokens_end(world: World) -> None:
    async with opened(world.url, world.clock) as store:
        lease = await granted(store)
        (mine,) = await owned(store, lease, 1)
        version = 0
        for _ in range(2 * HOUR_S // 50):
            world.pass_time(50)
            version = (await store.renew(lease, since=version)).version
        position = Position(sequence_number=1)
        assert not await store.checkpoint([CheckpointWrite(ownership=mine, position=position)])
    # Each is replaced five minutes before its end.
    assert len(world.entra.given) == 3


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "https://vault.azure.net"},
        {"aud": "https://other.blob.core.windows.net"},
        {"iss": "https://example.com/"},
        {"exp": 1_700_000_000},
        {"nbf": 1_900_000_000},
    ],
    ids=["another audience", "another account", "another issuer", "expired", "not yet"],
)
async def test_a_token_that_is_refused_is_said_and_not_shown(
    world: World, caplog: pytest.LogCaptureFixture, claims: dict[str, object]
) -> None:
    world.entra.claims = claims
    with pytest.raises(
        StoreUnusable, match=r"no right.*403 AuthenticationFailed.*Storage Blob Data Contributor"
    ) as caught:
        async with open_store(world.url, clock=world.clock):
            pass
    (token,) = world.entra.given
    shown = f"{chain_text(caught.value)} {caplog.text}"
    assert not [part for part in token.split(".") if part in shown]


async def test_a_token_that_ends_by_the_service_s_clock_stops_a_host_until_ours_is_right(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(world.url, world.clock) as store:
        lease = await granted(store)
        (mine,) = await owned(store, lease, 1)
        position = Position(sequence_number=7)
        assert not await store.checkpoint([CheckpointWrite(ownership=mine, position=position)])
        ahead = world.clock.utc_now() + timedelta(seconds=HOUR_S + 1)
        world.service.set_clock(ahead)
        with pytest.raises(StoreUnusable, match="the clock of this machine") as caught:
            await store.checkpoint(
                [CheckpointWrite(ownership=mine, position=Position(sequence_number=8))]
            )
        (token,) = world.entra.given
        assert token not in f"{chain_text(caught.value)} {caplog.text}"
        world.pass_time(HOUR_S + 1)
        stored = await store.checkpoints(GROUP)
        assert stored[mine.key].position == position
    assert len(world.entra.given) == 2


async def test_nobody_gets_a_token_whose_certificate_is_not_trusted(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other, _ = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with pytest.raises(StoreUnavailable, match="SSL_CERT_FILE") as caught:
        async with open_store(world.url, clock=SystemClock()):
            pass
    assert "tls=0" not in str(caught.value)
    assert not [token for token in world.entra.given if token in chain_text(caught.value)]


@pytest.mark.parametrize("endpoint", [True, False], ids=["connection string", "URL"])
async def test_no_token_goes_unencrypted(
    world: World, monkeypatch: pytest.MonkeyPatch, endpoint: bool
) -> None:
    url = f"{world.url}?tls=0"
    if endpoint:
        location = f"http://127.0.0.1:{world.service.port}/acme"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"BlobEndpoint={location}")
        url = world.url
    with pytest.raises(InvalidUrl, match="by https only"):
        async with open_store(url, clock=world.clock):
            pass
    assert not world.entra.given


@contextmanager
def managed_identity(entra: Entra) -> Iterator[tuple[str, list[str]]]:
    """The endpoint that a machine of Azure has for its programs, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.extend(parse_qs(urlsplit(self.path).query)["resource"])
            found = entra.get_token(f"{STORAGE}/.default")
            body = json.dumps(
                {
                    "access_token": found.token,
                    "expires_on": str(found.expires_on),
                    "resource": asked[-1],
                    "token_type": "Bearer",
                }
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token", asked
        finally:
            server.shutdown()
            thread.join()


async def test_the_real_default_credential_gets_its_token_from_a_managed_identity(
    service: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.set_clock(None)
    monkeypatch.setenv("SSL_CERT_FILE", str(service.cert))
    entra = Entra(SystemClock())
    with managed_identity(entra) as (endpoint, asked):
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        monkeypatch.setenv("IDENTITY_ENDPOINT", endpoint)
        monkeypatch.setenv("IDENTITY_HEADER", "of this machine")
        async with opened(service.new_store_url()) as store:
            await use(store)
    assert asked == [STORAGE]
    assert len(entra.given) == 1
