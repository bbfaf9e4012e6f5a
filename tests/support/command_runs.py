"""Commands under a guard, for tests: a tenure by the clock, and what is left of processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from leasehold.clock import SystemClock
from leasehold.jobs.command.command_run import CommandEnd, CommandRun, CommandTimeouts
from leasehold.jobs.command.guard import processes
from leasehold.jobs.command.signal_queue import SignalQueue

CLOCK = SystemClock()
ROOT = Path(__file__).parents[2]
TREE = [sys.executable, "-I", "-S", str(ROOT / "tests" / "support" / "command_tree.py")]


@dataclass(kw_only=True)
class ByClock:
    """A tenure that lasts until a moment, and is lost when the test says so."""

    until_s: float
    lost: threading.Event = field(default_factory=threading.Event)
    why_lost: str | None = None

    @classmethod
    def lasting(cls, seconds: float) -> ByClock:
        return cls(until_s=CLOCK.boottime_s() + seconds)

    def remaining(self) -> timedelta:
        return timedelta(seconds=max(0.0, self.until_s - CLOCK.boottime_s()))

    def lose(self, *, why: str = "broken") -> None:
        self.why_lost = why
        self.lost.set()


@contextmanager
def belled() -> Iterator[SignalQueue]:
    signals = SignalQueue()
    try:
        yield signals
    finally:
        signals.close()


@dataclass(kw_only=True)
class Under:
    """A command that runs in a thread, under a tenure."""

    command: list[str]
    handle: ByClock
    timeouts: CommandTimeouts
    signals: SignalQueue
    pids: list[int] = field(default_factory=list)
    ended: CommandEnd | None = None
    running: CommandRun = field(init=False)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.running = CommandRun(
            self.command,
            handle=self.handle,
            environment=dict(os.environ),
            timeouts=self.timeouts,
            signals=self.signals,
            clock=CLOCK,
            on_started=self.pids.append,
        )
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        self.ended = self.running.run()

    def signalled(self, number: int) -> None:
        """As if this process had been sent it."""
        self.signals._on_signal(number, None)

    def end(self, *, within_s: float = 100.0) -> CommandEnd:
        self._thread.join(within_s)
        assert self.ended is not None, "it does not end"
        return self.ended


def until(true: Callable[[], bool], *, within_s: float = 100.0) -> None:
    """Wait for something that other processes do, and that tells nobody."""
    pause = threading.Event()
    end_s = CLOCK.boottime_s() + within_s
    while not true():
        assert CLOCK.boottime_s() < end_s, "it does not happen"
        pause.wait(0.005)


def family(path: Path) -> list[int]:
    """The processes of a ``command_tree``."""
    until(path.exists)
    return [int(each) for each in path.read_text(encoding="ascii").split()]


def alive(pids: list[int]) -> list[int]:
    known = processes()
    return [pid for pid in pids if pid in known and not known[pid].is_dead]


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
