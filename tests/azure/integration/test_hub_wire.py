"""What a hub does with bytes that no good client sends, and with those who have no key."""

from __future__ import annotations

import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.hub import (
    RawClient,
    RunningHub,
    running_hub,
    sas,
    tls_of,
    until,
)

from leasehold.azure.amqp.composites import Rejected, Target
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from leasehold.azure.amqp.messages import Message, read_message
from leasehold.azure.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Open,
    Transfer,
)

PLACE = "hub/ConsumerGroups/$Default/Partitions/0"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as running:
        yield running


def test_without_a_token_every_link_but_the_one_for_tokens_is_refused(hub: RunningHub) -> None:
    for address, receives in (
        ("hub", False),
        ("nothing", False),
        ("hub/Partitions/0", False),
        (PLACE, True),
        ("$management", True),
        ("$management", False),
    ):
        with RawClient(hub.port) as client:
            client.open().attach(address, receives=receives)
            detach, _ = client.wait(Detach)
            assert detach.error is not None
            assert detach.error.condition == "amqp:unauthorized-access"
            assert "nothing" not in (detach.error.description or "")


@pytest.mark.parametrize(
    ("token", "word"),
    [
        ("no token", "MalformedToken"),
        (sas(key="another"), "InvalidSignature"),
        (sas(name="nobody"), "InvalidSignature"),
        (sas(lasts=timedelta(seconds=-5)), "ExpiredToken"),
        (sas("sb://127.0.0.1/other"), "InvalidAudience"),
        (sas("sb://elsewhere/hub"), "InvalidAudience"),
        (sas().replace("&se=", "&se=9"), "InvalidSignature"),
        ("SharedAccessSignature sr=a&sig=***&se=1&skn=app", "MalformedToken"),
    ],
)
def test_a_token_that_does_not_count_is_refused(hub: RunningHub, token: str, word: str) -> None:
    with RawClient(hub.port) as client:
        answer = client.open().put_token(token)
        assert answer.application_properties["status-code"] == 401
        assert str(answer.application_properties["status-description"]).startswith(word)
        client.attach("hub", receives=False)
        assert client.wait(Detach)[0].error is not None


def test_a_token_of_entra_id_is_refused_with_words(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().node("$cbs")
        answer = client.ask(
            1,
            Message(
                properties=("1",),
                application_properties={"operation": "put-token", "type": "jwt", "name": "x"},
                value="ey",
            ),
        )
        assert answer.application_properties["status-code"] == 401
        assert "SharedAccessKey" in answer.application_properties["status-description"]


def test_a_token_for_one_thing_does_not_open_another(hub: RunningHub) -> None:
    group = "sb://127.0.0.1/hub/consumergroups/$default"
    with RawClient(hub.port) as client:
        answer = client.open().put_token(sas(group), group)
        assert answer.application_properties["status-code"] == 202
        client.reader()
        client.attach("hub", receives=False)
        assert client.wait(Detach)[0].error is not None


def test_an_expired_token_ends_its_links(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token(sas(lasts=timedelta(seconds=100)))
        client.reader()
        hub.pass_time(101)
        detach, _ = client.wait(Detach)
        assert detach.error is not None
        assert "ExpiredToken" in (detach.error.description or "")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        SASL_HEADER + b"\x7f\xff\xff\xff\x02\x01\x00\x00",
        SASL_HEADER + frame(0, b"\x00\x53\x41\x45", 1),
        AMQP_HEADER + frame(0, b"\x00\x53\x10\xc0\x02\x01\x40"),
        AMQP_HEADER + frame(0, b"nonsense"),
        AMQP_HEADER
        + frame(5, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode()),
        AMQP_HEADER + frame(0, Open(container_id="x").encode()) + frame(9, End().encode()),
        AMQP_HEADER + frame(0, Open(container_id="x").encode()) * 2,
        AMQP_HEADER + b"\x00\x00\x00\x08\x02\x07\x00\x00",
    ],
)
def test_bad_bytes_end_the_connection_and_nothing_else(hub: RunningHub, data: bytes) -> None:
    with RawClient(hub.port) as client:
        client.raw(data)
        assert client.is_closed()
    with RawClient(hub.port) as client:
        assert client.open().put_token().application_properties["status-code"] == 202


