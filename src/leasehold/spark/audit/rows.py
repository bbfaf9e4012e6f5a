"""The rows of a sink as an audit reads them, and their comparison with the commits.

**Comparison.** The sink must have as many rows as its commits wrote, and of each event as many as
its commits have. A commit with as many rows as events is taken as one row for each event. Where a
transformation filters, joins or aggregates, only the number of rows is compared. Where a row may
replace another one (``replaced`` gives the reason), a missing row is unknown, not a fault.

**Log sink.** The rows are the events of its stream, up to one point in time. Each names the source
event it was made of in its properties ``partition`` and ``sequence_number``, or in the fields of
these names in a JSON body.

**PostgreSQL.** The driver holds a snapshot of the database, and the tasks read pages of the table
in it. Rows that do not carry their event are only counted. No password is ever part of an error.

======================================  ==========================================================
sink                                    meaning
======================================  ==========================================================
``delta:PATH``                          a Delta table
``parquet:PATH``                        a directory of Parquet files, its manifest in the store
``postgresql://…/database#TABLE``       a table of a PostgreSQL database
``log:STREAM``                          a stream of the log in the store
======================================  ==========================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import leasehold.spark as spark_names
from leasehold.clock import SystemClock
from leasehold.errors import (
    LeaseholdError,
    StoreUnavailable,
    StoreUnusable,
    Trimmed,
    UnknownResource,
    UsageError,
)
from leasehold.events.source_urls import open_ranges
from leasehold.spark.audit.claims import ROWS_COUNTED, ROWS_ONCE, findings_frame, formatted
from leasehold.spark.audit.report import Level
from leasehold.spark.log_writer.publication_ledger import PublicationLedger
from leasehold.spark.pipeline.planning import BatchFrames
from leasehold.spark.reading import Range, read_events
from leasehold.spark.sinks.directory import DELTA, PARQUET, contains_sink
from leasehold.spark.sinks.postgres.target import connected, identifier
from leasehold.stores.blocking import named_queries
from leasehold.stores.blocking_postgres import Connection, translated
from leasehold.stores.postgres.driver_errors import to_store_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from leasehold.spark.audit.report import Claim
    from leasehold.spark.sinks.log import LogSink
    from leasehold.spark.sinks.port import Sink
    from leasehold.spark.sinks.postgres.sink import PostgresSink
    from leasehold.stores.postgres.address import DatabaseAddress

PARTITION, NUMBER = "partition", "sequence_number"
_STRAY = "events that have rows and are in no commit"
_MISSING = "events without a row, or with too few"
_DOUBLED = "events with more than one row"
_UNNAMED = "rows that do not say of which event they are"
_TRANSFORMED = "events with more than one row, which a transformation may have made"


def numbered(rows: DataFrame) -> bool:
    """Return whether the rows carry the partition and the number of their event."""
    return {PARTITION, NUMBER} <= set(rows.columns)


def miscounted(rows: DataFrame, commits: DataFrame, *, replaced: str = "") -> list[DataFrame]:
    """Find a number of rows other than the commits wrote."""
    wrote = commits.select("commit", "rows").distinct().agg(F.sum("rows").alias("wrote"))
    frame = (
        rows.agg(F.count("*").alias("has"))
        .crossJoin(wrote)
        .withColumn("wrote", F.coalesce("wrote", F.lit(0)))
        .withColumn("partition", F.lit(""))
        .where("has != wrote")
    )
    fewer = F.col("has") < F.col("wrote")
    what = F.when(
        fewer, formatted("rows that are missing in the sink: %d", F.col("wrote") - F.col("has"))
    ).otherwise(
        formatted("rows in the sink that no commit wrote: %d", F.col("has") - F.col("wrote"))
    )
    evidence = formatted("it has %d, the commits wrote %d", "has", "wrote")
    return _by_level(frame, ROWS_COUNTED, what, evidence, fewer, replaced)


def findings(rows: DataFrame, commits: DataFrame, *, replaced: str = "") -> list[DataFrame]:
    """Find rows that contradict the commits, where rows are numbered: by partition and kind."""
    known, exact = F.col("times") > 0, F.col("exact")
    doubled = F.col("has") > F.col("times")
    kind = (
        F.when(F.col(NUMBER).isNull(), _UNNAMED)
        .when(~known, _STRAY)
        .when((F.col("has") < F.col("times")) & exact, _MISSING)
        .when(doubled & exact, _DOUBLED)
        .when(doubled, _TRANSFORMED)
    )
    unnamed, made = F.col("kind") == _UNNAMED, F.col("kind") == _TRANSFORMED
    by_kind = (
        compared(rows, commits)
        .withColumn("kind", kind)
        .where("kind is not null")
        .groupBy("partition", "kind")
        .agg(
            F.count("*").alias("events"),
            F.sum("has").alias("has"),
            F.min(NUMBER).alias("low"),
            F.max(NUMBER).alias("high"),
        )
    )
    what = formatted("%s: %d", "kind", F.when(unnamed, F.col("has")).otherwise(F.col("events")))
    evidence = F.when(unnamed, F.lit("they have no partition or no sequence_number")).otherwise(
        formatted("the first is event %d, the last event %d", "low", "high")
    )
    missing = F.col("kind") == _MISSING
    return [
        *_by_level(by_kind.where(~made), ROWS_ONCE, what, evidence, missing, replaced),
        findings_frame(by_kind.where(made), ROWS_ONCE, what, evidence, level=Level.UNKNOWN),
    ]


def _by_level(
    frame: DataFrame,
    claim: Claim,
    what: Column,
    evidence: Column,
    missing: Column,
    replaced: str,
) -> list[DataFrame]:
    """Return faults; what is ``missing`` is unknown if a row may have been replaced."""
    if not replaced:
        return [findings_frame(frame, claim, what, evidence)]
    why = formatted("%s; %s", evidence, F.lit(replaced))
    return [
        findings_frame(frame.where(~missing), claim, what, evidence),
        findings_frame(frame.where(missing), claim, what, why, level=Level.UNKNOWN),
    ]


def compared(rows: DataFrame, commits: DataFrame) -> DataFrame:
    """Count for each event how many rows it ``has`` and how many ``times`` it was committed.

    ``exact``: all its commits wrote one row for each event. Rows that do not name their event have
    no number.
    """
    partition = F.col(PARTITION).cast("string")
    events = commits.groupBy("commit").agg(F.sum(F.col("end") - F.col("start")).alias("events"))
    ranges = commits.join(events, "commit").where(F.col("end") > F.col("start"))
    expected = ranges.select(
        F.col("partition"),
        F.explode(F.sequence(F.col("start"), F.col("end") - 1)).alias(NUMBER),
        F.lit(1).alias("times"),
        (F.col("rows") == F.col("events")).alias("exact"),
        F.lit(0).alias("has"),
    )
    there = rows.select(
        F.coalesce(partition, F.lit("")).alias("partition"),
        F.when(partition.isNotNull(), F.col(NUMBER).cast("long")).alias(NUMBER),
        F.lit(0).alias("times"),
        F.lit(True).alias("exact"),
        F.lit(1).alias("has"),
    )
    # A union and one shuffle: cheaper than a full join of two aggregates.
    return (
        expected.unionByName(there)
        .groupBy("partition", NUMBER)
        .agg(
            F.sum("times").alias("times"),
            F.bool_and("exact").alias("exact"),
            F.sum("has").alias("has"),
        )
    )


_CARRIERS = ("properties", "body")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSnapshot:
    """A stream up to one point in time. ``numbered``: its events name their source event."""

    stream: str
    store: str
    ranges: tuple[Range, ...]
    numbered: bool

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows: with the event of each, or else only as many as there are."""
        columns = _CARRIERS if self.numbered else ("offset",)
        frames = BatchFrames(spark, f"log:{self.stream}", self.store, columns=columns)
        frame = frames.of(self.ranges) if any(map(len, self.ranges)) else frames.empty()
        if not self.numbered:
            return frame
        return frame.select(
            _carried_value(PARTITION).alias(PARTITION),
            _carried_value(NUMBER).cast("long").alias(NUMBER),
        )


