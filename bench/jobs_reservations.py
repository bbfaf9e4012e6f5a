"""Reservations taken and released per second, beside one INSERT+DELETE transaction.

The peer is the least that a lock in a table costs: one transaction that inserts a row and deletes
it again, on the same server, in the same run, with the same durability. Ours are two steps, each
on disk before it is answered, with a history that is kept. Both take turns in short blocks, in the
same number of threads; the ratio is the median of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import psycopg
from bench import databases
from bench.report import Bar, Row

from leasehold.clock import SystemClock
from leasehold.jobs import Reserver, reserve
from leasehold.jobs.keyring import Keyring
from leasehold.names import job_key
from leasehold.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from bench.databases import Place

_HALF = Bar(words=">= 0.5 x peer", least=0.5)
_MAKE = "create table bench_lock (name text primary key, holder text not null)"
_IN = "insert into bench_lock values ({0}, 'me')"
_OUT = "delete from bench_lock where name = {0}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``block``: reservations of all threads together in one block; ``alone``: with ``reserve``."""

    threads: int
    block: int
    rounds: int
    alone: int


FULL = Sizes(threads=32, block=320, rounds=11, alone=5)
SMALL = Sizes(threads=4, block=8, rounds=1, alone=1)


@contextmanager
def _sqlite_peer(url: str, _threads: int) -> Iterator[Callable[[int], None]]:
    """A file beside ours. One connection for all threads: more would only wait for each other."""
    path = url.removeprefix("sqlite:///") + ".peer"
    lock = threading.Lock()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as peer:
        peer.execute("pragma journal_mode = wal")
        peer.execute("pragma synchronous = full")
        peer.execute(_MAKE)

        def work(number: int) -> None:
            with lock:
                peer.execute("begin immediate")
                peer.execute(_IN.format("?"), (str(number),))
                peer.execute(_OUT.format("?"), (str(number),))
                peer.execute("commit")

        yield work


@contextmanager
def _postgres_peer(url: str, threads: int) -> Iterator[Callable[[int], None]]:
    """A connection for each thread."""
    with ExitStack() as undo:
        lines = [undo.enter_context(psycopg.connect(url)) for _ in range(threads)]
        lines[0].execute(_MAKE)
        lines[0].commit()

        def work(number: int) -> None:
            line = lines[number]
            line.execute(_IN.format("%s"), (str(number),))
            line.execute(_OUT.format("%s"), (str(number),))
            line.commit()

        yield work


STORES: Mapping[
    str,
    tuple[
        Callable[[], AbstractContextManager[Place]],
        Callable[[str, int], AbstractContextManager[Callable[[int], None]]],
    ],
] = {
    "sqlite": (databases.sqlite, _sqlite_peer),
    "postgres": (databases.postgres, _postgres_peer),
}


def rows(sizes: Sizes = FULL, stores: Sequence[str] = tuple(STORES)) -> list[Row]:
    """Per second: in one thread, in many, in a worker, and each under a lease of its own."""
    found = []
    for name in stores:
        place, peer = STORES[name]
        with place() as where, peer(where.url, sizes.threads) as beside:
            found += _of_store(name, where.url, beside, sizes)
    return found


def _of_store(name: str, url: str, beside: Callable[[int], None], sizes: Sizes) -> list[Row]:
    each = f"{name}: reserved and released per second"
    single = replace(sizes, threads=1, block=max(1, sizes.block // 8))
    few = replace(sizes, threads=1, block=sizes.alone, rounds=min(5, sizes.rounds))

    def alone(number: int) -> None:
        with reserve(f"alone {number}", store=url):
            pass

    worker = _worker(url)
    with Reserver(url) as reserver:

        def ours(number: int) -> None:
            assert reserver.try_reserve(f"job {number}")
            reserver.cancel_reservation(f"job {number}")

        return [
            _row(f"{each}, 1 thread", partial(_block_s, ours), beside, single),
            _row(
                f"{each}, {sizes.threads} threads",
                partial(_block_s, ours),
                beside,
                sizes,
                bar=_HALF,
            ),
            _row(f"{each}, {sizes.threads} jobs of a worker", worker, beside, sizes, bar=_HALF),
            _row(f"{each}, a lease for each", partial(_block_s, alone), beside, few),
        ]


def _worker(url: str) -> Callable[[int, int], float]:
    """Many jobs in one event loop, under one lease: what a worker does."""

    async def job(ring: Keyring, number: int, times: int) -> None:
        key = job_key(f"worker {number}")
        for _ in range(times):
            assert await ring.take({key: ""})
            await ring.release({key: ""})

    async def block(jobs: int, times: int) -> float:
        async with open_store(url) as store:
            ring = Keyring(store, name="bench", clock=SystemClock(), rng=random.Random(1))
            keeping = asyncio.create_task(ring.keep())
            await ring.ready()
            await asyncio.gather(*(job(ring, each, 1) for each in range(jobs)))
            began_s = time.perf_counter()
            await asyncio.gather(*(job(ring, each, max(1, times // jobs)) for each in range(jobs)))
            spent_s = time.perf_counter() - began_s
            await ring.leave()
            await keeping
            return spent_s

    return lambda jobs, times: asyncio.run(block(jobs, times))


def _row(
    what: str,
    ours: Callable[[int, int], float],
    beside: Callable[[int], None],
    sizes: Sizes,
    *,
    bar: Bar | None = None,
) -> Row:
    peer = partial(_block_s, beside)
    for each in (ours, peer):
        each(sizes.threads, sizes.threads)  # what is done once is not measured
    pairs = [
        (ours(sizes.threads, sizes.block), peer(sizes.threads, sizes.block))
        for _ in range(sizes.rounds)
    ]
    ratio = median(peer_s / ours_s for ours_s, peer_s in pairs)
    return Row(
        what=what,
        ours=round(sizes.block / median(ours_s for ours_s, _ in pairs)),
        peer=round(sizes.block / median(peer_s for _, peer_s in pairs)),
        ratio=round(ratio, 2),
        bar=bar.words if bar else None,
        met=bar.met(ratio) if bar else True,
    )


def _block_s(work: Callable[[int], None], threads: int, times: int) -> float:
    """How long it takes ``threads`` to do the work so many times, all together."""
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for _ in range(max(1, times // threads)):
                work(number)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that measures
            failed.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    began_s = time.perf_counter()
    for each in running:
        each.start()
    for each in running:
        each.join()
    spent_s = time.perf_counter() - began_s
    if failed:
        raise failed[0]
    return spent_s
