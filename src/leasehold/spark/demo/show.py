"""The course of the demo: which driver is started, killed, stopped and resumed, and when.

Guarantees: each fault comes while a batch is in progress, however fast the machine is, because the
sender holds back enough flights for it. Whatever happens, also Ctrl-C, no process is left behind.

The sender sends all events once, in order, at a fixed pace. A gate holds some of them back; time
spent at the gate is not made up for.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError, UnknownResource
from leasehold.insight import open_inspector
from leasehold.log.log import Log
from leasehold.log.options import ProducerOptions
from leasehold.spark.demo.delays import GROUP, STREAM
from leasehold.spark.demo.drivers import Driver, DriverSettings
from leasehold.spark.demo.screen import (
    DriverLine,
    DriverReport,
    GroupLook,
    LineKind,
    Rates,
    ScreenContents,
    Story,
    WaitPoint,
    listed,
    look_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.insight import Inspector
    from leasehold.log.producer import Sent
    from leasehold.spark.demo.demo_files import DemoFiles
    from leasehold.spark.demo.screen import Screen

_TICK_S = 0.1
_AT_ONCE = 5_000


class SendPace:
    """How many events may have been sent by now; ``None`` events per second: any number. Pure."""

    def __init__(self, per_s: float | None, *, now_s: float) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._due = 0.0

    def due(self, now_s: float, *, sent: int, gate: int) -> int:
        """Return how many to send now: at most ``gate`` in all, and a bounded number per call."""
        passed_s, self._now_s = now_s - self._now_s, now_s
        if self._per_s is None:
            self._due = float(gate)
        else:
            self._due = min(self._due + passed_s * self._per_s, float(gate))
        return max(0, min(int(self._due) - sent, _AT_ONCE))


class EventSender:
    """Sends a table of events in a separate thread. ``open_to`` opens the gate further."""

    def __init__(
        self, log: Log, stream: str, events: pa.Table, *, per_s: float | None, clock: Clock
    ) -> None:
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
        """Let ``count`` events in all pass."""
        self._gate = max(self._gate, min(count, self._events.num_rows))

    def close(self) -> None:
        """Send nothing more, and wait for what is on its way."""
        self._enough.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # noqa: BLE001 - raised by the show
            self.error = error

    def _send_all(self) -> None:
        pace = SendPace(self._per_s, now_s=self._clock.boottime_s())
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


_LOOK_EVERY_S = 0.3
_PATIENCE_S = 180.0
_GOODBYE_S = 30.0
# Fractions of all flights. The sender waits at a gate until the fault at it has begun.
_KILL_AT, _FIRST_GATE = 0.30, 0.35
_STOP_AT, _SECOND_GATE = 0.60, 0.65
_MIN_SHARE, _MIN_PART = 0.003, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """``per_s``: how many flights are sent in a second; ``None``: as many as can be."""

    per_s: float | None
    partitions: int = 8
    lease_s: float = 4.0
    interval_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo has seen.

    Attributes:
        killed_rows: flights that B had committed, and not noted in the store, when it was killed.
        paused_s: how long A stood still. refused_rows: flights of the commit it then tried.
        refused_words: how the table refused it.
    """

    killed_rows: int
    paused_s: float
    refused_rows: int
    refused_words: str
    took_s: float


