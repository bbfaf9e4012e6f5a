"""What a producer sends to the owner of a partition, and the answer.

A **producer batch** is a batch of events with the producer's own number of the first one. Several
are sent at a time, and they succeed or fail together: stored in their order, or retried together.
So a later one is never stored without those before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError

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
    """A batch of ``SENT_SCHEMA``, who sent it, and the producer's number of its first event."""

    stamp: ProducerStamp
    batch: pa.RecordBatch

    @property
    def end(self) -> int:
        """The producer's number after the last event."""
        return self.stamp.sequence + int(self.batch.num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """The owner's answer to a producer batch: where its events are.

    The first ``skipped`` of them had been stored before, from ``stored_as`` on (-1: that is not
    known). The others follow each other from ``first_sequence`` on.
    """

    first_sequence: int
    skipped: int = 0
    stored_as: int = -1


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
    """Return the receipts for ``count`` events of a producer batch, from number ``start`` on."""
    found = []
    old = min(max(stored.skipped - start, 0), count)
    if old:
        known = stored.stored_as >= 0
        first = stored.stored_as + start if known else -1
        found.append(Receipt(partition=partition, first_sequence=first, count=old, duplicate=True))
    if old < count:
        first = stored.first_sequence + start + old - stored.skipped
        found.append(Receipt(partition=partition, first_sequence=first, count=count - old))
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