def stream_snapshot(stream: str, store: str) -> StreamSnapshot:
    """Return the stream as it is now. What was committed before is in it."""
    _check_published(stream, store)
    source = open_ranges(stream, store_url=store, name="audit")
    try:
        ends = source.ends(source.partitions())
    finally:
        source.close()
    removed = sum(each.first for each in ends.values())
    if removed:
        raise Trimmed(
            f"retention has removed {removed:,} events of {stream!r}, and with them rows of the "
            "sink: audit before it does so, or keep them longer",
            earliest=max(each.first for each in ends.values()),
        )
    ranges = tuple(
        Range(partition=part, start=each.first, end=each.next) for part, each in ends.items()
    )
    firsts = [
        Range(partition=each.partition, start=each.start, end=each.start + 1)
        for each in ranges
        if len(each)
    ]
    numbered = any(
        names_its_event(row["properties"], row["body"])
        for batch in read_events(f"log:{stream}", store, firsts, _CARRIERS)
        for row in batch.to_pylist()
    )
    return StreamSnapshot(stream=stream, store=store, ranges=ranges, numbered=numbered)


def names_its_event(
    properties: Mapping[str, str] | list[tuple[str, str]] | None, body: bytes
) -> bool:
    """Return whether an event of a log sink names its source event."""
    carried = dict(properties or {})
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        decoded = None
    if isinstance(decoded, dict):
        carried = decoded | carried
    return all(carried.get(name) is not None for name in (PARTITION, NUMBER))


