"""Deduplicate events that a client numbers and may send again: each is stored once.

Clients with idempotent retries (``@azure/event-hubs``: ``enableIdempotentRetries``) have an id for
each partition, and a number for each event. An event that is stored or being stored is not stored
again, over whatever connection it comes; one that the log has refused is stored on the retry, also
if later events are stored already. This is known as long as the server runs.

A number does not identify an event: a client that has given a batch up uses its numbers for the
next one. So checksums of the latest events are kept beside their numbers. An event with a known
number and another checksum is a new event, and is stored.

An event that failed and yet may be stored (``StoreUnavailable``) is stored again on the retry, and
may then be stored twice: to treat it as stored might lose it.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

CAPABILITY = "com.microsoft:idempotent-producer"
EPOCH = "com.microsoft:producer-epoch"
PRODUCER_ID = "com.microsoft:producer-id"
SEQUENCE = "com.microsoft:producer-sequence-number"
_MAX_PRODUCERS = 10_000
_MAX_FAILED = 1000  # ranges of one producer; beyond that the producer is forgotten
_MAX_BATCHES = 64  # of one producer: clients do not send older ones again
_MAX_CHECKSUMS = 4096  # of one producer, besides those of its last batch
_MAX_TOTAL_CHECKSUMS = 4 << 20  # beyond that the oldest producers are forgotten

ProducerIdentity = tuple[str, str, int, int]  # hub, its creation time, partition, producer id


NumberRange = tuple[int, int]  # the first number and the last


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedEvents:
    """Events with consecutive numbers, and the checksum of each."""

    first: int
    checksums: array[int]

    @property
    def range(self) -> NumberRange:
        """The first number and the last."""
        return self.first, self.first + len(self.checksums) - 1

    def skip(self, count: int) -> NumberedEvents:
        """Return the events after the first ``count``."""
        return NumberedEvents(first=self.first + count, checksums=self.checksums[count:])


def checksums_of(batch: pa.RecordBatch) -> array[int]:
    """Return the checksum of each event, over key, body and properties."""
    keys, bodies, properties = (column.to_pylist() for column in batch.columns)
    return array(
        "I",
        (
            crc32c(repr((key, props)).encode(errors="surrogatepass"), crc32c(body or b""))
            for key, body, props in zip(keys, bodies, properties, strict=True)
        ),
    )


@dataclass(slots=True)
class _KnownProducer:
    """What is known of one producer.

    ``last``: the last number that came. ``waiting`` and ``failed``: ranges that the log has not
    answered yet, and that it has refused. ``kept``: checksums of the latest batches, except failed
    ones.
    """

    last: int
    waiting: dict[NumberRange, Future[Any]] = field(default_factory=dict)
    failed: set[NumberRange] = field(default_factory=set)
    kept: OrderedDict[NumberRange, array[int]] = field(default_factory=OrderedDict)

    @property
    def size(self) -> int:
        """The number of checksums."""
        return sum(map(len, self.kept.values()))

    def count_known(self, events: NumberedEvents) -> int:
        """Count the first events that are known with the same number and checksum."""
        at, (first, last) = events.first, events.range
        while at <= last:
            found = next((each for each in self.kept if each[0] <= at <= each[1]), None)
            if found is None:
                break
            kept = self.kept[found]
            end = min(found[1], last)
            while at <= end and kept[at - found[0]] == events.checksums[at - first]:
                at += 1
            if at <= end:
                break
        return at - first

    def keep(self, events: NumberedEvents) -> None:
        """Remember these events; they replace others with the same numbers."""
        replaced = [each for each in self.kept if _overlap(each, events.range)]
        for each in replaced:
            del self.kept[each]
            self.waiting.pop(each, None)
        self.last = events.range[1] if replaced else max(self.last, events.range[1])
        self.kept[events.range] = events.checksums
        while len(self.kept) > 1 and (
            len(self.kept) > _MAX_BATCHES or self.size - len(events.checksums) > _MAX_CHECKSUMS
        ):
            self.kept.popitem(last=False)


class Retries:
    """All producers that number their events; the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[ProducerIdentity, _KnownProducer] = OrderedDict()
        self._kept = 0
        self._lock = threading.Lock()  # the log answers in its own threads

    def last(self, producer: ProducerIdentity) -> int | None:
        """Return the number up to which all are stored or pending; None for an unknown producer."""
        with self._lock:
            known = self._known.get(producer)
            if known is None:
                return None
            return min([known.last, *(first - 1 for first, _ in known.failed)])

    def find_repeated(
        self, producer: ProducerIdentity, events: NumberedEvents
    ) -> tuple[int, Future[Any] | None]:
        """Return how many events were sent before and, if all, the future of their storage."""
        with self._lock:
            known = self._known.get(producer)
            if known is None or events.first > known.last:
                return 0, None
            failed = {each for each in known.failed if _overlap(each, events.range)}
            if failed:  # later events may be stored already, but these are not
                known.failed -= failed
                return 0, None
            count = known.count_known(events)
            if count < len(events.checksums):  # more events than before, or other ones
                return count if events.first + count > known.last else 0, None
            waiting = [
                stored for each, stored in known.waiting.items() if _overlap(each, events.range)
            ]
        return count, waiting[-1] if waiting else _already_stored()

    def record_sent(
        self, producer: ProducerIdentity, events: NumberedEvents, stored: Future[Any]
    ) -> None:
        """Remember events that are being stored."""
        numbers = events.range
        with self._lock:
            known = self._known.pop(producer, None) or _KnownProducer(last=numbers[1])
            before = known.size
            known.keep(events)
            self._kept += known.size - before
            known.waiting[numbers] = stored
            self._known[producer] = known
            while len(self._known) > 1 and (
                len(self._known) > _MAX_PRODUCERS or self._kept > _MAX_TOTAL_CHECKSUMS
            ):
                self._forget(next(iter(self._known)))

        def check(done: Future[Any]) -> None:
            with self._lock:
                if known.waiting.get(numbers) is done:
                    del known.waiting[numbers]
                    if done.cancelled() or done.exception() is not None:
                        self._on_failure(producer, known, numbers)

        stored.add_done_callback(check)

    def _on_failure(
        self, producer: ProducerIdentity, known: _KnownProducer, numbers: NumberRange
    ) -> None:
        """Forget the checksums, so that a retry with these numbers is stored."""
        known.failed.add(numbers)
        forgotten = known.kept.pop(numbers, ())
        if self._known.get(producer) is known:
            self._kept -= len(forgotten)
            if len(known.failed) > _MAX_FAILED:
                self._forget(producer)

    def _forget(self, producer: ProducerIdentity) -> None:
        self._kept -= self._known.pop(producer).size


def _overlap(one: NumberRange, other: NumberRange) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _already_stored() -> Future[Any]:
    """Return a future that is done."""
    stored: Future[Any] = Future()
    stored.set_result(())
    return stored