class Show:
    """One run of the demo."""

    def __init__(
        self,
        place: DemoFiles,
        events: pa.Table,
        *,
        options: ShowOptions,
        screen: Screen,
        clock: Clock,
        before_the_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is started yet. ``before_the_end`` is called after the last fault."""
        self._before_the_end = before_the_end
        self._place = place
        self._events = events
        self._options = options
        self._screen = screen
        self._clock = clock
        self._began_s = clock.boottime_s()
        self._drivers: dict[str, Driver] = {}
        self._story = Story()
        self._rates = Rates()
        self._look = GroupLook(at_s=0.0)
        self._stack = ExitStack()
        self._gate = 0
        self._gate_until = ""

    async def run(self) -> Shown:
        """Run it to the end: all flights are in the table, as far as the store knows."""
        with self._stack, self._screen:
            log = self._stack.enter_context(
                Log.open(self._place.url, volumes=[self._place.volume], name="demo")
            )
            log.create(STREAM, partitions=self._options.partitions)
            per_s = self._options.per_s
            sender = EventSender(log, STREAM, self._events, per_s=per_s, clock=self._clock)
            self._stack.callback(sender.close)
            self._sender = sender
            async with open_inspector(self._place.url, clock=self._clock) as desk:
                self._desk: Inspector = desk
                return await self._acts()

    async def _acts(self) -> Shown:
        self._open_gate(_FIRST_GATE, until="A and B share the work")
        self._sender.start()
        self._tell(
            f"{self._total:,} flights begin to flow into {self._options.partitions} partitions"
        )
        for name in ("A", "B"):
            self._start(name)
        self._tell("drivers A and B start, each with a Spark of its own")
        await self._until("A and B share the partitions", lambda look: self._share("A", "B", look))
        self._gate_until = ""
        killed = await self._kill_b()
        paused_s, refused = await self._pause_a()
        self._before_the_end()
        await self._until("every flight is in the table", self._all_done)
        self._tell("every flight is in the table, says the store", "good")
        for driver in self._drivers.values():
            driver.leave()
        for driver in self._drivers.values():
            driver.end(wait_s=_GOODBYE_S)
        return Shown(
            killed_rows=killed.rows,
            paused_s=paused_s,
            refused_rows=refused.rows,
            refused_words=refused.words,
            took_s=self._now_s(),
        )

    # --------------------------------------------------------------- faults

    async def _kill_b(self) -> DriverReport:
        """Kill B between the commit in the table and the checkpoint in the store."""
        await self._until("a third is done", lambda look: look.done >= _KILL_AT * self._total)
        driver = self._drivers["B"]
        batch = await self._halted(driver, WaitPoint.COMMITTED, _SECOND_GATE)
        self._gate_until = "A and C share the work"
        driver.state = "killed"
        count = driver.kill()
        self._story.lost("B", self._now_s(), "was killed")
        self._tell(
            f"B is killed with kill -9 ({count} processes): {batch.rows:,} flights are in the "
            "table, their checkpoint is not in the store",
            "bad",
        )
        self._start("C")
        self._tell("driver C starts in its place")
        await self._until(
            "A has B's partitions", lambda look: look.all_owned and not look.owned_by("B")
        )
        return batch

    async def _pause_a(self) -> tuple[float, DriverReport]:
        """Pause A just before its commit, past its lease, until its successor has committed."""
        await self._until("A and C share the partitions", lambda look: self._share("A", "C", look))
        self._gate_until = ""
        await self._until("two thirds are done", self._second_gate_is_near)
        driver = self._drivers["A"]
        batch = await self._halted(driver, WaitPoint.STAGED, 1.0)
        commits, driver.state = len(driver.said(LineKind.COMMITTED)), "stopped"
        stopped_s, count = self._now_s(), driver.pause()
        self._story.lost("A", stopped_s, "was stopped")
        self._tell(
            f"A is stopped ({count} processes) while it commits {batch.rows:,} flights of "
            f"{listed(sorted(batch.epochs))}",
            "bad",
        )
        await self._until("C has done A's work", lambda look: _succeeded(look, batch.epochs))
        paused_s, driver.state = self._now_s() - stopped_s, "works"
        self._story.back("A")
        driver.wake()
        self._tell(f"A wakes up after {paused_s:.1f} s and goes on with its commit")
        await self._until(
            "A's commit is refused",
            lambda _: (
                bool(driver.said(LineKind.REFUSED))
                or len(driver.said(LineKind.COMMITTED)) > commits
            ),
        )
        if not driver.said(LineKind.REFUSED):
            raise LeaseholdError(
                "the commit of a driver that had lost its lease was accepted: the proof has "
                f"failed. Please report it, with {self._place.root}"
            )
        refused = driver.said(LineKind.REFUSED)[-1]
        why = refused.words.replace(str(self._place.root), "…").partition(". ")[0]
        self._tell(f"the table refuses A's {refused.rows:,} flights: {why}", "good")
        return paused_s, refused

    async def _halted(self, driver: Driver, moment: WaitPoint, gate: float) -> DriverReport:
        """Pause the driver at a point of its next batch, for which the gate is opened."""
        driver.halt_at(moment, min_rows=self._min_rows)
        self._open_gate(gate)
        await self._until(f"{driver.name} is {moment}", lambda _: bool(driver.said(LineKind.WAITS)))
        return driver.said(LineKind.WAITS)[-1]

    # --------------------------------------------------------------- polling

    async def _until(self, what: str, true: Callable[[GroupLook], bool]) -> None:
        """Poll the store until the condition is true."""
        limit_s = self._now_s() + _PATIENCE_S + self._pace_s
        while True:
            await self._see()
            if true(self._look):
                return
            self._check()
            if self._now_s() > limit_s:
                raise LeaseholdError(
                    f"the demo has waited {_PATIENCE_S:.0f} s for this, and it did not come: "
                    f"{what}. What the drivers say is in {self._place.logs}"
                )
            await self._clock.sleep(_LOOK_EVERY_S)

    async def _see(self) -> None:
        try:
            view = await self._desk.group(STREAM, GROUP)
        except UnknownResource:  # no driver has joined yet
            self._look = GroupLook(at_s=self._now_s())
        else:
            self._look = look_of(view, at_s=self._now_s())
        self._rates.add(self._look)
        for line in self._story.see(self._look):
            self._screen.tell(line)
        self._tell_of_the_gate()
        for name, driver in self._drivers.items():
            if driver.state == "starts" and self._look.owned_by(name):
                driver.state = "works"
        self._screen.show(
            ScreenContents(
                look=self._look,
                drivers=tuple(map(self._driver_line, self._drivers.values())),
                sent=self._sender.sent,
                total=self._total,
            )
        )

    def _driver_line(self, driver: Driver) -> DriverLine:
        return DriverLine(
            name=driver.name,
            state=driver.state,
            partitions=len(self._look.owned_by(driver.name)),
            per_s=self._rates.per_s(driver.name),
            total=self._rates.total(driver.name),
        )

    def _check(self) -> None:
        if self._sender.error is not None:
            raise LeaseholdError(f"the flights can not be sent: {self._sender.error}")
        for driver in self._drivers.values():
            if driver.state != "killed" and driver.code is not None:
                raise LeaseholdError(
                    f"driver {driver.name} has ended by itself with code {driver.code}:\n"
                    f"{driver.last_words()}"
                )

    def _share(self, one: str, other: str, look: GroupLook) -> bool:
        return look.all_owned and bool(look.owned_by(one)) and bool(look.owned_by(other))

    def _second_gate_is_near(self, look: GroupLook) -> bool:
        """Return whether the second fault is due, by the store or by the sender.

        A checkpoint that was lost with B is not written again.
        """
        waits = self._sender.sent >= round(_SECOND_GATE * self._total)
        return waits or look.done >= _STOP_AT * self._total

    def _all_done(self, look: GroupLook) -> bool:
        return look.done == look.stored == self._total

    # --------------------------------------------------------------- small

    @property
    def _total(self) -> int:
        return int(self._events.num_rows)

    @property
    def _min_rows(self) -> int:
        """Of a batch that is worth a fault: not the first trickle after a gate."""
        least = _MIN_SHARE * self._total
        if self._options.per_s:  # each driver gets half of what is sent in an interval
            least = min(least, _MIN_PART * self._options.per_s * self._options.interval_s)
        return int(least)

    @property
    def _pace_s(self) -> float:
        return self._total / self._options.per_s if self._options.per_s else 0.0

    def _now_s(self) -> float:
        return self._clock.boottime_s() - self._began_s

    def _tell(self, words: str, tone: str = "plain") -> None:
        self._screen.tell(self._story.tell(self._now_s(), words, tone))

    def _open_gate(self, share: float, *, until: str = "") -> None:
        """Let flights in; ``until`` is what the rest waits for."""
        self._gate, self._gate_until = round(share * self._total), until
        self._sender.open_to(self._gate)

    def _tell_of_the_gate(self) -> None:
        """Report once why nothing is sent, if that takes longer than one look."""
        if self._gate_until and self._sender.sent >= self._gate:
            self._tell(
                f"{self._sender.sent:,} flights are sent; the rest waits until {self._gate_until}"
            )
            self._gate_until = ""

    def _start(self, name: str) -> None:
        settings = DriverSettings(
            name=name,
            url=self._place.url,
            stream=STREAM,
            group=GROUP,
            table=str(self._place.table),
            lease_s=self._options.lease_s,
            interval_s=self._options.interval_s,
        )
        driver = self._drivers[name] = Driver(settings, self._place.logs)
        self._stack.callback(driver.end)


def _succeeded(look: GroupLook, epochs: dict[str, int]) -> bool:
    """Return whether another driver owns all these partitions, and has committed to one of them."""
    parts = [each for each in look.parts if each.partition in epochs]
    owned = all(each.owner and each.epoch > epochs[each.partition] for each in parts)
    return owned and any(each.done_epoch > epochs[each.partition] for each in parts)
