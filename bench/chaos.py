"""A campaign of faults: ``python -m bench.chaos [--faults 100] [--seed N] [--drivers 3]``.

Drivers of one pipeline work on a real standalone cluster while events come in. Again and again one
of them, or one of their executors, is killed with SIGKILL or stopped for a while with SIGSTOP, at a
moment and for a time that the seed decides. What is killed is started again. At the end the table
is compared with the log, row by row.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.support.drivers import QUICK, STREAM, Crew, Driver, crew
from tests.support.spark_cluster import Cluster, cluster, resume, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.sessions import Process

KINDS = ("kill driver", "pause driver", "kill executor", "pause executor")
_WEIGHTS = (3, 3, 2, 2)
_LEASE_S = 4.0
_TASK_S = 0.1
_PATIENT_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign is made of."""

    seed: int
    faults: int
    drivers: int = 3
    partitions: int = 8
    events_per_s: int = 400
    min_gap_s: float = 0.5
    max_gap_s: float = 4.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was done, and what came of it."""

    faults: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    events: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    seconds: float = 0.0

    @property
    def bad_rows(self) -> int:
        """Rows lost, doubled or from nowhere."""
        return sum(self.wrong.values())


class Campaign:
    """One run of a plan on a cluster."""

    def __init__(self, plan: Plan, made: Cluster, group: Crew) -> None:
        self.outcome = Outcome()
        self._plan = plan
        self._cluster = made
        self._crew = group
        self._rng = random.Random(plan.seed)
        self._names = (f"driver-{number}" for number in count(1))
        self._wakes: list[tuple[float, Callable[[], None]]] = []

    def run(self, told: Callable[[str], None] = lambda _: None) -> Outcome:
        """All faults, then peace, then the count."""
        began_s = time.monotonic()
        for _ in range(self._plan.drivers):
            self._begin()
        self._crew.until(lambda: bool(self._crew.said("committed")), "the first commit")
        with self._events():
            for _ in range(self._plan.faults):
                self._wait(self._rng.uniform(self._plan.min_gap_s, self._plan.max_gap_s))
                self._let_work()
                told(self._fault())
        self._peace()
        self.outcome.events = sum(self._crew.ends().values())
        self.outcome.wrong = self._crew.faults()
        self.outcome.refused = len(self._crew.said("refused"))
        self.outcome.seconds = time.monotonic() - began_s
        return self.outcome

    # -------------------------------------------------------------- faults

    def _fault(self) -> str:
        """Do one to something that works. Somebody is always left who works, or starts."""
        self._revive()
        kind = self._rng.choices(KINDS, _WEIGHTS)[0]
        victims = [each for each in self._working() if each.of("up")]
        while not victims:
            self._wait(0.2)
            self._revive()
            victims = [each for each in self._working() if each.of("up")]
        victim = self._rng.choice(victims)
        executors = self._cluster.executors(victim.app) if kind.endswith("executor") else []
        if kind.endswith("executor") and not executors:  # it has just lost it: then the driver
            kind = kind.replace("executor", "driver")
        note = f"{kind} {victim.name}"
        pause_s = self._rng.uniform(0.3, 2.5) * _LEASE_S
        match kind:
            case "kill driver":
                victim.kill()
            case "pause driver":
                victim.pause()
                self._later(pause_s, victim.go_on)
                note += f" {pause_s:.1f} s"
            case "kill executor":
                self._cluster.kill_executor(self._rng.choice(executors))
            case _:
                self._pause(self._rng.choice(executors), pause_s)
                note += f" {pause_s:.1f} s"
        self._revive()
        self.outcome.faults[kind] += 1
        self.outcome.notes.append(note)
        return note

    def _let_work(self) -> None:
        """Wait for a commit since the last fault, for a while: who does nothing is hard to hurt."""
        before = len(self._crew.said("committed"))
        end_s = time.monotonic() + _PATIENT_S
        while len(self._crew.said("committed")) == before and time.monotonic() < end_s:
            self._wait(0.1)
            self._revive()

    def _pause(self, executor: Process, pause_s: float) -> None:
        stopped = self._cluster.stop_executor(executor)
        self._later(pause_s, lambda: resume(stopped))

    def _working(self) -> list[Driver]:
        return [each for each in self._crew.drivers if each.running and not each.paused]

    def _revive(self) -> None:
        """As a supervisor does it: one is started for each that has ended."""
        alive = [each for each in self._crew.drivers if each.running]
        for _ in range(self._plan.drivers - len(alive)):
            self._begin()

    def _begin(self) -> None:
        self._crew.begin(
            next(self._names),
            master=self._cluster.master,
            conf=settings(),
            lease_s=_LEASE_S,
            batch_events=1_000,
            task_s=_TASK_S,
            tasks=1,
        )

    # ---------------------------------------------------------------- time

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._wakes.append((time.monotonic() + seconds, do))

    def _wait(self, seconds: float) -> None:
        """Let the time pass, and wake whoever is to be woken meanwhile."""
        end_s = time.monotonic() + seconds
        while True:
            self._wake(time.monotonic())
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            soon_s = min((at_s for at_s, _ in self._wakes), default=end_s)
            time.sleep(max(min(left_s, soon_s - time.monotonic()), 0.001))

    def _wake(self, now_s: float) -> None:
        due = [each for each in self._wakes if each[0] <= now_s]
        self._wakes = [each for each in self._wakes if each[0] > now_s]
        for _, do in due:
            do()

    def _peace(self) -> None:
        """All are woken, all that was sent is committed, all leave in good order."""
        self._wake(float("inf"))
        self._revive()
        self._crew.all_committed()
        for each in self._working():
            if each.of("up"):
                each.leave()

    # -------------------------------------------------------------- events

    @contextmanager
    def _events(self) -> Iterator[None]:
        """Events come in, to all partitions, until the end of the block."""
        enough = threading.Event()
        errors: list[BaseException] = []

        def send() -> None:
            try:
                self._send(enough)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        thread = threading.Thread(target=send, name="events")
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
        assert not errors, errors

    def _send(self, enough: threading.Event) -> None:
        rows = max(self._plan.events_per_s // self._plan.partitions // 5, 1)
        batch = pa.table({"key": ["one"] * rows, "body": [b"event"] * rows})
        with self._crew.log.producer(STREAM, QUICK) as producer:
            sent: list[Any] = []
            while not enough.wait(0.2):
                sent += [
                    producer.send(batch, partition=each) for each in range(self._plan.partitions)
                ]
            for each in sent:
                each.result(60)


def campaign(
    plan: Plan,
    root: Path,
    *,
    on: Cluster | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run one, on a cluster of its own if none is given."""
    with ExitStack() as stack:
        made = on or stack.enter_context(
            cluster(root / "cluster", workers=2, cores=plan.drivers, memory="8g")
        )
        group = stack.enter_context(crew(root / "crew", partitions=plan.partitions))
        group.fill(200, partitions=plan.partitions)
        return Campaign(plan, made, group).run(told)


