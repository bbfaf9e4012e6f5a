"""Many clients that never authenticate, and one that does: it gets in at once."""

from __future__ import annotations

import gc
import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from tests.support.hub import (
    RawClient,
    RunningHub,
    hello,
    running_hub,
    sas,
    tls_of,
    until,
)

from leasehold.azure import HubOptions
from leasehold.azure.amqp.frames import SASL_HEADER
from leasehold.azure.amqp.performatives import SaslMechanisms
from leasehold.errors import InvalidOptions

# The clients leave sockets open when they are closed: they are collected while that is allowed.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::ResourceWarning")]

# The port that the clients of Azure take for TLS; each test has an address of its own.
TLS_PORT = 5671
ADDRESSES = (f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250}.{n}" for n in count(2))
PLACES, UNAUTHENTICATED = 20, 8
LIMITS: dict[str, Any] = {
    "max_connections": PLACES,
    "max_unauthenticated": UNAUTHENTICATED,
    "max_unauthenticated_per_address": UNAUTHENTICATED,
    "handshake_timeout": timedelta(hours=1),  # nothing here waits for it
}
Arrival = Callable[[RunningHub, ssl.SSLContext | None], RawClient]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path, **LIMITS) as hub:
        yield hub


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[RunningHub, Path]]:
    address = next(ADDRESSES)
    context, cert = tls_of(tmp_path, address)
    with running_hub(tmp_path, tls=context, host=address, port=TLS_PORT, **LIMITS) as hub:
        yield hub, cert


def connected(hub: RunningHub, trusting: ssl.SSLContext | None) -> RawClient:
    return RawClient(hub.port, tls=trusting, host=hub.server.address[0])


def silent(hub: RunningHub, _: ssl.SSLContext | None) -> RawClient:
    return connected(hub, None)


def half_a_handshake(hub: RunningHub, trusting: ssl.SSLContext | None) -> RawClient:
    client = connected(hub, None)
    if trusting is not None:
        client.raw(hello(trusting)[:100])
    return client


def after_the_header(hub: RunningHub, trusting: ssl.SSLContext | None) -> RawClient:
    client = connected(hub, trusting)
    client.raw(SASL_HEADER)
    client.wait(SaslMechanisms)
    return client


def after_sasl(hub: RunningHub, trusting: ssl.SSLContext | None) -> RawClient:
    client = connected(hub, trusting).open()
    client.node("$cbs")
    return client


KINDS = (silent, half_a_handshake, after_the_header, after_sasl)


def connections(hub: RunningHub) -> int:
    return hub.call(lambda: hub.server.connections)


def report_later(hub: RunningHub, seconds: float) -> None:
    server = hub.server
    hub.call(lambda: server._dropped.report(server.clock.boottime_s() + seconds))


