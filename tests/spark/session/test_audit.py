"""The audit on Spark: what is whole is proved, and each kind of fault is found by its own words."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from tests.support import audit_material as a
from tests.support.command import CommandLine
from tests.support.local_frames import local_frame
from tests.support.postgres import database, execute
from tests.support.sink_contract import GROUP, batch_of
from tests.support.spark_logs import QUICK, made

from leasehold.errors import PositionLost, UnknownResource
from leasehold.events import Event, PartitionEnds
from leasehold.log import Log
from leasehold.model import EndReason
from leasehold.spark import DeltaSink, LogSink, Pipeline, PipelineOptions, PostgresSink, Sink
from leasehold.spark.audit import AuditMaterial, Verdict, audit, judge
from leasehold.spark.audit import rows as sink_rows
from leasehold.spark.audit.claims import fetch_findings
from leasehold.spark.audit.gather import _read_sink
from leasehold.spark.audit.judge import (
    _row_findings,
    _small_query_session,
    checkpoint_findings,
    commit_findings,
    log_findings,
    stream_findings,
    term_findings,
)
from leasehold.spark.audit.report import Level
from leasehold.spark.audit.tables import Tables, tables

Pairs = Sequence[tuple[str, int]]


def numbers(spark: SparkSession, pairs: Pairs) -> DataFrame:
    columns = {
        "partition": [partition for partition, _ in pairs],
        "sequence_number": [number for _, number in pairs],
        "enqueued_at": pa.array(
            [a.at(number) for _, number in pairs], pa.timestamp("us", tz="UTC")
        ),
    }
    return spark.createDataFrame(pa.table(columns))


def told_event(partition: str, number: int) -> str:
    """A body that says of which event it is."""
    return json.dumps({"partition": partition, "sequence_number": number})


def small(spark: SparkSession, material: AuditMaterial) -> Tables:
    """As ``judge`` makes them; the session of all tests stays the active one."""
    made_tables = tables(_small_query_session(spark), material)
    tables(spark, material)
    return made_tables


def result(frames: list[DataFrame], level: Level = Level.FAULT) -> dict[tuple[str, str], str]:
    """What was found: (check, partition) -> the words."""
    return {
        (each.check, each.partition): each.what
        for (_, found), seen in fetch_findings(frames).items()
        if found is level
        for each in seen.first
    }


@pytest.mark.spec("B10", "S1")
def test_a_clean_life_is_proved(spark: SparkSession) -> None:
    rows, log = numbers(spark, a.SUNK), numbers(spark, a.LOGGED)
    found = judge(spark, a.CLEAN, rows=rows, log=log)
    assert spark.getActiveSession() is spark
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert [each.name for each in found.checks if each.verdict is not Verdict.PROVED] == []
    assert (found.verdict, len(found.checks), found.findings) == (Verdict.PROVED, 12, ())
    assert found.check("rows-once").looked_at == 25
    assert "4 events of the log wait" in found.notes[0]
    # The commit of events 0 to 9 came at 1.5 s, and event 9 at 9 s: two clocks, never below 0.
    assert [each.lag_s for each in found.lags] == [0.0, 0.0, 0.0]


@pytest.mark.spec("B10")
def test_each_fault_of_terms_has_its_own_words(spark: SparkSession) -> None:
    expired, released = EndReason.EXPIRED, EndReason.RELEASED
    broken = (
        a.term("apart", 1, "a", 0, 20, expired),
        a.term("apart", 2, "b", 15),
        a.term("open", 1, "a", 0),
        a.term("open", 2, "b", 5),
        a.term("twice", 1, "a", 0, 5, released),
        a.term("twice", 1, "b", 6, 7, released),
        a.term("skipped", 1, "a", 0, 5, released),
        a.term("skipped", 3, "b", 6),
        a.term("lost", 1, "a", 0, 5, released),
        a.term("why", 1, "a", 0, 5),
        a.term("back", 1, "a", 6, 5, released),
        a.term("old", 5, "a", 0),
    )
    material = replace(
        a.CLEAN, terms=(*a.TERMS, *broken), epochs={"0": 2, "lost": 2, "never": 1, "free": 0}
    )
    frames = term_findings(small(spark, material))
    assert result(frames) == {
        ("terms-apart", "apart"): "epoch 2 of b began before epoch 1 of a was over: "
        "two owners at once",
        ("terms-apart", "open"): "epoch 2 of b began before epoch 1 of a was over: "
        "two owners at once",
        ("epochs-rise", "twice"): "epoch 1 was given 2 times",
        ("epochs-rise", "skipped"): "epoch 3 follows 1: there are terms that are not told",
        ("epochs-rise", "lost"): "the store is at epoch 2, which has no term",
        ("epochs-rise", "never"): "the store is at epoch 1, which has no term",
        ("ends-told", "why"): "epoch 1 of a ended without a reason",
        ("ends-told", "back"): "epoch 1 of a ended before it began",
    }
    assert result(frames, Level.UNKNOWN) == {
        ("epochs-rise", "old"): "the terms before epoch 5 are not kept any more"
    }


@pytest.mark.spec("B5", "B10")
def test_each_fault_of_commits_has_its_own_words(spark: SparkSession) -> None:
    names = ("gap", "again", "late", "nobody", "other", "beyond", "later", "reset", "old", "inside")
    first = [a.term(each, 1, "a", 0, 9, EndReason.EXPIRED) for each in names if each != "old"]
    second = [a.term(each, 2, "b", 10) for each in ("late", "gap")]
    resets = [a.term("reset", 2, "operator", 10, 10, EndReason.RESET), a.term("reset", 3, "b", 11)]
    material = replace(
        a.CLEAN,
        terms=(*first, *second, *resets, a.term("old", 7, "b", 0)),
        commits=(
            *a.COMMITS[:0],
            a.commit("g1", "gap", 0, 10, 1, "a"),
            a.commit("g2", "gap", 15, 20, 2, "b"),
            a.commit("a1", "again", 0, 10, 1, "a"),
            a.commit("a2", "again", 5, 12, 1, "a"),
            a.commit("i1", "inside", 0, 10, 1, "a"),
            a.commit("i2", "inside", 3, 5, 1, "a"),
            a.commit("l1", "late", 0, 10, 1, "a"),
            a.commit("l2", "late", 10, 20, 2, "b"),
            a.commit("l3", "late", 20, 25, 1, "a"),
            a.commit("n1", "nobody", 0, 10, 4, "a"),
            a.commit("o1", "other", 0, 10, 1, "z"),
            a.commit("b1", "beyond", 0, 30, 1, "a"),
            a.commit("s1", "later", 5, 10, 1, "a"),
            a.commit("r1", "reset", 0, 20, 1, "a"),
            a.commit("r2", "reset", 10, 20, 3, "b"),
            a.commit("r3", "reset", 20, 24, 3, "b"),
            a.commit("f1", "old", 0, 10, 6, "a"),
        ),
        ends={each: PartitionEnds(first=0, next=25) for each in names},
    )
    frames = commit_findings(small(spark, material))
    assert result(frames) == {
        ("commits-tile", "gap"): "events 10 to 14 are in no commit",
        ("commits-tile", "again"): "events 5 to 9 were committed again",
        ("commits-tile", "inside"): "events 3 to 4 were committed again",
        ("commits-fenced", "late"): "a committed under epoch 1 after b had committed under epoch 2",
        ("commits-owned", "nobody"): "a commit of a is under epoch 4, which nobody had",
        ("commits-owned", "other"): "a commit of z is under epoch 1, which was that of a",
        ("commits-tile", "beyond"): "events 25 to 29 were committed, and the log ends before "
        "event 25",
    }
    assert result(frames, Level.UNKNOWN) == {
        ("commits-tile", "later"): "events 0 to 4 come before the first commit that is told",
        ("commits-tile", "reset"): "a reset went back from event 20 to 10: they came again",
        ("commits-owned", "old"): "commits of terms that are not kept any more: 1",
    }


@pytest.mark.spec("B10")
def test_each_fault_of_checkpoints_has_its_own_words(spark: SparkSession) -> None:
    names = ("ahead", "nobody", "late", "early", "moved")
    held = [a.term(each, 2, "a", 10, 20, EndReason.RELEASED) for each in names if each != "moved"]
    material = replace(
        a.CLEAN,
        terms=(*held, a.term("moved", 2, "operator", 10, 10, EndReason.RESET)),
        checkpoints=(
            a.checkpoint("ahead", 2, 10, 15),
            a.checkpoint("nobody", 3, 9, 15),
            a.checkpoint("late", 2, 9, 21),
            a.checkpoint("early", 2, 9, 9),
            a.checkpoint("moved", 2, 500, 10),
        ),
        commits=tuple(a.commit("v1", each, 0, 10, 2, "a") for each in names),
    )
    assert result(checkpoint_findings(small(spark, material), sink=True)) == {
        ("checkpoints-follow", "ahead"): "the checkpoint says that events up to 10 are done, and "
        "the sink holds those up to 9",
        ("checkpoints-owned", "nobody"): "the checkpoint was written under epoch 3, which nobody "
        "had",
        ("checkpoints-owned", "late"): "the checkpoint of epoch 2 of a was written after its term "
        "was over",
        ("checkpoints-owned", "early"): "the checkpoint of epoch 2 of a was written before its "
        "term began",
    }


@pytest.mark.spec("B10")
def test_a_checkpoint_that_is_no_position_of_this_stream_is_found(spark: SparkSession) -> None:
    ends = PartitionEnds(first=5, next=24)
    material = replace(
        a.CLEAN,
        checkpoints=(
            a.checkpoint("other", 2, 10, 15, stream="2026-01-01"),
            a.checkpoint("beyond", 2, 24, 15),
            a.checkpoint("missed", 2, 1, 15),
            a.checkpoint("old", 2, 10, 15, stream=""),
            a.checkpoint("fine", 2, 23, 15),
            a.checkpoint("begins", 2, 4, 15),
            a.checkpoint("again", 2, 10, 15),
        ),
        ends=dict.fromkeys(("other", "beyond", "missed", "old", "fine", "begins", "again"), ends),
        stored_at={"fine": a.at(70), "again": a.at(80)},
    )
    frames = stream_findings(small(spark, material), material.identity)
    found = "checkpoints-stream"
    assert result(frames) == {
        (found, "other"): "the checkpoint at event 10 is of the stream of 2026-01-01, which was "
        f"deleted, and this one is of {a.STREAM}: the group has done nothing of this one",
        (found, "beyond"): "the checkpoint says that events up to 24 are done, and the log ends "
        "before event 24: files of the stream were lost, or it was recreated",
    }
    assert result(frames, Level.UNKNOWN) == {
        (found, "missed"): "events 2 to 4 were removed from the log before the group was done "
        "with them",
        (found, "again"): "event 10 was stored after the checkpoint that says it is done: the "
        "stream has lost its files and begun again, or clocks differ by more than a minute",
        (found, "old"): "the checkpoint at event 10 does not say of which stream it is: an older "
        "version wrote it; the next write says it",
    }


@pytest.mark.server
@pytest.mark.spec("B10")
def test_a_stream_that_was_recreated_is_not_proved(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=40, partitions=1), tmp_path / "table"
    line = Pipeline(spark, "log:orders", url, "copies", options=PipelineOptions(timing=QUICK))
    line.write_to(DeltaSink(sink)).run(until_caught_up=True)
    with Log.open(url) as log:
        log.delete("orders")
        log.create("orders", partitions=1)
        with log.producer("orders") as producer:
            for number in range(60):
                producer.send(Event(body=str(number).encode()), partition=0).result()
    again = Pipeline(spark, "log:orders", url, "copies", options=PipelineOptions(timing=QUICK))
    with pytest.raises(PositionLost, match=r"event 40: the stream was deleted and recreated"):
        again.write_to(DeltaSink(sink)).run(until_caught_up=True)
    found = audit(spark, store=url, stream="orders", group="copies")
    assert found.verdict is Verdict.REFUTED
    (fault,) = [each for each in found.findings if each.level is Level.FAULT]
    assert (fault.check, fault.partition) == ("checkpoints-stream", "0")


@pytest.mark.server
@pytest.mark.spec("B10")
def test_a_stream_that_lost_its_files_is_not_proved(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=40, partitions=1), tmp_path / "table"
    line = Pipeline(spark, "log:orders", url, "copies", options=PipelineOptions(timing=QUICK))
    line.write_to(DeltaSink(sink)).run(until_caught_up=True)
    with Log.open(url) as log:
        log.files.delete("/orders", recursive=True, by_log=True)
    found = audit(spark, store=url, stream="orders", group="copies")
    assert found.verdict is Verdict.REFUTED
    (fault,) = [each for each in found.findings if each.level is Level.FAULT]
    assert "up to 39 are done, and the log ends before event 0: files" in fault.what


@pytest.mark.spec("S1")
def test_missing_doubled_and_stray_rows_are_found(spark: SparkSession) -> None:
    """Of a commit that made other rows than one for each event only strays can be told."""
    summed = replace(a.commit("v9", "sums", 0, 10, 1, "a"), rows=3)
    material = a.with_commits(*a.COMMITS, summed)
    sunk = [pair for pair in a.SUNK if pair not in {("0", 7), ("0", 8)}]
    sunk += [("1", 4), ("0", 20), ("sums", 1), ("sums", 1), ("sums", 2)]
    made_tables = tables(spark, material)
    rows = numbers(spark, sunk)
    frames = sink_rows.miscounted(rows, made_tables.commits)
    frames += sink_rows.findings(rows, made_tables.commits)
    seen = fetch_findings(frames)
    assert {
        (each.partition, each.what, each.evidence) for each in seen["rows-once", Level.FAULT].first
    } == {
        ("0", "events without a row, or with too few: 2", "the first is event 7, the last event 8"),
        (
            "0",
            "events that have rows and are in no commit: 1",
            "the first is event 20, the last event 20",
        ),
        ("1", "events with more than one row: 1", "the first is event 4, the last event 4"),
    }
    (unsure,) = seen["rows-once", Level.UNKNOWN].first
    assert (unsure.partition, "may have made" in unsure.what) == ("sums", True)
    # 28 were written, two are gone and two came: the count alone would not have told.
    assert ("rows-counted", Level.FAULT) not in seen


@pytest.mark.spec("S1")
def test_a_log_with_a_gap_and_a_number_twice_is_found(spark: SparkSession) -> None:
    pairs = [("0", 3), ("0", 4), ("0", 6), ("1", 0), ("1", 1), ("1", 1), ("3", 0)]
    ends = {"0": (3, 7), "1": (0, 2), "2": (0, 0), "3": (0, 1), "4": (0, 2)}
    material = replace(
        a.CLEAN,
        ends={each: PartitionEnds(first=low, next=high) for each, (low, high) in ends.items()},
    )
    made_tables = tables(spark, material)
    assert result(log_findings(numbers(spark, pairs), made_tables.ends)) == {
        ("log-whole", "0"): "events that are missing: 1",
        ("log-whole", "1"): "numbers are given twice",
        ("log-whole", "4"): "events that are missing: 2",
    }


@pytest.mark.spec("B10", "S1", "S4")
def test_a_real_pipeline_into_delta_is_proved_until_somebody_meddles(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    url, path = made(tmp_path, events=400, partitions=2), tmp_path / "table"
    options = PipelineOptions(batch_events=150, timing=QUICK)
    line = Pipeline(spark, "log:orders", url, "copies", options=options)
    line.transform(lambda events: events.select("partition", "sequence_number", "body"))
    line.write_to(DeltaSink(path)).run(until_caught_up=True)

    found = audit(spark, store=url, stream="orders", group="copies", sink=DeltaSink(path))
    assert (found.verdict, found.findings) == (Verdict.PROVED, ())
    assert (found.check("rows-once").looked_at, found.check("log-whole").looked_at) == (400, 400)
    assert len(found.lags) == len(found.material.commits or ())
    assert ET.fromstring(found.html().partition("\n")[2]).tag == "html"

    with pytest.raises(UnknownResource, match="nobodys"):
        audit(spark, store=url, stream="orders", group="nobodys")

    one = DeltaTable(path).to_pyarrow_table().slice(0, 1)
    write_deltalake(path, one, mode="append")
    leasehold = CommandLine(monkeypatch, capfdbinary, url)
    page = tmp_path / "audit.html"
    done = leasehold("audit", "orders", "copies", "--sink", f"delta:{path}", "--html", str(page))
    assert done.code == 1
    assert done.out.startswith("REFUTED  orders copies: 2 findings against 2 of 12 claims")
    assert {"rows-counted", "rows-once"} <= set(done.out.split())
    assert done.widest <= 80
    assert "REFUTED" in page.read_text(encoding="utf-8")


STRAYS = {
    ("rows-counted", "", "rows in the sink that no commit wrote: 2"),
    ("rows-once", "", "rows that do not say of which event they are: 1"),
    ("rows-once", "0", "events with more than one row: 1"),
    ("rows-once", "0", "events that have rows and are in no commit: 1"),
}
LOST = ("rows-once", "0", "events without a row, or with too few: 1")


def put(sink: Sink, frame: DataFrame, until: ExitStack) -> None:
    """Open it, and write one batch of ten events."""
    batch = batch_of(("0", 0, 10, 1))
    sink.open(cast("SparkSession", None))  # these sinks do not ask for it
    until.callback(sink.close)
    sink.commit(sink.stage(frame, batch), batch)


# As many rows as events: number 7 is lost, and number 6 came twice.
WRITTEN = (0, 1, 2, 3, 4, 5, 6, 6, 8, 9)


@pytest.mark.server
@pytest.mark.spec("S1", "S4")
def test_missing_doubled_and_stray_rows_of_a_table_and_of_a_stream_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And where a row may take the place of another, none is called lost."""
    url = made(tmp_path, events=10, partitions=1)
    with Log.open(url) as log, database(migrated=False) as server, ExitStack() as held:
        table = PostgresSink(server, "copies", create=True)
        columns = "partition string, sequence_number bigint"
        put(table, local_frame(columns, [("0", number) for number in WRITTEN]), held)
        execute(server, "insert into copies values ('0', 10), (null, null)")
        log.create("copies", partitions=2)
        stream = LogSink("copies", store=url)
        events = [(str(number), told_event("0", number)) for number in WRITTEN]
        put(stream, local_frame("key string, body string", events), held)
        with log.producer("copies") as producer:
            for body in (told_event("0", 10), "nothing"):
                producer.send(Event(body=body.encode()), partition=1).result()

        sinks: list[tuple[Sink, str, Level]] = [
            (table, "", Level.FAULT),
            (stream, "a key", Level.UNKNOWN),
        ]
        for sink, replaced, level in sinks:
            sunk = _read_sink(spark, sink, GROUP, url, until=held.enter_context(ExitStack()))
            assert sunk.rows is not None
            made_tables = tables(spark, a.with_commits(*sunk.commits or ()))
            frames = _row_findings(sunk.rows.frame, made_tables, replaced, by_number=True)
            seen = {
                (each.level, each.check, each.partition, each.what)
                for kind in fetch_findings(frames).values()
                for each in kind.first
            }
            assert seen == {(Level.FAULT, *each) for each in STRAYS} | {(level, *LOST)}


def test_a_sink_that_can_not_be_read_is_unknown_and_not_proved(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = "partition string, sequence_number long"
    (tmp_path / "part.parquet").write_bytes(b"no Parquet at all")
    rows = spark.read.schema(columns).parquet(f"file://{tmp_path}/part.parquet")
    material: AuditMaterial = a.with_commits(*a.COMMITS)
    found = judge(spark, material, rows=rows)
    assert found.check("commits-tile").verdict is Verdict.PROVED
    assert found.check("rows-counted").verdict is Verdict.UNKNOWN
    assert found.verdict is Verdict.UNKNOWN
    assert any("could not be read" in each.what for each in found.findings)
