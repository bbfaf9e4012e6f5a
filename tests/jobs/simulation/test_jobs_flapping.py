"""A store that is away and back, again and again: reservations, keyrings, workers. Simulated."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import anyio
import pytest
from tests.support.job_scene import LEASE_S, FaultyStore, Heard, Ring, Scene, now, play, until
from tests.support.seeds import seeded
from tests.support.worker_sim import Ran, World

from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.jobs.claimant import Claimant
from leasehold.jobs.wish import GROUP
from leasehold.model import Resource, State
from leasehold.names import job_key
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim.faults import NO_FAULTS, FaultRates
from leasehold.testing.sim.loop import run_simulated

OUTAGES = (0.5, 0.9, 2.0) * 3  # in leases
CUT_OFF = FaultRates(refused=1.0)
KEYS = [job_key(name) for name in ("a", "b", "c")]
SOON_S = 2 * LEASE_S


async def flap(rng: random.Random, switch: Callable[[bool], None]) -> None:
    """Outages in any order, each at any time after the one before."""
    for leases in rng.sample(OUTAGES, len(OUTAGES)):
        await asyncio.sleep(rng.uniform(0.05, 1.5) * LEASE_S)
        switch(True)
        await asyncio.sleep(leases * LEASE_S)
        switch(False)


def trouble(store: FaultyStore, rng: random.Random) -> Callable[[bool], None]:
    """Calls hang, or are refused at once."""

    def switch(away: bool) -> None:
        hangs = rng.random() < 0.5
        store.away = away and hangs
        store.error = StoreUnavailable("away") if away and not hangs else None

    return switch


@dataclass(kw_only=True)
class Work:
    """One stretch of work under a reservation. It goes on for as long as it may."""

    key: str
    epoch: int
    holder: str
    holds: Callable[[], bool]
    began_s: float = field(default_factory=now)
    ended_s: float | None = None
    lost: bool = False


class Book:
    """All work that was done, judged while it is done."""

    def __init__(self, store: FaultyStore) -> None:
        self.works: list[Work] = []
        self._store = store

    async def judge(self) -> None:
        """Whoever believes is alone, and the store agrees."""
        while True:
            seen = await MemoryStore.resources(self._store, GROUP)
            for key in KEYS:
                believers = [each for each in self.works if each.key == key and each.holds()]
                assert len(believers) <= 1
                for each in believers:
                    agrees(seen, each.key, each.holder, each.epoch)
            await asyncio.sleep(0.05)

    def at_work(self) -> set[str]:
        return {each.key for each in self.works if each.ended_s is None}

    def losses(self) -> int:
        return sum(each.lost for each in self.works)

    def never_two(self) -> None:
        for key in KEYS:
            for before, after in pairwise(each for each in self.works if each.key == key):
                assert before.ended_s is not None
                assert before.ended_s <= after.began_s
                assert before.epoch < after.epoch


def agrees(seen: Mapping[str, Resource], key: str, holder: str, epoch: int) -> None:
    found = seen[key]
    assert (found.holder, found.epoch, found.state) == (holder, epoch, State.LEASED)


# ------------------------------------------------------------ a reservation


async def waiting(scene: Scene, book: Book, rng: random.Random) -> None:
    """A node that waits for the job, works while it may, and waits for it again."""
    while True:
        job, heard = scene.claimant("a")
        assert await job.take(wait_s=None) is None
        await working(job, heard, book, rng.uniform(1, 6) * LEASE_S)
        await job.leave()


async def working(job: Claimant, heard: Heard, book: Book, long_s: float) -> None:
    proof = job.ownerships[KEYS[0]]
    this = Work(key=proof.key, epoch=proof.epoch, holder=proof.holder, holds=lambda: job.valid)
    book.works.append(this)
    with anyio.move_on_after(long_s):
        await job.keep()
    this.lost = job.ended is not None
    assert len(heard.of("lost")) == this.lost, "it is over, and was not told once"
    if this.lost:
        await asyncio.sleep(job.remaining_s())  # the work needs all the time it has
    this.ended_s = now()
    job.release()


@pytest.mark.spec("J2", "J7")
@seeded(5)
def test_a_reservation_on_a_store_that_flaps(seed: int) -> None:
    async def story(scene: Scene) -> None:
        book, rng = Book(scene.store), random.Random(seed)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(book.judge)
            for _ in range(3):
                tasks.start_soon(waiting, scene, book, rng)
            await flap(rng, trouble(scene.store, rng))
            await until(lambda: bool(book.at_work()), within_s=4 * SOON_S)  # the store is back
            assert book.losses() >= 3  # an outage of two leases costs it for certain
            book.never_two()
            tasks.cancel_scope.cancel()

    play(story)


# ------------------------------------------------------------ many under one lease


async def trying(ring: Ring, key: str, book: Book, rng: random.Random) -> None:
    """A part of a program that takes the key when it can, works while it may, and tries again."""
    while True:
        await ring.ready()
        with suppress(LeaseLost, StoreUnavailable):
            if key in await ring.take({key: ""}):
                await holding(ring, key, book, rng.uniform(0.5, 5) * LEASE_S)
        await asyncio.sleep(rng.uniform(0.1, 1.0))


async def holding(ring: Ring, key: str, book: Book, long_s: float) -> None:
    proof, told = ring.ownership(key), len(ring.told)
    assert proof is not None
    this = Work(
        key=key,
        epoch=proof.epoch,
        holder=proof.holder,
        holds=lambda: ring.ownership(key) is proof and ring.valid(key),
    )
    book.works.append(this)
    with anyio.move_on_after(long_s):
        await until(lambda: not ring.valid(key), within_s=math.inf)
    this.lost = not ring.valid(key)
    if this.lost:
        await asyncio.sleep(0.5)  # by the clock belief ends a moment before it is said
        assert [lost for lost, _ in ring.losses()[told:]].count(key) == 1
        await asyncio.sleep(ring.remaining_s(key))
    this.ended_s = now()
    await ring.release({key: "stopped"})


@pytest.mark.spec("J2", "J7")
@seeded(5)
def test_a_keyring_on_a_store_that_flaps(seed: int) -> None:
    async def story(scene: Scene) -> None:
        book, rng = Book(scene.store), random.Random(seed)
        async with scene.ring() as one, scene.ring() as two, anyio.create_task_group() as tasks:
            tasks.start_soon(book.judge)
            for ring in (one, two):
                for key in KEYS:
                    tasks.start_soon(trying, ring, key, book, rng)
            await flap(rng, trouble(scene.store, rng))
            # The store is back. Each of them rests now and then, so not at any moment.
            await until(lambda: book.at_work() == set(KEYS), within_s=4 * SOON_S)
            assert book.losses() >= 3 * len(KEYS)
            book.never_two()
            tasks.cancel_scope.cancel()

    play(story)


# ------------------------------------------------------------ workers


def never_two(runs: list[Ran]) -> None:
    for before, after in pairwise(runs):
        assert before.ended_s is not None
        assert before.ended_s <= after.began_s
        assert before.epoch <= after.epoch


async def judge(world: World) -> None:
    """What runs, and may go on, is reserved by that very node, as the store sees it."""
    server = world.server
    while True:
        seen = server.registry.resources(GROUP, server.now())
        for node in world.nodes:
            for name in node.worker.held():
                run = [each for each in world.book if each.name == name][-1:]
                if run and run[0].ended_s is None and run[0].host == node.host.name:
                    found = seen[job_key(name)]
                    assert (found.epoch, found.state) == (run[0].epoch, State.LEASED)
        await asyncio.sleep(0.25)


def store_away(world: World, _rng: random.Random) -> Callable[[bool], None]:
    def switch(away: bool) -> None:
        world.server.up = not away

    return switch


def one_cut_off(world: World, rng: random.Random) -> Callable[[bool], None]:
    def switch(away: bool) -> None:
        for node in world.nodes:
            node.host.rates = NO_FAULTS
        if away:
            rng.choice(world.nodes).host.rates = CUT_OFF

    return switch


@pytest.mark.spec("J2", "J7")
@pytest.mark.parametrize("trouble", [store_away, one_cut_off])
@seeded(2)
def test_workers_on_a_store_that_flaps(
    seed: int, trouble: Callable[[World, random.Random], Callable[[bool], None]]
) -> None:
    world, lease = World(seed=seed), timedelta(seconds=LEASE_S)

    async def story() -> None:
        every: dict[str, Any] = {
            "every": "5s",
            "takes_s": 0.5,
            "catch_up": "all",
            "overlap": "queue",
        }
        jobs = [
            world.job("service", takes_s=1e6, lease=lease),
            world.job("tick", lease=lease, **every),
        ]
        for _ in range(3):
            world.start(jobs)
        rng = random.Random(seed)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(judge, world)
            await flap(rng, trouble(world, rng))
            await asyncio.sleep(SOON_S)
            tasks.cancel_scope.cancel()
        assert [each.ended_s for each in world.book if each.name == "service"][-1] is None
        await world.stop(*world.nodes)

    run_simulated(story())
    for name in ("service", "tick"):
        never_two([each for each in world.book if each.name == name])
    ran = sorted(second for _, second in world.ran("tick"))
    assert ran == [5.0 * number for number in range(1, len(ran) + 1)], "one was lost"
    assert ran[-1] > world.book[-1].began_s - LEASE_S
