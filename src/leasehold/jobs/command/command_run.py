"""One run of a command under a reservation, from its start to the end of its last process.

Guarantees:

- When ``run`` returns none of the command's processes is left: then the reservation may go.
- It is stopped before the lease can end: SIGTERM to all its processes when the reservation is lost,
  SIGKILL before others are let in. The guard holds that deadline too, so it also holds while this
  process is stopped; and this process kills by itself if the guard does not, since it is stopped.
- What outlives the command is given a second to end by itself; then it is stopped as well.
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

_SAME_SIGNAL_S = 0.2  # timeout(1) and others signal a process and its group: that is one wish
_SETTLE_S = 1.0  # for pipes that are still being drained, and machines that shut down
_STUCK_S = 5.0
_SLICES = 40  # of a lease, between two looks at it
_SHORTEST_SLICE_S, _LONGEST_SLICE_S = 0.01, 0.25
_KILL_MARGIN, _LONGEST_KILL_MARGIN_S = 0.03, 0.5  # of the lease: for the kernel to kill all
_FORCE_S, _FORCE_AGAIN_S = 0.05, 0.005  # for the guard to kill, before it is done here
_GUARD_LATER_S = 0.1  # the guard says SIGTERM only if this process has not


class CommandHandle(Protocol):
    """What a run stands on: a reservation of a job."""

    @property
    def lost(self) -> threading.Event:
        """Set when the run must stop."""
        ...

    @property
    def why_lost(self) -> str | None:
        """How it ended; None while it is held."""
        ...

    def remaining(self) -> timedelta:
        """How long it is until all must have stopped."""
        ...


class LossKind(Enum):
    """What is done with the command when the reservation is lost."""

    STOP = "stop"  # SIGTERM, then SIGKILL before the lease ends
    KILL = "kill"  # SIGKILL at once
    WARN = "warn"  # nothing: its writes must be fenced
    COMMAND = "cmd"  # as STOP, and a command of the user's runs beside it


_STOPS = (LossKind.STOP, LossKind.COMMAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnLoss:
    """What is done when the reservation is lost; ``command`` is one line for the shell."""

    kind: LossKind = LossKind.STOP
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTimeouts:
    """The times of a run.

    Attributes:
        lease_s: how long the lease is.
        belief_s: the reservation says *lost* so long before its time is over.
        grace_s: between SIGTERM and SIGKILL, if the lease leaves as much.
        timeout_s: a run that takes longer is stopped; infinity: it may take for ever.
        on_loss: what is done when the reservation is lost.
    """

    lease_s: float
    belief_s: float
    grace_s: float = 15.0
    timeout_s: float = math.inf
    on_loss: OnLoss = OnLoss()

    def within(self, timeout_s: float) -> CommandTimeouts:
        """The same, for runs that may take so long and no longer."""
        return replace(self, timeout_s=timeout_s)

    @property
    def slice_s(self) -> float:
        """Between two looks at the reservation."""
        return min(max(self.lease_s / _SLICES, _SHORTEST_SLICE_S), _LONGEST_SLICE_S)

    @property
    def kill_margin_s(self) -> float:
        """SIGKILL is sent so long before all must have stopped."""
        return min(_KILL_MARGIN * self.lease_s, _LONGEST_KILL_MARGIN_S)

    @property
    def force_s(self) -> float:
        """The guard has so long to kill all; it is half of the margin at most."""
        return min(_FORCE_S, self.kill_margin_s / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """How a run ended.

    Attributes:
        exit_code: of the command: its own, 128 and the number of a signal, 126, 127.
        lost: why the reservation was lost while it ran; None if it was not.
        timed_out: it was stopped because it took too long.
        stopped_by: the signal that asked for its end meanwhile, 0 if it was ``ask_stop``, or None.
        killed: it was killed since it did not stop by itself.
        executed: False if it could not be started.
        left_behind: it left processes that had to be stopped after its own end.
    """

    exit_code: int
    lost: str | None = None
    timed_out: bool = False
    stopped_by: int | None = None
    killed: bool = False
    executed: bool = True
    left_behind: bool = False


class CommandRun:
    """A command that runs once. ``run`` blocks, and hears the bell meanwhile."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        tenure: CommandHandle,
        environment: Mapping[str, str],
        limits: CommandTimeouts,
        bell: SignalQueue,
        clock: Clock,
        alone: bool = False,
        asks: Collection[str] = (),
        on_started: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        """See ``Child`` on ``alone``. ``on_started`` is told the process id of the command.

        ``asks``: reasons for which the tenure says *lost*, though it only wants an orderly stop.
        """
        self._command = command
        self._tenure = tenure
        self._environment = environment
        self._limits = limits
        self._bell = bell
        self._clock = clock
        self._alone = alone
        self._asks = asks
        self._on_started = on_started
        self._lost: str | None = None
        self._timed_out = self._killed = self._told_to_stop = self._left_behind = False
        self._stopped_by: int | None = None
        self._asked_s = 0.0
        self._passed_on: set[int] = set()
        self._asked = threading.Event()
        self._term_at_s = self._kill_at_s = math.inf
        self._stuck_at_s = self._force_at_s = math.inf
        self._began_s = 0.0
        self._hook: subprocess.Popen[bytes] | None = None

    def ask_stop(self) -> None:
        """Have it stopped in good order; from any thread."""
        self._asked.set()
        self._bell.ring()

    def run(self) -> CommandEnd:
        """Run it to its end."""
        self._began_s = self._clock.boottime_s()
        child = Child(
            self._command,
            environment=self._environment,
            deadline=self._deadline(),
            alone=self._alone,
        )
        try:
            self._follow(child)
        finally:
            child.close()
            self._end_hook()
        code = child.exit_code or 0
        if self._stopped_by is None and code - SIGNALLED in self._passed_on:
            self._stopped_by = code - SIGNALLED  # it was meant to end by it
        return CommandEnd(
            exit_code=code,
            lost=self._lost,
            timed_out=self._timed_out,
            stopped_by=self._stopped_by,
            killed=self._killed,
            executed=child.executed,
            left_behind=self._left_behind,
        )

    def _follow(self, child: Child) -> None:
        poll = select.poll()
        for each in (child.descriptor, self._bell.descriptor):
            poll.register(each, select.POLLIN)
        started = False
        while not child.gone:
            ready = {each for each, _ in poll.poll(self._pause_s(child) * 1000)}
            if child.descriptor in ready:
                child.read()
                if child.pid and not started:
                    started = True
                    self._on_started(child.pid)
            for number in self._bell.heard():
                self._signalled(child, number)
            self._look(child)

    # ------------------------------------------------------------ signals

    def _signalled(self, child: Child, number: int) -> None:
        if number == signal.SIGTERM:
            now_s = self._clock.boottime_s()
            if self._stopped_by != number:
                self._asked_s = now_s
                self._stop(child)
            elif now_s - self._asked_s > _SAME_SIGNAL_S:  # asked for twice: at once
                self._kill(child)
            self._stopped_by = number
        elif number == signal.SIGTSTP:
            # By default nobody stops on SIGTSTP in a session without a terminal. The reservation
            # is kept meanwhile, so this process goes on.
            child.send_all(signal.SIGSTOP)
        elif number == signal.SIGCONT:
            child.send_all(signal.SIGCONT)
        else:
            if number == signal.SIGINT:
                self._stopped_by = number
            self._passed_on.add(number)
            child.send_group(number)

    def _stop(self, child: Child) -> None:
        """SIGTERM now, if that was not said before, and SIGKILL after the grace."""
        if not self._told_to_stop:
            self._told_to_stop = True
            child.send_all(signal.SIGTERM)
        self._kill_at_s = min(self._kill_at_s, self._clock.boottime_s() + self._limits.grace_s)

    def _kill(self, child: Child) -> None:
        child.kill()
        self._killed = self._killed or child.exit_code is None
        self._kill_at_s = math.inf
        now_s = self._clock.boottime_s()
        self._stuck_at_s = min(self._stuck_at_s, now_s + _STUCK_S)
        self._force_at_s = min(self._force_at_s, now_s + self._limits.force_s)

    # ------------------------------------------------------------ time

    def _look(self, child: Child) -> None:
        self._look_at_tenure(child)
        now_s = self._clock.boottime_s()
        late = now_s - self._began_s >= self._limits.timeout_s
        if late and not self._timed_out and child.exit_code is None:
            self._timed_out = True
            self._stop(child)
        if child.exit_code is not None and self._term_at_s == math.inf:
            self._term_at_s = now_s + _SETTLE_S
        if now_s >= self._term_at_s and self._kill_at_s == math.inf == self._stuck_at_s:
            self._left_behind |= not self._told_to_stop
            self._stop(child)
        if now_s >= self._kill_at_s:
            self._kill(child)
        if now_s >= child.kill_at_s:  # the guard kills all by itself, if it can
            self._force_at_s = min(self._force_at_s, now_s + self._limits.force_s)
        if now_s >= self._force_at_s:
            child.force()
        if now_s >= self._stuck_at_s:
            self._stuck_at_s = math.inf
            log.warning("processes of the command do not end though they were killed: waiting")

    def _pause_s(self, child: Child) -> float:
        """Until the next look: in time for what is done here if the guard does not do it."""
        left_s = min(self._force_at_s, child.kill_at_s) - self._clock.boottime_s()
        return min(self._limits.slice_s, max(left_s, _FORCE_AGAIN_S))

    def _look_at_tenure(self, child: Child) -> None:
        why = self._tenure.why_lost or ("lost" if self._tenure.lost.is_set() else None)
        if why in self._asks:
            self._asked.set()
        elif why is not None and self._lost is None:
            self._lose(child, why)
        if self._lost is None:
            child.extend(self._deadline())
        elif self._limits.on_loss.kind in _STOPS:
            # From now on only the end of the lease counts; it may have come nearer.
            child.extend(Deadline(term_at_s=math.inf, kill_at_s=self._deadline().kill_at_s))
        if self._asked.is_set() and not self._told_to_stop:
            if self._stopped_by is None:  # a command may live through a SIGINT
                self._stopped_by = 0
            self._stop(child)

    def _lose(self, child: Child, why: str) -> None:
        self._lost = why
        kind = self._limits.on_loss.kind
        if kind is LossKind.WARN:
            child.tell_lost()
            return
        if kind is LossKind.KILL:
            self._kill(child)
            return
        child.tell_lost()
        self._stop(child)
        if kind is LossKind.COMMAND:
            self._hook = subprocess.Popen(  # noqa: S602 - a line for the shell was asked for
                self._limits.on_loss.command,
                shell=True,
                env={**self._environment, "LEASEHOLD_CHILD_PID": str(child.pid)},
                start_new_session=True,
            )

    def _deadline(self) -> Deadline:
        """As far as the reservation reaches now."""
        kind = self._limits.on_loss.kind
        if kind is LossKind.WARN:
            return Deadline(term_at_s=math.inf, kill_at_s=math.inf)
        # The clock first: a pause between the two makes the deadline earlier, never later.
        now_s = self._clock.boottime_s()
        end_s = now_s + self._tenure.remaining().total_seconds()
        lost_s = end_s - self._limits.belief_s
        if kind is LossKind.KILL:
            return Deadline(term_at_s=math.inf, kill_at_s=lost_s)
        kill_at_s = end_s - self._limits.kill_margin_s
        return Deadline(
            term_at_s=min(lost_s + _GUARD_LATER_S, kill_at_s - _GUARD_LATER_S), kill_at_s=kill_at_s
        )

    def _end_hook(self) -> None:
        """The command of the loss may take until the lease is over."""
        if self._hook is None:
            return
        left_s = self._tenure.remaining().total_seconds()
        with suppress(subprocess.TimeoutExpired):
            self._hook.wait(max(left_s, 0.0))
        with suppress(ProcessLookupError):
            os.killpg(self._hook.pid, signal.SIGKILL)
        self._hook.wait()
