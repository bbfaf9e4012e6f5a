"""Events, batches and keys: what can be sent, and what comes back."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.segment_bytes import Assembly

from leasehold.errors import UsageError
from leasehold.events import SENT_SCHEMA, STORED_SCHEMA, Event, EventBatch, partition_of
from leasehold.events.event import sent_batch, split_by_key
from leasehold.events.keys import key_hash, sorted_hashes
from leasehold.log.segment import Segment

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
EVENTS = st.builds(
    Event,
    body=st.binary(max_size=40),
    key=st.none() | TEXT,
    properties=st.dictionaries(TEXT, TEXT, max_size=3),
)


def _stored(events: list[Event]) -> EventBatch:
    made = Assembly(base_sequence=10, base_offset=640)
    made.add(events, at_us=1_700_000_000_000_001)
    return next(Segment(made.data).batches())


@given(st.lists(EVENTS, min_size=1, max_size=20))
def test_events_come_back_as_they_were_sent(events: list[Event]) -> None:
    received = list(_stored(events))
    sent = [(each.body, each.key, dict(each.properties)) for each in events]
    assert [(each.body, each.key, dict(each.properties)) for each in received] == sent
    assert [each.sequence_number for each in received] == list(range(10, 10 + len(events)))


def test_a_received_event_knows_where_it_was_stored() -> None:
    last = list(_stored([Event(body=b"a"), Event(body=b"b", key="k")]))[1]
    assert last == Event(
        body=b"b",
        key="k",
        sequence_number=11,
        offset=640 + 64 + 1,
        enqueued_at=datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC),
        epoch=7,
        partition="3",
    )


def test_a_batch_can_be_sliced_and_knows_its_ends() -> None:
    batch = _stored([Event(body=bytes([n])) for n in range(5)])
    assert (len(batch), batch.first_sequence, batch.last_sequence) == (5, 10, 14)
    part = batch.slice(1, 2)
    assert [each.body for each in part] == [b"\1", b"\2"]
    assert (part.first_sequence, part.last_sequence, part.partition) == (11, 12, "3")
    assert batch.slice(4).first_sequence == 14
    assert batch.arrow.schema == STORED_SCHEMA


@pytest.mark.parametrize("body", ["text", 7, None, bytearray(b"x")])
def test_a_body_that_is_not_bytes_is_refused_where_it_is_made(body: object) -> None:
    with pytest.raises(UsageError, match="the body of an event is bytes, not"):
        Event(body=body)  # type: ignore[arg-type]


def test_a_text_body_is_told_how_to_become_bytes() -> None:
    with pytest.raises(UsageError, match=r"encode\(\)"):
        Event(body="text")  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "how"), [(b"bytes", r"key=….decode\(\)"), (7, r"key=str\(…\)")])
def test_a_key_that_is_not_text_is_refused(key: object, how: str) -> None:
    with pytest.raises(UsageError, match=f"key of an event is text.*write {how}"):
        Event(body=b"", key=key)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "properties", [{"a": 1}, {1: "a"}, {"a": None}, "text", {"a": "\ud800"}, [("a", "b")]]
)
def test_properties_that_are_not_text_are_refused(properties: object) -> None:
    with pytest.raises(UsageError, match="the column properties"):
        sent_batch([Event(body=b"", properties=properties)])  # type: ignore[arg-type]


def test_a_key_that_utf8_can_not_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="the column key"):
        sent_batch(Event(body=b"", key="\ud800"))
    with pytest.raises(UsageError, match="UTF-8"):
        partition_of("\ud800", 4)


@pytest.mark.parametrize("what", ["text", b"bytes", 7, None, {"body": b""}])
def test_something_else_can_not_be_sent(what: object) -> None:
    with pytest.raises(UsageError, match="can not be sent: give an Event"):
        sent_batch(what)


def test_a_list_of_something_else_can_not_be_sent() -> None:
    with pytest.raises(UsageError, match="holds str: give only Event"):
        sent_batch([Event(body=b""), "text"])


BODIES = [b"a", b"bc"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(BODIES, pa.binary()),
        pa.array(BODIES, pa.large_binary()),
        pa.array(BODIES, pa.binary_view()),
        pa.array(["a", "bc"], pa.string()),
        pa.array(["a", "bc"], pa.large_string()),
        pa.array(["a", "bc"]).dictionary_encode(),
        pa.chunked_array([pa.array([b"a"]), pa.array([b"bc"])]),
    ],
    ids=lambda column: f"{column.type} {type(column).__name__}",
)
def test_a_table_with_bodies_alone_is_enough(column: pa.Array) -> None:
    batch = sent_batch(pa.table({"body": column}))
    assert batch.schema == SENT_SCHEMA
    assert batch.to_pylist() == [{"key": None, "body": b, "properties": None} for b in BODIES]


def test_columns_come_in_any_order() -> None:
    properties = pa.array([[("a", "b")], None], pa.map_(pa.large_string(), pa.large_string()))
    table = pa.table({"properties": properties, "body": BODIES, "key": ["x", None]})
    for given_as in (table, table.to_batches()[0]):
        assert sent_batch(given_as).to_pylist() == [
            {"key": "x", "body": b"a", "properties": [("a", "b")]},
            {"key": None, "body": b"bc", "properties": None},
        ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": ["a"]}, "the column body is missing"),
        ({"body": [1]}, "the column body is int64"),
        ({"body": [b"a", None]}, "the column body is 1 nulls"),
        ({"body": [b"a"], "key": [1]}, "the column key is int64"),
        ({"body": [b"a"], "key": [b"a"]}, "the column key is binary"),
        ({"body": [b"a"], "properties": ["a"]}, "the column properties is string"),
        ({"body": [b"a"], "when": [1]}, "columns when can not be sent"),
    ],
)
def test_a_wrong_column_is_named(columns: dict[str, list[object]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sent_batch(pa.table(columns))


def test_a_null_among_the_values_of_properties_is_refused() -> None:
    values = pa.array([[("a", None)]], SENT_SCHEMA.field("properties").type)
    with pytest.raises(UsageError, match="a null among its values"):
        sent_batch(pa.table({"body": [b"a"], "properties": values}))


def test_a_column_whose_bytes_are_not_what_it_says_is_refused() -> None:
    not_text = pa.Array.from_buffers(pa.utf8(), 1, pa.array([b"\xff"]).buffers())
    for table in (pa.table({"body": [b""], "key": not_text}), pa.table({"body": not_text})):
        with pytest.raises(UsageError, match="not sound"):
            sent_batch(table)


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pa.table([pa.array([b"a"]), pa.array([b"b"])], names=["body", "body"])
    with pytest.raises(UsageError, match="of the same name"):
        sent_batch(twice)


def test_nothing_sent_is_an_empty_batch() -> None:
    assert sent_batch([]).num_rows == 0
    assert sent_batch(SENT_SCHEMA.empty_table()).num_rows == 0


def test_many_events_without_properties_are_sent_too() -> None:
    batch = sent_batch([Event(body=b"x")] * 5_000)
    assert batch.column("properties").null_count == 5_000


def test_the_hash_of_keys_is_pinned() -> None:
    """These numbers are part of the format: events of a key must never change partition."""
    assert key_hash("123456789") == 0xE3069283  # the check value of CRC32C
    keys = ["", "a", "device-1", "device-2", "Größe", "日本"]
    assert [partition_of(key, 4) for key in keys] == [0, 3, 2, 1, 3, 0]
    assert [partition_of(key, 32) for key in keys] == [0, 29, 17, 8, 27, 3]
    assert [partition_of(key, 1000) for key in keys] == [0, 917, 542, 256, 871, 111]
    assert {partition_of(key, 1) for key in keys} == {0}
    assert [partition_of(key, 2**32) for key in keys[:3]] == [0, 3_939_995_168, 2_331_052_685]


@pytest.mark.parametrize("partitions", [2, 3, 4, 7, 8, 32])
@pytest.mark.parametrize("pattern", ["{}", "device-{}", "{:08d}", "user:{}:session"])
def test_keys_that_differ_in_a_digit_spread_well(pattern: str, partitions: int) -> None:
    count = 200 * partitions
    found = Counter(partition_of(pattern.format(n), partitions) for n in range(count))
    assert len(found) == partitions
    assert max(found.values()) < 1.4 * count / partitions
    assert min(found.values()) > 0.6 * count / partitions


@given(st.lists(EVENTS, max_size=40), st.integers(1, 9))
def test_a_batch_is_split_as_its_keys_say(events: list[Event], partitions: int) -> None:
    expected: dict[int, list[bytes]] = {}
    keyless = partitions - 1
    for each in events:
        partition = keyless if each.key is None else partition_of(each.key, partitions)
        expected.setdefault(partition, []).append(each.body)
    split = split_by_key(sent_batch(events), partitions, keyless=keyless)
    assert {p: b.column("body").to_pylist() for p, b in split.items()} == expected
    for part in split.values():
        part.validate(full=True)


def test_partitions_that_are_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one partition"):
        partition_of("a", 0)
    with pytest.raises(UsageError, match="without a key were sent to partition 4"):
        split_by_key(sent_batch([]), 4, keyless=4)


def test_hashes_are_sorted_and_each_once() -> None:
    keys = [pa.array(["b", None, "a"]), pa.array(["a", "c"])]
    assert sorted_hashes(keys) == sorted(map(key_hash, "abc"))
    assert sorted_hashes([pa.array([None], pa.utf8())]) == sorted_hashes([]) == []


def test_a_null_among_the_properties_counts_only_if_it_is_sent() -> None:
    properties = pa.array(
        [[("a", None)], [("a", "b")], None, [("c", None)]], pa.map_(pa.utf8(), pa.utf8())
    )
    table = pa.table({"body": [b"1", b"2", b"3", b"4"], "properties": properties})
    assert sent_batch(table.slice(1, 2)).column("properties").to_pylist() == [[("a", "b")], None]
    with pytest.raises(UsageError, match="a null among its values"):
        sent_batch(table.slice(1, 3))