def send(url: str, **options: Any) -> None:
    client = EventHubProducerClient.from_connection_string(url, retry_total=0, **options)
    with client as producer:
        batch = producer.create_batch(partition_id="0")
        batch.add(EventData("in"))
        producer.send_batch(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_azure_gets_in_past_silent_strangers(plain: RunningHub, kind: Arrival) -> None:
    with ExitStack() as stack:
        for _ in range(PLACES + 10):
            stack.enter_context(kind(plain, None))
        until(lambda: connections(plain) >= UNAUTHENTICATED)
        send(plain.url())
        assert plain.bodies() == [b"in"]
        assert connections(plain) <= PLACES


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_azure_gets_in_past_silent_strangers_with_tls(
    encrypted: tuple[RunningHub, Path], kind: Arrival
) -> None:
    hub, cert = encrypted
    trusting = ssl.create_default_context(cafile=str(cert))
    with ExitStack() as stack:
        for _ in range(PLACES + 10):
            stack.enter_context(kind(hub, trusting))
        until(lambda: connections(hub) >= UNAUTHENTICATED)
        send(hub.url(), connection_verify=str(cert))
        assert hub.bodies() == [b"in"]


def test_the_oldest_without_a_token_is_dropped_first_and_none_with_one(plain: RunningHub) -> None:
    with ExitStack() as stack:
        known = [stack.enter_context(after_sasl(plain, None)) for _ in range(3)]
        for client in known:
            assert client.put_token().application_properties["status-code"] == 202
        strangers = []
        for number in range(1, UNAUTHENTICATED + 3):
            strangers.append(stack.enter_context(silent(plain, None)))
            there = 3 + min(number, UNAUTHENTICATED)
            until(lambda: connections(plain) == there)  # noqa: B023 - it is over before the next
        assert all(client.is_closed() for client in strangers[:2])
        until(lambda: plain.call(lambda: plain.server.dropped_unauthenticated) == 2)
        for client in strangers[2:]:  # these are still served
            client.raw(SASL_HEADER)
            client.wait(SaslMechanisms)
        for client in known:
            client.attach("hub/Partitions/0", receives=False)


def test_sasl_plain_is_an_authentication(encrypted: tuple[RunningHub, Path]) -> None:
    hub, cert = encrypted
    trusting = ssl.create_default_context(cafile=str(cert))
    with ExitStack() as stack:
        known = stack.enter_context(connected(hub, trusting))
        assert known.sign_in("PLAIN", b"\0app\0a-key-for-tests") == 0
        for _ in range(PLACES):
            stack.enter_context(silent(hub, None))
        until(
            lambda: hub.call(lambda: hub.server.dropped_unauthenticated) == PLACES - UNAUTHENTICATED
        )
        known.continue_open().attach("hub/Partitions/0", receives=False)


def test_a_wrong_token_is_no_authentication(plain: RunningHub) -> None:
    with ExitStack() as stack:
        wrong = stack.enter_context(after_sasl(plain, None))
        assert wrong.put_token(sas(key="wrong")).application_properties["status-code"] == 401
        for _ in range(UNAUTHENTICATED):
            stack.enter_context(silent(plain, None))
        assert wrong.is_closed()


def test_one_address_does_not_drop_those_of_another(tmp_path: Path) -> None:
    limits = LIMITS | {"max_unauthenticated_per_address": 3}
    with running_hub(tmp_path, host="127.0.0.1", **limits) as hub, ExitStack() as stack:
        other = stack.enter_context(RawClient(hub.port, source="127.0.0.77"))
        until(lambda: connections(hub) == 1)
        flood = [stack.enter_context(silent(hub, None)) for _ in range(PLACES)]
        assert all(client.is_closed() for client in flood[:-3])
        assert connections(hub) == 4
        other.open()
        assert other.put_token().application_properties["status-code"] == 202


def test_a_full_hub_keeps_those_with_a_token(tmp_path: Path) -> None:
    with running_hub(tmp_path, max_connections=3) as hub, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(RawClient(hub.port)).open().put_token()
        stranger = stack.enter_context(RawClient(hub.port))
        until(lambda: connections(hub) == 3)
        late = stack.enter_context(RawClient(hub.port)).open()
        assert stranger.is_closed()
        late.put_token()
        with RawClient(hub.port) as more:
            assert more.is_closed()
        assert connections(hub) == 3


def test_a_flood_is_one_line_of_the_log(
    plain: RunningHub, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "leasehold.azure.endpoint"), ExitStack() as stack:
        for _ in range(PLACES):
            stack.enter_context(silent(plain, None))
        dropped = PLACES - UNAUTHENTICATED
        until(lambda: plain.call(lambda: plain.server.dropped_unauthenticated) == dropped)
        assert len(caplog.messages) == 1
        assert "127.0.0.1" in caplog.text
        report_later(plain, 11)
        assert len(caplog.messages) == 2
        assert f"{dropped - 1} connections" in caplog.messages[1]
        report_later(plain, 22)
        assert len(caplog.messages) == 2


@pytest.mark.parametrize("name", ["max_unauthenticated", "max_unauthenticated_per_address"])
@pytest.mark.parametrize("value", [0, 65536])
def test_limits_have_a_range(name: str, value: int) -> None:
    limits: dict[str, Any] = {name: value}
    with pytest.raises(InvalidOptions, match=name):
        HubOptions(**limits)
