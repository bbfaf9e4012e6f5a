"""Open the store that a command inspects, and its log, if there is one.

A store need not have a log, and a stream need not be in it: then only heads and lags are not known.
Nothing is claimed, recovered, created or upgraded.

``LogPositions`` reads where a stream's partitions begin and end, and which event is at a position.
Reading without a group and an epoch does not disturb the readers of the stream. ``ends`` is that of
an ``EventSource``, so any source can be used; only the log can also be read at a position.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread

import leasehold.log
from leasehold.clock import SystemClock
from leasehold.errors import (
    DataDamaged,
    StoreUnusable,
    Trimmed,
    UnknownStream,
    UsageError,
    VolumeUnusable,
)
from leasehold.events.source import PartitionEnds, partition_number
from leasehold.events.start import Start
from leasehold.insight.groups import GroupView, group_view, group_views, known_groups
from leasehold.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime

    from leasehold.clock import Clock
    from leasehold.log.log import Log
    from leasehold.ports import Store


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
        stream = self._log.stream(self._stream)
        # Not by Log.info: for a partition that cannot be read it returns lower bounds.
        for partition in sorted(wanted & {str(number) for number in range(stream.partitions)}):
            try:
                with self._log.reader(self._stream, int(partition)) as reader:
                    first = reader.position
                    end = first + reader.lag()
                    found[partition] = PartitionEnds(first=first, next=end, stream=stream.identity)
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


class Inspector:
    """Made by ``open_inspector``: a store, and the log in the same database where there is one.

    ``failure``: why heads and lags are not known although there is a log; else empty.
    """

    def __init__(self, store: Store, *, url: str, clock: Clock) -> None:
        """Open no log yet: that happens at its first use."""
        self.store = store
        self.clock = clock
        self.failure = ""
        self._url = url
        self._log: Log | None = None
        self._asked = False

    async def positions(self, stream: str) -> LogPositions | None:
        """Return the positions of a stream; ``None`` if it is not in the embedded log."""
        if not self._asked:
            self._asked = True
            self._log = await anyio.to_thread.run_sync(self._opened)
        if self._log is None:
            return None
        known = await anyio.to_thread.run_sync(self._log.streams)
        if all(each.name != stream for each in known):
            return None
        return LogPositions(self._log, stream)

    async def group(self, stream: str, group: str, *, lags: bool = True) -> GroupView:
        """Return a group; without ``lags`` the log is not read.

        Raises:
            UnknownResource: the store knows no such group.
        """
        positions = await self.positions(stream) if lags else None
        now = self.clock.utc_now()
        try:
            view = await group_view(
                self.store, stream, group, now=now, source=positions, peek=positions
            )
        except UnknownStream:  # deleted since we asked
            return await group_view(self.store, stream, group, now=now)
        if positions is not None:
            self.failure = positions.failure
        return view

    async def groups(self) -> Sequence[GroupView]:
        """Return all groups, without how long events wait."""
        streams = {stream for stream, _ in await known_groups(self.store)}
        found = [(each, await self.positions(each)) for each in sorted(streams)]
        positions = {stream: each for stream, each in found if each is not None}
        sources = {stream: RememberedEnds(each) for stream, each in positions.items()}
        views = await group_views(self.store, now=self.clock.utc_now(), sources=sources)
        if positions:
            self.failure = next((each.failure for each in positions.values() if each.failure), "")
        return views

    async def close(self) -> None:
        """Close the log; the store stays open."""
        if self._log is not None:
            await anyio.to_thread.run_sync(self._log.close)

    def _opened(self) -> Log | None:
        try:
            options = leasehold.log.LogOptions(run_monitor=False)
            return leasehold.log.Log.open(self._url, name="look", options=options, create=False)
        except UsageError:
            return None  # no database that can keep a log, or one without a volume
        except (StoreUnusable, VolumeUnusable) as error:
            self.failure = str(error)
            return None


@asynccontextmanager
async def open_inspector(url: str, *, clock: Clock | None = None) -> AsyncIterator[Inspector]:
    """Open the store that ``url`` names, to read it. Creates and upgrades nothing.

    Raises:
        InvalidUrl: the URL names no store.
        UsageError: there is no store yet.
        StoreUnavailable: it does not answer.
        StoreUnusable: it cannot serve, or has the schema of another version.
    """
    clock = clock or SystemClock()
    async with open_store(url, clock=clock, create=False) as store:
        inspector = Inspector(store, url=url, clock=clock)
        try:
            yield inspector
        finally:
            with anyio.CancelScope(shield=True):
                await inspector.close()
