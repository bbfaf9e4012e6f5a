"""Sinks by name, as people write them in a command, and the rows that are in one.

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

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import leasehold.spark as spark_names
from leasehold.errors import UnknownResource, UsageError
from leasehold.spark.sinks.directory import DELTA, PARQUET, lies_in

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.sinks.log import LogSink
    from leasehold.spark.sinks.port import Sink
    from leasehold.spark.sinks.postgres.sink import PostgresSink

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
    from leasehold.spark.audit.table_rows import table_moment  # noqa: PLC0415

    address, table = sink._address, sink._table  # noqa: SLF001 - with its password
    moment = table_moment(address, table.schema, table.name, until=until)
    return Rows(frame=moment.frame(spark), replaced=moment.replaced)


def _stream_rows(sink: LogSink, spark: SparkSession) -> DataFrame:
    from leasehold.spark.audit.stream_rows import stream_moment  # noqa: PLC0415

    return stream_moment(sink.stream, sink.store).frame(spark)


def _delta_rows(spark: SparkSession, place: str) -> DataFrame | None:
    """Those of the newest version; what is committed later is not in it."""
    from leasehold.spark.sinks.delta.reading import read_delta  # noqa: PLC0415

    try:
        return read_delta(spark, place)
    except UsageError:
        return None  # nothing was ever committed, or it needs Delta's own reader


def _parquet_rows(spark: SparkSession, place: str, store: str) -> DataFrame | None:
    from leasehold.spark.sinks.parquet.sink import read_committed  # noqa: PLC0415

    try:
        return read_committed(spark, place, store)
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
