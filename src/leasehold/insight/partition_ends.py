"""Where a stream's partitions begin and end, and which event lies at a place: looks, no claims.

A look takes no partition from anybody: it has no group and no epoch, so the readers that work on
the stream never notice it. ``ends`` is that of an ``EventSource``, so any source can stand in for
it; only the log can also be looked into.
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
    """Tells where partitions begin and end; every ``EventSource`` does."""

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Where each of these partitions begins and ends now."""
        ...


class Peek(Protocol):
    """Tells when an event came, without reading for anybody."""

    async def enqueued_at(self, numbers: Mapping[str, int]) -> Mapping[str, datetime]:
        """When the event with this number came, by partition; left out where it is not known."""
        ...


class RememberedEnds:
    """The ends of partitions as they were when they were first asked for: for one look at much."""

    def __init__(self, source: EndsReader) -> None:
        """Ask ``source``, once for each partition."""
        self._source = source
        self._asked: set[str] = set()
        self._known: dict[str, PartitionEnds] = {}

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """See ``EndsReader``."""
        unknown = [each for each in partitions if each not in self._asked]
        if unknown:
            self._asked.update(unknown)
            self._known.update(await self._source.ends(unknown))
        return {each: self._known[each] for each in partitions if each in self._known}


class LogPositions:
    """The places of one stream of the embedded log: ``EndsReader`` and ``Peek``, and more."""

    def __init__(self, log: Log, stream: str) -> None:
        """Over a log that is open, and stays open for as long as this is used.

        ``failure`` says why something could not be looked at; it is empty if all could.
        """
        self.failure = ""
        self._log = log
        self._stream = stream

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Where each of these partitions begins and ends.

        A partition that the stream does not have, or that can not be read, is left out.

        Raises:
            UnknownStream: the stream was deleted.
        """
        return await anyio.to_thread.run_sync(self._ends, frozenset(partitions))

    async def enqueued_at(self, numbers: Mapping[str, int]) -> Mapping[str, datetime]:
        """When these events came; one that was trimmed or can not be read is left out.

        Raises:
            UnknownStream: the stream was deleted.
        """
        return await anyio.to_thread.run_sync(self._enqueued_at, dict(numbers))

    async def sequence_of(self, partition: str, start: Start) -> int:
        """The number of the first event that would be read from ``start`` on.

        Raises:
            Trimmed: retention has removed the event at ``start``.
            UsageError: it lies beyond the end, or there is no such partition.
            UnknownStream: the stream was deleted.
        """
        return await anyio.to_thread.run_sync(self._sequence_of, partition, start)

    def _ends(self, wanted: frozenset[str]) -> Mapping[str, PartitionEnds]:
        found, self.failure = {}, ""
        count = self._log.stream(self._stream).partitions
        # Not by Log.info: of a partition that can not be read it tells the least that may be.
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
            # What can not be looked at is not known; everything else still is.
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
