"""Ranges of the events of a hub, for Spark and for audits: everything blocks, for any thread.

They are read without an epoch, in the consumer group of the address (``$Default`` if it names
none): use one in which no processor reads, since the hub lets nobody read beside an epoch.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, TypeVar

from leasehold.errors import BeyondEnd, UnknownStream, UsageError
from leasehold.log.start import Start
from leasehold.sources.eventhubs.positions import place_of
from leasehold.sources.eventhubs.source import EventHubsSource

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    from leasehold.log.events import EventBatch
    from leasehold.sources.port import PartitionEnds

T = TypeVar("T")

_MOST_EVENTS = 1 << 16
_MOST_BYTES = 32 << 20
_NAME = "leasehold-ranges"


class EventHubsRanges:
    """See ``RangeSource``. A thread of its own has the connection."""

    def __init__(self, address: str, *, pinned: bool = False) -> None:
        """Look the hub up. ``pinned``: refuse to go on with one that was made anew.

        Raises:
            UsageError: the address can not be read.
            UnknownStream: there is no such hub.
            StoreUnavailable, StoreUnusable: it can not be reached, or does not let us in.
        """
        self._source = EventHubsSource(address)
        self._pinned = pinned
        self._loop = asyncio.new_event_loop()
        # A daemon: a worker of Spark closes nothing before it ends.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"leasehold-ranges-{self.name}", daemon=True
        )
        self._thread.start()
        try:
            self._created_at = self._call(self._source.created_at())
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The name of the hub."""
        return self._source.name

    def partitions(self) -> Sequence[str]:
        """See ``RangeSource``."""
        self._check()
        return self._call(self._source.partitions())

    def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """See ``RangeSource``."""
        self._check()
        return self._call(self._source.ends(partitions))

    def find(self, partition: str, start: Start) -> int:
        """See ``RangeSource``."""
        facts = self._call(self._source.facts(partition))
        place = place_of(start, facts, partition=partition, hub=self.name)
        if place.position is not None:
            return place.position
        receiver = self._call(self._source.reader(partition, start=start, name=_NAME))
        try:
            return receiver.position
        finally:
            self._call(receiver.close())

    def read(
        self,
        partition: str,
        start: int,
        end: int,
        *,
        bodies: bool = True,  # noqa: ARG002 - a hub always sends them
    ) -> Iterator[EventBatch]:
        """See ``RangeSource``."""
        if start >= end:
            return
        there = self.ends([partition])[partition].next
        if there < end:
            raise BeyondEnd(
                f"partition {partition} of {self.name!r} ends before event {there}, and events up "
                f"to {end} were asked for: it has never been that long, or the hub was made anew",
                end=there,
            )
        begin = Start.sequence(start)
        receiver = self._call(self._source.reader(partition, start=begin, name=_NAME))
        try:
            while receiver.position < end:
                batch = self._call(
                    receiver.receive(most_events=_MOST_EVENTS, most_bytes=_MOST_BYTES)
                )
                if batch.last_sequence >= end:
                    batch = batch.slice(0, bisect_left(batch.arrow.column(0).to_pylist(), end))
                if len(batch):
                    yield batch
        finally:
            self._call(receiver.close())

    def close(self) -> None:
        """See ``RangeSource``. Again is harmless."""
        if self._thread.is_alive():
            self._call(self._source.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, work: Coroutine[None, None, T]) -> T:
        """What comes of it, in the thread that has the connection.

        Raises:
            UsageError: that thread is not there: closed, or left behind by a fork.
        """
        if not self._thread.is_alive():
            work.close()
            raise UsageError(
                f"the ranges of {self.name!r} are closed, or were opened before this process was "
                "forked: open them anew"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _check(self) -> None:
        if self._pinned and self._call(self._source.created_at()) != self._created_at:
            raise UnknownStream(
                f"the hub {self.name!r} was made anew: its events have other numbers; start "
                "again, with another group or with its checkpoints reset"
            )
