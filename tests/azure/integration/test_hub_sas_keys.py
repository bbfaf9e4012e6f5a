"""Who may use a hub: what tokens and keys allow, and how clients send them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hub import RawClient, RunningHub, running_hub, sas, tls_of

from leasehold.azure.amqp.frames import AMQP_HEADER, SASL_HEADER
from leasehold.azure.amqp.performatives import Begin, Detach, Flow, Open, SaslMechanisms


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as running:
        yield running


def test_a_token_that_was_signed_in_small_letters_counts_for_the_hub(tmp_path: Path) -> None:
    """As .NET's clients sign, whatever the name of the hub is."""
    with running_hub(tmp_path) as hub, RawClient(hub.port) as client:
        hub.log.create("Orders", partitions=1)
        small = "sb://127.0.0.1/orders"
        client.open()
        assert client.put_token(sas(small), small).application_properties["status-code"] == 202
        client.attach("Orders/Partitions/0", receives=False)
        client.wait(Flow)
        client.attach("hub/Partitions/0", receives=False)
        error = client.wait(Detach)[0].error
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"


def test_a_key_may_come_as_a_password_where_it_is_encrypted(tmp_path: Path) -> None:
    context, cert = tls_of(tmp_path)
    trusting = ssl.create_default_context(cafile=str(cert))
    with running_hub(tmp_path, tls=context) as hub:
        with RawClient(hub.port, tls=trusting) as client:
            assert client.sign_in("PLAIN", b"\0app\0a-key-for-tests") == 0
            client.raw(AMQP_HEADER)
            client.send(Open(container_id="raw"))
            client.send(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100))
            client.attach("hub", receives=False)
            client.wait(Flow)
        with RawClient(hub.port, tls=trusting) as client:
            assert client.sign_in("PLAIN", b"\0app\0wrong") == 1
            assert client.is_closed()


def test_a_key_is_not_asked_for_where_others_could_read_it(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.raw(SASL_HEADER)
        assert client.wait(SaslMechanisms)[0].mechanisms == ("ANONYMOUS",)
    with RawClient(hub.port) as client:
        assert client.sign_in("PLAIN", b"\0app\0a-key-for-tests") == 1
        assert client.is_closed()