def _carried_value(name: str) -> Column:
    """Return what an event carries under ``name``; null if nothing."""
    in_body = F.get_json_object(F.col("body").cast("string"), f"$.{name}")
    return F.coalesce(F.col("properties").getItem(name), in_body)


def _check_published(stream: str, store: str) -> None:
    """Refuse to count while a batch is being published: readers see a part of it."""
    ledger = PublicationLedger.open(store, clock=SystemClock())
    try:
        left = ledger.unpublished_files(stream)
    finally:
        ledger.close()
    if left:
        raise StoreUnavailable(
            f"a batch for {stream!r} is committed and not published yet: wait until its driver is "
            "done, or start a driver, which publishes it; then audit again"
        )


Task: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_COLUMNS = "partition string, sequence_number bigint"
_ARROW = pa.schema([(PARTITION, pa.string()), (NUMBER, pa.int64())])
_CHUNK_ROWS = 50_000
_TASK_PAGES = 8192  # 64 MiB
_AFTER_LAST_ROW = "(4294967294,65535)"  # after every possible row
_LOCK_TIMEOUT_MS = 5000
_NO_PRIVILEGE = "42501"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A table at one point in time; it lasts as long as the stack it was opened with.

    Attributes:
        columns: the names of its columns.
        keys: the columns of each index by which a row could replace another one.
        pages: how many pages it had; None if it is not one plain table.
    """

    address: DatabaseAddress
    schema: str
    name: str
    snapshot: str
    columns: frozenset[str]
    keys: tuple[tuple[str, ...], ...]
    pages: int | None
    connection: Connection

    @property
    def numbered(self) -> bool:
        """Whether the rows carry the partition and the number of their event."""
        return {PARTITION, NUMBER} <= self.columns

    @property
    def replaced(self) -> str:
        """Why rows may rightly be fewer than were written; empty if they may not.

        A key that holds the event keeps the rows of different events apart.
        """
        for key in self.keys:
            if not {PARTITION, NUMBER} <= set(key):
                return (
                    f"the table has a unique key ({', '.join(key)}): a later row may have taken "
                    "the place of an earlier one"
                )
        return ""

    def count(self) -> int:
        """Return how many rows there are."""
        statement = _composed("count", table=identifier(self.schema, self.name))
        with _database_errors(self.address, self.name):
            row = self.connection.execute(statement).fetchone()
        return int(row[0]) if row else 0

    def page_ranges(self, task_pages: int = _TASK_PAGES) -> list[tuple[str, str] | None]:
        """Return the range of rows that each task reads; None: all of them."""
        if self.pages is None:
            return [None]
        cuts = [f"({page},0)" for page in range(0, max(self.pages, 1), task_pages)]
        return list(zip(cuts, [*cuts[1:], _AFTER_LAST_ROW], strict=True))

    def reader(self, page_ranges: list[tuple[str, str] | None]) -> Task:
        """Return the function that runs on the executors, over the numbers of the page ranges."""
        address, schema, name, snapshot = self.address, self.schema, self.name, self.snapshot

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from _read_pages(address, (schema, name), snapshot, page_ranges[number])

        return read

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows: with the event of each, or else only as many as there are."""
        if not self.numbered:
            return spark.range(self.count())
        page_ranges = self.page_ranges()
        numbers = spark.range(0, len(page_ranges), 1, len(page_ranges))
        return numbers.mapInArrow(self.reader(page_ranges), _COLUMNS)


