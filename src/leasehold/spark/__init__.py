"""Spark: events as DataFrames, and pipelines on several drivers that write each row once.

Three ways to use it, from the smallest to the largest::

    spark.read / readStream / write / writeStream .format("leasehold")        any Spark program
    standby(build, name=…, checkpoint_location=…)       one of several drivers runs a query
    Pipeline(spark, source, store, group)…run()         several drivers share a stream

**A pipeline** is a loop in the driver. The leases are kept in a separate thread, by the same
``Member`` that processors use::

    owned partitions ─> ranges ─> DataFrame ─> the user's function ─> stage ─┐  (Spark job)
          ^                                                                  v
          └── positions <── checkpoint <── commit: rows and positions in one step

A batch is staged while the previous one is committed. The sink, not the lease, makes the output
exactly once:

1. A driver that acquires a partition first *fences* the sink with its epoch, then reads the sink's
   position. From then on no former owner can commit, however long it was paused.
2. A commit carries, for each partition, the epoch and the start and end of its range. The sink
   accepts it only if no epoch is newer and each position is where the range starts; rows and
   positions change together.
3. The store's checkpoint is written afterwards, for operators, lags and retention. Where the two
   differ, the sink is right (``core.resume_position``).

A partition is handed over when no batch that reads it is in progress, so a graceful move repeats
nothing. The lease only decides which driver works; if it ends during a batch, only that work is
wasted.

=================  ========================================================================
module             holds
=================  ========================================================================
``sessions``       a session with the settings that matter, and a Java to run it on
``source``         the data source; ``schema``, ``reading``: events in Spark's format
``pipeline``       ``engine``: the loop, and the takeover: fence, then resume;
                   ``owned_partitions``: the lease; ``planning``: what a batch reads;
                   ``staging``: the user's function and its failures; ``committing``: the
                   last step
``sinks``          the contract (``port``), Delta, PostgreSQL, Parquet, log, a function
``log_writer``     publication of batches in the log, all or nothing
``standby_query``  standby drivers of a Structured Streaming query, and their fences
``audit``          proves from history, log and sink what happened
``demo``           the main use case, with real faults
=================  ========================================================================

Everything here needs ``pip install 'leasehold[spark]'``; names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.core.poison_policy import PoisonPolicy
    from leasehold.processor.options import OnTrimmed
    from leasehold.spark.pipeline.events import PipelineCounts
    from leasehold.spark.pipeline.options import PipelineOptions
    from leasehold.spark.pipeline.pipeline import Pipeline
    from leasehold.spark.sessions import session
    from leasehold.spark.sinks.delta.sink import DeltaSink
    from leasehold.spark.sinks.delta.table_log import read_delta
    from leasehold.spark.sinks.foreach import ForeachSink, noop_sink
    from leasehold.spark.sinks.log import LogSink
    from leasehold.spark.sinks.parquet.sink import ParquetSink, committed_files, read_parquet
    from leasehold.spark.sinks.port import (
        Batch,
        BatchPart,
        Commit,
        Sink,
        SinkPosition,
        Staged,
        Written,
    )
    from leasehold.spark.sinks.postgres.sink import PostgresSink
    from leasehold.spark.source import register
    from leasehold.spark.standby_query import standby
    from leasehold.spark.standby_query.events import StandbyChanged
    from leasehold.spark.standby_query.fence import Fence

__all__ = [
    "Batch",
    "BatchPart",
    "Commit",
    "DeltaSink",
    "Fence",
    "ForeachSink",
    "LogSink",
    "OnTrimmed",
    "ParquetSink",
    "Pipeline",
    "PipelineCounts",
    "PipelineOptions",
    "PoisonPolicy",
    "PostgresSink",
    "Sink",
    "SinkPosition",
    "Staged",
    "StandbyChanged",
    "Written",
    "committed_files",
    "noop_sink",
    "read_delta",
    "read_parquet",
    "register",
    "session",
    "standby",
]

_HOMES = {
    "Batch": "leasehold.spark.sinks.port",
    "Commit": "leasehold.spark.sinks.port",
    "DeltaSink": "leasehold.spark.sinks.delta.sink",
    "Fence": "leasehold.spark.standby_query.fence",
    "ForeachSink": "leasehold.spark.sinks.foreach",
    "LogSink": "leasehold.spark.sinks.log",
    "OnTrimmed": "leasehold.processor.options",
    "ParquetSink": "leasehold.spark.sinks.parquet.sink",
    "Pipeline": "leasehold.spark.pipeline.pipeline",
    "PipelineOptions": "leasehold.spark.pipeline.options",
    "PoisonPolicy": "leasehold.core.poison_policy",
    "PostgresSink": "leasehold.spark.sinks.postgres.sink",
    "BatchPart": "leasehold.spark.sinks.port",
    "Sink": "leasehold.spark.sinks.port",
    "Staged": "leasehold.spark.sinks.port",
    "StandbyChanged": "leasehold.spark.standby_query.events",
    "SinkPosition": "leasehold.spark.sinks.port",
    "PipelineCounts": "leasehold.spark.pipeline.events",
    "Written": "leasehold.spark.sinks.port",
    "committed_files": "leasehold.spark.sinks.parquet.sink",
    "noop_sink": "leasehold.spark.sinks.foreach",
    "read_parquet": "leasehold.spark.sinks.parquet.sink",
    "read_delta": "leasehold.spark.sinks.delta.table_log",
    "register": "leasehold.spark.source",
    "session": "leasehold.spark.sessions",
    "standby": "leasehold.spark.standby_query",
}


def __getattr__(name: str) -> object:
    """Load an exported name on first use.

    Raises:
        ImportError: Spark is not installed; the message gives the command to install it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("leasehold"):
            raise
        raise ImportError(
            f"leasehold.spark needs the package {error.name!r}: pip install 'leasehold[spark]'"
        ) from error
