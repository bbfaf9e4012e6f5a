"""What a client may cost a hub: bounded resources, and nothing that other clients notice."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from tests.support.hub import RawClient, RunningHub, running_hub, tls_of, until

from leasehold.azure.amqp.composites import Accepted, Rejected, Target
from leasehold.azure.amqp.frames import frame
from leasehold.azure.amqp.messages import VALUE, Message, section
from leasehold.azure.amqp.performatives import (
    Attach,
    Close,
    Detach,
    Disposition,
    Flow,
    Transfer,
)
from leasehold.azure.amqp.types import Char, Described, Symbol, UInt, ULong
from leasehold.azure.amqp.values import encode
from leasehold.azure.endpoint.links import ReaderLink
from leasehold.azure.endpoint.request_nodes import ManagementNode
from leasehold.log import PartitionReader

MIB = 1 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as running:
        yield running


def _part(handle: int, number: int, data: bytes) -> bytes:
    """A frame of a delivery that goes on."""
    head = Transfer(handle=handle, delivery_id=number, delivery_tag=b"a", more=True)
    return frame(0, head.encode() + data)


def _is_idle(hub: RunningHub) -> bool:
    server = hub.server
    return hub.call(lambda: not server._held_bytes and not server._partial_bytes)


def test_a_few_bytes_without_a_token_do_not_become_gigabytes(hub: RunningHub) -> None:
    array = b"\xf0" + struct.pack(">II", 5, 60_000) + b"\x40"
    sections = (b"\x00\x53\x76\xc0" + bytes((len(array) + 1, 1)) + array) * 4000
    with RawClient(hub.port) as client:
        client.open().node("$cbs")
        client.transfer(1, sections[:60_000])
        assert isinstance(client.wait(Disposition)[0].state, Rejected)


def test_a_number_that_does_not_fit_into_its_field_ends_the_connection(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        handle = client.attach("hub/Partitions/0", receives=False).handle
        fields = [UInt(handle), ULong(1 << 40), b"tag", UInt(0), False, False]
        message = Message(data=(b"lost",)).encode()
        client.raw(frame(0, encode(Described(ULong(0x14), fields)) + message))
        error = client.wait(Close)[0].error
        assert error is not None
        assert error.condition == "amqp:decode-error"
    until(lambda: _is_idle(hub))


def test_a_delivery_that_can_not_be_stored_is_rejected_and_leaves_nothing(hub: RunningHub) -> None:
    half = b"\x73\x00\x00\xd8\x00"  # half a character
    with RawClient(hub.port) as client:
        client.open().put_token()
        handle = client.attach("hub/Partitions/0", receives=False).handle
        client.transfer(handle, bytes((0, 0x53, VALUE)) + half)
        assert isinstance(client.wait(Disposition)[0].state, Rejected)
        client.transfer(handle, section(VALUE, Char("ä")))
        assert isinstance(client.wait(Disposition)[0].state, Accepted)
    until(lambda: _is_idle(hub))


def test_frames_that_are_not_whole_count_among_what_all_may_hold(tmp_path: Path) -> None:
    most = {"max_message_bytes": MIB, "max_unsettled_bytes": MIB, "max_held_bytes": MIB}
    half = struct.pack(">IBBH", MIB, 2, 0, 0) + bytes(600_000)
    with (
        running_hub(tmp_path, **most) as hub,
        RawClient(hub.port) as one,
        RawClient(hub.port) as two,
    ):
        for client in (one, two):
            client.open().put_token()
        one.raw(half)
        until(lambda: hub.call(lambda: hub.server._partial_bytes) == len(half))
        two.raw(half)
        assert two.is_closed()
        until(lambda: hub.call(lambda: hub.server._partial_bytes) == len(half))
        one.__exit__()
        until(lambda: _is_idle(hub))


def test_nothing_is_written_to_a_connection_that_is_broken(
    hub: RunningHub, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        until(lambda: hub.server.connections == 1)
        [connection] = hub.call(lambda: list(hub.server._connections))

        def write() -> None:
            connection.abort()  # as asyncio does itself when a write fails
            for _ in range(20):
                connection.write(b"x")

        hub.call(write)
        assert client.is_closed()
    assert "socket.send" not in caplog.text


def test_an_error_nobody_thought_of_rejects_one_delivery(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody thought of it")

    with RawClient(hub.port) as client:
        client.open().put_token()
        handle = client.attach("hub/Partitions/0", receives=False).handle
        with monkeypatch.context() as changed:
            changed.setattr("leasehold.azure.endpoint.links.read_delivery", broken)
            client.transfer(handle, Message(data=(b"x",)).encode())
            state = client.wait(Disposition)[0].state
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert "nobody" not in (state.error.description or "")
        client.transfer(handle, Message(data=(b"x",)).encode())
        assert isinstance(client.wait(Disposition)[0].state, Accepted)
    until(lambda: _is_idle(hub))


def test_deliveries_that_are_not_whole_keep_nobody_waiting(tmp_path: Path) -> None:
    few = {"max_message_bytes": MIB, "max_unsettled_bytes": MIB, "max_held_bytes": 2 * MIB}
    part = bytes(600_000)
    with running_hub(tmp_path, **few) as hub, RawClient(hub.port) as good:
        bad = [RawClient(hub.port) for _ in range(4)]
        try:
            for client in bad:
                client.open().put_token()
                first, second = (client.attach("hub", receives=False).handle for _ in range(2))
                client.raw(_part(first, 0, part) + _part(second, 1, part))
                error = client.wait(Close)[0].error
                assert error is not None
                assert error.condition == "amqp:resource-limit-exceeded"
            good.open().put_token()
            handle = good.attach("hub/Partitions/0", receives=False).handle
            good.transfer(handle, Message(data=(bytes(900_000),)).encode())
            assert isinstance(good.wait(Disposition)[0].state, Accepted)
        finally:
            for client in bad:
                client.__exit__()
        until(lambda: _is_idle(hub))


def test_a_delivery_that_is_aborted_is_forgotten(hub: RunningHub) -> None:
    before = len(hub.bodies(1))
    with RawClient(hub.port) as client:
        client.open().put_token()
        handle = client.attach("hub/Partitions/1", receives=False).handle
        client.raw(_part(handle, 0, b"half"))
        client.send(Transfer(handle=handle, more=True, aborted=True))
        message = Message(data=(b"whole",)).encode()
        client.send(Transfer(handle=handle, delivery_id=1, delivery_tag=b"b"), message)
        found, _ = client.wait(Disposition)
        assert (found.first, isinstance(found.state, Accepted)) == (1, True)
    assert hub.bodies(1)[before:] == [b"whole"]
    until(lambda: _is_idle(hub))


def test_credit_goes_on_from_the_count_that_a_sender_begins_with(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        for handle, address in ((7, "hub"), (8, "$management")):
            client.send(
                Attach(
                    name=f"counting-{handle}",
                    handle=handle,
                    role=False,
                    target=Target(address=address),
                    initial_delivery_count=0xFFFF_FFFF,
                )
            )
            flow, _ = client.wait(Flow)
            assert (flow.handle, flow.delivery_count) == (handle, 0xFFFF_FFFF)


def test_who_asks_faster_than_the_log_answers_is_not_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"max_message_bytes": 1 << 17, "max_unsettled_bytes": 1 << 17}
    with running_hub(tmp_path, **few) as hub, RawClient(hub.port) as client:
        client.open().put_token()
        client.node("$management")
        asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub"}
        request = Message(properties=("1",), application_properties=asked).encode()
        [connection] = hub.call(lambda: list(hub.server._connections))
        may_answer = hub.call(asyncio.Event)
        real = ManagementNode._found

        async def late(self: ManagementNode, request: Message) -> dict[str, object]:
            await may_answer.wait()
            return await real(self, request)

        monkeypatch.setattr(ManagementNode, "_found", late)
        for _ in range(50):
            client.transfer(3, request)
        until(lambda: not hub.call(lambda: connection._is_reading))
        hub.call(may_answer.set)
        for _ in range(50):
            client.wait(Transfer)
        until(lambda: _is_idle(hub))
        assert hub.call(lambda: connection._is_reading)


def test_a_client_that_attaches_without_end_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.azure.endpoint.connection._MAX_TASKS", 50)
    with running_hub(tmp_path) as hub, RawClient(hub.port) as client:
        client.open().put_token()
        attach = Attach(name="again", handle=9, role=False, target=Target(address="hub"))
        both = frame(0, attach.encode()) + frame(0, Detach(handle=9, closed=True).encode())
        client.raw(both * 200)
        error = client.wait(Close)[0].error
        assert error is not None
        assert error.condition == "amqp:resource-limit-exceeded"


def test_the_files_of_a_reader_are_closed_with_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    real = PartitionReader.close

    def close(self: PartitionReader) -> None:
        real(self)
        closed.append(self)

    with running_hub(tmp_path) as hub:
        hub.store(b"one")
        with RawClient(hub.port) as client:
            client.open().put_token()
            handle = client.reader().handle
            client.credit(handle, 5)
            client.wait(Transfer)
            other = client.reader("hub/ConsumerGroups/$Default/Partitions/1").handle
            monkeypatch.setattr(PartitionReader, "close", close)
            client.send(Detach(handle=handle, closed=True))
            until(lambda: {each.partition for each in closed} == {0})
            assert other != handle
        until(lambda: {each.partition for each in closed} == {0, 1})


def test_a_reader_that_waits_already_can_be_drained(hub: RunningHub) -> None:
    address = "hub/ConsumerGroups/drained/Partitions/1"
    with RawClient(hub.port) as client:
        client.open().put_token()
        handle = client.reader(address, at="x-opt-offset > '@latest'").handle
        client.credit(handle, 10)
        until(lambda: _is_asleep(hub))
        client.credit(handle, 10, drain=True)
        flow, _ = client.wait(Flow)
        assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)
        client.credit(handle, 0, seen=10, drain=True)  # nothing to give back
        flow, _ = client.wait(Flow)
        assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)
        client.credit(handle, 3, seen=10)
        hub.store(b"after", partition=1)
        assert client.wait(Transfer)[1].endswith(b"after")


def _is_looking(link: ReaderLink) -> bool:
    return link._receiver is None or link._receiver._reading is not None


def _is_asleep(hub: RunningHub) -> bool:
    def looked() -> bool:
        links = [
            link
            for connection in tuple(hub.server._connections)
            for session in tuple(connection._sessions.values())
            for link in session.links
        ]
        readers = [link for link in links if isinstance(link, ReaderLink)]
        return bool(readers) and all(
            link._receiver is not None and link._receiver.is_waiting for link in readers
        )

    return hub.call(looked)


def test_many_readers_of_a_client_that_does_not_read_share_one_buffer(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub, RawClient(hub.port) as client:
        for _ in range(16):
            hub.store(*[bytes(100_000)] * 10)
        client.open().put_token()
        handles = [
            client.reader(f"hub/ConsumerGroups/{number}/Partitions/0").handle
            for number in range(40)
        ]
        for handle in handles:
            client.credit(handle, 100)
        [connection] = hub.call(lambda: list(hub.server._connections))
        links = hub.call(
            lambda: [
                link
                for session in connection._sessions.values()
                for link in session.links
                if isinstance(link, ReaderLink)
            ]
        )
        until(lambda: not connection.writable.is_set())
        until(lambda: hub.call(lambda: not any(map(_is_looking, links))))
        transport = connection._transport
        assert transport is not None
        assert hub.call(transport.get_write_buffer_size) < 4 * MIB
        for _ in range(200):  # it reads again
            client.wait(Transfer)


def test_numbers_of_a_producer_that_do_not_fit_are_replaced(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        numbered = Symbol("com.microsoft:idempotent-producer")
        answer = client.attach(
            "hub/Partitions/0",
            receives=False,
            desired_capabilities=(numbered,),
            properties={
                Symbol("com.microsoft:producer-id"): ULong(2**64 - 1),
                Symbol("com.microsoft:producer-sequence-number"): ULong(2**40),
                Symbol("com.microsoft:producer-epoch"): ULong(2**20),
            },
        )
        assert (answer.properties or {})["com.microsoft:producer-sequence-number"] == 0
        client.transfer(answer.handle, Message(data=(b"x",)).encode())
        assert isinstance(client.wait(Disposition)[0].state, Accepted)


def test_a_map_made_to_be_slow_is_refused(hub: RunningHub) -> None:
    slow = {UUID(int=number * ((1 << 61) - 1)): None for number in range(1, 100)}
    with RawClient(hub.port) as client:
        client.open().node("$cbs")
        client.transfer(1, section(VALUE, slow))
        assert isinstance(client.wait(Disposition)[0].state, Rejected)


def test_a_refused_place_is_told_in_few_words(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open()
        client.raw(frame(0, encode(Described(Symbol("x" * 9000), []))))
        error = client.wait(Close)[0].error
        assert error is not None
        assert len(error.description or "") <= 500


def test_who_connects_without_a_word_of_tls_is_counted_and_hung_up_on(tmp_path: Path) -> None:
    context, cert = tls_of(tmp_path)
    trusting = ssl.create_default_context(cafile=str(cert))
    soon = timedelta(seconds=1)
    with (
        running_hub(tmp_path, tls=context, max_connections=2, handshake_timeout=soon) as hub,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(RawClient(hub.port)) for _ in range(2)]
        until(lambda: hub.call(lambda: hub.server.connections) == 2)
        third = stack.enter_context(RawClient(hub.port))
        until(lambda: hub.call(lambda: hub.server.dropped_unauthenticated) == 1)
        assert hub.call(lambda: hub.server.connections) == 2
        for client in (*silent, third):
            assert client.is_closed()
        until(lambda: not hub.call(lambda: hub.server.connections))
        RawClient(hub.port).__exit__()  # one that leaves in the middle of it
        until(lambda: not hub.call(lambda: hub.server.connections))
        with RawClient(hub.port, tls=trusting) as client:
            assert client.open().put_token().application_properties["status-code"] == 202
