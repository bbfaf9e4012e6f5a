"""Two Spark drivers as real processes, with real signals: the zombie experiment.

Both sessions are started once and used by all tests of this file, in order; the last one ends them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from deltalake import DeltaTable
from tests.support.standby_process import ROWS

from leasehold.model import Checkpoint, Term
from leasehold.names import job_key
from leasehold.stores import open_store

ROOT = Path(__file__).parents[3]
PATIENCE_S = 200.0
KEPT_S = 60.0


class Driver:
    """See ``standby_process``. What it says can be waited for."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._errors = directory / f"{name}.stderr"
        with self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.support.standby_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,
            )
        self._said: list[dict[str, Any]] = []
        self._change = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._change:
                self._said.append(json.loads(line))
                self._change.notify_all()

    def begin(self, **task: object) -> None:
        """Forget what was said, and begin."""
        with self._change:
            self._said.clear()
        self.send(**task)

    def send(self, **what: object) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write((json.dumps(what) + "\n").encode())
        self._popen.stdin.flush()

    def of(self, event: str) -> list[dict[str, Any]]:
        with self._change:
            return [each for each in self._said if each["event"] == event]

    def says(self, event: str, *, batch: int | None = None) -> dict[str, Any]:
        """Wait until it has said this, of this batch or a later one."""

        def found() -> dict[str, Any] | None:
            fit = [each for each in self._said if each["event"] == event]
            if batch is not None:
                fit = [each for each in fit if each["batch"] >= batch]
            return fit[0] if fit else None

        with self._change:
            heard = self._change.wait_for(found, timeout=PATIENCE_S)
        if heard is None:
            errors = self._errors.read_text(encoding="utf-8", errors="replace")[-3000:]
            pytest.fail(f"{self.name} does not say {event}: {self._said}\n{errors}", pytrace=False)
        return heard

    def stands_still(self) -> None:
        found = os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert found is not None
        assert found.si_code == os.CLD_STOPPED

    def go_on(self) -> None:
        os.killpg(self._popen.pid, signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def is_silent(self) -> bool:
        """Wait until nobody can say anything any more: Spark's process has the same stdout."""
        self._reading.join(PATIENCE_S)
        return not self._reading.is_alive()

    def exit_code(self) -> int:
        return self._popen.wait(PATIENCE_S)

    def end(self) -> None:
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGCONT)
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, Driver]]:
    directory = tmp_path_factory.mktemp("drivers")
    pair = (Driver(directory, "a"), Driver(directory, "b"))
    try:
        for each in pair:
            each.says("ready")
        yield pair
    finally:
        for each in pair:
            each.end()


def test_plain_spark_writes_a_batch_twice_when_a_paused_driver_wakes_up(
    drivers: tuple[Driver, Driver], tmp_path: Path
) -> None:
    """What standby is for: the checkpoint protects the offsets and not the sink."""
    old, new = drivers
    output = tmp_path / "rows.txt"
    task = {
        "does": "plain",
        "name": "plain",
        "checkpoint": str(tmp_path / "checkpoint"),
        "output": str(output),
    }
    old.begin(**task, pauses_at=2)
    old.says("paused")
    old.stands_still()
    new.begin(**task)
    new.says("written", batch=5)
    old.go_on()
    old.says("written", batch=2)
    old.says("died")
    new.send(stop=True)
    new.says("over")
    counts = Counter(map(int, output.read_text(encoding="utf-8").split()))
    twice = sorted(value for value, times in counts.items() if times == 2)
    assert twice == list(range(2 * ROWS, 3 * ROWS))


def fenced(tmp_path: Path, does: str = "fenced") -> dict[str, object]:
    """``lease_s`` is given by the test: long for a driver that is to keep what it has."""
    return {
        "does": does,
        "name": "rows",
        "checkpoint": str(tmp_path / "checkpoint"),
        "output": str(tmp_path / "table"),
        "store": f"sqlite:///{tmp_path}/leases.db",
    }


def values(tmp_path: Path) -> list[int]:
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    return sorted(table.column("value").to_pylist())


def of_the_job(tmp_path: Path) -> tuple[list[Term], Checkpoint]:
    async def read() -> tuple[list[Term], Checkpoint]:
        async with open_store(f"sqlite:///{tmp_path}/leases.db") as store:
            terms = await store.history(job_key("rows"))
            checkpoints = await store.checkpoints("job")
            return list(terms), checkpoints[job_key("rows")]

    return anyio.run(read)


@pytest.mark.spec("S4", "S5", "B5")
def test_a_paused_driver_that_wakes_up_after_the_take_over_writes_nothing(
    drivers: tuple[Driver, Driver], tmp_path: Path
) -> None:
    old, new = drivers
    task = fenced(tmp_path)
    old.begin(**task, lease_s=12)
    old.says("written", batch=1)
    new.begin(**task, lease_s=KEPT_S)
    assert "is held by rows-" in new.says("waiting")["text"]
    epoch = old.of("active")[-1]["epoch"]
    old.send(pause=True)
    paused = old.says("paused")["batch"]
    old.stands_still()
    assert new.says("active")["epoch"] == epoch + 1
    new.says("written", batch=paused + 3)
    old.go_on()
    assert old.says("refused") == {"event": "refused", "batch": paused, "why": "FencedWrite"}
    old.says("lost")
    old.says("waiting")  # it stands by again
    assert [each["batch"] for each in old.of("written")] == list(range(paused))
    new.send(stop=True)  # in good order: the other one goes on from where this one was
    new.says("over")
    assert not new.of("failed")
    last = max(each["batch"] for each in new.of("written"))
    old.says("written", batch=last + 1)
    old.send(stop=True)
    old.says("over")
    found = values(tmp_path)
    assert found == list(range(len(found)))  # every row once
    assert len(found) > ROWS * last
    terms, checkpoint = of_the_job(tmp_path)
    assert [term.epoch for term in terms] == list(range(len(terms), 0, -1))
    reasons = {term.epoch: term.reason.value for term in terms if term.reason}
    assert (reasons[epoch], reasons[epoch + 1]) == ("expired", "released")
    assert reasons[len(terms)] == "released"
    assert checkpoint.epoch == len(terms)
    assert checkpoint.position.sequence_number * ROWS <= len(found)


@pytest.mark.spec("S5")
def test_a_driver_whose_query_hangs_ends_before_anybody_else_begins_and_at_a_second_signal_at_once(
    drivers: tuple[Driver, Driver], tmp_path: Path
) -> None:
    stuck, new = drivers
    task = fenced(tmp_path, "stuck")
    stuck.begin(**task, lease_s=8)
    stuck.says("written", batch=0)
    new.begin(**task, lease_s=KEPT_S)
    new.says("waiting")

    async def break_it() -> None:
        async with open_store(str(task["store"])) as store:
            await store.break_(job_key("rows"), epoch=1, after=timedelta(seconds=3))

    anyio.run(break_it)
    stuck.says("lost")
    assert stuck.exit_code() == 75
    assert new.says("active")["epoch"] == 2
    new.says("written", batch=0)
    # The heir hangs in the same function, with a lease that is far from over.
    new.signal(signal.SIGTERM)
    new.says("stopping")
    new.signal(signal.SIGTERM)
    assert new.exit_code() == 128 + signal.SIGTERM
    assert new.is_silent()
    assert not new.of("over")
