"""Drivers in processes of their own that write to one Delta table, race, and are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import forkserver, get_context
from multiprocessing.process import current_process
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from tests.support.delta_process import die, fight, race
from tests.support.delta_tables import GROUP, numbers, opened, put

from leasehold.spark import SinkPosition

LIMIT_S = 200
Run = Callable[..., list[int | None]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "delays"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run programs at the same time, and tell how each has ended. What they import, once."""
    # Else there is a directory that goes when this process ends, and not before.
    current_process()._config["tempdir"] = str(tmp_path_factory.mktemp("mp"))  # type: ignore[attr-defined]
    server = get_context("forkserver")
    server.set_forkserver_preload(["tests.support.delta_process"])

    def run(*programs: tuple[Any, ...]) -> list[int | None]:
        running = [server.Process(target=target, args=args) for target, *args in programs]
        for each in running:
            each.start()
        try:
            for each in running:
                each.join(LIMIT_S)
            return [each.exitcode for each in running]
        finally:
            for each in running:
                each.kill()
                each.join()
                each.close()

    yield run
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.spec("S4")
def test_processes_that_race_for_the_same_batches_write_each_once(
    table: Path, processes: Run
) -> None:
    assert processes((race, table, 60), (race, table, 60)) == [0, 0]
    assert numbers(table) == list(range(60))


@pytest.mark.spec("B5", "S4")
def test_processes_that_fence_each_other_write_each_row_once(table: Path, processes: Run) -> None:
    assert processes((fight, table, 60, 1), (fight, table, 60, 2)) == [0, 0]
    assert numbers(table) == list(range(60))
    epochs = [each.epoch for each in opened(table).commits(GROUP)]
    assert epochs == sorted(epochs)


@pytest.mark.spec("S4")
@pytest.mark.parametrize(
    ("point", "position"),
    [
        ("in a fence without a table", None),
        ("between stage and commit", None),
        ("before the commit, in the table's creation", None),
        ("after the commit", 5),
    ],
)
def test_a_driver_killed_before_there_is_a_table_leaves_all_or_nothing(
    table: Path, processes: Run, point: str, position: int | None
) -> None:
    assert processes((die, table, point)) == [-SIGKILL]
    sink = opened(table)
    assert sink.fence(GROUP, {"0": 8})["0"].position == position
    put(sink, table, ("0", position or 0, 10, 8))
    assert numbers(table) == list(range(10))


@pytest.mark.spec("S4")
@pytest.mark.parametrize(
    ("point", "position"),
    [("before the fence", 10), ("after the fence", 10), ("between stage and commit", 10)],
)
def test_a_driver_killed_at_any_point_leaves_all_or_nothing(
    table: Path, processes: Run, point: str, position: int
) -> None:
    put(opened(table), table, ("0", 0, 10, 1))
    assert processes((die, table, point)) == [-SIGKILL]
    sink = opened(table)
    result = sink.fence(GROUP, {"0": 8})["0"]
    assert result == SinkPosition(position=position, epoch=1 if point == "before the fence" else 7)
    put(sink, table, ("0", position, 12, 8))
    assert numbers(table) == list(range(12))
