"""Everything worth knowing, as events: told to whoever listens, and counted.

A hook is a function that takes one of the records below. It is called in the thread in which the
thing happened and must return quickly; if it raises, that is logged and nothing else. Expected
changes of owner are told here and never to ``on_error``.

A partition as the host that works on it sees it, and as its watchdog does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock


class PartitionState(Enum):
    """What a pump is at."""

    OPENING = "opening"
    WAITING = "waiting"
    HANDLING = "handling"
    RETRYING = "retrying"
    STOPPED = "stopped"
    DRAINING = "draining"
    STUCK = "stuck"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition as this host sees it. ``checkpoint``: the last position known to be stored."""

    partition: str
    epoch: int
    state: PartitionState
    next: int | None
    checkpoint: int | None
    waiting_events: int
    still_s: float


@dataclass(slots=True)
class StallWatch:
    """What the watchdog knows of a partition since it last made progress.

    ``given_up``: another host was looked for. ``kept``: there was none; ``kept_told``: and that was
    said. ``late``: a handler is over its limit. ``lag_events``: how many events are known to be
    there that were not received.
    """

    reported: bool = False
    given_up: bool = False
    kept: bool = False
    kept_told: bool = False
    late: bool = False
    lag_events: int = 0
    behind_since_s: float | None = None

    def behind_s(self, now_s: float) -> float:
        """How long it is known that there are events which are not received."""
        if not self.lag_events:
            self.behind_since_s = None
            return 0.0
        if self.behind_since_s is None:
            self.behind_since_s = now_s
        return now_s - self.behind_since_s


log = logging.getLogger("leasehold.processor")


class CloseReason(Enum):
    """Why the work on a partition ended.

    ``SHUTDOWN``: the processor was stopped. ``HANDED_OVER``: drained, and passed to another host,
    or given back. ``LOST``: the lease or the partition is somebody else's, or the drain took too
    long. ``ERROR``: the processor failed. ``STALLED``: no progress, so passed on. ``BROKEN``: an
    operator broke it.
    """

    SHUTDOWN = "shutdown"
    HANDED_OVER = "handed_over"
    LOST = "lost"
    ERROR = "error"
    STALLED = "stalled"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """What all of them have. ``partition`` is empty where it is about the host."""

    holder: str
    partition: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOpened(HookEvent):
    """Events come from ``position`` on."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleRepeats(HookEvent):
    """So many events were handled, or may have been, that no checkpoint covers: they come again.

    Told by the next owner if the one before was lost: then it is the number of events between its
    last checkpoint and the end of the partition, since nobody knows how far it had come. Told by
    the owner itself if it ended by force, or left checkpoints to the handler: then it is exact, but
    for the call that was cut off. After any other orderly end it is not told: none comes again.
    """

    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionClosed(HookEvent):
    """No more events are handled. ``position`` is the next one that was not.

    Told once for each ``PartitionOpened``.
    """

    reason: CloseReason
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken(HookEvent):
    """Somebody took the partition by force while it was being given up in good order.

    Told after its ``PartitionClosed``, which could not know it. In a group with clients of Azure
    what was handled last may come again, for they look at no fence. Among hosts of ours nothing
    does: the last position had been stored.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDraining(HookEvent):
    """The partition is to be given up in good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverDisplaced(HookEvent):
    """Another receiver of the group has claimed the partition at the source."""

    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(HookEvent):
    """The store has the position."""

    sequence_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRefused(HookEvent):
    """A checkpoint under an ownership that has ended: refused by the store, or never sent."""

    sequence_number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFailed(HookEvent):
    """The handler raised, or took too long, for the ``attempt``-th time at this event."""

    sequence_number: int
    attempt: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoned(HookEvent):
    """All attempts have failed. ``action``: skip, dead letter or stop."""

    sequence_number: int
    action: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerAbandoned(HookEvent):
    """A handler in a thread did not end in time. It can not be stopped; nobody waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpRestarted(HookEvent):
    """Reading failed and is begun again after a pause."""

    error: BaseException
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMoved(HookEvent):
    """The next event was removed by retention: reading goes on further ahead."""

    wanted: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled(HookEvent):
    """No progress while there is work. ``given_up``: the partition was passed to another host.

    A partition that nobody else can take is kept: told once without ``given_up``, and once more
    with it if somebody takes it later.
    """

    still_s: float
    given_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleDone(HookEvent):
    """One cycle of the member: what it holds, which calls it made, and what went wrong."""

    elapsed_s: float
    held: int
    calls: dict[str, int]
    error: BaseException | None = None


Hook = Callable[[HookEvent], None]  # called in the thread in which it happened


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCounts:
    """Sums since the start. ``by_event`` counts the records above by the name of their class."""

    events_handled: int = 0
    batches_handled: int = 0
    bytes_handled: int = 0
    events_skipped: int = 0
    events_dead_lettered: int = 0
    checkpoints_written: int = 0
    checkpoint_calls: int = 0
    possible_repeats: int = 0
    closed: dict[str, int] = field(default_factory=dict)
    by_event: dict[str, int] = field(default_factory=dict)
    store_calls: dict[str, int] = field(default_factory=dict)


class EventBus:
    """Tells the hooks and keeps the sums. Safe to use from any thread."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        """Nothing happened yet."""
        self._hooks = tuple(hooks)
        self._lock = Lock()
        self._sums: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    def tell(self, event: HookEvent) -> None:
        """Count it and tell everybody."""
        with self._lock:
            self._events[type(event).__name__] += 1
            self._take_in(event)
        for hook in self._hooks:
            try:
                hook(event)
            except BaseException:
                # Whatever it is: the one who tells may be the lease side, which must go on.
                log.exception("a hook failed at %s", event)

    def add(self, **amounts: int) -> None:
        """Add to the sums of these names."""
        with self._lock:
            self._sums.update(amounts)

    def counts(self) -> ProcessorCounts:
        """The sums now."""
        with self._lock:
            return ProcessorCounts(
                **self._sums,
                closed=dict(self._closed),
                by_event=dict(self._events),
                store_calls=dict(self._calls),
            )

    def _take_in(self, event: HookEvent) -> None:
        match event:
            case PartitionClosed():
                self._closed[event.reason.value] += 1
            case PossibleRepeats():
                self._sums["possible_repeats"] += event.events
            case CheckpointWritten():
                self._sums["checkpoints_written"] += 1
            case CycleDone():
                self._calls.update(event.calls)
            case _:
                pass
