"""What a client without a key may cost a hub, and what a failing link may cost the others."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.hub import RawClient, RunningHub, running_hub, stuffed, until

from leasehold.azure.amqp.composites import Rejected, Source, Target
from leasehold.azure.amqp.frames import frame
from leasehold.azure.amqp.messages import APPLICATION_PROPERTIES, Message
from leasehold.azure.amqp.performatives import Attach, Close, Detach, Disposition
from leasehold.azure.amqp.types import Described, UInt, ULong
from leasehold.azure.amqp.values import encode
from leasehold.azure.endpoint.hubs import Hub, Hubs

MIB = 1 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as running:
        yield running


@contextmanager
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def taken() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def token_link(handle: int, *, name: str = "n") -> Attach:
    source, target = Source(address="$cbs"), Target(address="x")
    return Attach(name=name, handle=handle, role=True, source=source, target=target)


@pytest.mark.parametrize("value", [b"\x45", b"\xc0\x01\x00", b"\x00\x40\x40", b"\xc1\x01\x00"])
def test_many_values_in_few_bytes_end_the_connection(hub: RunningHub, value: bytes) -> None:
    with RawClient(hub.port) as client:
        client.open()
        client.raw(frame(0, stuffed(token_link(0), 1001, value)))
        error = client.wait(Close)[0].error
        assert error is not None
        assert "too many values" in (error.description or "")


@pytest.mark.parametrize("bytes_each", [4 << 10, 16 << 10])
def test_a_performative_of_a_stranger_is_a_small_one(hub: RunningHub, bytes_each: int) -> None:
    with RawClient(hub.port) as client:
        client.open().send(token_link(0, name="n" * bytes_each))
        error = client.wait(Close)[0].error
        assert error is not None
        assert error.condition == "amqp:connection:framing-error"


def test_links_of_strangers_keep_nothing_of_what_was_said(hub: RunningHub) -> None:
    with ExitStack() as stack, traced():
        clients = [stack.enter_context(RawClient(hub.port)).open() for _ in range(3)]
        before = taken()
        for client in clients:
            for handle in range(40):
                client.raw(frame(0, stuffed(token_link(handle, name="n" * 2000), 900)))
                assert client.wait(Attach)[0].handle == handle
        assert taken() - before < MIB  # of 6 that these values take, and more for their names


def test_what_strangers_send_at_once_is_never_much_more_than_their_bytes(hub: RunningHub) -> None:
    with ExitStack() as stack, traced():
        clients = [stack.enter_context(RawClient(hub.port)).open() for _ in range(10)]
        tracemalloc.reset_peak()
        before = taken()
        for client in clients:
            client.raw(b"".join(frame(0, stuffed(token_link(n), 3000)) for n in range(15)))
        for client in clients:
            assert client.wait(Close)[0].error is not None
        assert tracemalloc.get_traced_memory()[1] - before < 3 * MIB


def test_a_request_of_many_values_is_rejected(hub: RunningHub) -> None:
    lists = b"\xd0" + (60_004).to_bytes(4, "big") + (60_000).to_bytes(4, "big") + b"\x45" * 60_000
    with RawClient(hub.port) as client:
        client.open().node("$cbs")
        for head in (b"\x00\x53\x77", b"\x00\x53\x76"):
            client.transfer(1, head + lists)
            assert isinstance(client.wait(Disposition)[0].state, Rejected)
        many = bytes((0, 0x53, APPLICATION_PROPERTIES, 0xC1, 1, 0)) * 2000
        client.transfer(1, many + Message(value="x").encode())
        assert isinstance(client.wait(Disposition)[0].state, Rejected)


def test_an_open_with_much_to_say_is_still_taken(hub: RunningHub) -> None:
    """Clients tell their product, version, framework and platform there."""
    with RawClient(hub.port) as client:
        client.open(properties={f"key-{n}": "v" * 100 for n in range(20)})
        assert client.put_token().application_properties["status-code"] == 202


# ----------------------------------------------------------------------- one odd link


def odd_attach(handle: int) -> bytes:
    """For a reader, with a mode of distribution that is no symbol: it can not be said back."""
    address = "hub/ConsumerGroups/g/Partitions/0"
    source = Described(ULong(0x28), [address, None, None, None, None, None, "\u00e4"])
    target = Described(ULong(0x29), ["x"])
    fields = ["n", UInt(handle), True, None, None, source, target]
    return frame(0, encode(Described(ULong(0x12), fields)))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Nobody finds a hub before this is set."""
    find, found = Hubs.find, asyncio.Event()

    async def wait(self: Hubs, name: str) -> Hub:
        await found.wait()
        return await find(self, name)

    monkeypatch.setattr(Hubs, "find", wait)
    return found


def test_a_link_that_can_not_be_said_back_is_refused_alone(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        client.raw(odd_attach(7))
        assert client.wait(Attach)[0].handle == 7
        detach, _ = client.wait(Detach)
        assert detach.error is not None
        assert client.attach("hub", receives=False).target is not None


def test_a_hub_closes_with_links_that_can_not_be_said_back(
    tmp_path: Path, slow: asyncio.Event
) -> None:
    with running_hub(tmp_path) as hub, RawClient(hub.port) as client:
        client.open().put_token()
        client.raw(odd_attach(7))
        [connection] = hub.call(lambda: list(hub.server._connections))
        until(lambda: hub.call(lambda: any(s._links.get(7) for s in connection._sessions.values())))
        hub.run(hub.server.close())
        assert client.wait(Detach)[0].error is not None
        client.wait(Close)
        assert not hub.server.connections
        hub.call(slow.set)


def test_one_connection_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_hub(tmp_path) as hub, RawClient(hub.port) as odd:
        odd.open().put_token()
        [connection] = hub.call(lambda: list(hub.server._connections))

        def fail(*_: object) -> None:
            raise RuntimeError("nobody thought of it")

        monkeypatch.setattr(connection, "tick", fail)
        assert odd.is_closed()
        ticker = hub.server._ticker
        assert ticker is not None
        assert not hub.call(ticker.done)
        with RawClient(hub.port) as client, RawClient(hub.port) as broken:
            client.open().put_token()
            broken.open().put_token()
            for each in hub.call(lambda: list(hub.server._connections)):
                monkeypatch.setattr(each, "shut_down", fail)
                break
            hub.run(hub.server.close())
            assert not hub.server.connections
            with pytest.raises(RuntimeError):
                hub.run(hub.server.hubs.find("hub"))  # they are closed too
