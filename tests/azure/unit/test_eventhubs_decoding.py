"""From bytes to Arrow: whichever decoder takes a frame, the event is what Azure's client sees."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from azure.eventhub import EventData
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.eventhubs_fake_link import (
    CHANNEL,
    HANDLE,
    FakeLink,
    annotations_of,
    in_loop,
    transfers,
)

from leasehold.azure import original_message
from leasehold.azure.amqp.composites import Composite
from leasehold.azure.amqp.frames import frame
from leasehold.azure.amqp.messages import (
    ARROW_FORMAT,
    SECTIONS_PROPERTY,
    Message,
    section,
    text_of,
)
from leasehold.azure.amqp.performatives import Transfer
from leasehold.azure.amqp.types import Float, Int, Long, Symbol, Timestamp, UInt, ULong, UShort
from leasehold.azure.eventhubs.service_errors import DAMAGED
from leasehold.events import Event

KEYS = st.text(max_size=8)
SIMPLE = st.one_of(
    st.text(max_size=8),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**64 - 1).map(ULong),
    st.floats(allow_nan=False),
    st.sampled_from([0.5, -2.0]).map(Float),
    st.uuids(),
    st.binary(max_size=8),
    st.integers(0, 2**40).map(Timestamp),
    st.none(),
)
APPLICATION = st.dictionaries(KEYS, SIMPLE, max_size=3)
TEXTS = st.dictionaries(KEYS, st.text(max_size=8), max_size=3)
PROPERTIES = st.sampled_from(
    [(), ("id-1",), (UUID(int=5), b"user", "to", "subject"), (None,) * 6 + (Symbol("text/plain"),)]
)
BODIES = st.one_of(
    st.binary(max_size=400).map(lambda data: {"data": (data,)}),
    st.lists(st.binary(max_size=9), min_size=2, max_size=3).map(
        lambda parts: {"data": tuple(parts)}
    ),
    st.text(max_size=9).map(lambda text: {"value": text}),
    st.lists(st.text(max_size=4), max_size=2).map(lambda values: {"sequences": (values,)}),
)
MESSAGES = st.fixed_dictionaries(
    {
        "key": st.one_of(st.none(), st.text(min_size=1, max_size=5)),
        "application": st.one_of(APPLICATION, TEXTS, st.just({})),
        "properties": PROPERTIES,
        "body": BODIES,
        "header": st.sampled_from([None, (True,), (True, None, UInt(5))]),
        "odd": st.booleans(),
    }
)


def written(number: int, what: dict[str, Any]) -> bytes:
    more = {"x_opt_partition_key": what["key"]} if what["key"] is not None else {}
    if what["odd"]:
        more["x_opt_own"] = "kept"
    return Message(
        header=what["header"],
        annotations=annotations_of(number, **more),
        properties=what["properties"],
        application_properties=what["application"],
        **what["body"],
    ).encode()


def normal(value: object) -> object:
    """A value of the official client, as it would be ours."""
    return value.decode() if isinstance(value, bytes) else value


def official_body(event: EventData) -> bytes:
    body: Any = event.body
    if event.body_type.value == "data":
        return b"".join(body)
    if event.body_type.value == "value":
        return body if isinstance(body, bytes) else text_of(body).encode()
    return b"\n".join(text_of(list(map(normal, each))).encode() for each in body)


@settings(max_examples=40)
@given(st.lists(MESSAGES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_every_event_is_the_one_that_the_official_client_sees(
    whats: list[dict[str, Any]], rng: random.Random
) -> None:
    """In pieces of any size, in one frame or several, in runs of the same shape or not."""
    messages = [written(number, what) for number, what in enumerate(whats * 3)]
    room = rng.choice([1 << 30, 1 << 30, 64])
    data = b"".join(
        part for number, each in enumerate(messages) for part in transfers(each, number, room=room)
    )

    def test() -> None:
        fake, at = FakeLink(), 0
        while at < len(data):
            size = rng.choice([1, 7, 300, 5000, len(data)])
            fake.connection.data_received(data[at : at + size])
            at += size
        found = fake.taken()
        assert [each.sequence_number for each in found] == list(range(len(messages)))
        for ours, message, what in zip(found, messages, whats * 3, strict=True):
            compare(ours, EventData.from_bytes(message), what)

    in_loop(test)


def compare(ours: Event, theirs: EventData, what: dict[str, Any]) -> None:
    assert ours.sequence_number == theirs.sequence_number
    assert str(ours.offset) == theirs.offset
    assert ours.enqueued_at == theirs.enqueued_time
    assert ours.key == normal(theirs.partition_key)
    if "sequences" not in what["body"]:
        assert ours.body == official_body(theirs)
    shown = {name: text for name, text in ours.properties.items() if name != SECTIONS_PROPERTY}
    if SECTIONS_PROPERTY not in what["application"]:
        assert set(shown) == {
            normal(name) for name, value in (theirs.properties or {}).items() if value is not None
        }
    for name, value in what["application"].items():
        if value is not None and name != SECTIONS_PROPERTY:
            assert shown[name] == text_of(value)
    whole = original_message(ours.properties, ours.body)
    assert dict(whole.application_properties) == what["application"]
    if any(value is not None for value in what["properties"]):
        assert tuple(whole.properties) == what["properties"]
    assert (whole.data, whole.value) == (what["body"].get("data", ()), what["body"].get("value"))


def test_frames_that_look_alike_are_taken_in_runs() -> None:
    def test() -> None:
        fake = FakeLink()
        slow: list[int] = []
        fake.link.on_transfer = _noted(slow, fake.link.on_transfer)  # type: ignore[method-assign]
        messages = [
            Message(annotations=annotations_of(number), data=(bytes(number % 250),)).encode()
            for number in range(3000)
        ]
        data = b"".join(p for n, each in enumerate(messages) for p in transfers(each, n))
        for at in range(0, len(data), 10_000):
            fake.connection.data_received(data[at : at + 10_000])
        assert [len(each.body) for each in fake.taken()] == [n % 250 for n in range(3000)]
        # Numbers below 256 and 0 are written in other ways, and each way is learnt once.
        assert len(slow) <= 4

    in_loop(test)


def _noted(slow: list[int], function: Callable[..., None]) -> Callable[..., None]:
    def noted(*arguments: Any) -> None:
        slow.append(1)
        function(*arguments)

    return noted


def test_keys_and_text_properties_are_taken_in_runs_too() -> None:
    def test() -> None:
        fake = FakeLink()
        slow: list[int] = []
        fake.link.on_transfer = _noted(slow, fake.link.on_transfer)  # type: ignore[method-assign]
        data = b""
        for number in range(2000):
            message = Message(
                annotations=annotations_of(number, x_opt_partition_key="k" * (1 + number % 9)),
                application_properties={"n": str(number), "odd\x00Su": "x" * (number % 40)},
                data=(b"\x00Su\xa0\x00" * (number % 3),),
            )
            data += b"".join(transfers(message.encode(), number))
        fake.connection.data_received(data)
        found = fake.taken()
        assert [each.properties["n"] for each in found] == [str(n) for n in range(2000)]
        assert [len(each.key or "") for each in found] == [1 + n % 9 for n in range(2000)]
        assert [len(each.body) for each in found] == [5 * (n % 3) for n in range(2000)]
        assert len(slow) < 2000 // 4

    in_loop(test)


def test_offsets_that_are_no_numbers_are_kept_as_a_property() -> None:
    def test() -> None:
        fake = FakeLink()
        for number, offset in enumerate(["5", "12:3:9", "x", str(2**70)]):
            notes = {**annotations_of(number), Symbol("x-opt-offset"): offset}
            message = Message(annotations=notes, data=(b"b",)).encode()
            fake.connection.data_received(b"".join(transfers(message, number)))
        found = fake.taken()
        assert [each.offset for each in found] == [5, -1, -1, -1]
        assert [each.properties.get("x-opt-offset") for each in found] == [
            None,
            "12:3:9",
            "x",
            str(2**70),
        ]

    in_loop(test)


@pytest.mark.parametrize(
    "message",
    [
        section(0x75, b"no annotations"),
        Message(annotations={Symbol("x-opt-sequence-number"): "5"}, data=(b"",)).encode(),
        Message(annotations=annotations_of(5)).encode()[:-1] + b"\xff",
        b"\x00\x53\x75\xb0\x00\x00\xff\xff",
    ],
)
def test_an_event_that_can_not_be_read_ends_the_link_after_those_before_it(message: bytes) -> None:
    def test() -> None:
        fake = FakeLink()
        good = Message(annotations=annotations_of(4), data=(b"good",)).encode()
        data = b"".join((*transfers(good, 0), *transfers(message, 1), *transfers(good, 2)))
        fake.connection.data_received(data)
        assert fake.link.service_error is not None
        assert fake.link.service_error.condition == DAMAGED
        assert [each.body for each in fake.taken()] == [b"good"]
        assert not fake.connection.ended.done()

    in_loop(test)


@settings(max_examples=80)
@given(st.binary(max_size=300), st.booleans())
def test_bytes_that_are_no_frames_end_the_connection_and_nothing_else(
    data: bytes, framed: bool
) -> None:
    def test() -> None:
        fake = FakeLink()
        fake.connection.data_received(frame(CHANNEL, data) if framed else data)
        fake.connection.data_received(bytes(8))
        fake.taken()

    in_loop(test)


def test_credit_is_topped_up_when_half_of_it_is_used() -> None:
    def test() -> None:
        fake = FakeLink(max_events=100)
        assert fake.flows == [(0, 100)]
        message = [
            b"".join(transfers(Message(annotations=annotations_of(n), data=(b"x",)).encode(), n))
            for n in range(100)
        ]
        fake.connection.data_received(b"".join(message[:49]))
        assert fake.take(49).num_rows == 49
        assert fake.flows == [(0, 100)]
        fake.connection.data_received(b"".join(message[49:60]))
        fake.taken()
        assert fake.flows == [(0, 100), (60, 96)]

    in_loop(test)


def _event(number: int, size: int) -> bytes:
    message = Message(annotations=annotations_of(number), data=(bytes(size),)).encode()
    return b"".join(transfers(message, number))


def test_few_events_are_asked_for_until_it_is_known_how_big_they_are() -> None:
    def test() -> None:
        fake = FakeLink(max_events=1000, max_bytes=300_000)
        assert fake.flows == [(0, 4)]  # as many as fit if each has 64 KiB
        fake.connection.data_received(_event(0, 10_000))
        assert fake.flows[1:] == [(1, 28)]  # as many as fit, if they are like the first
        fake.connection.data_received(b"".join(_event(number, 10_000) for number in range(1, 29)))
        assert fake.link.waiting_bytes < 300_000
        assert fake.flows[2:] == []
        fake.taken()
        assert fake.flows[-1] == (29, 28)

    in_loop(test)


def test_events_that_become_bigger_take_the_credit_back_until_there_is_room() -> None:
    def test() -> None:
        fake = FakeLink(max_events=1000, max_bytes=100_000)
        fake.connection.data_received(_event(0, 10))
        assert fake.flows[-1][1] > 500
        for number in range(1, 13):
            fake.connection.data_received(_event(number, 10_000))
        assert fake.flows[-1][1] == 0
        assert fake.link.waiting_bytes < 130_000
        assert fake.take(1).num_rows == 1
        fake.taken()
        assert fake.flows[-1] == (13, 9)

    in_loop(test)


def test_deliveries_that_are_not_settled_are_accepted() -> None:
    def test() -> None:
        fake = FakeLink()
        said: list[Composite] = []
        fake.session.send = said.append  # type: ignore[method-assign, assignment]
        message = Message(annotations=annotations_of(0), data=(b"x",)).encode()
        fake.serve(
            Transfer(handle=HANDLE, delivery_id=9, delivery_tag=b"t", settled=False), message
        )
        assert [type(each).__name__ for each in said] == ["Disposition"]
        assert len(fake.taken()) == 1

    in_loop(test)


def test_an_arrow_batch_is_taken_as_it_is_and_in_parts() -> None:
    def test() -> None:
        fake = FakeLink(max_events=50)
        source = FakeLink()
        data = b"".join(
            part
            for n in range(40)
            for part in transfers(Message(annotations=annotations_of(n), data=(b"x",)).encode(), n)
        )
        source.connection.data_received(data)
        batch = source.take(100)
        payload = bytes(batch.serialize())
        head = {"handle": HANDLE, "message_format": ARROW_FORMAT, "settled": True}
        fake.serve(Transfer(delivery_id=0, more=True, **head), payload[:100])  # type: ignore[arg-type]
        assert fake.link.waiting_events == 0
        fake.serve(Transfer(handle=HANDLE, settled=True), payload[100:])
        assert fake.link.waiting_events == 40
        parts: Sequence[pa.RecordBatch] = [fake.take(25) for _ in range(2)]
        assert [part.num_rows for part in parts] == [25, 15]
        assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
        assert fake.flows[-1] == (40, 35)

    in_loop(test)
