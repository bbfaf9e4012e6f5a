"""What a running processor tells people, line by line on stderr.

A line begins with the time. An error of a handler is shown with its traceback once; what repeats
itself is only counted in further lines.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.cli.common import (
    counted,
    shown_seconds,
)
from leasehold.cli.tables import err
from leasehold.clock import Clock
from leasehold.processor.events import (
    CheckpointRefused,
    CycleDone,
    HandlerAbandoned,
    HandlerFailed,
    MayRepeat,
    Overtaken,
    PartitionClosed,
    PartitionDrains,
    PartitionOpened,
    Poisoned,
    PositionMoved,
    PumpRestarted,
    ReceiverDisplaced,
)
from leasehold.sources.tracebacks import traceback_of

if TYPE_CHECKING:
    from leasehold.processor import Counts, EventProcessor, HookEvent

_MOST_TRACEBACKS = 200
_ACTIONS = {
    "skip": "skipped",
    "dead letter": "put to the dead letters",
    "stop": "the partition stops here; it stays owned",
}


class Words(logging.Handler):
    """A hook for a processor, and a handler for what it logs as a warning."""

    def __init__(self, clock: Clock, *, name: str) -> None:
        """``name`` is that of the processor: it is no id of a member."""
        super().__init__(logging.WARNING)
        self._clock = clock
        self._name = name
        self._holder = ""
        self._failed: BaseException | None = None
        self._shown: set[str] = set()

    def say(self, words: str) -> None:
        """One line."""
        err.print(f"{self._clock.utc_now():%H:%M:%S}Z {words}")

    def hook(self, event: HookEvent) -> None:
        """Say what happened, if it is worth a line."""
        if isinstance(event, CycleDone):
            if event.holder not in ("", self._name, self._holder):
                again = " again" if self._holder else ""
                self._holder = event.holder
                self.say(f"joined{again} as {event.holder}")
            return
        if isinstance(event, HandlerFailed | PumpRestarted):
            self._failed = event.error
        words = _words(event)
        if words:
            self.say(f"{words[0]} partition {event.partition} (epoch {event.epoch}){words[1]}")

    def emit(self, record: logging.LogRecord) -> None:
        """Say what was logged; a traceback only if it is a new one."""
        raised = record.exc_info[1] if record.exc_info else None
        error = raised or getattr(record, "error", None)
        if error is None or error is not self._failed:  # else it was said a moment ago
            self.say(record.getMessage())
        if raised is None:
            return
        text = traceback_of(raised).rstrip()
        if text not in self._shown:
            if len(self._shown) >= _MOST_TRACEBACKS:
                self._shown.clear()
            self._shown.add(text)
            err.print(text)


@contextmanager
def heard(words: Words) -> Iterator[None]:
    """Let all that Leasehold logs be said by ``words`` and by nobody else."""
    logger = logging.getLogger("leasehold")
    before, logger.propagate = logger.propagate, False
    logger.addHandler(words)
    try:
        yield
    finally:
        logger.removeHandler(words)
        logger.propagate = before


@contextmanager
def status_lines(processor: EventProcessor, words: Words, *, every_s: float) -> Iterator[None]:
    """Say in one line how it goes, again and again, from a thread of its own."""
    ended = threading.Event()

    def tell() -> None:
        before = processor.counts()
        while not ended.wait(every_s):
            now = processor.counts()
            words.say(status(len(processor.held()), before, now, every_s=every_s))
            before = now

    thread = threading.Thread(target=tell, name="leasehold-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def status(held: int, before: Counts, now: Counts, *, every_s: float) -> str:
    """How it goes, in one line."""
    rate = (now.events_handled - before.events_handled) / every_s
    failed = now.by_event.get(HandlerFailed.__name__, 0)
    lost = now.events_skipped + now.events_dead_lettered
    parts = [
        counted(held, "partition"),
        f"{counted(now.events_handled, 'event')} handled ({rate:,.0f}/s)",
        counted(now.checkpoints_written, "checkpoint"),
    ]
    parts += [counted(failed, "failed attempt")] if failed else []
    parts += [f"{counted(lost, 'event')} given up"] if lost else []
    return ", ".join(parts)


def _words(event: HookEvent) -> tuple[str, str] | None:
    """What is said before and after the partition."""
    match event:
        case PartitionOpened():
            return "opened", f" at {event.position}"
        case PartitionClosed():
            at = "" if event.position is None else f" at {event.position}"
            return "closed", f"{at} ({event.reason.value})"
        case PartitionDrains():
            return "draining", ""
        case HandlerFailed():
            error = f"{type(event.error).__name__}: {event.error}"
            return "failed in", f" at {event.sequence_number}, attempt {event.attempt}: {error}"
        case Poisoned():
            what = _ACTIONS.get(event.action, event.action)
            return "poison in", f" at {event.sequence_number}: {what}"
        case _:
            return _rare_words(event)


def _rare_words(event: HookEvent) -> tuple[str, str] | None:
    match event:
        case MayRepeat():
            return f"up to {counted(event.events, 'event')} of", " may come again"
        case Overtaken():
            return "overtaken in", ": taken by force while it was given up"
        case ReceiverDisplaced():
            return "displaced in", f" by {event.by or 'another receiver'}"
        case CheckpointRefused():
            return "checkpoint refused for", f" at {event.sequence_number}: {event.why}"
        case HandlerAbandoned():
            return "the handler does not end in", ": nobody waits for it any more"
        case _:
            return _reading_words(event)


def _reading_words(event: HookEvent) -> tuple[str, str] | None:
    match event:
        case PumpRestarted():
            pause = shown_seconds(event.pause_s)
            return "reading again in", f" after {pause}: {event.error}"
        case PositionMoved():
            return "moved on in", f" from {event.wanted} to {event.found}: retention was faster"
        case _:
            return None
