"""The demo in small: the same faults, the same proof; and what is left after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.jvm import quick_jvm

from leasehold.spark.demo.delays import compare, flights_file, read_flights
from leasehold.spark.demo.drivers import kill_session, session_members

FLIGHTS = 6_000
PATIENCE_S = 500


@contextmanager
def demo(place: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(Path(sys.executable).parent / "leasehold"), "demo", "--keep", str(place), *words]
    with subprocess.Popen(
        command,
        env={**os.environ, "JDK_JAVA_OPTIONS": quick_jvm()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as popen:
        try:
            yield popen
        finally:  # the demo takes its drivers with it; after an end that it did not choose, we do
            popen.kill()
            for each in drivers_in(place):
                kill_session(each)


def drivers_in(place: Path) -> list[int]:
    """The drivers of the demo in this place: it is in the one argument they have."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"leasehold.spark.demo.driver" in words and os.fsencode(place) in words:
                found.append(int(entry.name))
    return found


@pytest.mark.spec("S1", "S3", "S4", "B5")
def test_the_demo_kills_and_pauses_drivers_and_every_flight_is_in_the_table_once(
    tmp_path: Path,
) -> None:
    place = tmp_path / "kept"
    with demo(place, "--flights", str(FLIGHTS), "--speed", "max") as running:
        said, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, said
    lines = [line.split(" s  ", maxsplit=1)[-1] for line in said.splitlines()]
    order = [
        "drivers A and B start",
        "B is killed with kill -9",
        "driver C starts in its place",
        "A is stopped",
        "A wakes up after",
        "the table refuses A's",
        "every flight is in the table",
    ]
    told = [begin for line in lines for begin in order if line.startswith(begin)]
    assert told == order, said
    assert any("s after B was killed" in line for line in lines), said
    assert any("s after A was stopped" in line for line in lines), said
    assert f"{FLIGHTS:,} of {FLIGHTS:,}" in said
    assert str(place) in said
    assert (place / "report.html").stat().st_size > 0
    assert not drivers_in(place)

    # The same comparison can fail: one row once more, as a late commit would have added it.
    flights = read_flights(flights_file(), most=FLIGHTS)
    table = DeltaTable(place / "delays").to_pyarrow_table()
    assert compare(flights, table).equal
    write_deltalake(place / "delays", table.slice(0, 1), mode="append")
    tampered = compare(flights, DeltaTable(place / "delays").to_pyarrow_table())
    assert not tampered.equal
    assert tampered.twice == table["flights"][0].as_py()


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    """That other signals do the same is shown where the command itself is tested."""
    place = tmp_path / "kept"
    with demo(place, "--flights", str(FLIGHTS)) as running:
        assert running.stdout is not None
        while "drivers A and B start" not in (line := running.stdout.readline()):
            assert line, "the demo has ended"
        while len(drivers := drivers_in(place)) < 2:  # it says so before it starts them
            assert running.poll() is None, running.stdout.read()
            threading.Event().wait(0.05)
        running.send_signal(signal.SIGINT)
        said = running.stdout.read()
        assert running.wait(PATIENCE_S) == 130
    assert said.splitlines()[-1].startswith("stopped; no process is left"), said
    assert "Traceback" not in said
    assert [each for driver in drivers for each in session_members(driver)] == []