def _verdict(plan: Plan, found: Outcome) -> Table:
    table = Table(title=f"chaos, seed {plan.seed}", width=80)
    table.add_column("what")
    table.add_column("", justify="right")
    for kind in KINDS:
        table.add_row(kind, f"{found.faults[kind]:,}")
    table.add_row("events", f"{found.events:,}")
    table.add_row("late commits that were refused", f"{found.refused:,}")
    for kind in ("lost", "doubled", "unknown"):
        table.add_row(f"rows {kind}", f"{found.wrong[kind]:,}")
    table.add_row("seconds", f"{found.seconds:,.0f}")
    table.add_row("verdict", "[bold red]BROKEN" if found.bad_rows else "[green]every row once")
    return table


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--drivers", type=int, default=3)
    parser.add_argument(
        "--seed", type=int, default=None, help="the same lots; what they hit also depends on timing"
    )
    given = parser.parse_args(argv)
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4), "big")
    plan = Plan(seed=seed, faults=given.faults, drivers=given.drivers)
    console = Console(stderr=True)
    console.print(f"seed {seed}: {plan.faults} faults, {plan.drivers} drivers, 2 workers")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root,
        Progress(console=console, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("starting", total=plan.faults)

        def told(note: str) -> None:
            bar.update(task, advance=1, description=note)
            if not console.is_terminal:
                console.print(note)

        found = campaign(plan, Path(root), told=told)
    Console(width=80).print(_verdict(plan, found))
    return 1 if found.bad_rows else 0


if __name__ == "__main__":
    sys.exit(main())
