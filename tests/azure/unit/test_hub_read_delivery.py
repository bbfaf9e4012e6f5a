"""Decoding the deliveries of senders into Arrow batches."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import BATCH_FORMAT, Message
from leasehold.azure.amqp.types import Int, Symbol
from leasehold.azure.endpoint.links import read_delivery

KEY = Symbol("x-opt-partition-key")
_MESSAGES = st.builds(
    Message,
    annotations=st.sampled_from([{}, {KEY: "k"}, {KEY: "other"}, {Symbol("a"): 1}]),
    properties=st.sampled_from([(), ("id",)]),
    application_properties=st.sampled_from([{}, {"a": "b"}, {"a": Int(1)}]),
    data=st.one_of(
        st.binary(max_size=12).map(lambda body: (body,)),
        st.just((bytes(300),)),
        st.just((b"two", b"parts")),
    ),
)


def _rows(data: bytes, message_format: int) -> list[tuple[Any, ...]]:
    columns = read_delivery(data, message_format).batch.to_pydict()
    return list(zip(columns["key"], columns["body"], columns["properties"], strict=True))


@given(st.lists(_MESSAGES, min_size=1, max_size=8))
def test_the_events_of_a_batch_are_those_that_come_one_by_one(messages: list[Message]) -> None:
    batch = Message(data=tuple(each.encode() for each in messages)).encode()
    alone = [row for each in messages for row in _rows(each.encode(), 0)]
    assert _rows(batch, BATCH_FORMAT) == alone


def test_events_have_the_key_of_the_batch_around_them() -> None:
    inner = (
        Message(data=(b"a",)).encode(),
        Message(annotations={KEY: "own"}, data=(b"b",)).encode(),
    )
    around = Message(header=(True,), annotations={KEY: "k"}, data=inner)
    assert [row[0] for row in _rows(around.encode(), BATCH_FORMAT)] == ["k", "own"]


@settings(max_examples=120)
@given(st.lists(_MESSAGES, min_size=1, max_size=3), st.data())
def test_a_damaged_batch_is_a_batch_or_a_fault(
    messages: list[Message], chosen: st.DataObject
) -> None:
    data = bytearray(Message(data=tuple(each.encode() for each in messages)).encode())
    data[chosen.draw(st.integers(0, len(data) - 1))] = chosen.draw(st.integers(0, 255))
    with suppress(AmqpFault):
        read_delivery(bytes(data[: chosen.draw(st.integers(0, len(data)))]), BATCH_FORMAT)


@pytest.mark.parametrize("data", [b"", Message(value=5).encode(), Message(data=(b"x",)).encode()])
def test_a_batch_without_events_is_a_fault(data: bytes) -> None:
    with pytest.raises(AmqpFault):
        read_delivery(data, BATCH_FORMAT)
