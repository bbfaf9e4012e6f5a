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

from importlib import import_module
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.sinks.port import Sink

_EXAMPLES = "delta:PATH, parquet:PATH, postgresql://host/database#TABLE or log:STREAM"


def target(text: str, *, store: str) -> Sink:
    """The sink that the text names; nothing is opened. ``store`` is that of the group.

    Raises:
        UsageError: it names none, or what it needs is not installed.
    """
    kind, _, place = text.partition(":")
    if kind in ("postgres", "postgresql"):
        url, _, table = text.partition("#")
        if not table:
            raise UsageError(f"{kind}: names no table: write postgresql://host/database#TABLE")
        return _made("postgres", "PostgresSink", url, table)
    if not place:
        raise UsageError(f"{text!r} names no sink: write {_EXAMPLES}")
    if kind == "delta":
        return _made("delta", "DeltaSink", place)
    if kind == "parquet":
        return _made("parquet", "ParquetSink", place, store=store)
    if kind == "log":
        return _made("log", "LogSink", place, store=store)
    raise UsageError(f"{text!r} names no sink: write {_EXAMPLES}")


def rows_of(sink: Sink, spark: SparkSession, *, store: str) -> DataFrame | None:
    """The rows that readers of the sink see now; None if it is not one that can be read so.

    A sink with a method ``read(spark)`` is asked itself.

    Raises:
        LeaseholdError, OSError: it can be read, and could not be.
    """
    read = getattr(sink, "read", None)
    if read is not None:
        return cast("DataFrame", read(spark))
    kind, _, place = sink.name.partition(":")
    if kind == "delta":
        return _delta_rows(spark, place)
    return _parquet_rows(spark, place, store) if kind == "parquet" else None


def _delta_rows(spark: SparkSession, place: str) -> DataFrame | None:
    """The files of the newest version; what is committed later is not in it."""
    from deltalake import DeltaTable  # noqa: PLC0415 - only those with such a sink need it
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        if not DeltaTable.is_deltatable(place):
            return None
        table = DeltaTable(place)
        files = table.file_uris()
    except DeltaError as error:
        raise OSError(f"{place} can not be read as a Delta table: {error}") from error
    if not files:
        empty = pa.schema(table.schema().to_arrow()).empty_table()
        return spark.createDataFrame(empty)
    # Columns that the table is cut by are in the names of the directories.
    reader = spark.read.option("basePath", _uri(place))
    return reader.parquet(*map(_uri, files))


def _parquet_rows(spark: SparkSession, place: str, store: str) -> DataFrame | None:
    from leasehold.spark.sinks.parquet.sink import read_committed  # noqa: PLC0415

    try:
        return read_committed(spark, place, store)
    except UsageError:
        return None  # nothing was ever committed


def _uri(path: str) -> str:
    """A path of this machine as one, whatever Spark's own file system is."""
    return path if "://" in path else f"file://{path}"


def _made(module: str, name: str, *words: str, **named: str) -> Sink:
    try:
        made = getattr(import_module(f"leasehold.spark.sinks.{module}"), name)(*words, **named)
    except ImportError as error:
        raise UsageError(
            f"this sink needs the package {error.name!r}: pip install 'leasehold[spark]', and "
            "'leasehold[postgres]' for PostgreSQL"
        ) from error
    return cast("Sink", made)
