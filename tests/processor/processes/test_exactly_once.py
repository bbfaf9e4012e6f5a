"""Handlers that write with ``context.transaction()``: each event leaves its traces exactly once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processor.processes.hosts import Host, HostProcesses, host_processes
from tests.support import postgres

pytestmark = pytest.mark.server

PARTITIONS = 4
# One that is paused in the middle of a block must not hold its rows forever.
PATIENCE = "&options=-c%20idle_in_transaction_session_timeout%3D1s"
SETTINGS: dict[str, Any] = {"lease_s": 1.5, "does": "transaction", "work_s": 0.02}


@pytest.fixture
def url() -> Iterator[str]:
    with postgres.database() as made:
        # No constraint: what is written twice is to be seen, not to be refused.
        postgres.execute(
            made,
            "create table effect (partition text, number bigint, epoch bigint, value bigint)",
        )
        postgres.execute(
            made, "create table total (partition text primary key, events bigint, value bigint)"
        )
        for partition in range(PARTITIONS):
            postgres.execute(made, "insert into total values (%s, 0, 0)", str(partition))
        yield made + PATIENCE


def exactly_once(c: HostProcesses) -> None:
    """Wait until all is done; each event's row is there once, and the totals are its sums."""
    logged = c.logged()
    assert len(logged) > 100
    c.stored()
    rows = postgres.execute(c.url, "select partition, number, value from effect")
    assert len(rows) == len(logged), "some events left their traces twice"
    assert {(partition, number): value for partition, number, value in rows} == logged
    totals = postgres.execute(c.url, "select partition, events, value from total")
    assert sorted(totals) == [
        (
            str(partition),
            sum(each == str(partition) for each, _ in logged),
            sum(value for (each, _), value in logged.items() if each == str(partition)),
        )
        for partition in range(PARTITIONS)
    ]
    for partition, checkpoint in c.checkpoints().items():
        assert (partition, checkpoint.position.sequence_number + 1) not in logged


def kill(c: HostProcesses, victim: Host, others: list[Host], number: int) -> Host:
    victim.kill()
    return c.begin(f"host{number}", **SETTINGS)


def stand_still(c: HostProcesses, victim: Host, others: list[Host], number: int) -> Host:
    victim.stop()
    lost = victim.held()

    def taken() -> bool:
        owned = {p: epoch for host in others for p, epoch in host.held().items()}
        return all(owned.get(partition, 0) > epoch for partition, epoch in lost.items())

    c.until(taken, f"{lost} taken over")
    victim.resume()
    return victim


@pytest.mark.spec("B5", "C5")
@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.parametrize("strike", [kill, stand_still])
def test_effects_are_there_exactly_once_whatever_is_struck_at_random_moments(
    url: str,
    tmp_path: Path,
    strike: Callable[[HostProcesses, Host, list[Host], int], Host],
    rounds: int,
) -> None:
    rng = random.Random(2)
    pause = threading.Event()
    with host_processes(url, tmp_path, partitions=PARTITIONS) as c:
        alive = [c.begin(f"host{number}", **SETTINGS) for number in range(2)]
        with c.producing():
            for number in range(2, 2 + rounds):
                c.until(
                    lambda: sum(len(host.held()) for host in alive) == PARTITIONS, "all is owned"
                )
                victim = rng.choice([host for host in alive if host.held()])
                pause.wait(rng.random() * 0.3)
                alive.remove(victim)
                alive.append(strike(c, victim, alive, number))
            c.until(
                lambda: sum(len(host.held()) for host in alive) == PARTITIONS, "all is taken over"
            )
        exactly_once(c)


@pytest.mark.spec("B5", "C5")
def test_a_transaction_that_outlived_its_lease_is_refused_and_counted_and_leaves_no_trace(
    url: str, tmp_path: Path
) -> None:
    with host_processes(url.removesuffix(PATIENCE), tmp_path, partitions=1) as c:
        c.fill(120)
        zombie = c.begin("zombie", **SETTINGS, stops="transaction", stops_at=15)
        zombie.stopped()
        heir = c.begin("heir", **SETTINGS)
        heir.says("stored", number=119)
        zombie.resume()
        # It looks at the clock before it asks the store, which would refuse it too.
        zombie.says("refused", epoch=1)
        zombie.says("closed", reason="lost", epoch=1)
        assert len({(each.host, each.number) for each in c.delivered()}) > 120
        exactly_once(c)
