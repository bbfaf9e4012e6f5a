"""One call of ``send``: its future, complete when all its parts are stored or one has failed."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from leasehold.errors import BufferFull
from leasehold.log.parcel import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.log.parcel import Receipt


_PART_BYTES = 2048  # of memory, for each part beside its own bytes: its future and its places


class Sending:
    """Parts of what was sent, on their way to one partition or several."""

    def __init__(self, parts: int) -> None:
        """``parts`` is how many answers there will be."""
        self.future: Future[tuple[Receipt, ...]] = Future()
        self.future.set_running_or_notify_cancel()  # what was sent can not be called back
        self._left = parts
        self._receipts: list[Receipt] = []
        self._lock = threading.Lock()

    def stored(self, receipts: list[Receipt]) -> None:
        """One part is stored."""
        with self._lock:
            self._receipts += receipts
            self._left -= 1
            over = not self._left
        if over and not self.future.done():
            self._receipts.sort(key=lambda receipt: receipt.partition)
            self.future.set_result(joined(self._receipts))

    def failed(self, error: BaseException) -> None:
        """One part could not be stored; the others may be."""
        with self._lock:
            first = not self.future.done()
            self._left -= 1
            if first:
                self.future.set_exception(error)


class Gate:
    """Lets in as many bytes as may wait; who comes when it is full waits at the gate.

    Each part counts with what it takes in memory, which is more than an event of a few bytes.
    """

    def __init__(self, most_bytes: int, *, clock: Clock) -> None:
        """Empty."""
        self._most_bytes = most_bytes
        self._clock = clock
        self._changed = threading.Condition()
        self._inside_bytes = 0

    @property
    def inside_bytes(self) -> int:
        """How many bytes are taken by what waits to be stored."""
        return self._inside_bytes

    def enter(self, size: int, *, parts: int, limit_s: float, hurry: Callable[[], None]) -> None:
        """Wait until there is room for these parts. What is bigger than all room may enter alone.

        Raises:
            BufferFull: there was no room for ``limit_s``.
        """
        size += parts * _PART_BYTES
        with self._changed:
            if self._has_room(size):
                self._inside_bytes += size
                return
        hurry()  # nothing may linger while somebody waits for room
        until = self._clock.boottime_s() + limit_s
        with self._changed:
            while not self._has_room(size):
                left_s = until - self._clock.boottime_s()
                if left_s <= 0:
                    raise BufferFull(
                        f"{self._inside_bytes} bytes wait to be stored, {self._most_bytes} may, "
                        f"and there was no room for {size} more in {limit_s:g} s: send slower, or "
                        "look why the partition's owner does not store"
                    )
                self._changed.wait(left_s)
            self._inside_bytes += size

    def leave(self, size: int, *, parts: int) -> None:
        """Make room."""
        with self._changed:
            self._inside_bytes -= size + parts * _PART_BYTES
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._inside_bytes or self._inside_bytes + size <= self._most_bytes


def cut(batch: pa.RecordBatch, most_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The batch in slices of about ``most_bytes``, each with its size; one event is not cut."""
    size = int(batch.nbytes)
    if size <= most_bytes or batch.num_rows == 1:
        yield batch, size
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half), most_bytes)
    yield from cut(batch.slice(half), most_bytes)
