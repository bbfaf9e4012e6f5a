"""The settings of producers and streams, and the receipts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from leasehold.errors import InvalidDuration, InvalidOptions
from leasehold.log import LogOptions, ProducerOptions, Receipt, StreamSettings
from leasehold.log.producer_batch import (
    StoredBatch,
    StoredPart,
    StoreOutcome,
    joined,
    receipts_of,
)


def test_the_defaults_are_those_of_the_documentation() -> None:
    options = ProducerOptions()
    assert options.linger == timedelta(milliseconds=5)
    assert options.batch_events == 1000
    assert options.batch_bytes == 1 << 20
    assert options.max_pending_bytes == 64 << 20
    assert options.durable


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_events": 0}, "batch_events"),
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"batch_bytes": 100, "max_pending_bytes": 99}, "batch_bytes <= max_pending_bytes"),
        (
            {"deliver_timeout": timedelta(seconds=1), "owner_timeout": timedelta(seconds=2)},
            "owner_timeout <= deliver_timeout",
        ),
        (
            {
                "linger": timedelta(seconds=3),
                "deliver_timeout": timedelta(seconds=2),
                "owner_timeout": timedelta(seconds=1),
            },
            "linger <= deliver_timeout",
        ),
        ({"producer_id": b"short"}, "must have 16"),
        ({"producer_id": bytes(16)}, "all zero"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidOptions, match=words):
        ProducerOptions(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["linger", "send_timeout", "deliver_timeout", "owner_timeout"])
def test_a_duration_out_of_its_range_is_refused_by_name(what: str) -> None:
    with pytest.raises(InvalidDuration, match=what):
        ProducerOptions(**{what: timedelta(seconds=-1)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{"partitions": 0}, {"segment_bytes": 1}, {"segment_age_s": 0}, {"retention_bytes": -1}],
)
def test_a_stream_refuses_numbers_out_of_their_range(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidOptions, match=next(iter(settings))):
        StreamSettings(**settings)


def test_a_block_has_room_for_a_whole_segment() -> None:
    settings = StreamSettings(segment_bytes=1 << 20)
    assert settings.block_bytes >= 2 * settings.segment_bytes


def receipt(first: int, count: int, *, duplicate: bool = False) -> Receipt:
    return Receipt(partition=1, first_sequence=first, count=count, duplicate=duplicate)


def test_a_part_of_a_batch_has_its_own_receipt() -> None:
    stored = StoredBatch(parts=(StoredPart(count=5, first_sequence=100),))
    assert receipts_of(stored, partition=1, start=3, count=2) == [receipt(103, 2)]


def test_what_was_stored_before_has_a_receipt_that_says_so() -> None:
    old = StoredPart(count=4, first_sequence=50, outcome=StoreOutcome.DUPLICATE)
    stored = StoredBatch(parts=(old, StoredPart(count=2, first_sequence=100)))
    assert receipts_of(stored, partition=1, start=1, count=5) == [
        receipt(51, 3, duplicate=True),
        receipt(100, 2),
    ]
    forgotten = StoredBatch(parts=(StoredPart(count=4, outcome=StoreOutcome.DUPLICATE),))
    assert receipts_of(forgotten, partition=1, start=0, count=4) == [receipt(-1, 4, duplicate=True)]


def test_receipts_that_follow_each_other_become_one() -> None:
    parts = [receipt(0, 5), receipt(5, 5), receipt(11, 1), receipt(12, 1, duplicate=True)]
    assert joined(parts) == (receipt(0, 10), receipt(11, 1), receipt(12, 1, duplicate=True))
    unknown = [receipt(-1, 1, duplicate=True), receipt(0, 1, duplicate=True)]
    assert joined(unknown) == tuple(unknown)


def test_by_default_a_dead_recoverer_does_not_outlast_the_deliver_limit() -> None:
    assert LogOptions().files.recovery_timeout * 2 < ProducerOptions().deliver_timeout
