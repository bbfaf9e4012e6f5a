"""The count at the end of a campaign finds what is wrong, and whole sessions can be hurt."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from bench import spark, spark_scene
from bench.report import Bar
from deltalake import write_deltalake
from tests.support import sessions
from tests.support.drivers import Crew, crew

# A child in a process group of its own, which still belongs to the session.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""


def put(group: Crew, *rows: tuple[str, int]) -> None:
    partitions, numbers = zip(*rows, strict=True)
    table = pa.table({"partition": list(partitions), "sequence_number": list(numbers)})
    write_deltalake(str(group.table), table, mode="append")


def test_the_count_finds_lost_doubled_and_unknown_rows(tmp_path: Path) -> None:
    with crew(tmp_path, partitions=2) as group:
        group.fill(3, partitions=2)
        assert group.faults() == Counter(lost=6)
        put(group, ("0", 0), ("0", 1), ("0", 2), ("1", 0))
        assert group.faults() == Counter(lost=2)
        put(group, ("1", 1), ("1", 2))
        assert not group.faults()
        put(group, ("1", 1))
        assert group.faults() == Counter(doubled=1)
        put(group, ("0", 3), ("7", 0))
        assert group.faults() == Counter(doubled=1, unknown=2)


def test_a_session_is_stopped_resumed_and_killed_with_all_its_children() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    session = parent.pid
    found = sessions.processes(session)
    assert {each.pid for each in found} == {session, child}
    assert [each.pid for each in sessions.below(session, found)] == [session, child]
    sessions.stop(session)
    assert {each.state for each in sessions.processes(session)} == {"T"}
    sessions.go_on(session)
    sessions.kill(session)
    assert parent.wait() == -9
    assert not sessions.processes(session)


def test_events_have_the_size_that_is_promised_and_no_two_are_alike() -> None:
    keys, bodies = spark_scene.bodies(1_000, seed=3)
    assert {len(each) for each in bodies.to_pylist()} == {200}
    assert len(set(bodies.to_pylist())) == 1_000
    assert len(set(keys.to_pylist())) > 500
    assert spark.FULL.events == 5_000_000
    assert spark.FULL.faults == 100


@pytest.mark.parametrize(("ours", "met"), [(1.0, True), (3.0, False)])
def test_a_row_of_two_costs_is_judged_by_their_ratio(ours: float, met: bool) -> None:
    row = spark_scene.faster("it", ours, 2.0, Bar(words=">= 1.0 x", least=1.0))
    assert row.met is met
    assert row.ratio == pytest.approx(2.0 / ours, rel=0.01)