def table_snapshot(
    address: DatabaseAddress, schema: str, name: str, *, until: ExitStack
) -> TableSnapshot:
    """Return the table as it is now, until ``until`` is closed."""
    written = sql.Identifier(schema, name).as_string(None)
    with _database_errors(address, name):
        connection = _begin(address, until)
        snapshot = connection.execute(_queries()["snapshot_export"]).fetchone()
        shape = connection.execute(_queries()["shape"], {"written": written}).fetchone()
        if shape is None or snapshot is None:
            raise UnknownResource(
                f"there is no table {written} at {address.where}: it was dropped or renamed, or "
                "the user may not use its schema"
            )
        connection.execute(_composed("probe", table=identifier(schema, name)))
        keys = connection.execute(_queries()["keys"], {"written": written}).fetchall()
    return TableSnapshot(
        address=address,
        schema=schema,
        name=name,
        snapshot=snapshot[0],
        columns=frozenset(shape[1]),
        keys=tuple(tuple(key) for (key,) in keys),
        pages=shape[0],
        connection=connection,
    )


def _read_pages(
    address: DatabaseAddress, table: tuple[str, str], snapshot: str, pages: tuple[str, str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range of pages, in the snapshot, a chunk at a time."""
    names = {
        "table": identifier(*table),
        "partition": identifier(PARTITION),
        "number": identifier(NUMBER),
    }
    with ExitStack() as stack, _database_errors(address, table[1]):
        connection = _begin(address, stack, snapshot)
        cursor = stack.enter_context(connection.cursor(name="leasehold_audit"))
        if pages is None:
            cursor.execute(_composed("rows", **names))
        else:
            cursor.execute(_composed("rows_of_pages", **names), {"low": pages[0], "high": pages[1]})
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            arrays = zip(*rows, strict=True)
            columns = [
                pa.array(each, field.type) for each, field in zip(arrays, _ARROW, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _begin(address: DatabaseAddress, until: ExitStack, snapshot: str = "") -> Connection:
    """Return a connection in a transaction that only reads; closing it ends both."""
    connection = connected(address)
    until.callback(connection.close)
    connection.execute(_queries()["begin"])
    if snapshot:  # before anything else is asked in it
        connection.execute(_composed("snapshot_import", snapshot=sql.Literal(snapshot)))
    connection.execute(_queries()["session"], {"lock_timeout_ms": _LOCK_TIMEOUT_MS})
    return connection


@contextmanager
def _database_errors(address: DatabaseAddress, table: str) -> Iterator[None]:
    """Translate the errors of the PostgreSQL driver."""
    try:
        yield
    except psycopg.Error as error:
        raise _to_leasehold_error(error, address, table) from error


def _to_leasehold_error(
    error: psycopg.Error, address: DatabaseAddress, table: str
) -> LeaseholdError:
    if error.sqlstate != _NO_PRIVILEGE:
        return to_store_error(error, address)
    message = error.diag.message_primary or "permission denied"
    return StoreUnusable(
        f"PostgreSQL at {address.where} does not let all rows of {table} be read: {message}; audit "
        "as a user who has the right to read it, and from whom no policy hides rows"
    )


def _composed(name: str, /, **parts: sql.Composable) -> sql.Composed:
    return sql.SQL(_queries()[name].decode()).format(**parts)


@cache
def _queries() -> Mapping[str, bytes]:
    text = files(__package__).joinpath("table_rows.sql").read_text(encoding="utf-8")
    return {name: translated(query) for name, query in named_queries(text).items()}


_EXAMPLES = "delta:PATH, parquet:PATH, postgresql://host/database#TABLE or log:STREAM"
_DIRECTORIES = {"delta": ("Delta table", DELTA), "parquet": ("Parquet sink", PARQUET)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a sink. ``replaced``: why they may rightly be fewer than were written."""

    frame: DataFrame
    replaced: str = ""


def sink_of(text: str, *, store: str) -> Sink:
    """Return the sink that the text names; nothing is opened. ``store`` is that of the group."""
    kind, _, place = text.partition(":")
    if kind in ("postgres", "postgresql"):
        url, mark, table = text.rpartition("#")  # a password may have one in it, too
        if not mark or not table:
            raise UsageError(f"{kind}: names no table: write postgresql://host/database#TABLE")
        return _make_sink("PostgresSink", url, table)
    if not place:
        raise UsageError(f"{kind!r} names no sink: write {_EXAMPLES}")
    if kind == "delta":
        return _make_sink("DeltaSink", place)
    if kind == "parquet":
        return _make_sink("ParquetSink", place, store=store)
    if kind == "log":
        return _make_sink("LogSink", place, store=store)
    # The rest of a URL may hold a password.
    raise UsageError(f"{kind!r} is no kind of sink: write {_EXAMPLES}")


def missing_sink(sink: Sink) -> UnknownResource | None:
    """Return the error for a sink that was never written to; None if it may have been.

    Only directories of this machine are checked, and nothing is opened.
    """
    kind, _, place = sink.name.partition(":")
    if kind not in _DIRECTORIES or "://" in place:
        return None
    what, marks = _DIRECTORIES[kind]
    try:
        if contains_sink(Path(place), marks):
            return None
    except OSError:
        return None  # reported when the sink is opened
    return UnknownResource(
        f"there is no {what} at {place}: look at the path; a pipeline makes it when it starts"
    )


def open_to_read(sink: Sink, spark: SparkSession) -> None:
    """Open a sink for ``commits`` alone, in its own way if it has one: it changes nothing then."""
    opening = getattr(sink, "open_to_read", None)
    if opening is None:
        sink.open(spark)
    else:
        opening()


def rows_of(sink: Sink, spark: SparkSession, *, store: str, until: ExitStack) -> Rows | None:
    """Return the rows that readers of the sink see now; None if it is not one that can be read so.

    The sink is open. A sink with a method ``read(spark)`` is asked itself. The rows can be read
    until ``until`` is closed.
    """
    kind, _, place = sink.name.partition(":")
    read = getattr(sink, "read", None)
    if read is None and kind == "postgres":
        return _table_rows(cast("PostgresSink", sink), spark, until)
    frame: DataFrame | None
    if read is not None:
        frame = cast("DataFrame", read(spark))
    elif kind == "delta":
        frame = _delta_rows(spark, place)
    elif kind == "parquet":
        frame = _parquet_rows(spark, place, store)
    elif kind == "log":
        frame = _stream_rows(cast("LogSink", sink), spark)
    else:
        return None
    return Rows(frame=frame) if frame is not None else None


def _table_rows(sink: PostgresSink, spark: SparkSession, until: ExitStack) -> Rows:

    address, table = sink._address, sink._table  # noqa: SLF001 - with its password
    moment = table_snapshot(address, table.schema, table.name, until=until)
    return Rows(frame=moment.frame(spark), replaced=moment.replaced)


def _stream_rows(sink: LogSink, spark: SparkSession) -> DataFrame:

    return stream_snapshot(sink.stream, sink.store).frame(spark)


def _delta_rows(spark: SparkSession, place: str) -> DataFrame | None:
    """Return those of the newest version; what is committed later is not in it."""
    from leasehold.spark.sinks.delta.table_log import read_delta  # noqa: PLC0415

    try:
        return read_delta(spark, place)
    except UsageError:
        return None  # nothing was ever committed, or it needs Delta's own reader


def _parquet_rows(spark: SparkSession, place: str, store: str) -> DataFrame | None:
    from leasehold.spark.sinks.parquet.sink import read_parquet  # noqa: PLC0415

    try:
        return read_parquet(spark, place, store)
    except UsageError:
        return None  # nothing was ever committed


def _make_sink(name: str, *arguments: str, **named: str) -> Sink:
    try:
        made = getattr(spark_names, name)(*arguments, **named)
    except ImportError as error:
        raise UsageError(
            f"{error}; a PostgreSQL table also needs pip install 'leasehold[postgres]'"
        ) from error
    return cast("Sink", made)
