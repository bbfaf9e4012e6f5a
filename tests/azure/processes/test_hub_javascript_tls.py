"""The client of npm (@azure/event-hubs), unmodified, with a hub that encrypts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.hub import RunningHub, running_hub, tls_of, until
from tests.support.hub_js.child import node_child

TRUSTED = "NODE_EXTRA_CA_CERTS"


def _is_alone(hub: RunningHub) -> bool:
    return not hub.call(lambda: hub.server.connections)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A certificate for the same address, by somebody else."""
    directory = tmp_path / "other"
    directory.mkdir()
    return tls_of(directory)[1]


def test_the_client_of_npm_uses_tls_at_any_port(tmp_path: Path) -> None:
    context, cert = tls_of(tmp_path)
    with (
        running_hub(tmp_path, tls=context) as hub,
        node_child("client.js", **{TRUSTED: str(cert)}) as client,
    ):
        assert "UseDevelopmentEmulator" not in hub.url()
        big = "x" * 900_000
        for body in (1, big, 3):
            client.do("send", name="producer", url=hub.url(), body=body)
            client.wait(name="producer", sent=body)
        client.do("read", name="reader", url=hub.url(), partition="0")
        client.until(lambda: sum(map(len, client.values("seen"))) >= 3)
        assert [body for seen in client.values("seen") for body in seen] == [1, big, 3]
        assert client.values("error") == []
        client.do("leave", name="reader")
        client.wait(name="reader", left=True)
        until(lambda: _is_alone(hub))


@pytest.mark.parametrize(
    ("address", "trusted", "why"),
    [
        ("127.0.0.1", None, "DEPTH_ZERO_SELF_SIGNED_CERT"),
        ("127.0.0.1", "other", "DEPTH_ZERO_SELF_SIGNED_CERT"),
        ("127.0.0.2", "its own", "ERR_TLS_CERT_ALTNAME_INVALID"),
    ],
)
def test_a_wrong_certificate_is_refused(
    tmp_path: Path, other: Path, address: str, trusted: str | None, why: str
) -> None:
    context, cert = tls_of(tmp_path, address)
    trust = {TRUSTED: str(other if trusted == "other" else cert)} if trusted else {}
    with (
        running_hub(tmp_path, tls=context) as hub,
        node_child("client.js", **trust) as client,
    ):
        client.do("send", name="producer", url=hub.url(), body="secret")
        client.wait(name="producer", error=why)
        client.do("read", name="reader", url=hub.url(), partition="0")
        client.wait(name="reader", error=why)
        client.do("leave", name="reader")
        client.wait(name="reader", left=True)
        assert client.values("sent") == client.values("seen") == []
        assert hub.bodies() == []
        until(lambda: _is_alone(hub))
