"""The flights on their way into the log: at a pace, and never further than they may go.

Guarantees: all events are sent once, in order. A gate keeps some of them back, so that there is
still work when the next fault comes; time spent before it is not made up for.
"""

from __future__ import annotations

import threading
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.log.options import ProducerOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.log.log import Log
    from leasehold.log.producer import Sent

_TICK_S = 0.1
_AT_ONCE = 5_000


class Pace:
    """How many events may have been sent by now; ``None`` events per second: any number. Pure."""

    def __init__(self, per_s: float | None, *, now_s: float) -> None:
        """Begin with none."""
        self._per_s = per_s
        self._now_s = now_s
        self._due = 0.0

    def due(self, now_s: float, *, sent: int, gate: int) -> int:
        """How many to send now: ``gate`` in all at most, and never too many at once."""
        passed_s, self._now_s = now_s - self._now_s, now_s
        if self._per_s is None:
            self._due = float(gate)
        else:
            self._due = min(self._due + passed_s * self._per_s, float(gate))
        return max(0, min(int(self._due) - sent, _AT_ONCE))


class Sender:
    """Sends a table of events in a thread of its own. ``open_to`` opens the gate further."""

    def __init__(
        self, log: Log, stream: str, events: pa.Table, *, per_s: float | None, clock: Clock
    ) -> None:
        """Nothing is sent yet."""
        self._log = log
        self._stream = stream
        self._events = events
        self._per_s = per_s
        self._clock = clock
        self._gate = 0
        self._enough = threading.Event()
        self._sent = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sends flights", daemon=True)

    @property
    def sent(self) -> int:
        """How many are on their way or stored."""
        return self._sent

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def open_to(self, count: int) -> None:
        """Let so many in all pass."""
        self._gate = max(self._gate, min(count, self._events.num_rows))

    def close(self) -> None:
        """Send nothing more, and wait for what is on its way."""
        self._enough.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # noqa: BLE001 - told to whoever looks after us
            self.error = error

    def _send_all(self) -> None:
        pace = Pace(self._per_s, now_s=self._clock.boottime_s())
        # What is sent within a tick is stored with one sync for each partition.
        options = ProducerOptions(linger=timedelta(seconds=_TICK_S / 2))
        waiting: deque[Sent] = deque()
        with self._log.producer(self._stream, options) as producer:
            while self._sent < self._events.num_rows and not self._enough.is_set():
                count = pace.due(self._clock.boottime_s(), sent=self._sent, gate=self._gate)
                if count:
                    waiting.append(producer.send(self._events.slice(self._sent, count)))
                    self._sent += count
                while waiting and waiting[0].done():
                    waiting.popleft().result()
                if count < _AT_ONCE:
                    self._enough.wait(_TICK_S)
            producer.flush()
        for each in waiting:
            each.result()
