"""One run of a command under a reservation, from its start to the end of its last process.

Guarantees:

- When ``run`` returns none of the command's processes is left: the reservation may be released.
- It is stopped before the lease can end: SIGTERM to all its processes when the reservation is lost,
  SIGKILL before another process can have the job. The guard has that deadline too, so it holds
  while this process is stopped; and this process kills if the guard does not.
- Processes that outlive the command get a second to end; then they are stopped as well.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from leasehold.jobs.command.child import SIGNALLED, Child, Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import timedelta

    from leasehold.clock import Clock
    from leasehold.jobs.command.signal_queue import SignalQueue

log = logging.getLogger("leasehold.jobs")

_SAME_SIGNAL_S = 0.2  # timeout(1) and others signal a process and its group: that is one request
_SETTLE_S = 1.0  # for pipes that are still being drained, and machines that shut down
_STUCK_S = 5.0
_SLICES = 40  # of a lease, between two checks
_SHORTEST_SLICE_S, _LONGEST_SLICE_S = 0.01, 0.25
_KILL_MARGIN, _LONGEST_KILL_MARGIN_S = 0.03, 0.5  # of the lease: for the kernel to kill all
_FORCE_S, _FORCE_AGAIN_S = 0.05, 0.005  # for the guard to kill, before this process does
_GUARD_LATER_S = 0.1  # the guard sends SIGTERM only if this process has not


class CommandHandle(Protocol):
    """The reservation that a command needs."""

    @property
    def lost(self) -> threading.Event:
        """Set when the run must stop."""
        ...

    @property
    def why_lost(self) -> str | None:
        """How it ended; None while it is held."""
        ...

    def remaining(self) -> timedelta:
        """Return how long until all must have stopped."""
        ...


class LossKind(Enum):
    """What to do with the command when the reservation is lost."""

    STOP = "stop"  # SIGTERM, then SIGKILL before the lease ends
    KILL = "kill"  # SIGKILL immediately
    WARN = "warn"  # nothing: its writes must be fenced
    COMMAND = "cmd"  # as STOP, and a command of the user runs at the same time


_STOPS = (LossKind.STOP, LossKind.COMMAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnLoss:
    """What to do when the reservation is lost; ``command`` is one line for the shell."""

    kind: LossKind = LossKind.STOP
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTimeouts:
    """The times of a run.

    Attributes:
        lease_s: how long the lease is.
        stop_margin_s: the reservation counts as lost this long before its lease ends.
        stop_timeout_s: between SIGTERM and SIGKILL, if the lease leaves as much.
        timeout_s: a run that takes longer is stopped; infinity: no limit.
        on_loss: what to do when the reservation is lost.
    """

    lease_s: float
    stop_margin_s: float
    stop_timeout_s: float = 15.0
    timeout_s: float = math.inf
    on_loss: OnLoss = OnLoss()

    def with_timeout(self, timeout_s: float) -> CommandTimeouts:
        """Return a copy with this time limit for a run."""
        return replace(self, timeout_s=timeout_s)

    @property
    def slice_s(self) -> float:
        """The time between two checks of the reservation."""
        return min(max(self.lease_s / _SLICES, _SHORTEST_SLICE_S), _LONGEST_SLICE_S)

    @property
    def kill_margin_s(self) -> float:
        """How long before the end of the lease SIGKILL is sent."""
        return min(_KILL_MARGIN * self.lease_s, _LONGEST_KILL_MARGIN_S)

    @property
    def force_s(self) -> float:
        """How long the guard has to kill all; at most half of the margin."""
        return min(_FORCE_S, self.kill_margin_s / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """How a run ended.

    Attributes:
        exit_code: of the command: its own, 128 and the number of a signal, 126, 127.
        lost: why the reservation was lost while it ran; None if it was not.
        timed_out: it was stopped because it took too long.
        stopped_by: the signal that asked for its end, 0 if it was ``request_stop``, or None.
        killed: it was killed since it did not stop in time.
        executed: False if it could not be started.
        left_behind: it left processes that had to be stopped after its own end.
        crashed: its guard was killed while it ran, and so was the command: the run is not done.
    """

    exit_code: int
    lost: str | None = None
    timed_out: bool = False
    stopped_by: int | None = None
    killed: bool = False
    executed: bool = True
    left_behind: bool = False
    crashed: bool = False


class CommandRun:
    """A command that runs once. ``run`` blocks, and handles signals in the meantime."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        handle: CommandHandle,
        environment: Mapping[str, str],
        timeouts: CommandTimeouts,
        signals: SignalQueue,
        clock: Clock,
        no_other_children: bool = False,
        stop_reasons: Collection[str] = (),
        on_started: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        """See ``Child`` on ``no_other_children``. ``on_started`` is called with the process id.

        ``stop_reasons``: reasons of a loss that only ask for a graceful stop.
        """
        self._command = command
        self._handle = handle
        self._environment = environment
        self._timeouts = timeouts
        self._signals = signals
        self._clock = clock
        self._no_other_children = no_other_children
        self._stop_reasons = stop_reasons
        self._on_started = on_started
        self._lost: str | None = None
        self._timed_out = self._killed = self._term_sent = self._left_behind = False
        self._stopped_by: int | None = None
        self._stop_requested_s = 0.0
        self._forwarded: set[int] = set()
        self._stop_requested = threading.Event()
        self._term_at_s = self._kill_at_s = math.inf
        self._stuck_at_s = self._force_at_s = math.inf
        self._began_s = 0.0
        self._hook: subprocess.Popen[bytes] | None = None

    def request_stop(self) -> None:
        """Stop it gracefully; from any thread."""
        self._stop_requested.set()
        self._signals.wake()

    def run(self) -> CommandEnd:
        """Run the command to its end."""
        self._began_s = self._clock.boottime_s()
        child = Child(
            self._command,
            environment=self._environment,
            deadline=self._deadline(),
            no_other_children=self._no_other_children,
        )
        try:
            self._follow(child)
        finally:
            child.close()
            self._end_hook()
        code = child.exit_code or 0
        if self._stopped_by is None and code - SIGNALLED in self._forwarded:
            self._stopped_by = code - SIGNALLED  # the signal was meant to end it
        return CommandEnd(
            exit_code=code,
            lost=self._lost,
            timed_out=self._timed_out,
            stopped_by=self._stopped_by,
            killed=self._killed,
            executed=child.executed,
            left_behind=self._left_behind,
            # A stop that was asked for, or a time limit, is known to have ended it.
            crashed=child.crashed and not (self._killed or self._term_sent),
        )

    def _follow(self, child: Child) -> None:
        poll = select.poll()
        for each in (child.descriptor, self._signals.descriptor):
            poll.register(each, select.POLLIN)
        started = False
        while not child.gone:
            ready = {each for each, _ in poll.poll(self._pause_s(child) * 1000)}
            if child.descriptor in ready:
                child.read()
                if child.pid and not started:
                    started = True
                    self._on_started(child.pid)
            for number in self._signals.take():
                self._signalled(child, number)
            self._check(child)

    # ------------------------------------------------------------ signals

    def _signalled(self, child: Child, number: int) -> None:
        if number == signal.SIGTERM:
            now_s = self._clock.boottime_s()
            if self._stopped_by != number:
                self._stop_requested_s = now_s
                self._stop(child)
            elif now_s - self._stop_requested_s > _SAME_SIGNAL_S:  # asked for twice: kill it
                self._kill(child)
            self._stopped_by = number
        elif number == signal.SIGTSTP:
            # By default no process stops on SIGTSTP in a session without a terminal. This process
            # continues, to keep the reservation.
            child.send_all(signal.SIGSTOP)
        elif number == signal.SIGCONT:
            child.send_all(signal.SIGCONT)
        else:
            if number == signal.SIGINT:
                self._stopped_by = number
            self._forwarded.add(number)
            child.send_group(number)

    def _stop(self, child: Child) -> None:
        """Send SIGTERM, if it was not sent before, and SIGKILL after the stop timeout."""
        if not self._term_sent:
            self._term_sent = True
            child.send_all(signal.SIGTERM)
        self._kill_at_s = min(
            self._kill_at_s, self._clock.boottime_s() + self._timeouts.stop_timeout_s
        )

    def _kill(self, child: Child) -> None:
        child.kill()
        self._killed = self._killed or child.exit_code is None
        self._kill_at_s = math.inf
        now_s = self._clock.boottime_s()
        self._stuck_at_s = min(self._stuck_at_s, now_s + _STUCK_S)
        self._force_at_s = min(self._force_at_s, now_s + self._timeouts.force_s)

    # ------------------------------------------------------------ time

    def _check(self, child: Child) -> None:
        self._check_handle(child)
        now_s = self._clock.boottime_s()
        late = now_s - self._began_s >= self._timeouts.timeout_s
        if late and not self._timed_out and child.exit_code is None:
            self._timed_out = True
            self._stop(child)
        if child.exit_code is not None and self._term_at_s == math.inf:
            self._term_at_s = now_s + _SETTLE_S
        if now_s >= self._term_at_s and self._kill_at_s == math.inf == self._stuck_at_s:
            self._left_behind |= not self._term_sent
            self._stop(child)
        if now_s >= self._kill_at_s:
            self._kill(child)
        if now_s >= child.kill_at_s:  # the guard kills all on its own, if it can
            self._force_at_s = min(self._force_at_s, now_s + self._timeouts.force_s)
        if now_s >= self._force_at_s:
            child.force()
        if now_s >= self._stuck_at_s:
            self._stuck_at_s = math.inf
            log.warning("processes of the command do not end though they were killed: waiting")

    def _pause_s(self, child: Child) -> float:
        """Return the time to the next check: in time to kill if the guard does not."""
        left_s = min(self._force_at_s, child.kill_at_s) - self._clock.boottime_s()
        return min(self._timeouts.slice_s, max(left_s, _FORCE_AGAIN_S))

    def _check_handle(self, child: Child) -> None:
        why = self._handle.why_lost or ("lost" if self._handle.lost.is_set() else None)
        if why in self._stop_reasons:
            self._stop_requested.set()
        elif why is not None and self._lost is None:
            self._lose(child, why)
        if self._lost is None:
            child.extend(self._deadline())
        elif self._timeouts.on_loss.kind in _STOPS:
            # From now on only the end of the lease counts; it may have come nearer.
            child.extend(Deadline(term_at_s=math.inf, kill_at_s=self._deadline().kill_at_s))
        if self._stop_requested.is_set() and not self._term_sent:
            if self._stopped_by is None:  # a command may survive a SIGINT
                self._stopped_by = 0
            self._stop(child)

    def _lose(self, child: Child, why: str) -> None:
        self._lost = why
        kind = self._timeouts.on_loss.kind
        if kind is LossKind.WARN:
            child.report_lost()
            return
        if kind is LossKind.KILL:
            self._kill(child)
            return
        child.report_lost()
        self._stop(child)
        if kind is LossKind.COMMAND:
            self._hook = subprocess.Popen(  # noqa: S602 - a line for the shell was asked for
                self._timeouts.on_loss.command,
                shell=True,
                env={**self._environment, "LEASEHOLD_CHILD_PID": str(child.pid)},
                start_new_session=True,
            )

    def _deadline(self) -> Deadline:
        """Return the deadline by the reservation as it is now."""
        kind = self._timeouts.on_loss.kind
        if kind is LossKind.WARN:
            return Deadline(term_at_s=math.inf, kill_at_s=math.inf)
        # The clock first: a pause between the two makes the deadline earlier, never later.
        now_s = self._clock.boottime_s()
        end_s = now_s + self._handle.remaining().total_seconds()
        lost_s = end_s - self._timeouts.stop_margin_s
        if kind is LossKind.KILL:
            return Deadline(term_at_s=math.inf, kill_at_s=lost_s)
        kill_at_s = end_s - self._timeouts.kill_margin_s
        return Deadline(
            term_at_s=min(lost_s + _GUARD_LATER_S, kill_at_s - _GUARD_LATER_S), kill_at_s=kill_at_s
        )

    def _end_hook(self) -> None:
        """End the command that was started on the loss, at the end of the lease at the latest."""
        if self._hook is None:
            return
        left_s = self._handle.remaining().total_seconds()
        with suppress(subprocess.TimeoutExpired):
            self._hook.wait(max(left_s, 0.0))
        with suppress(ProcessLookupError):
            os.killpg(self._hook.pid, signal.SIGKILL)
        self._hook.wait()
