"""Reservations of processes that are killed, paused, and told to stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.pausing import pause
from tests.support.postgres import empty_store

from leasehold.jobs import Outcome
from leasehold.jobs.run_log import log_entries
from leasehold.model import Term
from leasehold.names import job_key
from leasehold.stores import open_store

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[3]


class Worker:
    """See ``job_process``."""

    def __init__(self, url: str, lease_s: float) -> None:
        command = [sys.executable, "-m", "tests.support.job_process", url, str(lease_s)]
        self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def says(self, event: str) -> dict[str, Any]:
        """Read on until it says this."""
        assert self._popen.stdout is not None
        heard: list[dict[str, Any]] = []
        for line in self._popen.stdout:
            heard.append(json.loads(line))
            if heard[-1]["event"] == event:
                return heard[-1]
        pytest.fail(f"it never says {event}: {heard}", pytrace=False)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def end(self) -> None:
        self._popen.kill()
        self._popen.communicate()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    given = getattr(request, "param", "sqlite")
    return f"sqlite:///{tmp_path}/leases.db" if given == "sqlite" else empty_store()


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Worker, Worker]]:
    """One that works, and one that waits for the same job; the first is to lose it, or to stop."""
    with ExitStack() as undo:
        first = Worker(url, 4.0)
        undo.callback(first.end)
        assert first.says("reserved")["epoch"] == 1
        second = Worker(url, 60.0)
        undo.callback(second.end)
        second.says("ready")
        yield first, second


def history(url: str) -> list[Term]:
    async def read() -> list[Term]:
        async with open_store(url) as store:
            return list(await store.history(job_key("nightly")))

    return anyio.run(read)


def reasons(url: str) -> list[str | None]:
    return [term.reason.value if term.reason else None for term in history(url)]


@pytest.mark.spec("B5")
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_after_kill_9_the_next_one_has_it_when_the_lease_has_ended(
    pair: tuple[Worker, Worker], url: str
) -> None:
    first, second = pair
    first.send(signal.SIGKILL)
    assert second.says("reserved")["epoch"] == 2
    assert reasons(url) == [None, "expired"]


def test_after_a_stop_in_good_order_the_next_one_has_it(
    pair: tuple[Worker, Worker], url: str
) -> None:
    first, second = pair
    first.send(signal.SIGTERM)
    first.says("released")
    assert second.says("reserved")["epoch"] == 2
    assert reasons(url) == [None, "released"]


@pytest.mark.spec("B5")
def test_one_that_was_paused_past_its_lease_is_told_and_can_write_nothing(
    pair: tuple[Worker, Worker], url: str
) -> None:
    first, second = pair
    pause(first.pid, url)
    assert second.says("reserved")["epoch"] == 2
    first.send(signal.SIGCONT)
    refused = first.says("refused")
    assert refused["kind"] in {"LeaseLost", "FencedWrite"}
    assert refused["lost"]  # the event was set as well
    first.says("released")
    # Neither did it sign its run: it left the block without an error, which would be "ok".
    runs = log_entries(history(url))
    assert [run.outcome for run in runs] == [None, Outcome.EXPIRED]
    assert runs[1].note.outcome is None
    assert runs[1].ended_at is not None
