"""Sinks whose drivers are killed between any two steps, race each other, or get no answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from tests.support.forked import Steps, ended, forked
from tests.support.local_frames import local_frame
from tests.support.postgres import database, execute
from tests.support.postgres_proxy import proxy
from tests.support.sink_contract import GROUP, batch_of, known, put, rows_of
from tests.support.sink_setups import ParquetSetup, PostgresSetup, setup

from leasehold.errors import FencedWrite, SinkChanged, StoreUnavailable
from leasehold.spark import ParquetSink, PostgresSink
from leasehold.stores.sqlite.database import Transaction

pytestmark = pytest.mark.server

PLACES = {
    "parquet, sqlite": [
        (Transaction, "all"),
        (Transaction, "one"),
        (Transaction, "run"),
        (Transaction, "many"),
        (os, "fsync"),
        (Path, "open"),
        (pq.ParquetWriter, "write_table"),
    ],
    "postgres": [(psycopg.Connection, "wait")],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database(migrated=False) as made:
        yield made


def _one_batch(here: ParquetSetup | PostgresSetup, steps: Steps, kind: str, start: int) -> None:
    sink = here.sink()
    epoch = known(sink).epoch + 1
    sink.fence(GROUP, {"0": epoch})
    with steps.counting(*PLACES[kind]):
        put(here, sink, batch_of(("0", start, start + 3, epoch)), rows_of(start, start + 3))


@pytest.mark.spec("S4")
@pytest.mark.parametrize("kind", list(PLACES))
def test_a_driver_killed_between_any_two_steps_loses_and_doubles_nothing(
    kind: str, tmp_path: Path, url: str
) -> None:
    here = setup(kind, tmp_path, url)
    put(here, here.sink(), batch_of(("0", 0, 3, 1)), rows_of(0, 3))
    position, done, step = 3, 0, 0
    while True:
        code = ended(forked(partial(_one_batch, here, Steps(step), kind, position)))
        sunk = known(here.sink())
        assert sunk.position in {position, position + 3}
        assert here.rows() == rows_of(0, sunk.position), f"killed before step {step}"
        done += sunk.position != position
        position, step = sunk.position, step + 1
        if code == 0:
            break
        assert code == -signal.SIGKILL
        here.close()
    assert step > 12
    assert done == 2, "the batch is committed by one step: only a kill after it leaves it there"
    _check_swept(here)
    here.close()


def _check_swept(here: ParquetSetup | PostgresSetup) -> None:
    """What the dead have left goes, and not a row with it."""
    before, sink = here.rows(), here.sink()
    epoch = known(sink).epoch + 1
    sink.fence(GROUP, {"0": epoch})
    if isinstance(sink, ParquetSink) and isinstance(here, ParquetSetup):
        assert sink.sweep(older_than=timedelta(0)).files > 0
        left = list(here.directory.rglob("*.parquet"))
        assert sum(pq.ParquetFile(path).metadata.num_rows for path in left) == len(before)
    elif isinstance(here, PostgresSetup):
        here.sink()
        ours = "select id from leasehold_sink.sink_staging where sink = %s"
        assert execute(here.url, ours, f"public.{here.table}") == []
    assert here.rows() == before


def _race(here: ParquetSetup | PostgresSetup, holder: str, go: int) -> None:
    os.read(go, 1)
    sink, committed, epoch = here.sink(), 0, 0
    while committed < 3:
        before = known(sink)
        epoch = before.epoch + 1
        if sink.fence(GROUP, {"0": epoch})["0"].epoch >= epoch:
            continue
        start = known(sink).position or 0
        batch = batch_of(("0", start, start + 2, epoch), holder=holder)
        try:
            put(here, sink, batch, rows_of(start, start + 2))
        except (FencedWrite, SinkChanged):
            continue
        committed += 1


@pytest.mark.spec("S4", "B5")
@pytest.mark.parametrize("kind", ["parquet, sqlite", "postgres"])
def test_drivers_that_race_for_a_partition_write_each_event_once(
    kind: str, tmp_path: Path, url: str
) -> None:
    here = setup(kind, tmp_path, url)
    here.sink()
    here.close()
    go, start = os.pipe()
    children = [forked(partial(_race, here, name, go)) for name in ("a", "b")]
    os.write(start, b"gg")
    assert [ended(child) for child in children] == [0, 0]
    os.close(go)
    os.close(start)
    sink = here.sink()
    assert here.rows() == rows_of(0, 12)
    history = list(sink.commits(GROUP))
    assert [each.range.start for each in history] == list(range(0, 12, 2))
    assert [each.epoch for each in history] == sorted(each.epoch for each in history)
    assert {each.holder for each in history} == {"a", "b"}
    here.close()


@pytest.mark.spec("S4")
@pytest.mark.parametrize("cut", ["cut_after", "cut_before"])
def test_a_commit_without_an_answer_is_in_doubt_and_is_asked_again(url: str, cut: str) -> None:
    execute(url, f"create table {cut} (id bigint, word text)")
    with proxy(url) as door:
        sink = PostgresSink(door.url, cut, patience_s=0.2)
        sink.open()
        batch = batch_of(("0", 0, 5, 1))
        staged = sink.stage(local_frame("id bigint, word string", rows_of(0, 5)), batch)
        door.at_commit = cut
        with pytest.raises(StoreUnavailable, match="may have been done"):
            sink.commit(staged, batch)
        # Whoever reads the table knows; the driver does not.
        count = execute(url, f"select count(*) from {cut}")
        assert count == [(5 if cut == "cut_after" else 0,)]
        door.at_commit = "pass"
        assert sink.commit(staged, batch).rows == 5
        assert sink.commit(staged, batch).rows == 5
        assert execute(url, f"select count(*) from {cut}") == [(5,)]
        assert len(list(sink.commits(GROUP))) == 1
        sink.close()
