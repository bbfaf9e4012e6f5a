"""The contract of an event source: partitions of numbered events, served to the highest epoch.

It is here and not in ``leasehold.ports`` because it uses batches of events, which are Arrow, and
the layers below know nothing of them.

Guarantees of every source:

* The events of a partition have rising sequence numbers, and come in that order.
* A receiver is opened with the epoch of its lease. Once a receiver of the same group was opened
  with a higher epoch, or with the same one later, the older receiver gets nothing more: it raises
  ``ReaderDisplaced``.
* A receive that was cancelled has not moved: the events come with the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from leasehold.events.event import EventBatch
    from leasehold.events.start import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnds:
    """The first event that is kept, and the number that the next one will get.

    ``stream`` is the identity of the stream, where the source gives it.
    """

    first: int
    next: int
    last_enqueued_at: datetime | None = None
    stream: str = field(default="", compare=False)


class Receiver(Protocol):
    """Reads one partition from one position on. For one task; another one may close it."""

    @property
    def position(self) -> int:
        """The sequence number of the next event."""
        ...

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        """Wait for the next events, and return them: at least one.

        Raises:
            ReaderDisplaced: a receiver with a newer claim reads the partition for this group.
            Trimmed: retention has removed the next event.
            DataDamaged, VolumeUnusable: it cannot be read.
            UnknownStream: the stream was deleted.
        """
        ...

    async def close(self) -> None:
        """End it; the claim of its epoch stays, so that no older one comes back."""
        ...


class EventSource(Protocol):
    """A stream whose partitions are distributed among the members of a group."""

    @property
    def name(self) -> str:
        """The name of the stream, as it is in the keys of its partitions."""
        ...

    async def partitions(self) -> Sequence[str]:
        """Return the ids of all partitions. There may be more of them later, never fewer."""
        ...

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return where each of these partitions begins and ends now."""
        ...

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> Receiver:
        """Open a receiver at ``start`` under ``epoch``; a receiver that it displaces gets ``name``.

        Raises:
            ReaderDisplaced: the group has a receiver with a higher epoch.
            Trimmed: retention has removed the event at ``start``.
            BeyondEnd: ``start`` is beyond the end.
            UsageError: there is no such partition.
            UnknownStream: the stream was deleted.
        """
        ...

    async def close(self) -> None:
        """Close all receivers and release the resources of the source."""
        ...


@runtime_checkable
class IdentifiedSource(Protocol):
    """Optional, beside ``EventSource``: for streams that can be deleted and recreated."""

    async def stream_identity(self) -> str:
        """Return what distinguishes the stream from any other that had or gets its name.

        It never changes while the stream exists. Empty: it is not known.
        """
        ...


async def identity_of(source: EventSource) -> str:
    """Return the identity of the stream; empty if the source does not know any."""
    return await source.stream_identity() if isinstance(source, IdentifiedSource) else ""


def partition_number(partition: str) -> int:
    """Return the number of a partition of the log."""
    if not (partition.isascii() and partition.isdigit()) or str(int(partition)) != partition:
        raise UsageError(
            f"there is no partition {partition!r}: those of a log are numbers, such as '0' or '12'"
        )
    return int(partition)


class RangeSource(Protocol):
    """A stream whose events can be read by their numbers. Everything blocks; for any thread."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        ...

    @property
    def identity(self) -> str:
        """What distinguishes the stream from any other of its name; empty: it is not known."""
        ...

    def partitions(self) -> Sequence[str]:
        """Return the ids of all partitions."""
        ...

    def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return where each of these partitions begins and ends now.

        Raises:
            DataDamaged, VolumeUnusable: the end of one cannot be found.
        """
        ...

    def find(self, partition: str, start: Start) -> int:
        """Return the sequence number that ``start`` means now.

        Raises:
            Trimmed: retention has removed the event.
            BeyondEnd: it is beyond the end.
        """
        ...

    def read(
        self, partition: str, start: int, end: int, *, bodies: bool = True
    ) -> Iterator[EventBatch]:
        """Yield the events from ``start`` up to, and without, ``end``: all of them, in order.

        ``bodies=False``: they are not needed, and may be empty.

        Raises:
            Trimmed: retention has removed some of them.
            BeyondEnd: the partition does not reach to ``end``.
            DataDamaged, VolumeUnusable: they cannot be read.
            UnknownStream: the stream was deleted.
        """
        ...

    def close(self) -> None:
        """Release its resources."""
        ...
