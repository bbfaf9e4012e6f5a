"""The records of Azure's clients: every shape that any of them has written is understood."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.azure.interop.record_layout import (
    ConsumerGroup,
    azure_offset,
    checkpoint_metadata,
    consumer_group_of,
    consumer_group_of_blob,
    consumer_group_of_key,
    ownership_metadata,
    parse_checkpoint,
    parse_ownership,
)
from leasehold.model import Position

CONSUMER_GROUP = ConsumerGroup(
    namespace="NS.servicebus.windows.net", hub="Orders", group="$Default"
)

OWNERS: list[tuple[str, object, str]] = [
    ("Python, .NET, JS, Java, Go, Rust", {"ownerid": "abc"}, "abc"),
    ("C++", {"ownerId": "abc"}, "abc"),
    ("any other casing", {"OwnerId": "abc"}, "abc"),
    ("a row of a CheckpointStore", {"owner_id": "abc", "partition_id": "3"}, "abc"),
    ("released, in a list of the Python SDK", {"ownerid": None}, ""),
    ("released", {"ownerid": ""}, ""),
    ("only spaces", {"ownerid": "  "}, ""),
    ("no owner at all", {"other": "abc"}, ""),
    ("no metadata", None, ""),
    ("the text None", {"ownerid": "None"}, ""),
    ("foreign keys beside it", {"ownerid": "abc", "epoch": "7"}, "abc"),
    ("not even a mapping", ["ownerid"], ""),
]

CHECKPOINTS: list[tuple[str, object, int | None, str | None]] = [
    ("Python", {"offset": "4096", "sequencenumber": "17"}, 17, "4096"),
    ("odd casing", {"Offset": "4096", "SequenceNumber": "17"}, 17, "4096"),
    (
        ".NET, with its author",
        {"offset": "4096", "sequencenumber": "17", "clientidentifier": "me"},
        17,
        "4096",
    ),
    (".NET by sequence number", {"offset": "", "sequencenumber": "17"}, 17, None),
    (".NET by offset", {"offset": "4096", "sequencenumber": ""}, None, "4096"),
    (".NET 5.11.3 to 5.11.6", {"offset": "no offset", "sequencenumber": "17"}, 17, None),
    ("an empty value in a list", {"offset": None, "sequencenumber": "17"}, 17, None),
    ("no offset at all", {"sequencenumber": "17"}, 17, None),
    ("no sequence number at all", {"offset": "4096"}, None, "4096"),
    ("None, stored as text", {"offset": "None", "sequencenumber": "None"}, None, None),
    ("geo-replicated", {"offset": "1:4096:17", "sequencenumber": "17"}, 17, "1:4096:17"),
    ("the very first event", {"offset": "0", "sequencenumber": "0"}, 0, "0"),
    ("nothing read yet", {"offset": "-1", "sequencenumber": "-1"}, None, "-1"),
    ("a row of a CheckpointStore", {"offset": "4096", "sequence_number": 17}, 17, "4096"),
    ("a row without an offset", {"offset": 17, "sequence_number": 17}, 17, None),
    ("no number", {"offset": "4096", "sequencenumber": "seventeen"}, None, "4096"),
    ("no number that fits", {"offset": "4096", "sequencenumber": "9" * 5000}, None, "4096"),
    ("other digits", {"offset": "4096", "sequencenumber": "\u0661\u0667"}, None, "4096"),
    ("no metadata", None, None, None),
    ("not even a mapping", 17, None, None),
]


@pytest.mark.parametrize(
    ("metadata", "owner"), [row[1:] for row in OWNERS], ids=[r[0] for r in OWNERS]
)
def test_an_ownership_of_any_client_is_understood(metadata: object, owner: str) -> None:
    modified = datetime(2026, 1, 1, tzinfo=UTC)
    found = parse_ownership("3", metadata, etag='"0x8D"', modified=modified)
    assert (found.partition, found.owner, found.etag) == ("3", owner, '"0x8D"')
    assert found.modified_s == modified.timestamp()


@pytest.mark.parametrize(
    ("metadata", "number", "offset"),
    [row[1:] for row in CHECKPOINTS],
    ids=[r[0] for r in CHECKPOINTS],
)
def test_a_checkpoint_of_any_client_is_understood(
    metadata: object, number: int | None, offset: str | None
) -> None:
    found = parse_checkpoint("3", metadata)
    assert (found.sequence_number, found.offset) == (number, offset)
    assert (found.position is None) == (number is None)


@given(
    st.dictionaries(
        st.sampled_from(["ownerid", "OwnerId", "offset", "sequencenumber", "SequenceNumber", "x"]),
        st.none() | st.text() | st.integers() | st.binary() | st.floats(),
    )
)
def test_no_record_is_so_odd_that_reading_it_fails(metadata: dict[str, Any]) -> None:
    assert isinstance(parse_ownership("3", metadata, etag=metadata.get("x")).owner, str)
    position = parse_checkpoint("3", metadata).position
    assert position is None or position.sequence_number >= 0


def test_names_are_those_of_their_python_client_and_lead_back() -> None:
    name = "ns.servicebus.windows.net/orders/$default/ownership/3"
    assert CONSUMER_GROUP.blob_name("ownership", "3") == name
    assert (
        CONSUMER_GROUP.prefix("checkpoint")
        == "ns.servicebus.windows.net/orders/$default/checkpoint/"
    )
    java = CONSUMER_GROUP.blob_name("checkpoint", "3", lower=False)
    assert java == "NS.servicebus.windows.net/Orders/$Default/checkpoint/3"
    assert consumer_group_of_blob(java) == (CONSUMER_GROUP, "checkpoint", "3")
    assert consumer_group_of_blob(name) is not None
    assert consumer_group_of_blob("a/b/c") is None


@pytest.mark.parametrize(
    "consumer_group",
    [
        CONSUMER_GROUP,
        ConsumerGroup(namespace="127.0.0.1:5672", hub="a/b", group="g/h"),
        ConsumerGroup(namespace="n", hub="h%2Fx", group=".."),
    ],
)
def test_keys_lead_back_to_the_place_whatever_is_in_its_names(
    consumer_group: ConsumerGroup,
) -> None:
    key = consumer_group.key("12")
    assert key.startswith(consumer_group.keys_group + "/")
    found = consumer_group_of_key(key)
    assert found is not None
    (back, partition) = found
    assert (back.namespace, back.hub, back.group) == tuple(
        each.lower()
        for each in (consumer_group.namespace, consumer_group.hub, consumer_group.group)
    )
    assert partition == "12"


def test_spellings_of_one_group_are_one_group_of_keys() -> None:
    other = ConsumerGroup(namespace="ns.SERVICEBUS.windows.net", hub="ORDERS", group="$default")
    assert other.keys_group == CONSUMER_GROUP.keys_group
    assert consumer_group_of(CONSUMER_GROUP.ids()) == CONSUMER_GROUP
    assert consumer_group_of_key("job/nightly") is None
    assert consumer_group_of_key("partition/orders/billing/0") is None


def test_what_is_written_is_what_their_clients_write() -> None:
    assert ownership_metadata("abc") == {"ownerid": "abc"}
    position = Position(sequence_number=17, offset="4096")
    assert checkpoint_metadata(position) == {"offset": "4096", "sequencenumber": "17"}
    assert parse_checkpoint("3", checkpoint_metadata(position)).position == position


@pytest.mark.parametrize(
    ("position", "offset_given"),
    [
        (Position(sequence_number=17, offset="4096"), "4096"),
        (Position(sequence_number=0, offset="0"), "0"),
        (Position(sequence_number=17), 17),
        (Position(sequence_number=0), "-1"),
        (Position(sequence_number=-1), "-1"),
    ],
)
def test_their_clients_never_take_a_checkpoint_for_none(
    position: Position, offset_given: str | int
) -> None:
    found = azure_offset(position)
    assert found == offset_given
    assert found  # what is false is no checkpoint to them, and they begin at the end
