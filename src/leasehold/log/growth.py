"""How many partitions a stream has, for one who sends to it while it may grow.

A look asks the database, which may be slow or away: sending never waits for one, except for a
partition that is not known yet.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.log.streams import StreamInfo

log = logging.getLogger("leasehold.log")

LOOK_EVERY_S = 1.0


class Growth:
    """Safe to use from several threads. It starts a thread for a look, which ends with it."""

    def __init__(self, stream: StreamInfo, look: Callable[[], StreamInfo], *, clock: Clock) -> None:
        """The stream as it was found just now."""
        self._stream = stream
        self._look = look
        self._clock = clock
        self._looked_at = clock.boottime_s()
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._closed = False

    @property
    def stream(self) -> StreamInfo:
        """The stream as it was at the last look."""
        return self._stream

    def look_now_and_then(self) -> None:
        """Begin to look if the last look is a second old; do not wait for it."""
        now = self._clock.boottime_s()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        with self._lock:
            if self._closed or now - self._looked_at < LOOK_EVERY_S:
                return
            if self._looking is not None and self._looking.is_alive():
                return
            self._looked_at = now
            name = f"leasehold-growth-{self._stream.name}"
            self._looking = threading.Thread(target=self._try, name=name, daemon=True)
            self._looking.start()

    def found(self, partition: int | None) -> StreamInfo:
        """The stream. For a partition that it did not have so far, a look is waited for."""
        stream = self._stream
        if isinstance(partition, int) and partition >= stream.partitions:
            self._try()
        return self._stream

    def close(self) -> None:
        """Wait for a look that is under way, and begin none any more."""
        with self._lock:
            self._closed = True
            looking = self._looking
        if looking is not None:
            looking.join()

    def _try(self) -> None:
        try:
            found = self._look()
        except LeaseholdError as error:  # deleted, or no answer: that is told where it is stored
            log.info("%s could not be looked at: %s", self._stream.name, error)
            return
        with self._lock:
            if found.partitions > self._stream.partitions:  # looks may overtake one another
                log.info("%s has %d partitions now", found.name, found.partitions)
                self._stream = found
