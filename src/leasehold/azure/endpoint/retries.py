"""Events that a client numbers itself, so that it may send them again: each is stored once.

Clients with idempotent retries (``@azure/event-hubs``: ``enableIdempotentRetries``) have an id for
each partition, and a number for each event. What was stored under a number, or is on its way, is
not stored again, over whatever connection it comes; what the log has refused is, whatever came
after it. This is known for as long as the server runs.

A number is not enough to know an event by: a client that has given a batch up uses its numbers for
the next one. So a checksum of each event is kept beside its number, of the last ones, and what has
the number and not the checksum is another event, and stored.

What failed and yet may be stored (``StoreUnavailable``) is stored when it comes again: it may then
be there twice. To take it for stored might lose it.
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
_MAX_REFUSED = 1000  # of one producer: then it is forgotten
_MAX_BATCHES = 64  # of one producer: nobody sends again what is older
_MAX_KEPT = 4096  # checksums of one producer, beside those of its last batch
_MAX_KEPT_OF_ALL = 4 << 20  # then the oldest producers are forgotten

Identity = tuple[str, str, int, int]  # hub, when it was made, partition, producer


Range = tuple[int, int]  # the first number and the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """Events with numbers one after the other, and the checksum of each."""

    first: int
    contents: array[int]

    @property
    def range(self) -> Range:
        """The first number and the last."""
        return self.first, self.first + len(self.contents) - 1

    def after(self, count: int) -> Numbered:
        """Those behind the first so many."""
        return Numbered(first=self.first + count, contents=self.contents[count:])


def contents_of(batch: pa.RecordBatch) -> array[int]:
    """The checksum of each event: its key, its body and its properties."""
    keys, bodies, properties = (column.to_pylist() for column in batch.columns)
    return array(
        "I",
        (
            crc32c(repr((key, around)).encode(errors="surrogatepass"), crc32c(body or b""))
            for key, body, around in zip(keys, bodies, properties, strict=True)
        ),
    )


@dataclass(slots=True)
class _Known:
    """``last``: of all that came. Of these, what the log has not answered yet, and has refused.

    ``kept``: the checksums of what was not refused, of the latest batches.
    """

    last: int
    waiting: dict[Range, Future[Any]] = field(default_factory=dict)
    refused: set[Range] = field(default_factory=set)
    kept: OrderedDict[Range, array[int]] = field(default_factory=OrderedDict)

    @property
    def size(self) -> int:
        """How many checksums it has."""
        return sum(map(len, self.kept.values()))

    def same(self, mine: Numbered) -> int:
        """How many of these, from the first on, are here with this number and this content."""
        at, (first, last) = mine.first, mine.range
        while at <= last:
            found = next((each for each in self.kept if each[0] <= at <= each[1]), None)
            if found is None:
                break
            kept = self.kept[found]
            end = min(found[1], last)
            while at <= end and kept[at - found[0]] == mine.contents[at - first]:
                at += 1
            if at <= end:
                break
        return at - first

    def keep(self, mine: Numbered) -> None:
        """Know these from now on, and no others by their numbers."""
        replaced = [each for each in self.kept if _meet(each, mine.range)]
        for each in replaced:
            del self.kept[each]
            self.waiting.pop(each, None)
        self.last = mine.range[1] if replaced else max(self.last, mine.range[1])
        self.kept[mine.range] = mine.contents
        while len(self.kept) > 1 and (
            len(self.kept) > _MAX_BATCHES or self.size - len(mine.contents) > _MAX_KEPT
        ):
            self.kept.popitem(last=False)


class Retries:
    """All producers that number their events; the oldest are forgotten."""

    def __init__(self) -> None:
        """Nobody is known."""
        self._known: OrderedDict[Identity, _Known] = OrderedDict()
        self._kept = 0
        self._lock = threading.Lock()  # the log answers in threads of its own

    def last(self, who: Identity) -> int | None:
        """The last number up to which all are stored or on their way; None if nothing is known."""
        with self._lock:
            known = self._known.get(who)
            if known is None:
                return None
            return min([known.last, *(first - 1 for first, _ in known.refused)])

    def repeated(self, who: Identity, mine: Numbered) -> tuple[int, Future[Any] | None]:
        """How many of these were sent before, and, if all, what tells when they are stored."""
        with self._lock:
            known = self._known.get(who)
            if known is None or mine.first > known.last:
                return 0, None
            lost = {each for each in known.refused if _meet(each, mine.range)}
            if lost:  # what came after it may be stored already, but this is not
                known.refused -= lost
                return 0, None
            count = known.same(mine)
            if count < len(mine.contents):  # more of them than before, or others
                return count if mine.first + count > known.last else 0, None
            waiting = [sent for each, sent in known.waiting.items() if _meet(each, mine.range)]
        return count, waiting[-1] if waiting else _stored()

    def sent(self, who: Identity, mine: Numbered, stored: Future[Any]) -> None:
        """Events with these numbers are on their way."""
        place = mine.range
        with self._lock:
            known = self._known.pop(who, None) or _Known(last=place[1])
            before = known.size
            known.keep(mine)
            self._kept += known.size - before
            known.waiting[place] = stored
            self._known[who] = known
            while len(self._known) > 1 and (
                len(self._known) > _MAX_PRODUCERS or self._kept > _MAX_KEPT_OF_ALL
            ):
                self._forget(next(iter(self._known)))

        def check(done: Future[Any]) -> None:
            with self._lock:
                if known.waiting.get(place) is done:
                    del known.waiting[place]
                    if done.cancelled() or done.exception() is not None:
                        self._refused(who, known, place)

        stored.add_done_callback(check)

    def _refused(self, who: Identity, known: _Known, place: Range) -> None:
        """It may be sent again, with these numbers."""
        known.refused.add(place)
        gone = known.kept.pop(place, ())
        if self._known.get(who) is known:
            self._kept -= len(gone)
            if len(known.refused) > _MAX_REFUSED:
                self._forget(who)

    def _forget(self, who: Identity) -> None:
        self._kept -= self._known.pop(who).size


def _meet(one: Range, other: Range) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _stored() -> Future[Any]:
    """The answer for events that are stored already."""
    stored: Future[Any] = Future()
    stored.set_result(())
    return stored
