"""Addresses of event hubs, and that what is secret in them stays so."""

from __future__ import annotations

import base64
import hmac
import sys
from datetime import UTC, datetime
from hashlib import sha256
from types import SimpleNamespace
from urllib.parse import parse_qs, quote

import pytest

from leasehold.azure import EventHubsSource
from leasehold.azure.eventhubs.address import parse, shown
from leasehold.azure.eventhubs.credentials import JWT, SAS, EntraCredential, provider_for
from leasehold.clock import SystemClock
from leasehold.errors import InvalidOptions, StoreUnavailable, UsageError
from leasehold.events import open_source
from leasehold.events.source_urls import name_of, stream_of

KEY = "c2VjcmV0L2tleSs9=="
PORTAL = (
    f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey={KEY}"
)
LOCAL = f"Endpoint=sb://127.0.0.1:15673;SharedAccessKeyName=K;SharedAccessKey={KEY};EntityPath=orders;UseDevelopmentEmulator=true;"


def test_an_address_of_the_service_is_encrypted_and_complete() -> None:
    found = parse("eventhubs://contoso/orders", {})
    assert (found.host, found.port, found.tls) == ("contoso.servicebus.windows.net", 5671, True)
    assert str(found) == "eventhubs://contoso.servicebus.windows.net/orders"
    assert found.group_of("billing") == "billing"


def test_the_connection_string_of_the_environment_brings_key_and_host() -> None:
    found = parse("eventhubs:///orders", {"EVENTHUB_CONNECTION_STRING": PORTAL})
    assert (found.host, found.key_name, found.key) == ("contoso.servicebus.windows.net", "app", KEY)
    named = parse("eventhubs://contoso/orders", {"EVENTHUB_CONNECTION_STRING": PORTAL})
    assert named == found


def test_the_emulator_is_reached_without_encryption_at_its_own_port() -> None:
    options = "consumer_group=$Default&arrow=off&prefetch=50"
    found = parse(f"eventhubs:///?connection={quote(LOCAL, safe='')}&{options}", {})
    assert (found.host, found.port, found.tls, found.hub) == ("127.0.0.1", 15673, False, "orders")
    assert (found.consumer_group, found.arrow, found.prefetch) == ("$Default", False, 50)
    assert found.group_of("billing") == "$Default"


def test_a_key_may_stand_in_the_address_itself() -> None:
    found = parse(
        f"eventhubs://app:{quote(KEY, safe='')}@contoso/orders",
        {"EVENTHUB_CONNECTION_STRING": LOCAL},
    )
    assert (found.key_name, found.key, found.host) == ("app", KEY, "contoso.servicebus.windows.net")


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("eventhubs://contoso", {}),
        ("eventhubs://contoso/a/b", {}),
        ("eventhubs:///orders", {}),
        (f"eventhubs://app:{KEY}@contoso:x/orders", {}),
        (f"eventhubs://contoso/orders?key={KEY}", {}),
        (f"eventhubs://contoso/orders?connection=SharedAccessKey={KEY}", {}),
        ("eventhubs://contoso/orders?arrow=maybe", {}),
        ("eventhubs://contoso/orders?prefetch=0", {}),
        ("eventhubs://other/orders", {"EVENTHUB_CONNECTION_STRING": PORTAL}),
        ("eventhubs://127.0.0.1/other", {"EVENTHUB_CONNECTION_STRING": LOCAL}),
        ("eventhubs://127.0.0.1:1/orders", {"EVENTHUB_CONNECTION_STRING": LOCAL}),
    ],
)
def test_what_can_not_be_read_is_refused_without_a_word_of_the_key(
    text: str, environ: dict[str, str]
) -> None:
    with pytest.raises(UsageError) as told:
        parse(text, environ)
    assert KEY not in str(told.value)
    assert "c2Vjcm" not in str(told.value)
    assert told.value.__cause__ is None


