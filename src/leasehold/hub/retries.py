"""Events that a client numbers itself, so that it may send them again: each is stored once.

Clients with idempotent retries (``@azure/event-hubs``: ``enableIdempotentRetries``) have an id for
each partition, and a number for each event. What was stored under a number, or is on its way, is
not stored again, over whatever connection it comes; what the log has refused is, whatever came
after it. This is known for as long as the server runs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

CAPABILITY = "com.microsoft:idempotent-producer"
EPOCH = "com.microsoft:producer-epoch"
PRODUCER_ID = "com.microsoft:producer-id"
SEQUENCE = "com.microsoft:producer-sequence-number"
_MOST_PRODUCERS = 10_000
_MOST_REFUSED = 1000  # of one producer: then it is forgotten

Identity = tuple[str, str, int, int]  # hub, when it was made, partition, producer


Range = tuple[int, int]  # the first number and the last


@dataclass(slots=True)
class _Known:
    """``last``: of all that came. Of these, what the log has not answered yet, and has refused."""

    last: int
    waiting: dict[Range, Future[Any]] = field(default_factory=dict)
    refused: set[Range] = field(default_factory=set)


class Retries:
    """All producers that number their events; the oldest are forgotten."""

    def __init__(self) -> None:
        """Nobody is known."""
        self._known: OrderedDict[Identity, _Known] = OrderedDict()
        self._lock = threading.Lock()  # the log answers in threads of its own

    def last(self, who: Identity) -> int | None:
        """The last number up to which all are stored or on their way; None if nothing is known."""
        with self._lock:
            known = self._known.get(who)
            if known is None:
                return None
            return min([known.last, *(first - 1 for first, _ in known.refused)])

    def repeated(self, who: Identity, first: int, count: int) -> tuple[int, Future[Any] | None]:
        """How many of these were sent before, and, if all, what tells when they are stored."""
        mine = (first, first + count - 1)
        with self._lock:
            known = self._known.get(who)
            if known is None or first > known.last:
                return 0, None
            lost = {each for each in known.refused if _meet(each, mine)}
            if lost:  # what came after it may be stored already, but this is not
                known.refused -= lost
                return 0, None
            if mine[1] > known.last:
                return known.last - first + 1, None
            waiting = [sent for each, sent in known.waiting.items() if _meet(each, mine)]
        return count, waiting[-1] if waiting else _stored()

    def sent(self, who: Identity, first: int, last: int, stored: Future[Any]) -> None:
        """Events with these numbers are on their way."""
        mine = (first, last)
        with self._lock:
            known = self._known.pop(who, None) or _Known(last=last)
            known.last = max(known.last, last)
            known.waiting[mine] = stored
            self._known[who] = known
            if len(self._known) > _MOST_PRODUCERS:
                self._known.popitem(last=False)

        def check(done: Future[Any]) -> None:
            with self._lock:
                if known.waiting.get(mine) is done:
                    del known.waiting[mine]
                    if done.cancelled() or done.exception() is not None:  # it may be sent again
                        known.refused.add(mine)
                    if len(known.refused) > _MOST_REFUSED:
                        self._known.pop(who, None)

        stored.add_done_callback(check)


def _meet(one: Range, other: Range) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _stored() -> Future[Any]:
    """The answer for events that are stored already."""
    stored: Future[Any] = Future()
    stored.set_result(())
    return stored
