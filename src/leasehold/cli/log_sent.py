"""What became of the events that were sent: how many, to which partition, under which numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from leasehold.log import Receipt


@dataclass(slots=True, kw_only=True)
class _Part:
    events: int = 0
    first: int = -1
    last: int = -1


class Sent:
    """Counts receipts. It keeps only the futures that are not done, so it does not grow."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._waiting: deque[Future[tuple[Receipt, ...]]] = deque()
        self._parts: dict[int, _Part] = {}

    def add(self, future: Future[tuple[Receipt, ...]]) -> None:
        """Wait for this one too.

        Raises:
            LeaseholdError: one of the earlier ones could not be stored.
        """
        self._waiting.append(future)
        while self._waiting and self._waiting[0].done():
            self._count(self._waiting.popleft())

    def wait(self) -> None:
        """Return when all that was sent is stored.

        Raises:
            LeaseholdError: something could not be stored.
        """
        while self._waiting:
            self._count(self._waiting.popleft())

    def settle(self) -> None:
        """Count what can still be counted: something has failed already, and that is told."""
        while self._waiting:
            with suppress(LeaseholdError):
                self._count(self._waiting.popleft())

    def rows(self) -> Iterator[dict[str, object]]:
        """A row for each partition that got events, in order."""
        for number, part in sorted(self._parts.items()):
            yield {
                "partition": number,
                "events": part.events,
                "first_sequence": part.first if part.first >= 0 else None,
                "last_sequence": part.last if part.last >= 0 else None,
            }

    def _count(self, future: Future[tuple[Receipt, ...]]) -> None:
        for receipt in future.result():
            part = self._parts.setdefault(receipt.partition, _Part())
            part.events += receipt.count
            if receipt.first_sequence >= 0:
                part.first = receipt.first_sequence if part.first < 0 else part.first
                part.last = receipt.first_sequence + receipt.count - 1
