"""A store that goes away while hosts work, and comes back."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from tests.processor.processes.hosts import HostProcesses, host_processes
from tests.processor.processes.sums import balance, never_together
from tests.support import postgres
from tests.support.postgres_server import Server

pytestmark = pytest.mark.server

LEASE_S = 1.5
NUMBERS = count(1)


def last_closed_s(c: HostProcesses) -> float:
    """When the last host gave up what it could not renew."""
    c.until(lambda: not any(host.held() for host in c.hosts), "all stop what they can not renew")
    assert {each["reason"] for each in c.said("closed")} <= {"lost", "handed_over", "shutdown"}
    return float(max(each["when_s"] for each in c.said("closed")))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for this file: its tests stop it, and start it again."""
    with postgres.private_server() as made:
        yield made


@pytest.fixture
def url(server: Server) -> str:
    name = f"restarted_{next(NUMBERS)}"
    postgres.execute(server.get_uri(), f"create database {name}")
    return postgres.url_of(name, server.get_uri())


@contextmanager
def away(server: Server) -> Iterator[None]:
    """It is stopped; whatever happens, it is there again for the next."""
    server.stop()
    try:
        yield
    finally:
        postgres.start_again(server)


@pytest.mark.spec("P2", "P9", "E3")
def test_a_crash_of_the_database_costs_no_host_its_partitions_and_repeats_no_event(
    server: Server, url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=4) as c:
        for number in range(2):
            c.begin(f"host{number}", lease_s=20.0, renew_s=0.3)
        c.shared(2, 2)
        with c.producing():
            c.until(lambda: len(c.said("stored")) >= 20, "some work is done")
            opened = len(c.said("opened"))
            os.kill(server.get_pid() or 0, signal.SIGQUIT)  # immediately, without a clean shutdown
            postgres.start_again(server)
            before = len(c.said("stored"))
            c.until(lambda: len(c.said("stored")) >= before + 20, "work goes on")
        c.stored()
        assert len(c.said("opened")) == opened
        assert c.said("closed", reason="lost") == []
        never_together(c)
        assert balance(c).twice == 0


@pytest.mark.spec("P2", "P9", "P11", "E3")
def test_hosts_outlast_a_database_that_is_away_for_longer_than_their_leases(
    server: Server, url: str, tmp_path: Path
) -> None:
    with host_processes(url, tmp_path, partitions=4) as c:
        hosts = [c.begin(f"host{number}", lease_s=LEASE_S) for number in range(2)]
        c.shared(2, 2)
        c.fill(30)
        c.stored()
        leaver = c.begin("leaver", lease_s=LEASE_S)
        leaver.says("opened")
        with away(server):
            assert leaver.leave() == 0, leaver.diagnosis()
            closed_s = last_closed_s(c)
        with c.producing():
            c.shared(2, 2, hosts=hosts)
        c.stored()
        never_together(c)
        balance(c)
        assert max(each["when_s"] for each in c.said("opened")) > closed_s
        for host in hosts:
            assert host.leave() == 0, host.diagnosis()


@pytest.mark.spec("P2", "P9", "P11", "E3")
def test_hosts_on_a_full_disk_stop_what_they_can_not_renew_and_come_back_when_there_is_room(
    tmp_path: Path,
) -> None:
    with host_processes(f"sqlite:///{tmp_path}/log.db", tmp_path, partitions=4) as c:
        # Their notes come through a pipe: there is no file that they could write.
        for number in range(2):
            c.begin(f"host{number}", lease_s=LEASE_S, results="", work_s=0.01)
        with c.producing():
            c.shared(2, 2)
            c.until(lambda: len(c.said("stored")) >= 10, "some work is done")
            for host in c.hosts:
                host.limit_files(0)
            closed_s = last_closed_s(c)
            assert [each for each in c.delivered() if each.when_s > closed_s] == []
            for host in c.hosts:
                host.limit_files(resource.RLIM_INFINITY)
            c.shared(2, 2)
        c.stored()
        never_together(c)
        balance(c)
        for host in c.hosts:
            assert host.leave() == 0, host.diagnosis()
