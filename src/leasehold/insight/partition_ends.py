"""Where a stream's partitions begin and end, and which event is at a position.

Nothing is claimed: reading without a group and an epoch does not disturb the readers of the stream.
``ends`` is that of an ``EventSource``, so any source can be used; only the log can also be read at
a position.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread

from leasehold.errors import DataDamaged, Trimmed, UsageError, VolumeUnusable
from leasehold.events.source import PartitionEnds, partition_number
from leasehold.events.start import Start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.log.log import Log


class EndsReader(Protocol):
    """Knows where partitions begin and end; every ``EventSource`` does."""

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return where each of these partitions begins and ends now."""
        ...


class Peek(Protocol):
    """Knows when an event was enqueued."""

    async def enqueued_at(self, numbers: Mapping[str, int]) -> Mapping[str, datetime]:
        """Return when the event with this number came, by partition; omitted if not known."""
        ...


class RememberedEnds:
    """The ends of partitions, cached at the first read: for one consistent view of much."""

    def __init__(self, source: EndsReader) -> None:
        self._source = source
        self._asked: set[str] = set()
        self._known: dict[str, PartitionEnds] = {}

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return the ends; each partition is read once."""
        unknown = [each for each in partitions if each not in self._asked]
        if unknown:
            self._asked.update(unknown)
            self._known.update(await self._source.ends(unknown))
        return {each: self._known[each] for each in partitions if each in self._known}


class LogPositions:
    """The positions of one stream of the embedded log: an ``EndsReader`` and a ``Peek``."""

    def __init__(self, log: Log, stream: str) -> None:
        """``failure``: why something could not be read; empty if all could. The log stays open."""
        self.failure = ""
        self._log = log
        self._stream = stream

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return where each of these partitions begins and ends.

        A partition that the stream does not have, or that cannot be read, is omitted.

        Raises:
            UnknownStream: the stream was deleted.
        """
        return await anyio.to_thread.run_sync(self._ends, frozenset(partitions))

    async def enqueued_at(self, numbers: Mapping[str, int]) -> Mapping[str, datetime]:
        """Return when these events came; one that was trimmed or cannot be read is omitted.

        Raises:
            UnknownStream: the stream was deleted.
        """
        return await anyio.to_thread.run_sync(self._enqueued_at, dict(numbers))

    async def identity(self) -> str:
        """Return the identity of the stream.

        Raises:
            UnknownStream: the stream was deleted.
        """
        stream = await anyio.to_thread.run_sync(self._log.stream, self._stream)
        return stream.identity

    async def sequence_of(self, partition: str, start: Start) -> int:
        """Return the number of the first event at or after ``start``.

        Raises:
            Trimmed: retention has removed the event at ``start``.
            UsageError: it is beyond the end, or there is no such partition.
            UnknownStream: the stream was deleted.
        """
        return await anyio.to_thread.run_sync(self._sequence_of, partition, start)

    def _ends(self, wanted: frozenset[str]) -> Mapping[str, PartitionEnds]:
        found, self.failure = {}, ""
        count = self._log.stream(self._stream).partitions
        # Not by Log.info: for a partition that cannot be read it returns lower bounds.
        for partition in sorted(wanted & {str(number) for number in range(count)}):
            try:
                with self._log.reader(self._stream, int(partition)) as reader:
                    first = reader.position
                    found[partition] = PartitionEnds(first=first, next=first + reader.lag())
            except (DataDamaged, VolumeUnusable) as error:
                self.failure = f"partition {partition}: {error}"
        return found

    def _enqueued_at(self, numbers: Mapping[str, int]) -> Mapping[str, datetime]:
        found = {}
        for partition, number in numbers.items():
            # What cannot be read is not known; everything else still is.
            with suppress(DataDamaged, Trimmed, UsageError, VolumeUnusable):
                at = self._one_enqueued_at(partition, number)
                if at is not None:
                    found[partition] = at
        return found

    def _one_enqueued_at(self, partition: str, number: int) -> datetime | None:
        start = Start.sequence(number)
        with self._log.reader(self._stream, partition_number(partition), start=start) as reader:
            batch = reader.read(max_events=1)
            return next(iter(batch)).enqueued_at if batch is not None else None

    def _sequence_of(self, partition: str, start: Start) -> int:
        with self._log.reader(self._stream, partition_number(partition), start=start) as reader:
            return reader.position
