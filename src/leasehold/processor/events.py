"""Hook events of a processor: delivered to hooks, and counted.

A hook is a function that takes one of the records below. It is called in the thread in which the
event happened and must return quickly; if it raises, that is logged and has no other effect. An
expected change of owner is a hook event and never goes to ``on_error``.

Also here: the state of a partition as its host and its watchdog see it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock


class PartitionState(Enum):
    """The state of a partition's pump.

    ``STALLED``: events wait and none arrives; the receiver is reopened until some do.
    """

    OPENING = "opening"
    WAITING = "waiting"
    HANDLING = "handling"
    RETRYING = "retrying"
    STOPPED = "stopped"
    DRAINING = "draining"
    STUCK = "stuck"
    STALLED = "stalled"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition as this host sees it. ``checkpoint``: the last position known to be stored.

    ``reopened``: how often its receiver was reopened since the last progress because none arrived.
    """

    partition: str
    epoch: int
    state: PartitionState
    next: int | None
    checkpoint: int | None
    waiting_events: int
    still_s: float
    reopened: int = 0


@dataclass(slots=True)
class StallWatch:
    """What the watchdog knows of a partition since its last progress.

    ``given_up``: the partition was offered to other hosts. ``kept``: none could take it;
    ``kept_reported``: that was reported. ``late``: a handler is over its timeout. ``end_next``:
    the next event that the partition will get, as far as known; ``lag_events``: how many events
    before it were not received. ``reopened``: how often the receiver was reopened; ``reopen_at_s``:
    not again before that time.
    """

    reported: bool = False
    given_up: bool = False
    kept: bool = False
    kept_reported: bool = False
    late: bool = False
    end_next: int = 0
    lag_events: int = 0
    reopened: int = 0
    reopen_at_s: float = 0.0
    behind_since_s: float | None = None

    def behind_s(self, now_s: float) -> float:
        """Return for how long events are known that were not received, in seconds."""
        if not self.lag_events:
            self.behind_since_s = None
            return 0.0
        if self.behind_since_s is None:
            self.behind_since_s = now_s
        return now_s - self.behind_since_s


log = logging.getLogger("leasehold.processor")


class CloseReason(Enum):
    """Why the work on a partition ended.

    ``SHUTDOWN``: the processor was stopped. ``HANDED_OVER``: drained, and passed to another host or
    released. ``LOST``: another host owns the lease or the partition, or the drain took too long.
    ``ERROR``: the processor failed. ``STALLED``: no progress, so passed on. ``BROKEN``: an operator
    broke it.
    """

    SHUTDOWN = "shutdown"
    HANDED_OVER = "handed_over"
    LOST = "lost"
    ERROR = "error"
    STALLED = "stalled"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """The fields of every hook event. ``partition`` is empty if it is about the host."""

    holder: str
    partition: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOpened(HookEvent):
    """Events are received from ``position`` on."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleRepeats(HookEvent):
    """This many events were or may have been handled without a checkpoint: they come again.

    Reported by the next owner if one since the last checkpoint was lost, or gave up after its local
    deadline: the number of events between that checkpoint and the end of the partition, because
    its progress is unknown. Reported by the owner
    itself if it was ended forcibly, or left checkpoints to the handler: then it is exact, except
    for the call that was interrupted. After any other orderly end it is not reported: no event
    comes again.
    """

    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionClosed(HookEvent):
    """No more events are handled. ``position`` is the next one that was not.

    Reported once for each ``PartitionOpened``.
    """

    reason: CloseReason
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken(HookEvent):
    """Another host forcibly took the partition while it was being given up gracefully.

    Reported after its ``PartitionClosed``, which could not know it. In a group with Azure's clients
    the last handled events may come again, because those clients check no fence. Among Leasehold
    hosts none does: the last position had been stored.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDraining(HookEvent):
    """The partition is about to be given up gracefully."""


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
    """A handler in a thread did not end in time. It cannot be stopped, and is no longer awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpRestarted(HookEvent):
    """Reading failed and is restarted after a pause."""

    error: BaseException
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMoved(HookEvent):
    """The next event was removed by retention: reading resumes further ahead."""

    wanted: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled(HookEvent):
    """No progress while there is work. ``given_up``: the partition was passed to another host.

    A partition that no other host can take is kept: reported once without ``given_up``, and once
    more with it if a host takes it later. ``reopened``: how often its receiver was reopened until
    now; each time is reported.
    """

    still_s: float
    given_up: bool
    reopened: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleDone(HookEvent):
    """One cycle of the member: how many keys it holds, which calls it made, and its error."""

    elapsed_s: float
    held: int
    calls: dict[str, int]
    error: BaseException | None = None


Hook = Callable[[HookEvent], None]  # called in the thread in which it happened


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCounts:
    """Sums since the start. ``by_event`` counts hook events by the name of their class."""

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
    """Calls the hooks and keeps the sums. Safe to use from any thread."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._lock = Lock()
        self._sums: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    def tell(self, event: HookEvent) -> None:
        """Count the event and call all hooks."""
        with self._lock:
            self._events[type(event).__name__] += 1
            self._count(event)
        for hook in self._hooks:
            try:
                hook(event)
            except BaseException:
                # Whatever it is: the caller may be the lease thread, which must continue.
                log.exception("a hook failed at %s", event)

    def add(self, **amounts: int) -> None:
        """Add to the sums of these names."""
        with self._lock:
            self._sums.update(amounts)

    def counts(self) -> ProcessorCounts:
        """Return the sums."""
        with self._lock:
            return ProcessorCounts(
                **self._sums,
                closed=dict(self._closed),
                by_event=dict(self._events),
                store_calls=dict(self._calls),
            )

    def _count(self, event: HookEvent) -> None:
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
