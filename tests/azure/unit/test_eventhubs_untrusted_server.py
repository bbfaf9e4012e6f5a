"""A damaged or malicious server: what it sends is validated before it is used."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.support.eventhubs_fake_link import HANDLE, FakeLink, annotations_of, in_loop, transfers

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import ARROW_FORMAT, Message
from leasehold.azure.amqp.performatives import Transfer
from leasehold.azure.amqp.types import Symbol, Timestamp
from leasehold.azure.eventhubs.service_errors import DAMAGED, TOO_MANY
from leasehold.events import STORED_SCHEMA


def arrow_batch(numbers: Sequence[int | None], bodies: Sequence[bytes]) -> pa.RecordBatch:
    count = len(numbers)
    values = [numbers, range(count), range(count), [None] * count, bodies, [None] * count]
    columns = [*values, [0] * count]
    arrays = [pa.array(each, kind.type) for each, kind in zip(columns, STORED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=STORED_SCHEMA)


def with_places_beyond_the_end() -> bytes:
    payload = bytes(arrow_batch([0, 1], [b"abc", b"defg"]).serialize())
    places = struct.pack("<3i", 0, 3, 7)
    assert payload.count(places) == 1
    return payload.replace(places, struct.pack("<3i", 0, 3, 1 << 28))


def compressed() -> bytes:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED_SCHEMA, options=options) as stream:
        stream.write_batch(arrow_batch([0], [bytes(1 << 20)]))
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    return bytes(reader.read_next_message().serialize())


@pytest.mark.parametrize(
    "payload",
    [
        with_places_beyond_the_end(),
        compressed(),
        bytes(arrow_batch([None], [b"x"]).serialize()),
        b"no arrow",
    ],
)
def test_an_arrow_batch_of_a_server_is_not_trusted(payload: bytes) -> None:
    """Unchecked, places beyond its end would show the memory of the process, or end it."""

    def test() -> None:
        fake = FakeLink()
        good = bytes(arrow_batch([4], [b"good"]).serialize())
        for each in (good, payload, good):
            head = Transfer(handle=HANDLE, delivery_id=0, message_format=ARROW_FORMAT, settled=True)
            fake.serve(head, each)
        assert fake.link.service_error is not None
        assert fake.link.service_error.condition == DAMAGED
        assert [each.body for each in fake.taken()] == [b"good"]

    in_loop(test)


def test_events_and_arrow_batches_are_taken_in_the_order_they_came() -> None:
    def test() -> None:
        fake = FakeLink()
        for number in (0, 1, 4):
            message = Message(annotations=annotations_of(number), data=(b"x",)).encode()
            fake.connection.data_received(b"".join(transfers(message, number)))
            if number == 1:
                head = Transfer(
                    handle=HANDLE, delivery_id=2, message_format=ARROW_FORMAT, settled=True
                )
                fake.serve(head, bytes(arrow_batch([2, 3], [b"y", b"y"]).serialize()))
        assert [each.sequence_number for each in fake.taken()] == [0, 1, 2, 3, 4]

    in_loop(test)


def test_a_message_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.azure.eventhubs.event_link.MAX_DELIVERY_BYTES", 100_000)

    def test() -> None:
        fake = FakeLink()
        for _ in range(30):
            fake.serve(Transfer(handle=HANDLE, settled=True, more=True), bytes(10_000))
        assert fake.link.service_error is not None
        assert fake.link.service_error.condition == DAMAGED
        assert fake.link.waiting_bytes == 0

    in_loop(test)


def test_a_time_that_no_calendar_has_is_damage() -> None:
    def test() -> None:
        fake = FakeLink()
        notes = {**annotations_of(0), Symbol("x-opt-enqueued-time"): Timestamp(2**62)}
        message = Message(annotations=notes, data=(b"x",)).encode()
        fake.connection.data_received(b"".join(transfers(message, 0)))
        with pytest.raises(AmqpFault, match="9999"):
            fake.take(1)

    in_loop(test)


def test_a_server_that_does_not_keep_to_its_credit_is_left() -> None:
    def test() -> None:
        fake = FakeLink(max_events=10)
        for number in range(30):
            message = Message(annotations=annotations_of(number), data=(b"x",)).encode()
            fake.connection.data_received(b"".join(transfers(message, number)))
        assert fake.link.service_error is not None
        assert fake.link.service_error.condition == TOO_MANY
        assert fake.link.waiting_events < 25

    in_loop(test)
