"""Events that a client numbers itself, so that it may send them again: each is stored once.

Clients with idempotent retries (``@azure/event-hubs``: ``enableIdempotentRetries``) have an id for
each partition, and a number for each event. What was stored under a number, or is on its way, is
not stored again, over whatever connection it comes. This is known for as long as the server runs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

CAPABILITY = "com.microsoft:idempotent-producer"
EPOCH = "com.microsoft:producer-epoch"
PRODUCER_ID = "com.microsoft:producer-id"
SEQUENCE = "com.microsoft:producer-sequence-number"
_MOST_PRODUCERS = 10_000

Identity = tuple[str, str, int, int]  # hub, when it was made, partition, producer


@dataclass(slots=True)
class _Known:
    last: int
    sent: Future[Any] | None = None


class Retries:
    """All producers that number their events. For one thread; the oldest are forgotten."""

    def __init__(self) -> None:
        """Nobody is known."""
        self._known: OrderedDict[Identity, _Known] = OrderedDict()

    def last(self, who: Identity) -> int | None:
        """The last number that was stored or is on its way; None if nothing is known."""
        known = self._known.get(who)
        return None if known is None else known.last

    def repeated(self, who: Identity, first: int, count: int) -> tuple[int, Future[Any] | None]:
        """How many of these were sent before, and, if all, what tells when they are stored."""
        known = self._known.get(who)
        if known is None or first > known.last:
            return 0, None
        return min(known.last - first + 1, count), known.sent

    def sent(self, who: Identity, last: int, stored: Future[Any]) -> None:
        """Events up to this number are on their way."""
        before = self._known.pop(who, None)
        known = _Known(last=last, sent=stored)
        self._known[who] = known
        if len(self._known) > _MOST_PRODUCERS:
            self._known.popitem(last=False)

        def check(done: Future[Any]) -> None:
            if done.cancelled() or done.exception() is not None:  # they may be sent again
                known.last = min(known.last, before.last if before is not None else -1)

        stored.add_done_callback(check)
