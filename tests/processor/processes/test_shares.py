"""Hosts that come and go, partitions that are added."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processor.processes.hosts import host_processes
from tests.processor.processes.sums import balance, never_together

# No host crashes here, so no lease may end by time, however slow the machine is.
CALM = {"lease_s": 20.0, "renew_s": 0.3}


@pytest.mark.spec("P1", "P13")
def test_hosts_started_in_the_same_second_on_an_empty_store_share_it(
    empty_url: str, tmp_path: Path
) -> None:
    log_url = f"sqlite:///{tmp_path}/log.db"
    with host_processes(log_url, tmp_path, partitions=8, url=empty_url) as c:
        c.fill(20)
        for number in range(6):
            c.begin(f"host{number}", **CALM)
        c.shared(1, 1, 1, 1, 2, 2)
        c.fill(5)
        c.stored()
        never_together(c)
        assert balance(c).twice == 0
        assert len({host.says("ready")["holder"] for host in c.hosts}) == 6


@pytest.mark.spec("P13", "E1")
def test_hosts_beyond_the_partitions_stand_by_and_take_over_from_one_that_is_killed(
    url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=2) as c:
        hosts = [c.begin(f"host{number}", lease_s=3.0) for number in range(3)]
        for host in hosts:
            host.says("ready")
        c.shared(0, 1, 1)
        with c.producing():
            victim = next(host for host in hosts if host.held())
            ((partition, epoch),) = victim.held().items()
            victim.says("stored", times=2)
            victim.kill()
            hosts.remove(victim)
            c.until(lambda: bool(c.said("opened", partition=partition, epoch=epoch + 1)), "heir")
            c.shared(1, 1, hosts=hosts)
        c.stored()
        never_together(c)
        balance(c)


@pytest.mark.spec("P1", "P2")
def test_partitions_that_are_added_while_all_runs_are_found_and_shared(
    url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=2) as c:
        for number in range(2):
            c.begin(f"host{number}", **CALM)
        with c.producing():
            c.shared(1, 1)
            c.log.grow("orders", partitions=6)
            c.shared(3, 3)
            c.until(lambda: bool(c.said("stored", partition="5")), "the new ones are handled")
        c.stored()
        never_together(c)
        assert balance(c).twice == 0


@pytest.mark.spec("B3", "C5", "P14")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_rolling_restart_under_load_repeats_no_event_and_loses_none(
    url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=4) as c:
        old = [c.begin(f"old{number}", **CALM, checkpoint_s=1.0) for number in range(2)]
        with c.producing():
            c.shared(2, 2)
            for number, host in enumerate(old):
                new = c.begin(f"new{number}", **CALM, checkpoint_s=1.0)
                new.says("opened")
                assert host.leave() == 0, host.diagnosis()
                assert host.held() == {}
            c.shared(0, 0, 2, 2)
        c.stored()
        for host in c.hosts[2:]:
            assert host.leave() == 0, host.diagnosis()
        never_together(c)
        assert balance(c).twice == 0
        assert {each["reason"] for each in c.said("closed")} == {"shutdown", "handed_over"}
        assert len(c.said("left")) == 4
        assert c.said("refused") == []
