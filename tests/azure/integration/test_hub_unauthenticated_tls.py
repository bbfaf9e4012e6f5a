"""What a client without a key may cost a hub with TLS."""

from __future__ import annotations

import gc
import os
import ssl
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.hub import RawClient, RunningHub, hello, running_hub, tls_of, until

from leasehold.azure.amqp.frames import SASL_HEADER
from leasehold.azure.amqp.performatives import SaslMechanisms

EACH = 20  # strangers of each kind
LIMIT_S = 30.0  # what `handshake_timeout` is, unless one says so
KIB = 1 << 10
Arrival = Callable[[int, ssl.SSLContext], RawClient]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[RunningHub, ssl.SSLContext]]:
    """A hub, and what its clients trust it with."""
    context, cert = tls_of(tmp_path)
    with running_hub(tmp_path, tls=context) as running:
        yield running, ssl.create_default_context(cafile=str(cert))


def silent(port: int, trusting: ssl.SSLContext) -> RawClient:
    del trusting
    return RawClient(port)


def half_a_hello(port: int, trusting: ssl.SSLContext) -> RawClient:
    client = RawClient(port)
    client.raw(hello(trusting)[:100])
    return client


def a_hello(port: int, trusting: ssl.SSLContext) -> RawClient:
    client = RawClient(port)
    client.raw(hello(trusting))
    return client


def encrypted(port: int, trusting: ssl.SSLContext) -> RawClient:
    return RawClient(port, tls=trusting)


def at_the_door(port: int, trusting: ssl.SSLContext) -> RawClient:
    client = RawClient(port, tls=trusting)
    client.raw(SASL_HEADER)
    client.wait(SaslMechanisms)
    return client


def without_a_token(port: int, trusting: ssl.SSLContext) -> RawClient:
    client = RawClient(port, tls=trusting).open()
    client.node("$cbs")
    return client


def pass_time(hub: RunningHub, seconds: float) -> None:
    """Let the server look as it would after so long."""
    server = hub.server

    def look() -> None:
        now, wall = server.clock.boottime_s(), server.clock.utc_now()
        server._for_each(lambda connection: connection.tick(now + seconds, wall))

    hub.call(look)


def connections(hub: RunningHub) -> int:
    return hub.call(lambda: hub.server.connections)


KINDS = (silent, half_a_hello, a_hello, encrypted, at_the_door, without_a_token)


def test_strangers_are_hung_up_on_in_time_however_far_they_came(
    hub: tuple[RunningHub, ssl.SSLContext],
) -> None:
    running, trusting = hub
    with ExitStack() as stack:
        known = stack.enter_context(RawClient(running.port, tls=trusting)).open()
        known.put_token()
        kinds = KINDS * 3
        strangers = [stack.enter_context(kind(running.port, trusting)) for kind in kinds]
        until(lambda: connections(running) == 1 + len(strangers))
        pass_time(running, LIMIT_S / 2)
        assert connections(running) == 1 + len(strangers)
        pass_time(running, LIMIT_S + 1)
        until(lambda: connections(running) == 1)
        for kind, stranger in zip(kinds, strangers, strict=True):
            if kind is not a_hello:  # an answer to it is on its way, which is no frame
                assert stranger.is_closed()
        known.attach("hub/Partitions/0", receives=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_costs_little_memory(
    hub: tuple[RunningHub, ssl.SSLContext], kind: Arrival
) -> None:
    """Of what Python counts. OpenSSL takes 50 KiB beside it while keys are agreed upon."""
    running, trusting = hub
    with ExitStack() as stack:
        stack.enter_context(kind(running.port, trusting))  # what is made once
        gc.collect()
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(EACH):
            stack.enter_context(kind(running.port, trusting))
        until(lambda: connections(running) == 1 + EACH)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < EACH * 40 * KIB  # asyncio's TLS took 256


def test_those_who_came_half_way_count_among_all(tmp_path: Path) -> None:
    context, cert = tls_of(tmp_path)
    trusting = ssl.create_default_context(cafile=str(cert))
    with (
        running_hub(tmp_path, tls=context, max_connections=len(KINDS)) as running,
        ExitStack() as stack,
    ):
        for kind in KINDS:
            stack.enter_context(kind(running.port, trusting))
        until(lambda: connections(running) == len(KINDS))
        stack.enter_context(RawClient(running.port))
        until(lambda: running.call(lambda: running.server.dropped_unauthenticated) == 1)
        assert connections(running) == len(KINDS)
        pass_time(running, LIMIT_S + 1)
        until(lambda: not connections(running))
        with RawClient(running.port, tls=trusting) as client:
            assert client.open().put_token().application_properties["status-code"] == 202


def test_damaged_bytes_end_one_connection_and_no_other(
    hub: tuple[RunningHub, ssl.SSLContext],
) -> None:
    running, trusting = hub
    with (
        RawClient(running.port, tls=trusting) as known,
        RawClient(running.port, tls=trusting) as other,
    ):
        known.open().put_token()
        other.open().put_token()
        until(lambda: connections(running) == 2)
        os.write(other._socket.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))  # past its TLS
        until(lambda: connections(running) == 1)
        known.attach("hub/Partitions/0", receives=False)


def test_a_connection_that_can_not_be_written_to_is_hung_up_on(
    hub: tuple[RunningHub, ssl.SSLContext],
) -> None:
    running, trusting = hub
    with RawClient(running.port, tls=trusting) as client:
        client.open().put_token()
        [connection] = running.call(lambda: list(running.server._connections))

        def write() -> None:
            assert connection._tls is not None
            connection._tls.close_notify()  # after that nothing can be said
            for _ in range(20):
                connection.write(b"x")

        running.call(write)
        assert client.is_closed()
        until(lambda: not connections(running))
