"""What a receiver gets: where it begins, who may read beside it, and in which form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.hub import RawClient, RunningHub, running_hub, until

from leasehold.azure.amqp.messages import Message, read_message
from leasehold.azure.amqp.performatives import Detach, Disposition, Flow, Transfer
from leasehold.azure.amqp.types import Int, Long, Short, Symbol, Timestamp
from leasehold.events import STORED_SCHEMA, Event

SEQUENCE = "com.microsoft:producer-sequence-number"
NUMBERED = "com.microsoft:idempotent-producer"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub"), partitions=8) as running:
        running.store(*[f"{number}".encode() for number in range(10)])
        yield running


def _ready(hub: RunningHub) -> RawClient:
    client = RawClient(hub.port)
    client.open().put_token()
    return client


def _read(client: RawClient, handle: int, count: int, *, seen: int = 0) -> list[Message]:
    client.credit(handle, count, seen=seen)
    return [read_message(client.wait(Transfer)[1]) for _ in range(count)]


def _refusal(client: RawClient) -> tuple[str, str]:
    error = client.wait(Detach)[0].error
    assert error is not None
    return error.condition, error.description or ""


def _bodies(found: list[Message]) -> list[bytes]:
    return [each.data[0] for each in found]


def _event(hub: RunningHub, number: int) -> Event:
    return hub.events()[number]


def test_a_reader_begins_where_its_filter_says(hub: RunningHub) -> None:
    fourth = _event(hub, 4)
    assert fourth.enqueued_at is not None
    at_ms = int(fourth.enqueued_at.timestamp() * 1000)
    for chosen, first in (
        ("", 0),
        ("x-opt-offset > '-1'", 0),
        (f"x-opt-offset > '{fourth.offset}'", 5),
        (f"x-opt-offset >= '{fourth.offset}'", 4),
        ("x-opt-sequence-number > '4'", 5),
        ("x-opt-sequence-number >= '4'", 4),
        ("x-opt-sequence-number > '-1'", 0),
        (f"x-opt-enqueued-time >= '{at_ms}'", 0),
        (f"x-opt-enqueued-time > '{at_ms - 1}'", 0),
    ):
        with _ready(hub) as client:
            [found] = _read(client, client.reader(at=chosen).handle, 1)
            assert found.data == (f"{first}".encode(),), chosen
            assert found.annotations["x-opt-sequence-number"] == first


def test_a_reader_at_the_end_gets_what_comes(hub: RunningHub) -> None:
    address = "hub/ConsumerGroups/$Default/Partitions/1"
    hub.store(b"old", partition=1)
    for chosen in ("x-opt-offset > '@latest'", "x-opt-enqueued-time > '99999999999999'"):
        with _ready(hub) as client:
            handle = client.reader(address, at=chosen).handle
            client.credit(handle, 5)
            until(lambda: _is_asleep(hub))
            hub.store(b"new", partition=1)
            assert read_message(client.wait(Transfer)[1]).data == (b"new",)


def _is_asleep(hub: RunningHub) -> bool:
    links = [
        link
        for connection in tuple(hub.server._connections)
        for session in tuple(connection._sessions.values())
        for link in session.links
        if hasattr(link, "_receiver")
    ]
    return bool(links) and all(link._receiver and link._receiver.is_waiting for link in links)


def test_what_lies_beyond_the_end_is_refused(hub: RunningHub) -> None:
    last = _event(hub, 9)
    for chosen, words in (
        ("x-opt-offset > '999999'", f"The last offset in the system is '{last.offset}'"),
        ("x-opt-sequence-number > '10'", "The last sequence number in the system is '9'"),
        ("x-opt-nonsense > '1'", "can not be read"),
        ("x-opt-offset > 'abc'", "can not be read"),
    ):
        with _ready(hub) as client:
            client.reader(at=chosen)
            condition, description = _refusal(client)
            assert condition == "com.microsoft:argument-error"
            assert words in description
    with _ready(hub) as client:
        client.reader(at="x-opt-sequence-number > '9'")  # the end itself is a place to wait at
        empty = "hub/ConsumerGroups/$Default/Partitions/7"
        client.reader(empty, at="x-opt-offset > '5'")
        assert "'-1'" in _refusal(client)[1]


def test_credit_is_respected_to_the_event(hub: RunningHub) -> None:
    with _ready(hub) as client:
        handle = client.reader().handle
        assert _bodies(_read(client, handle, 3)) == [b"0", b"1", b"2"]
        client.credit(handle, 0, seen=3, echo=True)
        assert client.wait(Flow)[0].link_credit == 0  # and no transfer came before it
        assert _bodies(_read(client, handle, 2, seen=3)) == [b"3", b"4"]


def test_a_reader_that_drains_is_told_when_there_is_no_more(hub: RunningHub) -> None:
    with _ready(hub) as client:
        handle = client.reader(at="x-opt-sequence-number >= '8'").handle
        client.credit(handle, 100, drain=True)
        assert _bodies([read_message(client.wait(Transfer)[1]) for _ in range(2)]) == [b"8", b"9"]
        flow, _ = client.wait(Flow)
        assert flow.drain
        assert (flow.link_credit, flow.delivery_count) == (0, 100)


def test_readers_with_epochs_end_others_and_are_ended(hub: RunningHub) -> None:
    address = "hub/ConsumerGroups/epochs/Partitions/0"

    def epoch(number: int) -> dict[str, Any]:
        return {"properties": {Symbol("com.microsoft:epoch"): Long(number)}}

    with _ready(hub) as one, _ready(hub) as two, _ready(hub) as three:
        one.reader(address)
        two.reader(address, **epoch(5))
        condition, words = _refusal(one)
        assert condition == "amqp:link:stolen"
        assert "with higher epoch of '5' is created" in words
        one.reader(address)
        assert "non-epoch receiver is not allowed" in _refusal(one)[1]
        three.reader(address, **epoch(4))
        assert "A receiver with a higher epoch '5' already exists" in _refusal(three)[1]
        three.reader(address, **epoch(5))
        assert _refusal(two)[0] == "amqp:link:stolen"
        other = "hub/ConsumerGroups/others/Partitions/0"
        assert _bodies(_read(one, one.reader(other).handle, 1)) == [b"0"]
    with _ready(hub) as one:  # epochs end with those who have them
        until(lambda: ("hub", "epochs", "0") not in hub.server.epochs._readers)
        assert _bodies(_read(one, one.reader(address).handle, 1)) == [b"0"]
        one.reader(address, **epoch(-1))
        assert _refusal(one)[0] == "com.microsoft:argument-error"


def test_five_may_read_a_partition_for_a_group_without_an_epoch(hub: RunningHub) -> None:
    address = "hub/ConsumerGroups/five/Partitions/0"
    with _ready(hub) as client:
        for _ in range(5):
            client.reader(address)
        client.reader(address)
        condition, words = _refusal(client)
        assert condition == "amqp:resource-limit-exceeded"
        assert "which is 5" in words


def test_a_reader_may_be_told_where_the_end_is(hub: RunningHub) -> None:
    wanted = ("com.microsoft:enable-receiver-runtime-metric",)
    with _ready(hub) as client:
        [found] = _read(client, client.reader(desired_capabilities=wanted).handle, 1)
        last = _event(hub, 9)
        assert last.enqueued_at is not None
        assert found.delivery_annotations["last_enqueued_sequence_number"] == 9
        assert found.delivery_annotations["last_enqueued_offset"] == str(last.offset)
        at_ms = found.delivery_annotations["last_enqueued_time_utc"]
        assert at_ms == int(last.enqueued_at.timestamp() * 1000)


def test_a_reader_of_ours_gets_whole_batches_in_arrow(hub: RunningHub) -> None:
    with _ready(hub) as client:
        answer = client.reader(desired_capabilities=("leasehold:arrow",))
        assert answer.offered_capabilities == ("leasehold:arrow",)
        client.credit(answer.handle, 4)
        rows: list[Any] = []
        while len(rows) < 4:
            head, payload = client.wait(Transfer)
            assert head.message_format == 0x4C480001
            batch = pa.ipc.read_record_batch(pa.py_buffer(payload), STORED_SCHEMA)
            rows += batch.column("body").to_pylist()
        assert rows == [b"0", b"1", b"2", b"3"]
        client.credit(answer.handle, 2, seen=4)
        payload = client.wait(Transfer)[1]
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), STORED_SCHEMA)
        assert batch.column("sequence_number").to_pylist() == [4, 5]


def test_a_big_event_comes_in_as_many_frames_as_the_client_wants(hub: RunningHub) -> None:
    body = bytes(range(256)) * 100
    hub.store(body, b"small", partition=2)
    with RawClient(hub.port) as client:
        client.open(max_frame_size=1000).put_token()
        handle = client.reader("hub/ConsumerGroups/$Default/Partitions/2").handle
        client.credit(handle, 2)
        parts = b""
        while True:
            head, payload = client.wait(Transfer)
            assert len(payload) < 1000
            parts += payload
            if not head.more:
                break
        assert read_message(parts).data == (body,)
        assert read_message(client.wait(Transfer)[1]).data == (b"small",)


def _sent(hub: RunningHub, message: Message, partition: int) -> Message:
    """What is read of a message that was sent."""
    with _ready(hub) as client:
        sender = client.attach(f"hub/Partitions/{partition}", receives=False)
        client.transfer(sender.handle, message.encode())
        assert type(client.wait(Disposition)[0].state).__name__ == "Accepted"
        address = f"hub/ConsumerGroups/$Default/Partitions/{partition}"
        handle = client.reader(address, at="x-opt-offset > '-1'").handle
        return _read(client, handle, len(hub.events(partition)))[-1]


@pytest.mark.parametrize(
    "message",
    [
        Message(data=(b"plain",)),
        Message(data=(b"",)),
        Message(data=(b"text",), application_properties={"a": "b", "c": ""}),
        Message(
            data=(b"typed",), application_properties={"a": Int(1), "t": Timestamp(5), "n": None}
        ),
        Message(
            data=(b"props",), properties=("id", b"user", "to", None, None, 7, Symbol("text/x"))
        ),
        Message(data=(b"notes",), annotations={Symbol("mine"): [1, "two"], Symbol("x-opt-p"): "q"}),
        Message(data=(b"two", b"parts")),
        Message(value={"a": [1, 2]}),
        Message(value="text"),
        Message(sequences=([1, 2], ["three"])),
        Message(header=(True, None, Int(5)), data=(b"header",), footer={Symbol("f"): 1}),
        Message(data=(b"name",), application_properties={"$amqp": "not ours"}),
    ],
    ids=lambda message: str(message.data or message.value or "sequences")[:20],
)
def test_a_message_is_given_back_as_it_was_sent(hub: RunningHub, message: Message) -> None:
    found = _sent(hub, message, 3)
    assert found.data == message.data
    assert (found.value, found.sequences) == (message.value, message.sequences)
    assert found.properties == message.properties
    assert found.application_properties == message.application_properties
    assert found.footer == message.footer
    ours = {"x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"}
    assert {k: v for k, v in found.annotations.items() if k not in ours} == message.annotations
    if message.header and len(message.header) > 1:
        assert found.header == message.header


def test_the_log_has_readable_properties_and_the_key(hub: RunningHub) -> None:
    sent = Message(
        annotations={Symbol("x-opt-partition-key"): "key"},
        application_properties={"number": Int(5), "word": "w"},
        data=(b"body",),
    )
    found = _sent(hub, sent, 4)
    assert found.annotations["x-opt-partition-key"] == "key"
    event = hub.events(4)[-1]
    assert event.key == "key"
    assert event.properties["number"] == "5"
    assert event.properties["word"] == "w"


def test_damaged_sections_in_the_log_do_not_stop_a_reader(hub: RunningHub) -> None:
    with hub.log.producer("hub") as producer:
        odd = [{"$amqp": "%%%"}, {"$amqp": "AAAA", "a": "b"}, {"$amqp": "AFN1oAAAAA=="}]
        events = [Event(body=b"x", properties=each) for each in odd]
        producer.send(events, partition=5).result(90)
    with _ready(hub) as client:
        handle = client.reader("hub/ConsumerGroups/$Default/Partitions/5").handle
        found = _read(client, handle, 3)
        assert found[1].application_properties == {"a": "b"}


def numbered(first: int, *bodies: bytes) -> bytes:
    events = [
        Message(annotations={Symbol(SEQUENCE): Int(first + at)}, data=(body,)).encode()
        for at, body in enumerate(bodies)
    ]
    return Message(data=tuple(events)).encode()


def test_events_that_a_client_numbers_are_stored_once(tmp_path: Path) -> None:
    wanted = (NUMBERED,)
    with running_hub(tmp_path) as hub:
        with _ready(hub) as client:
            answer = client.attach("hub/Partitions/0", receives=False, desired_capabilities=wanted)
            assert answer.offered_capabilities == wanted
            assert answer.properties is not None
            assert answer.properties[SEQUENCE] == 0
            who = answer.properties["com.microsoft:producer-id"]
            client.transfer(answer.handle, numbered(1, b"a", b"b"), message_format=0x80013700)
            client.wait(Disposition)
        with _ready(hub) as client:  # the answer was lost: it sends them again, and more
            again = {
                Symbol("com.microsoft:producer-id"): Long(who),
                Symbol(SEQUENCE): Int(0),
                Symbol("com.microsoft:producer-epoch"): Short(0),
            }
            sender = client.attach(
                "hub/Partitions/0", receives=False, desired_capabilities=wanted, properties=again
            )
            assert sender.properties is not None
            assert sender.properties[SEQUENCE] == 0
            for data in (numbered(1, b"a", b"b"), numbered(2, b"b", b"c"), numbered(4, b"d")):
                client.transfer(sender.handle, data, message_format=0x80013700)
                assert type(client.wait(Disposition)[0].state).__name__ == "Accepted"
        assert hub.bodies() == [b"a", b"b", b"c", b"d"]


def test_numbers_that_a_client_uses_again_for_other_events_hide_none(tmp_path: Path) -> None:
    """It does so after it has given a batch up whose answer was lost."""
    with running_hub(tmp_path) as hub, _ready(hub) as client:
        handle = client.attach(
            "hub/Partitions/0", receives=False, desired_capabilities=(NUMBERED,)
        ).handle
        for data in (numbered(1, b"a", b"b"), numbered(1, b"c"), numbered(1, b"c")):
            client.transfer(handle, data, message_format=0x80013700)
            assert type(client.wait(Disposition)[0].state).__name__ == "Accepted"
        assert hub.bodies() == [b"a", b"b", b"c"]
