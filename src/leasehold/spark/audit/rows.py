"""Rows of the sink: as many as the commits wrote, and of each event as many as its commits have.

A commit whose output has as many rows as it had events is taken as one row for each event. Where a
transformation filters, joins or sums up, nobody can tell which rows there should be: then the
number of the rows stands for them. Where a row may take the place of another (``replaced`` says
why), a row that is not there speaks against nothing: it is unknown.

The rows of a log sink as an audit sees them: the events of its stream, up to one moment.

The numbers of these events are those of the stream they were written to. Of which event of the
source one was made it says itself, where it does: in its properties ``partition`` and
``sequence_number``, or in the fields of these names in a body of JSON.

The rows of a PostgreSQL table as an audit sees them: all of one moment, and nothing is changed.

The driver holds a snapshot of the database, and the tasks read pages of the table in it: so they
see what the driver saw, whatever is committed meanwhile. Where the rows carry no event only their
number is asked for. No password is ever part of an error.

Sinks by name, as people write them in a command, and the rows that are in one.

======================================  ==========================================================
written                                 sink
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
from leasehold.spark.audit.claims import ROWS_COUNTED, ROWS_ONCE, found, words
from leasehold.spark.audit.report import Level
from leasehold.spark.log_writer.publication_ledger import PublicationLedger
from leasehold.spark.pipeline.planning import BatchFrames
from leasehold.spark.ranges import Range
from leasehold.spark.reading import events
from leasehold.spark.sinks.directory import DELTA, PARQUET, lies_in
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
_MADE = "events with more than one row, which a transformation may have made"


def numbered(rows: DataFrame) -> bool:
    """Whether the rows carry the partition and the number of their event."""
    return {PARTITION, NUMBER} <= set(rows.columns)


def miscounted(rows: DataFrame, commits: DataFrame, *, replaced: str = "") -> list[DataFrame]:
    """Another number of rows than the commits wrote."""
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
        fewer, words("rows that are missing in the sink: %d", F.col("wrote") - F.col("has"))
    ).otherwise(words("rows in the sink that no commit wrote: %d", F.col("has") - F.col("wrote")))
    evidence = words("it has %d, the commits wrote %d", "has", "wrote")
    return _by_level(frame, ROWS_COUNTED, what, evidence, fewer, replaced)


def findings(rows: DataFrame, commits: DataFrame, *, replaced: str = "") -> list[DataFrame]:
    """All that speaks against the rows, where they are numbered: by partition and kind."""
    known, exact = F.col("times") > 0, F.col("exact")
    doubled = F.col("has") > F.col("times")
    kind = (
        F.when(F.col(NUMBER).isNull(), _UNNAMED)
        .when(~known, _STRAY)
        .when((F.col("has") < F.col("times")) & exact, _MISSING)
        .when(doubled & exact, _DOUBLED)
        .when(doubled, _MADE)
    )
    unnamed, made = F.col("kind") == _UNNAMED, F.col("kind") == _MADE
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
    what = words("%s: %d", "kind", F.when(unnamed, F.col("has")).otherwise(F.col("events")))
    evidence = F.when(unnamed, F.lit("they have no partition or no sequence_number")).otherwise(
        words("the first is event %d, the last event %d", "low", "high")
    )
    missing = F.col("kind") == _MISSING
    return [
        *_by_level(by_kind.where(~made), ROWS_ONCE, what, evidence, missing, replaced),
        found(by_kind.where(made), ROWS_ONCE, what, evidence, level=Level.UNKNOWN),
    ]


def _by_level(
    frame: DataFrame, claim: Claim, what: Column, evidence: Column, missing: Column, replaced: str
) -> list[DataFrame]:
    """Faults; what is ``missing`` is unknown if a row may have been replaced."""
    if not replaced:
        return [found(frame, claim, what, evidence)]
    why = words("%s; %s", evidence, F.lit(replaced))
    return [
        found(frame.where(~missing), claim, what, evidence),
        found(frame.where(missing), claim, what, why, level=Level.UNKNOWN),
    ]


def compared(rows: DataFrame, commits: DataFrame) -> DataFrame:
    """For each event: how many rows it ``has``, how many ``times`` it was committed.

    ``exact``: all its commits wrote one row for each event. Rows that do not say of which event
    they are have no number.
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
class StreamMoment:
    """A stream up to one moment. ``numbered``: its events say of which event they were made."""

    stream: str
    store: str
    ranges: tuple[Range, ...]
    numbered: bool

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows: with the event of each, or else only as many as there are."""
        columns = _CARRIERS if self.numbered else ("offset",)
        frames = BatchFrames(spark, f"log:{self.stream}", self.store, columns=columns)
        frame = frames.of(self.ranges) if any(map(len, self.ranges)) else frames.none()
        if not self.numbered:
            return frame
        return frame.select(
            _said(PARTITION).alias(PARTITION), _said(NUMBER).cast("long").alias(NUMBER)
        )


def stream_moment(stream: str, store: str) -> StreamMoment:
    """The stream as it is now. What was committed before is in it.

    Raises:
        StoreUnavailable: a batch is committed and not published yet.
        Trimmed: retention has removed events, so nobody can tell which there were.
        UnknownStream, StoreUnusable, DataDamaged, VolumeUnusable: it can not be read.
    """
    _check_published(stream, store)
    source = open_ranges(stream, store_url=store, name="audit")
    try:
        ends = source.ends(source.partitions())
    finally:
        source.close()
    gone = sum(each.first for each in ends.values())
    if gone:
        raise Trimmed(
            f"retention has removed {gone:,} events of {stream!r}, and with them rows of the sink: "
            "audit before it does so, or keep them longer",
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
        tells_its_event(row["properties"], row["body"])
        for batch in events(f"log:{stream}", store, firsts, _CARRIERS)
        for row in batch.to_pylist()
    )
    return StreamMoment(stream=stream, store=store, ranges=ranges, numbered=numbered)


def tells_its_event(
    properties: Mapping[str, str] | list[tuple[str, str]] | None, body: bytes
) -> bool:
    """Whether an event of a log sink says of which event it was made."""
    found = dict(properties or {})
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        decoded = None
    if isinstance(decoded, dict):
        found = decoded | found
    return all(found.get(name) is not None for name in (PARTITION, NUMBER))


def _said(name: str) -> Column:
    """What an event says of ``name``; null if nothing."""
    in_body = F.get_json_object(F.col("body").cast("string"), f"$.{name}")
    return F.coalesce(F.col("properties").getItem(name), in_body)


def _check_published(stream: str, store: str) -> None:
    """Readers see a part of a batch while it is published: that is no moment to count."""
    book = PublicationLedger.open(store, clock=SystemClock())
    try:
        left = book.files_left(stream)
    finally:
        book.close()
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
_BEYOND = "(4294967294,65535)"  # no row lies further on
_PATIENCE_MS = 5000
_NO_RIGHT = "42501"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMoment:
    """A table at one moment, which lasts as long as the stack it was opened with.

    Attributes:
        columns: the names of its columns.
        keys: the columns of each index by which a row could take the place of another.
        pages: how many it had; None if it is not one table in one piece.
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
        """How many rows there are."""
        statement = _composed("count", table=identifier(self.schema, self.name))
        with _told(self.address, self.name):
            row = self.connection.execute(statement).fetchone()
        return int(row[0]) if row else 0

    def shares(self, task_pages: int = _TASK_PAGES) -> list[tuple[str, str] | None]:
        """What each task reads: between two places of the table; None: all of it."""
        if self.pages is None:
            return [None]
        cuts = [f"({page},0)" for page in range(0, max(self.pages, 1), task_pages)]
        return list(zip(cuts, [*cuts[1:], _BEYOND], strict=True))

    def reader(self, shares: list[tuple[str, str] | None]) -> Task:
        """What runs on the executors, over the numbers of the shares."""
        address, schema, name, snapshot = self.address, self.schema, self.name, self.snapshot

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from _share(address, (schema, name), snapshot, shares[number])

        return read

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows: with the event of each, or else only as many as there are."""
        if not self.numbered:
            return spark.range(self.count())
        shares = self.shares()
        numbers = spark.range(0, len(shares), 1, len(shares))
        return numbers.mapInArrow(self.reader(shares), _COLUMNS)


def table_moment(
    address: DatabaseAddress, schema: str, name: str, *, until: ExitStack
) -> TableMoment:
    """The table as it is now. ``until`` lets it go.

    Raises:
        UnknownResource: there is no such table.
        StoreUnusable: the user may not read it, or not all of its rows.
        StoreUnavailable: there is no answer.
    """
    written = sql.Identifier(schema, name).as_string(None)
    with _told(address, name):
        connection = _begun(address, until)
        snapshot = connection.execute(_queries()["snapshot_export"]).fetchone()
        shape = connection.execute(_queries()["shape"], {"written": written}).fetchone()
        if shape is None or snapshot is None:
            raise UnknownResource(
                f"there is no table {written} at {address.where}: it was dropped or renamed, or "
                "the user may not use its schema"
            )
        connection.execute(_composed("probe", table=identifier(schema, name)))
        keys = connection.execute(_queries()["keys"], {"written": written}).fetchall()
    return TableMoment(
        address=address,
        schema=schema,
        name=name,
        snapshot=snapshot[0],
        columns=frozenset(shape[1]),
        keys=tuple(tuple(key) for (key,) in keys),
        pages=shape[0],
        connection=connection,
    )


def _share(
    address: DatabaseAddress, table: tuple[str, str], snapshot: str, share: tuple[str, str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one share, in the snapshot, a chunk at a time."""
    names = {
        "table": identifier(*table),
        "partition": identifier(PARTITION),
        "number": identifier(NUMBER),
    }
    with ExitStack() as stack, _told(address, table[1]):
        connection = _begun(address, stack, snapshot)
        cursor = stack.enter_context(connection.cursor(name="leasehold_audit"))
        if share is None:
            cursor.execute(_composed("rows", **names))
        else:
            cursor.execute(_composed("rows_of_pages", **names), {"low": share[0], "high": share[1]})
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            arrays = zip(*rows, strict=True)
            columns = [
                pa.array(each, field.type) for each, field in zip(arrays, _ARROW, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _begun(address: DatabaseAddress, until: ExitStack, snapshot: str = "") -> Connection:
    """A connection in a transaction that only reads; closing it ends both."""
    connection = connected(address)
    until.callback(connection.close)
    connection.execute(_queries()["begin"])
    if snapshot:  # before anything else is asked in it
        connection.execute(_composed("snapshot_import", snapshot=sql.Literal(snapshot)))
    connection.execute(_queries()["session"], {"patience_ms": _PATIENCE_MS})
    return connection


@contextmanager
def _told(address: DatabaseAddress, table: str) -> Iterator[None]:
    """What the driver raises, in our words."""
    try:
        yield
    except psycopg.Error as error:
        raise _meaning(error, address, table) from error


def _meaning(error: psycopg.Error, address: DatabaseAddress, table: str) -> LeaseholdError:
    if error.sqlstate != _NO_RIGHT:
        return to_store_error(error, address)
    words = error.diag.message_primary or "permission denied"
    return StoreUnusable(
        f"PostgreSQL at {address.where} does not let all rows of {table} be read: {words}; audit "
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


def target(text: str, *, store: str) -> Sink:
    """The sink that the text names; nothing is opened. ``store`` is that of the group.

    Raises:
        UsageError: it names none, or what it needs is not installed.
    """
    kind, _, place = text.partition(":")
    if kind in ("postgres", "postgresql"):
        url, mark, table = text.rpartition("#")  # a password may have one in it, too
        if not mark or not table:
            raise UsageError(f"{kind}: names no table: write postgresql://host/database#TABLE")
        return _made("PostgresSink", url, table)
    if not place:
        raise UsageError(f"{kind!r} names no sink: write {_EXAMPLES}")
    if kind == "delta":
        return _made("DeltaSink", place)
    if kind == "parquet":
        return _made("ParquetSink", place, store=store)
    if kind == "log":
        return _made("LogSink", place, store=store)
    # The rest of what looks like a URL may hold a password.
    raise UsageError(f"{kind!r} is no kind of sink: write {_EXAMPLES}")


def missing(sink: Sink) -> UnknownResource | None:
    """The error to raise if nobody has ever written there; None if somebody has, or may have.

    Only directories of this machine are looked at, and nothing is opened.
    """
    kind, _, place = sink.name.partition(":")
    if kind not in _DIRECTORIES or "://" in place:
        return None
    what, marks = _DIRECTORIES[kind]
    try:
        if lies_in(Path(place), marks):
            return None
    except OSError:
        return None  # it is told when the sink is opened
    return UnknownResource(
        f"there is no {what} at {place}: look at the path; a pipeline makes it when it starts"
    )


def open_to_read(sink: Sink, spark: SparkSession) -> None:
    """Open a sink for ``commits`` alone, in its own way if it has one: it changes nothing then.

    Raises:
        UnknownResource: nobody has ever written there.
        SinkUnfit, SinkChanged, StoreUnavailable: it can not be opened.
    """
    opening = getattr(sink, "open_to_read", None)
    if opening is None:
        sink.open(spark)
    else:
        opening()


def rows_of(sink: Sink, spark: SparkSession, *, store: str, until: ExitStack) -> Rows | None:
    """The rows that readers of the sink see now; None if it is not one that can be read so.

    The sink is open. A sink with a method ``read(spark)`` is asked itself. The rows can be read
    until ``until`` is closed.

    Raises:
        UnknownResource: what the sink writes to is not there, or not any more.
        LeaseholdError, OSError: it can be read, and could not be.
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
    moment = table_moment(address, table.schema, table.name, until=until)
    return Rows(frame=moment.frame(spark), replaced=moment.replaced)


def _stream_rows(sink: LogSink, spark: SparkSession) -> DataFrame:

    return stream_moment(sink.stream, sink.store).frame(spark)


def _delta_rows(spark: SparkSession, place: str) -> DataFrame | None:
    """Those of the newest version; what is committed later is not in it."""
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


def _made(name: str, *words: str, **named: str) -> Sink:
    try:
        made = getattr(spark_names, name)(*words, **named)
    except ImportError as error:
        raise UsageError(
            f"{error}; a PostgreSQL table also needs pip install 'leasehold[postgres]'"
        ) from error
    return cast("Sink", made)
