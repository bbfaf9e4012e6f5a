"""Workers on simulated hosts, and a book of all that they run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from leasehold.jobs import Job, Run, Worker, job
from leasehold.ports import Store
from leasehold.runtime.loop_thread import SameLoop
from leasehold.stores.registry import Registry
from leasehold.testing.faults import CHANGING, READING
from leasehold.testing.sim.faults import NO_FAULTS, FaultRates
from leasehold.testing.sim.host import START, Host, HostClock
from leasehold.testing.sim.store import SimServer, SimStore


class CountingStore(SimStore):
    """Counts the calls by name."""

    def __init__(self, server: SimServer, host: Host) -> None:
        super().__init__(server, host)
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in CHANGING or name in READING:
            super().__getattribute__("calls")[name] += 1
        return found


@dataclass
class Ran:
    """One call of a function."""

    name: str
    occurrence: datetime | None
    epoch: int
    attempt: int
    host: str
    began_s: float
    ended_s: float | None = None
    how: str = ""


@dataclass
class Node:
    """A process with a worker in it."""

    host: Host
    store: CountingStore
    worker: Worker
    task: asyncio.Task[None]


@dataclass
class World:
    """A store, hosts with workers, and what was run."""

    seed: int = 0
    rates: FaultRates = NO_FAULTS
    book: list[Ran] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.server = SimServer(Registry())
        self.nodes: list[Node] = []

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)

    def job(
        self,
        name: str,
        *,
        takes_s: float | Callable[[Run], float] = 0.1,
        then: Callable[[Run], Awaitable[None]] | None = None,
        **options: Any,
    ) -> Callable[[Host], Job]:
        """A job that writes into the book, to be made for each host."""

        def made(host: Host) -> Job:
            async def work(run: Run) -> None:
                note = Ran(name, run.occurrence, run.epoch, run.attempt, host.name, self.now_s)
                self.book.append(note)
                try:
                    left_s = takes_s(run) if callable(takes_s) else takes_s
                    if left_s:
                        await asyncio.sleep(left_s)
                        await host.gate()
                    if then is not None:
                        await then(run)
                    note.how = "ok"
                except BaseException as error:
                    note.how = type(error).__name__
                    raise
                finally:
                    note.ended_s = self.now_s

            return job(name, **options)(work)

        return made

    def start(
        self,
        jobs: Iterable[Callable[[Host], Job]],
        *,
        skew_s: float = 0.0,
        rates: FaultRates | None = None,
        **options: Any,
    ) -> Node:
        number = len(self.nodes) + 1
        rng = random.Random(f"{self.seed}/{number}")
        host = Host(f"host{number}", rng=rng, rates=rates or self.rates)
        host.wall_error_s = skew_s
        store = CountingStore(self.server, host)
        worker = Worker(
            [made(host) for made in jobs],
            store=_as_store(store),
            name=host.name,
            clock=HostClock(host),
            rng=rng,
            sides=SameLoop,
            identity=host.new_identity,
            **options,
        )
        task = asyncio.get_running_loop().create_task(worker.run())
        node = Node(host, store, worker, task)
        self.nodes.append(node)
        return node

    def crash(self, node: Node) -> None:
        """The process is gone: nothing is told to anybody."""
        node.host.running = False
        node.host.pause(1e9)  # what it has begun never goes on
        node.task.cancel()

    async def stop(self, *nodes: Node) -> None:
        for node in nodes:
            node.worker.stop()
        await asyncio.gather(*(node.task for node in nodes))

    def ran(self, name: str | None = None, *, how: str = "ok") -> Counter[tuple[str, float]]:
        """How often each occurrence was run to its end, by job and second since the start."""
        return Counter(
            (each.name, (each.occurrence - START).total_seconds())
            for each in self.book
            if each.how == how and each.occurrence is not None and name in {None, each.name}
        )


def _as_store(store: CountingStore) -> Store:
    return store
