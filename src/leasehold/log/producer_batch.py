"""What a producer sends to the owner of a partition, and the answer.

A **producer batch** is a batch of events with the producer's own number of the first one. Several
are sent at a time, and they succeed or fail together: stored in their order, or retried together.
So a later one is never stored without those before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError, ResendUncertain

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.log.segment_format import ProducerStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPartition:
    """One partition of one stream."""

    stream: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of {self.stream!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBatch:
    """A batch of ``SENT_SCHEMA``, who sent it, and the producer's number of its first event.

    ``in_order``: its sender sends a number only when all lower ones that will ever be sent are
    stored. Then whatever is not above the highest stored number is stored already.
    """

    stamp: ProducerStamp
    batch: pa.RecordBatch
    in_order: bool = False

    @property
    def end(self) -> int:
        """The producer's number after the last event."""
        return self.stamp.sequence + int(self.batch.num_rows)


class StoreOutcome(Enum):
    """What the owner did with events that were sent."""

    STORED = "stored"
    DUPLICATE = "duplicate"  # they had been stored before, and were not stored again
    UNKNOWN = "unknown"  # whether they had been stored is not known: they were not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """``count`` events that follow each other from ``first_sequence`` on (-1: not known)."""

    count: int
    first_sequence: int = -1
    outcome: StoreOutcome = StoreOutcome.STORED


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """The owner's answer to a producer batch: its events in order, as parts."""

    parts: tuple[StoredPart, ...]

    def count(self, outcome: StoreOutcome) -> int:
        """Return how many of its events had this outcome."""
        return sum(part.count for part in self.parts if part.outcome is outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where events are stored: ``count`` of them from ``first_sequence`` on.

    ``duplicate``: they had been stored before, and were not stored again; ``first_sequence`` is
    then where that was, or -1 if that is no longer known.
    """

    partition: int
    first_sequence: int
    count: int
    duplicate: bool = False


class OwnerMoved(LeaseholdError):
    """The partition has another owner now, or none; what was sent may be stored or not.

    Sending it again, to the current owner, stores it exactly once.
    """


class OwnerSilent(LeaseholdError):
    """The owner of a partition did not answer in time."""


class OwnerGone(LeaseholdError):
    """The socket of the owner refuses connections: its process has crashed."""


def receipts_of(stored: StoredBatch, *, partition: int, start: int, count: int) -> list[Receipt]:
    """Return the receipts for ``count`` events of a producer batch, from number ``start`` on.

    Raises:
        ResendUncertain: whether some of them had been stored before is not known.
    """
    found, at = [], 0
    for part in stored.parts:
        low, high = max(start, at), min(start + count, at + part.count)
        if low < high and part.outcome is StoreOutcome.UNKNOWN:
            raise ResendUncertain(
                f"partition {partition}: {high - low} events have numbers that the log no longer "
                "remembers of this producer: whether they were stored before is not known, and "
                "they were not stored now. Read the partition, and send what is missing by a new "
                "producer, without producer_id.",
                partition=partition,
                count=high - low,
            )
        if low < high:
            first = part.first_sequence + low - at if part.first_sequence >= 0 else -1
            found.append(
                Receipt(
                    partition=partition,
                    first_sequence=first,
                    count=high - low,
                    duplicate=part.outcome is StoreOutcome.DUPLICATE,
                )
            )
        at += part.count
    return found


def joined(receipts: list[Receipt]) -> tuple[Receipt, ...]:
    """Merge receipts that follow each other without a gap."""
    made: list[Receipt] = []
    for each in receipts:
        last = made[-1] if made else None
        if (
            last is not None
            and (last.partition, last.duplicate) == (each.partition, each.duplicate)
            and -1 < last.first_sequence == each.first_sequence - last.count
        ):
            made[-1] = replace(last, count=last.count + each.count)
        else:
            made.append(each)
    return tuple(made)
