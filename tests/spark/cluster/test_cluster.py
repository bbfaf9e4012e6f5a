"""The same pipeline on a real standalone cluster: separate executors, one killed, a driver more.

Starting Spark is what costs here, so the story is played once, and each test looks at one thing
that it showed.
"""

from __future__ import annotations

import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from tests.support import sessions
from tests.support.drivers import Crew, Driver, crew
from tests.support.jvm import UNCOMPILED
from tests.support.sessions import Process
from tests.support.spark_cluster import Cluster, settings

import leasehold
from leasehold.events import Event, Start

PARTITIONS = 4
# Nobody is to lose anything because the machine is busy, and all is to be shared soon.
LEASES: dict[str, Any] = {"lease_s": 60.0, "renew_s": 0.6}
PATIENT = UNCOMPILED | {"spark.network.timeout": "300s"}
COPY = "copies"
SOURCES = Path(leasehold.__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was seen."""

    killed: Process
    drivers: tuple[int, ...]
    executors_after: tuple[Process, ...]
    tried: int
    first: Driver
    second: Driver
    witness: str
    copied: Counter[str | None]
    wrong: Counter[str]


def our_code(place: Path) -> Path:
    """The packages as ``--py-files`` takes them."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as made:
        for package in ("leasehold", "pyspark_leasehold"):
            for each in sorted((SOURCES / package).rglob("*")):
                if each.is_file() and "__pycache__" not in each.parts:
                    made.write(each, each.relative_to(SOURCES))
    return place


def bare_python(place: Path) -> Path:
    """A Python that has what we need installed, and not our package."""
    libraries = Path(pa.__file__).parents[1]
    place.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec "{sys.executable}" -S "$@"\n',
        encoding="utf-8",
    )
    place.chmod(0o755)
    return place


def submitted(cluster: Cluster, root: Path) -> dict[str, Any]:
    """How to start a driver by ``spark-submit``, with our code as a file beside the program."""
    conf = settings() | PATIENT | {"spark.pyspark.python": str(bare_python(root / "python"))}
    words = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master"]
    words += [cluster.master, "--py-files", str(our_code(root / "leasehold.zip"))]
    words += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return {"submit": words, "master": "", "conf": {}}


def events_of(group: Crew, partition: int) -> Iterator[Event]:
    """All events of a partition of the copy."""
    with group.log.reader(COPY, partition, start=Start.earliest()) as reader:
        while (batch := reader.read()) is not None:
            yield from batch


def kill_trapped(group: Crew, cluster: Cluster, app: str, trap: Path) -> Process:
    """Kill the executor whose task sits in the trap."""
    group.until(lambda: trap.exists() and bool(trap.read_text()), "a task is trapped")
    task = int(trap.read_text())
    for executor in cluster.executors(app):
        below = sessions.below(executor.pid, sessions.processes(executor.session))
        if task in {each.pid for each in below}:
            cluster.kill_executor(executor)
            return executor
    raise AssertionError(f"the task {task} belongs to no executor")


@pytest.fixture(scope="module")
def story(standalone: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("story")
    trap, witness = root / "trap", root / "witness"
    with crew(root / "crew", partitions=PARTITIONS) as group:
        group.fill(100, partitions=PARTITIONS)
        first = group.begin(
            "first",
            master=standalone.master,
            conf=settings(cores=2) | PATIENT,
            **LEASES,
            batch_events=PARTITIONS * 20,
            tasks=2,
            task_s=0.05,
            trap=str(trap),
        )
        second = group.begin(
            "second",
            **LEASES,
            batch_events=PARTITIONS * 20,
            tasks=1,
            witness=str(witness),
            **submitted(standalone, root),
        )
        killed = kill_trapped(group, standalone, first.app, trap)
        first.says("committed")
        after = tuple(standalone.executors(first.app))
        second.says("opened", times=PARTITIONS // 2)
        second.says("committed")
        group.fill(60, partitions=PARTITIONS)
        group.all_committed()
        group.log.create(COPY, partitions=2)
        first.tell("copy", to=COPY)
        first.says("copied")
        yield Story(
            killed=killed,
            drivers=(first.session, second.session),
            executors_after=after,
            tried=len(group.said("tried")),
            first=first,
            second=second,
            witness=witness.read_text(encoding="utf-8"),
            copied=Counter(event.key for each in (0, 1) for event in events_of(group, each)),
            wrong=group.faults(),
        )


@pytest.mark.spec("S4", "S6")
def test_every_row_is_there_once_whatever_executor_died_and_whoever_joined(story: Story) -> None:
    assert not story.wrong


@pytest.mark.spec("S6")
def test_tasks_run_in_executors_outside_of_the_driver(story: Story) -> None:
    assert story.killed.session not in story.drivers
    assert {each.session for each in story.executors_after}.isdisjoint(story.drivers)


@pytest.mark.spec("S1", "S2", "S6")
def test_executors_read_and_write_the_log_through_the_data_source(story: Story) -> None:
    keys = Counter(f"carrier-{number % 16}" for sent in (100, 60) for number in range(sent))
    assert story.copied == {key: PARTITIONS * count for key, count in keys.items()}


@pytest.mark.spec("S4")
def test_a_batch_outlives_the_executor_that_was_killed_in_its_middle(story: Story) -> None:
    first = story.first.of("committed")[0]
    assert first["number"] == 0
    assert story.tried == 0, "Spark runs the task again; the batch does not fail"
    assert story.killed.pid not in {each.pid for each in story.executors_after}


@pytest.mark.spec("S3")
def test_a_second_driver_gets_its_half_of_the_partitions(story: Story) -> None:
    assert len(story.second.held()) == len(story.first.held()) == PARTITIONS // 2
    assert story.second.held().keys().isdisjoint(story.first.held())


@pytest.mark.spec("S3")
def test_partitions_move_between_two_batches_and_nothing_is_refused(story: Story) -> None:
    moved = story.second.held()
    given = [each for each in story.first.of("closed") if each["partition"] in moved]
    assert len(given) == len(moved)
    for each in given:
        later = [note for note in story.first.of("planned") if note["when_s"] > each["when_s"]]
        assert each["partition"] not in {row[0] for note in later for row in note["ranges"]}
    assert not story.first.of("refused")
    assert not story.second.of("refused")


@pytest.mark.spec("S6")
def test_executors_take_our_code_from_the_file_that_was_submitted(story: Story) -> None:
    assert "leasehold.zip" in story.witness
    assert str(SOURCES) not in story.witness
