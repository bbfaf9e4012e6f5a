"""Processes that are killed, or are paused for longer than their lease."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from tests.processor.processes.hosts import KEYS_GROUP, host_processes
from tests.processor.processes.sums import balance, never_together

BATCH_EVENTS = 10
# The lease of a killed or paused host ends by time; no other host may lose one.
LEASE_S = 3.0
HEIR = {"lease_s": 20.0, "renew_s": 0.3}
ROUNDS = [pytest.param("sqlite", 1), pytest.param("postgres", 5, marks=pytest.mark.soak)]


@pytest.mark.spec("P2", "C5", "E1", "B5")
@pytest.mark.parametrize(("url", "rounds"), ROUNDS, indirect=["url"])
def test_hosts_killed_at_random_moments_lose_no_event_and_repeat_none_that_was_stored(
    url: str, tmp_path: Path, rounds: int
) -> None:
    rng = random.Random(1)
    pause = threading.Event()
    with host_processes(url, tmp_path, partitions=4) as c:
        alive = [c.begin(f"host{n}", lease_s=LEASE_S, work_s=0.005) for n in range(2)]
        with c.producing():
            for number in range(2, 2 + rounds):
                c.until(lambda: sum(len(h.held()) for h in alive) == 4, "all is owned")
                victim = rng.choice([host for host in alive if host.held()])
                victim.says("stored", times=rng.randint(1, 10))
                pause.wait(rng.random() * 0.05)
                victim.kill()
                alive.remove(victim)
                done = c.checkpoints()
                seen = {(each.partition, each.number) for each in c.delivered()}
                for partition, checkpoint in done.items():
                    passed = range(checkpoint.position.sequence_number + 1)
                    assert {(partition, each) for each in passed} <= seen
                alive.append(c.begin(f"host{number}", lease_s=LEASE_S, work_s=0.005))
                # Work continues at the new owners: the producer has not ended yet.
                c.until(lambda: sum(len(h.held()) for h in alive) == 4, "all is taken over")
        c.stored()
        assert balance(c).events > 100
        never_together(c)


@pytest.mark.spec("B5", "E3", "P2")
def test_a_host_stopped_in_its_handler_comes_back_as_a_zombie_that_writes_nothing(
    url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=1) as c:
        c.fill(30)
        fault = {"stops": "handler", "stops_at": 15}
        zombie = c.begin("zombie", lease_s=LEASE_S, does="checkpoint", **fault)
        zombie.stopped()
        stood = zombie.delivered()
        (checkpoint,) = c.checkpoints().values()
        # A batch ends with a frame of the log, so it may be short of its ten events.
        done, last = checkpoint.position.sequence_number, stood[-1].number
        assert done < 15 <= last
        heir = c.begin("heir", **HEIR)
        assert heir.says("opened")["position"] == done + 1
        heir.says("stored", number=29)
        zombie.resume()
        zombie.says("refused", epoch=1, number=last, why="local_deadline")
        zombie.says("closed", reason="lost", epoch=1)
        assert zombie.delivered() == stood
        c.fill(20)
        c.stored()
        never_together(c)
        assert balance(c).twice == last - done
        assert not zombie.of("stored", number=last)


@pytest.mark.spec("B5", "E3")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_checkpoint_that_leaves_a_host_after_its_lease_is_refused_and_counted(
    url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=1) as c:
        c.fill(30)
        c.fill(30)
        batch = {"batch_events": BATCH_EVENTS}
        zombie = c.begin("zombie", lease_s=LEASE_S, stops="before", stops_at=15, **batch)
        zombie.stopped()
        stood = {each.number for each in zombie.delivered()}
        heir = c.begin("heir", **HEIR)
        heir.says("stored", number=59)
        assert c.ask(lambda store: store.fenced_writes(KEYS_GROUP)) == 0
        zombie.resume()
        zombie.says("refused", epoch=1, why="fenced")
        zombie.says("closed", reason="lost", epoch=1)
        assert c.ask(lambda store: store.fenced_writes(KEYS_GROUP)) == 1
        later = {each.number for each in zombie.delivered()} - stood
        # The stop came in the thread of the leases: one call may have been in progress. No more.
        assert later == set(range(max(stood) + 1, max(stood) + 1 + len(later)))
        assert len(later) <= BATCH_EVENTS
        c.stored()
        never_together(c)
        assert balance(c).twice > 0


@pytest.mark.spec("B5", "C3", "C5")
def test_a_checkpoint_that_was_stored_before_the_stop_is_where_the_heir_goes_on(
    url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=1) as c:
        c.fill(30)
        zombie = c.begin("zombie", lease_s=LEASE_S, stops="after", stops_at=15, work_s=0.2)
        zombie.stopped()
        stops = zombie.says("stops")["number"]
        heir = c.begin("heir", **HEIR)
        assert heir.says("opened")["position"] == stops + 1
        heir.says("stored", number=29)
        zombie.resume()
        zombie.says("closed", reason="lost", epoch=1)
        c.fill(20)
        c.stored()
        never_together(c)
        balance(c)
        assert c.ask(lambda store: store.fenced_writes(KEYS_GROUP)) == 0