def test_a_stranger_may_send_only_small_frames_and_few(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open()
        client.raw(b"\x00\x02\x00\x00\x02\x00\x00\x00")
        close, _ = client.wait(Close)
        assert close.error is not None
        assert close.error.condition == "amqp:connection:framing-error"
        assert client.is_closed()
    with RawClient(hub.port) as client:
        client.open()
        client.raw(EMPTY_FRAME * 300)
        close, _ = client.wait(Close)
        assert close.error is not None
        assert close.error.condition == "amqp:unauthorized-access"


def test_a_stranger_may_keep_nothing_big(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open()
        big = Attach(name="n" * 20_000, handle=0, role=False, target=Target(address="$cbs"))
        client.send(big)
        assert client.wait(Close)[0].error is not None
    with RawClient(hub.port) as client:
        client.open().attach("$cbs", receives=False)
        head = Transfer(handle=0, delivery_id=0, more=True)
        # The second is too much. No more than that: a socket that is closed before all is read is
        # reset, and the client may not hear why.
        for _ in range(2):
            client.send(head, bytes(60_000))
        assert client.wait(Close)[0].error is not None


def test_too_big_a_message_ends_the_link_and_not_the_connection(tmp_path: Path) -> None:
    with running_hub(tmp_path, max_message_bytes=10_000) as hub, RawClient(hub.port) as client:
        client.open().put_token()
        sender = client.attach("hub", receives=False)
        assert sender.max_message_size == 10_000
        client.transfer(sender.handle, Message(data=(bytes(20_000),)).encode())
        detach, _ = client.wait(Detach)
        assert detach.error is not None
        assert detach.error.condition == "amqp:link:message-size-exceeded"
        again = client.attach("hub/Partitions/0", receives=False)
        client.transfer(again.handle, Message(data=(b"small",)).encode())
        assert client.wait(Disposition)[0].settled
        assert hub.bodies() == [b"small"]


def test_a_delivery_that_can_not_be_read_is_rejected_with_a_reason(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        sender = client.attach("hub/Partitions/1", receives=False)
        for payload, message_format in (
            (b"\x00\x53\x75\xa0\x09short", 0),
            (b"", 0),
            (b"\x00\x53\x75\xa0\x03abc", 0x80013700),
        ):
            number = client.transfer(sender.handle, payload, message_format=message_format)
            told, _ = client.wait(Disposition)
            assert told.first == number
            assert type(told.state).__name__ == "Rejected"
        client.transfer(sender.handle, Message(data=(b"sound",)).encode())
        assert type(client.wait(Disposition)[0].state).__name__ == "Accepted"


def test_what_the_log_can_not_store_is_rejected_with_its_words(hub: RunningHub) -> None:
    hub.log.create("small", partitions=1, segment_bytes=4096)
    with RawClient(hub.port) as client:
        client.open().put_token(sas("sb://127.0.0.1"), "sb://127.0.0.1")
        sender = client.attach("small", receives=False)
        client.transfer(sender.handle, Message(data=(bytes(10_000),)).encode())
        told, _ = client.wait(Disposition)
        assert isinstance(told.state, Rejected)
        assert told.state.error is not None
        assert "send smaller events" in (told.state.error.description or "")


def test_partitions_and_hubs_that_are_not_there_are_refused(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token(sas("sb://127.0.0.1"), "sb://127.0.0.1")
        for address, condition in (
            ("nothing", "amqp:not-found"),
            ("hub/Partitions/7", "com.microsoft:argument-out-of-range"),
            ("hub/Partitions/x", "com.microsoft:argument-out-of-range"),
            ("hub/Partitions", "amqp:not-found"),
            (PLACE, "amqp:not-found"),
        ):
            client.attach(address, receives=False)
            detach, _ = client.wait(Detach)
            assert detach.error is not None
            assert detach.error.condition == condition


def test_handles_and_sessions_have_an_end(tmp_path: Path) -> None:
    with running_hub(tmp_path, max_links=4, max_sessions=2) as hub:
        with RawClient(hub.port) as client:
            client.open().put_token()
            for _ in range(2):
                client.attach("hub", receives=False)
            with pytest.raises(EOFError):
                client.attach("hub", receives=False)
        with RawClient(hub.port) as client:
            client.open()
            begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
            client.send(begin, channel=1)
            client.wait(Begin)
            client.send(begin, channel=2)
            assert client.wait(Close)[0].error is not None


def test_connections_beyond_the_limit_are_hung_up_on(tmp_path: Path) -> None:
    with running_hub(tmp_path, max_connections=3) as hub, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(RawClient(hub.port)).open().put_token()
        with RawClient(hub.port) as late:
            late.raw(SASL_HEADER)
            assert late.is_closed()
        assert hub.server.connections == 3


def test_whoever_brings_no_token_in_time_is_sent_away(tmp_path: Path) -> None:
    with (
        running_hub(tmp_path, handshake_timeout=timedelta(milliseconds=200)) as hub,
        RawClient(hub.port) as client,
        RawClient(hub.port) as silent,
    ):
        client.open()
        close, _ = client.wait(Close)
        assert close.error is not None
        assert "No token" in (close.error.description or "")
        assert silent.is_closed()
        until(lambda: not hub.server.connections)


def test_a_silent_client_is_closed_and_one_that_beats_is_not(tmp_path: Path) -> None:
    limit_s = 2 * 100.0
    with (
        running_hub(tmp_path, idle_timeout=timedelta(seconds=100)) as hub,
        RawClient(hub.port) as silent,
        RawClient(hub.port) as beating,
    ):
        for each in (silent, beating):
            each.open(idle_time_out=400).put_token()

        def heard() -> list[float]:
            return sorted(
                each._last_received_at for each in hub.call(lambda: [*hub.server._connections])
            )

        before = heard()
        beating.raw(EMPTY_FRAME)
        until(lambda: heard()[1] > before[1])
        between_s = sum(heard()) / 2
        hub.call(
            lambda: hub.server._for_each(
                lambda each: each.tick(between_s + limit_s, each.clock.utc_now())
            )
        )
        close, _ = silent.wait(Close)
        assert close.error is not None
        assert "inactive" in (close.error.description or "")
        found = beating.next()
        assert found is not None
        assert not len(found.body)  # a beat of the hub


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of each connection are in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = before
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_a_thousand_idle_connections_do_not_disturb(tmp_path: Path) -> None:
    limits = {"max_unauthenticated": 1000, "max_unauthenticated_per_address": 1000}
    with running_hub(tmp_path, **limits) as hub, ExitStack() as stack:
        before = hub.server.connections
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", hub.port)))
            for _ in range(500)
        ]
        idle = [stack.enter_context(RawClient(hub.port)).open() for _ in range(500)]
        for each in idle:
            assert each.put_token().application_properties["status-code"] == 202
        until(lambda: hub.server.connections >= before + 1000)
        client = stack.enter_context(RawClient(hub.port))
        assert client.open().put_token().application_properties["status-code"] == 202
        assert len(silent) + len(idle) == 1000
        stack.close()
        until(lambda: hub.server.connections <= before)


def test_a_client_that_does_not_read_costs_no_more_than_a_buffer(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub, RawClient(hub.port) as client:
        for _ in range(16):
            hub.store(*[bytes(100_000)] * 10)
        client.open().put_token()
        reader = client.reader()
        client.credit(reader.handle, 1 << 20)
        [connection] = hub.call(lambda: list(hub.server._connections))
        until(lambda: not connection.writable.is_set())
        transport = connection._transport
        assert transport is not None
        assert hub.call(transport.get_write_buffer_size) < 4 << 20
        got = 0
        while got < 160:  # it reads again, and gets all of it
            client.wait(Transfer)
            got += 1


def test_the_end_of_a_hub_is_told_to_its_clients(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub, RawClient(hub.port) as client:
        client.open().put_token()
        client.reader()
        hub.run(hub.server.close())
        detach, _ = client.wait(Detach)
        assert detach.error is not None
        assert detach.error.condition == "amqp:connection:forced"
        client.wait(Close)
        assert client.is_closed()


def test_management_tells_of_hubs_that_a_token_is_for(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        client.node("$management")

        def ask(**asked: str) -> Message:
            request = Message(
                properties=("1",), application_properties={"operation": "READ", **asked}
            )
            return client.ask(3, request)

        answer = ask(type="com.microsoft:eventhub", name="hub")
        assert answer.value["partition_ids"].items == ("0", "1")
        assert (
            ask(type="com.microsoft:eventhub", name="other").application_properties["status-code"]
            == 401
        )
        assert (
            ask(type="com.microsoft:partition", name="hub", partition="9").application_properties[
                "status-code"
            ]
            == 404
        )
        assert ask(type="strange", name="hub").application_properties["status-code"] == 400


def test_a_link_may_be_attached_and_detached_again_and_again(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        for _ in range(20):
            link = client.attach("hub", receives=False)
            client.send(Detach(handle=link.handle, closed=True))
            assert client.wait(Detach)[0].error is None


def test_a_frame_for_no_link_ends_the_connection_with_a_reason(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        client.transfer(77, b"")
        close, _ = client.wait(Close)
        assert close.error is not None
        assert close.error.condition == "amqp:session:unattached-handle"


def test_the_words_of_a_request_that_is_no_message_are_a_rejection(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        client.open().node("$cbs")
        client.transfer(1, b"\x01\x02")
        assert type(client.wait(Disposition)[0].state).__name__ == "Rejected"
        with pytest.raises(AmqpFault):
            read_message(b"\x01\x02")
        assert isinstance(client.attach("$cbs", receives=True), Attach)


def test_what_all_have_on_its_way_together_is_bounded_and_goes_on(tmp_path: Path) -> None:
    few = {"max_message_bytes": 8192, "max_unsettled_bytes": 8192, "max_held_bytes": 8192}
    with (
        running_hub(tmp_path, **few) as hub,
        RawClient(hub.port) as one,
        RawClient(hub.port) as two,
    ):
        for client in (one, two):
            client.open().put_token()
            sender = client.attach("hub/Partitions/0", receives=False)
            for _ in range(40):
                client.transfer(sender.handle, Message(data=(bytes(1000),)).encode())
        for client in (one, two):
            told = 0
            while told < 40:
                found, _ = client.wait(Disposition)
                told += (found.last or found.first) - found.first + 1
        assert len(hub.bodies()) == 80
        assert not hub.call(lambda: hub.server._held_bytes)


def test_a_stream_that_was_made_anew_is_another_hub(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub, RawClient(hub.port) as client:
        client.open().put_token()
        sender = client.attach("hub/Partitions/0", receives=False)
        client.transfer(sender.handle, Message(data=(b"old",)).encode())
        client.wait(Disposition)
        client.credit(client.reader().handle, 5)
        client.wait(Transfer)
        hub.log.delete("hub")
        detach, _ = client.wait(Detach)
        assert detach.error is not None
        assert detach.error.condition == "amqp:not-found"
        hub.log.create("hub", partitions=1)
        client.transfer(sender.handle, Message(data=(b"lost",)).encode())
        assert type(client.wait(Disposition)[0].state).__name__ == "Rejected"
        again = client.attach("hub/Partitions/0", receives=False)
        client.transfer(again.handle, Message(data=(b"new",)).encode())
        assert type(client.wait(Disposition)[0].state).__name__ == "Accepted"
        assert hub.bodies() == [b"new"]


def test_a_hub_with_a_certificate_speaks_tls(tmp_path: Path) -> None:
    context, cert = tls_of(tmp_path)
    with running_hub(tmp_path, tls=context) as hub:
        assert "UseDevelopmentEmulator" not in hub.url()
        trusting = ssl.create_default_context(cafile=str(cert))
        with RawClient(hub.port, tls=trusting) as client:
            assert client.open().put_token().application_properties["status-code"] == 202
            sender = client.attach("hub/Partitions/0", receives=False)
            client.transfer(sender.handle, Message(data=(bytes(500_000),)).encode())
            assert type(client.wait(Disposition)[0].state).__name__ == "Accepted"
        with RawClient(hub.port) as plain:
            plain.raw(SASL_HEADER)
            assert plain.is_closed()
