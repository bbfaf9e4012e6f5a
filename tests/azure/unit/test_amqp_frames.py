from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.azure.amqp.composites import Accepted, Composite, Error, Rejected, Source, Target
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.frames import AMQP_HEADER, HEADER, SASL, FrameReader, frame
from leasehold.azure.amqp.messages import (
    Message,
    answer_to,
    read_message,
    sections,
    text_of,
    texts_of,
)
from leasehold.azure.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    parse,
)
from leasehold.azure.amqp.types import Described, Symbol, Timestamp, UInt, ULong
from leasehold.azure.amqp.values import decode, encode

_ALL: list[Composite] = [
    Open(container_id="here", hostname="there", idle_time_out=5, properties={Symbol("a"): 1}),
    Begin(next_outgoing_id=1, incoming_window=2, outgoing_window=3, remote_channel=4),
    Attach(
        name="link",
        handle=7,
        role=True,
        source=Source(address="a", filter={Symbol("f"): Described(Symbol("f"), "x > '1'")}),
        target=Target(address="b"),
        desired_capabilities=("one", "two"),
        max_message_size=2**40,
    ),
    Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=4, link_credit=5),
    Transfer(handle=1, delivery_id=2, delivery_tag=b"t", message_format=0, settled=True),
    Disposition(role=True, first=1, settled=True, state=Accepted()),
    Disposition(role=True, first=1, state=Rejected(error=Error(condition="a:b", description="c"))),
    Detach(handle=3, closed=True, error=Error(condition="amqp:link:stolen")),
    End(),
    Close(error=Error(condition="x", info={Symbol("y"): 1})),
    SaslMechanisms(mechanisms=("ANONYMOUS",)),
    SaslInit(mechanism="PLAIN", initial_response=b"\0a\0b"),
    SaslOutcome(code=0),
]


@pytest.mark.parametrize("one", _ALL, ids=lambda one: type(one).__name__)
def test_a_performative_is_read_as_it_was_written(one: Composite) -> None:
    data = one.encode()
    found, end = parse(data + b"rest")
    assert found == one
    assert end == len(data)


@pytest.mark.parametrize("one", _ALL, ids=lambda one: type(one).__name__)
def test_every_field_is_written_and_never_as_the_empty_list(one: Composite) -> None:
    counts = {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1}
    found, _ = decode(one.encode())
    assert len(found.value) == counts.get(one.CODE, len(one.KINDS))
    assert one.encode()[3] in {0xC0, 0xD0}


def test_missing_fields_at_the_end_are_null() -> None:
    short = encode(Described(ULong(0x13), [None, UInt(1), UInt(2), UInt(3)]))
    assert parse(short)[0] == Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3)


def test_a_performative_may_be_called_by_its_name() -> None:
    assert parse(encode(Described(Symbol("amqp:end:list"), [])))[0] == End()


@pytest.mark.parametrize(
    "value",
    [
        5,
        Described(ULong(0x99), []),
        Described(Symbol("amqp:nothing:list"), []),
        Described(ULong(0x10), []),
        Described(ULong(0x10), {"a": 1}),
        Described(ULong(0x16), ["handle"]),
        Described(ULong(0x16), [True]),
        Described(ULong(0x17), [None, None]),
        Described(ULong(0x12), ["n", UInt(1), True, None, None, "no source"]),
    ],
)
def test_what_is_no_performative_is_a_fault(value: object) -> None:
    with pytest.raises(AmqpFault):
        parse(encode(value))


@settings(max_examples=120)
@given(st.sampled_from(_ALL), st.data())
def test_a_damaged_performative_is_one_or_a_fault(one: Composite, chosen: st.DataObject) -> None:
    data = bytearray(one.encode())
    for _ in range(chosen.draw(st.integers(1, 3))):
        data[chosen.draw(st.integers(0, len(data) - 1))] = chosen.draw(st.integers(0, 255))
    with suppress(AmqpFault):
        parse(bytes(data))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_frames_are_the_same_however_their_bytes_are_cut(cuts: list[int]) -> None:
    data = AMQP_HEADER + frame(3, b"abc") + frame(0, b"", SASL) + frame(65535, b"x" * 100)
    reader, found, at = FrameReader(200), [], 0
    for size in [*cuts, len(data)]:
        found += [
            (each.kind, each.channel, bytes(each.body))
            for each in reader.feed(data[at : at + size])
        ]
        at += size
    assert found == [
        (HEADER, 0, AMQP_HEADER),
        (0, 3, b"abc"),
        (SASL, 0, b""),
        (0, 65535, b"x" * 100),
    ]
    assert not reader.buffered_bytes


def test_a_frame_that_is_too_big_is_refused_by_its_head() -> None:
    reader = FrameReader(100)
    assert [bytes(each.body) for each in reader.feed(frame(0, b"x" * 92))] == [b"x" * 92]
    with pytest.raises(AmqpFault, match="too big") as caught:
        list(reader.feed(frame(0, b"x" * 93)[:8]))
    assert caught.value.condition == "amqp:connection:framing-error"


@pytest.mark.parametrize("head", ["0000000702000000", "0000000801000000", "00000008ff000000"])
def test_a_damaged_head_is_a_fault(head: str) -> None:
    with pytest.raises(AmqpFault, match="damaged"):
        list(FrameReader(1000).feed(bytes.fromhex(head) + bytes(2000)))


def test_a_message_is_read_as_it_was_written() -> None:
    one = Message(
        header=(True, None),
        delivery_annotations={Symbol("d"): 1},
        annotations={Symbol("x-opt-partition-key"): "k"},
        properties=("id", b"user"),
        application_properties={"a": 1, "b": "c"},
        data=(b"one", b"two"),
        footer={Symbol("f"): 1},
    )
    assert read_message(one.encode()) == one
    assert [code for code, *_ in sections(one.encode())] == [
        *(0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x75, 0x78)
    ]


def test_an_answer_has_the_id_of_its_request() -> None:
    asked = Message(properties=("id-1",), value="token")
    answer = read_message(answer_to(asked, status={"status-code": 202}, value=None).encode())
    assert answer.properties[5] == "id-1"
    assert answer.application_properties == {"status-code": 202}


@settings(max_examples=120)
@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_fault(data: bytes) -> None:
    for each in (data, b"\x00\x53\x75" + data, b"\x00\x53\x73\xc0" + data):
        with suppress(AmqpFault):
            read_message(each)


def test_typed_properties_have_one_form_as_text() -> None:
    found = texts_of({"a": "x", "b": True, "c": 5, "d": 1.5, "e": b"\x00", "f": None})
    assert found == {"a": "x", "b": "true", "c": "5", "d": "1.5", "e": "AA=="}
    assert text_of(Timestamp(5)) == "5"
    assert text_of(Described(ULong(1), "inner")) == "inner"
