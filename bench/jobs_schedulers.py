"""Three schedulers and a thousand jobs, each each minute, for a day: none doubled, none lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bench.report import Row, cost, exactly, rate

from leasehold.jobs.worker.definition import Job, job
from leasehold.jobs.worker.worker import Worker
from leasehold.runtime.loop_thread import SameLoop
from leasehold.stores.memory import MemoryStore
from leasehold.testing.faults import CHANGING, READING
from leasehold.testing.sim.loop import run_simulated, simulated_sleep

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leasehold.jobs.worker.run import Run
    from leasehold.ports import Store

T = TypeVar("T")

NODES = 3
_START = datetime(2026, 1, 1, tzinfo=UTC)
_LATENCY_S = 0.002
_BEFORE_S = 30.0
_SPACE_S = 60
_CALLS = frozenset((*CHANGING, *READING))


class _Clock:
    """Simulated time; each node's wall clock is wrong by a little."""

    slice_s = 5.0

    def __init__(self, skew_s: float = 0.0) -> None:
        self._start = _START + timedelta(seconds=skew_s)

    def boottime_s(self) -> float:
        return asyncio.get_running_loop().time()

    def utc_now(self) -> datetime:
        return self._start + timedelta(seconds=self.boottime_s())

    async def sleep(self, seconds: float) -> None:
        await simulated_sleep(seconds)

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        async with asyncio.timeout(seconds):
            return await answer


class _Wire:
    """A store that takes a moment to answer, and counts what it is asked."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    @property
    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _CALLS:
            return found

        async def call(*given: Any, **named: Any) -> Any:
            self.calls[name] += 1
            await simulated_sleep(_LATENCY_S)
            return await found(*given, **named)

        return call


class Day:
    """What was run in a simulated time, and what it took."""

    def __init__(self, *, jobs: int, hours: float, seed: int = 1) -> None:
        self.jobs, self.seconds = jobs, hours * 3600.0
        self.ran = [Counter[int]() for _ in range(jobs)]
        self.calls: list[Counter[str]] = []
        self._rng = random.Random(seed)
        run_simulated(self._pass())

    @property
    def expected(self) -> range:
        """The second of each occurrence of a job, from the start."""
        return range(_SPACE_S, int(self.seconds) + 1, _SPACE_S)

    @property
    def doubled(self) -> int:
        return sum(times - 1 for each in self.ran for times in each.values())

    @property
    def lost(self) -> int:
        return sum(second not in each for each in self.ran for second in self.expected)

    @property
    def calls_per_node_and_second(self) -> float:
        return sum(each.total() for each in self.calls) / NODES / self.seconds

    async def _pass(self) -> None:
        store = MemoryStore(_Clock())
        workers, tasks = [], []
        jobs = [self._job(number) for number in range(self.jobs)]
        for number in range(NODES):
            wire = _Wire(store)
            self.calls.append(wire.calls)
            worker = Worker(
                jobs,
                store=wire.as_store,
                name=f"node{number}",
                clock=_Clock(self._rng.uniform(-2.0, 2.0)),
                rng=random.Random(f"node{number}"),
                sides=SameLoop,
            )
            workers.append(worker)
            tasks.append(asyncio.get_running_loop().create_task(worker.run()))
        await simulated_sleep(self.seconds + _BEFORE_S)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)

    def _job(self, number: int) -> Job:
        ran = self.ran[number]

        async def work(run: Run) -> None:
            assert run.occurrence is not None
            ran[int((run.occurrence - _START).total_seconds())] += 1

        return job(f"job{number:04}", cron="* * * * *")(work)


def rows(*, jobs: int = 1000, hours: float = 24.0) -> list[Row]:
    """Doubled and lost occurrences, and what the store is asked."""
    day = Day(jobs=jobs, hours=hours)
    count = jobs * len(day.expected)
    what = f"{NODES} schedulers, {count:,} occurrences of {jobs:,} jobs in {hours:g} h"
    return [
        cost(f"{what}: run twice", day.doubled, bar=exactly(0)),
        cost(f"{what}: never run", day.lost, bar=exactly(0)),
        rate(f"{what}: store calls per node and second", day.calls_per_node_and_second),
    ]