def test_an_address_without_a_namespace_names_the_variable_that_would_do() -> None:
    with pytest.raises(UsageError, match="set EVENTHUB_CONNECTION_STRING and write eventhubs:///H"):
        parse("eventhubs:///orders", {})


def test_a_contradiction_is_named() -> None:
    with pytest.raises(InvalidOptions, match=r"'other'.*'orders'"):
        parse("eventhubs:///other", {"EVENTHUB_CONNECTION_STRING": LOCAL})


def test_no_secret_is_shown() -> None:
    address = parse(f"eventhubs:///?connection={quote(LOCAL, safe='')}", {})
    source = EventHubsSource(address)
    for words in (repr(address), str(address), repr(source), repr(source.connection_manager)):
        assert KEY not in words
    assert (
        shown(f"eventhubs://app:{KEY}@contoso/orders?connection=x") == "eventhubs://contoso/orders"
    )
    assert shown("orders") == "orders"


def test_a_hub_is_opened_by_its_address_and_is_no_stream_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVENTHUB_CONNECTION_STRING", LOCAL)
    source = open_source("eventhubs:///orders", store_url="sqlite:///nowhere/x.db", name="a")
    assert isinstance(source, EventHubsSource)
    assert source.name == name_of("eventhubs:///orders") == "orders"
    with pytest.raises(UsageError, match="is an event hub"):
        stream_of("eventhubs:///orders")


async def _token(address: str, credential: object = None) -> object:
    provider = provider_for(parse(address, {}), clock=SystemClock(), credential=credential)  # type: ignore[arg-type]
    return await provider.token("sb://contoso.servicebus.windows.net/orders")


def test_a_key_signs_tokens_as_the_service_wants_them() -> None:
    import anyio

    token: object = anyio.run(_token, f"eventhubs://app:{quote(KEY, safe='')}@contoso/orders")
    kind, text = token.kind, token.text  # type: ignore[attr-defined]
    assert kind == SAS
    assert text not in repr(token)
    parts = {
        name: each[0]
        for name, each in parse_qs(text.removeprefix("SharedAccessSignature ")).items()
    }
    assert (parts["sr"], parts["skn"]) == ("sb://contoso.servicebus.windows.net/orders", "app")
    signed = f"{quote(parts['sr'], safe='')}\n{parts['se']}".encode()
    request = hmac.new(KEY.encode(), signed, sha256).digest()
    assert base64.b64decode(parts["sig"]) == request


def test_a_signature_is_shown_as_it_is_until_it_expires() -> None:
    import anyio

    at = datetime(2040, 1, 1, tzinfo=UTC)
    signature = f"SharedAccessSignature sr=x&sig=y&se={int(at.timestamp())}&skn=app"
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessSignature={signature}"
    token: object = anyio.run(_token, f"eventhubs:///orders?connection={quote(text, safe='')}")
    assert (token.text, token.expires_at) == (signature, at)  # type: ignore[attr-defined]


def test_entra_id_gives_tokens_and_its_trouble_says_what_to_do() -> None:
    import anyio

    class Credential:
        def get_token(self, *scopes: str) -> object:
            assert scopes == ("https://eventhubs.azure.net//.default",)
            return SimpleNamespace(token="a.b.c", expires_on=4_000_000_000)

    class Broken:
        def get_token(self, *scopes: str) -> object:
            raise OSError("nobody is signed in")

    token: object = anyio.run(_token, "eventhubs://contoso/orders", Credential())
    assert (token.kind, token.text) == (JWT, "a.b.c")  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="az login"):
        anyio.run(_token, "eventhubs://contoso/orders", Broken())


@pytest.mark.process  # azure.identity runs uname when it is first imported
def test_without_a_key_entra_id_is_asked_and_its_package_is_named_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = parse("eventhubs://contoso/orders", {})
    assert isinstance(provider_for(address, clock=SystemClock()), EntraCredential)
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(UsageError, match=r"pip install 'leasehold\[azure\]'"):
        provider_for(address, clock=SystemClock())
