"""Gather the material of an audit and judge it: the only part that reads store, sink and log.

The order of reads matters while a group is running: checkpoints before commits, commits before
terms, and the ends of the log last. Whatever is read later then includes all that was needed for
what was read before.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import anyio

from leasehold.clock import SystemClock
from leasehold.errors import (
    LeaseholdError,
    StoreError,
    Trimmed,
    UnknownResource,
    UnknownStream,
    UsageError,
)
from leasehold.events.source_urls import open_ranges
from leasehold.names import last_part, partition_group, partition_key
from leasehold.spark.audit.judge import judge
from leasehold.spark.audit.report import AuditMaterial
from leasehold.spark.audit.rows import missing_sink, open_to_read, rows_of
from leasehold.spark.pipeline.planning import BatchFrames
from leasehold.spark.reading import Range
from leasehold.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.clock import Clock
    from leasehold.events.source import PartitionEnds, RangeSource
    from leasehold.model import Checkpoint, Term
    from leasehold.spark.audit.report import Audit
    from leasehold.spark.audit.rows import Rows
    from leasehold.spark.sinks.port import Commit, Sink

    _Known: TypeAlias = tuple[str, dict[str, int], tuple[Checkpoint, ...]]

_MAX_TERMS = 1_000_000
_MAX_READS = 3
_COLUMNS = ("partition", "sequence_number", "enqueued_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SinkContents:
    """What is in a sink; see ``AuditMaterial``."""

    commits: tuple[Commit, ...] | None = None
    rows: Rows | None = None
    settled: bool = True
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogState:
    """What the log has of a stream; see ``AuditMaterial``."""

    ends: Mapping[str, PartitionEnds] | None = None
    identity: str = ""
    stored_at: Mapping[str, datetime] = field(default_factory=dict)
    trouble: str = ""


def audit(
    spark: SparkSession,
    *,
    store: str,
    stream: str,
    group: str,
    sink: Sink | None = None,
    clock: Clock | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Read all that was recorded of a group, and judge it. Blocks.

    ``store`` is a URL. ``sink`` is opened and closed here: pass one that nothing else uses. ``say``
    is called with each step.

    Raises:
        UnknownResource: there is no such group, no such stream, or no such sink.
        InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be read.
        SinkUnfit, SinkChanged: the sink cannot be opened.
    """
    name = partition_group(stream, group)
    say("reading the store")
    shown, epochs, checkpoints = _read_store(store, stream, group, sink)
    with ExitStack() as held:
        found = _SinkContents()
        if sink is not None:
            say(f"reading the commits of {sink.name}")
            open_to_read(sink, spark)
            held.callback(sink.close)
            found = _read_sink(spark, sink, name, store, until=held.enter_context(ExitStack()))
        committed_partitions = {each.range.partition for each in found.commits or ()}
        keys = {partition_key(stream, group, each) for each in {*epochs, *committed_partitions}}
        terms = anyio.run(_terms, store, sorted({*keys, *(each.key for each in checkpoints)}))
        if not (epochs or terms or found.commits):
            raise _unknown_group(store, stream, group)
        log_state = _read_log(store, stream, checkpoints)
        ends = log_state.ends
        material = AuditMaterial(
            stream=stream,
            group=group,
            store=shown,
            at=(clock or SystemClock()).utc_now(),
            terms=terms,
            checkpoints=checkpoints,
            epochs=epochs,
            sink=sink.name if sink is not None else None,
            commits=found.commits,
            ends=ends,
            identity=log_state.identity,
            stored_at=log_state.stored_at,
            settled=found.settled,
            rows_trouble=found.trouble,
            rows_replaced=found.rows.replaced if found.rows is not None else "",
            log_trouble=log_state.trouble,
        )
        say("judging, on Spark")
        rows = found.rows.frame if found.rows is not None else None
        log = _log_frame(spark, store, stream, ends) if ends is not None else None
        return judge(spark, material, rows=rows, log=log)


def refuse_unknown(*, store: str, stream: str, group: str, sink: Sink | None = None) -> None:
    """Return if there is something to audit, as far as is known without Spark. Blocks."""
    _read_store(store, stream, group, sink)


def _read_store(url: str, stream: str, group: str, sink: Sink | None) -> _Known:
    """Return what the store knows. The sink may still know a group that the store has forgotten."""
    known = anyio.run(_checkpoints, url, partition_group(stream, group))
    _, epochs, checkpoints = known
    no_sink = missing_sink(sink) if sink is not None else None
    if not (epochs or checkpoints) and (sink is None or no_sink is not None):
        raise _unknown_group(url, stream, group)
    if no_sink is not None:
        raise no_sink
    return known


def _unknown_group(url: str, stream: str, group: str) -> UnknownResource:
    """Return the error for an unknown group, or for its stream if that is unknown."""
    try:
        open_ranges(stream, store_url=url, name="audit").close()
    except UnknownStream as error:
        return error
    except StoreError:
        raise
    except (LeaseholdError, OSError):
        pass  # groups of streams outside the log need none
    return UnknownResource(
        f"there is no group {group!r} of stream {stream!r} in this store, and nothing is known of "
        "its past: `leasehold groups ls` lists those there are"
    )


async def _checkpoints(url: str, name: str) -> _Known:
    """Return the store's display URL, the epoch of each partition, and the checkpoints."""
    async with open_store(url, create=False) as store:
        known = await store.resources(name)
        checkpoints = await store.checkpoints(name)
        epochs = {last_part(key): each.epoch for key, each in known.items()}
        return store.url, epochs, tuple(checkpoints.values())


async def _terms(url: str, keys: Iterable[str]) -> tuple[Term, ...]:
    """Return all terms that are kept, oldest first."""
    async with open_store(url, create=False) as store:
        found = [term for key in keys for term in await store.history(key, limit=_MAX_TERMS)]
    return tuple(reversed(found))


def _read_sink(
    spark: SparkSession, sink: Sink, name: str, store: str, *, until: ExitStack
) -> _SinkContents:
    """Return commits and rows of the same point in time, if the sink does not change meanwhile."""
    commits = tuple(sink.commits(name))
    rows = None
    for _ in range(_MAX_READS):
        until.close()  # releases the previous read
        try:
            rows = rows_of(sink, spark, store=store, until=until)
        except UnknownResource as error:
            # A pipeline makes its table with its first batch.
            return _SinkContents(commits=commits, trouble=str(error) if commits else "")
        except (LeaseholdError, OSError) as error:
            return _SinkContents(commits=commits, trouble=str(error))
        again = tuple(sink.commits(name))
        if again == commits:
            return _SinkContents(commits=commits, rows=rows)
        commits = again
    return _SinkContents(commits=commits, rows=rows, settled=False)


def _read_log(url: str, stream: str, checkpoints: Iterable[Checkpoint]) -> _LogState:
    """Return what the log has of the stream, or the reason why it cannot be read.

    A stream need not be part of the store's log; then there is no reason.
    """
    try:
        source = open_ranges(stream, store_url=url, name="audit")
    except (UsageError, UnknownStream):
        return _LogState()
    except StoreError:
        raise
    except (LeaseholdError, OSError) as error:
        return _LogState(trouble=str(error))
    try:
        ends = source.ends(source.partitions())
        return _LogState(
            ends=ends, identity=source.identity, stored_at=_stored_at(source, checkpoints, ends)
        )
    except (LeaseholdError, OSError) as error:
        return _LogState(trouble=str(error))
    finally:
        source.close()


def _stored_at(
    source: RangeSource, checkpoints: Iterable[Checkpoint], ends: Mapping[str, PartitionEnds]
) -> dict[str, datetime]:
    """Return when the last event before each checkpoint was stored, by partition."""
    found = {}
    for checkpoint in checkpoints:
        partition, number = last_part(checkpoint.key), checkpoint.resumes_at - 1
        if partition in ends and ends[partition].first <= number < ends[partition].next:
            with suppress(Trimmed):
                for batch in source.read(partition, number, number + 1, bodies=False):
                    at = next(iter(batch)).enqueued_at
                    if at is not None:
                        found[partition] = at
    return found


def _log_frame(
    spark: SparkSession, url: str, stream: str, ends: Mapping[str, PartitionEnds]
) -> DataFrame:
    """Return all events of the log between these ends, by number only."""
    ranges = [
        Range(partition=partition, start=each.first, end=each.next)
        for partition, each in ends.items()
    ]
    frames = BatchFrames(spark, f"log:{stream}", url, columns=_COLUMNS)
    return frames.of(ranges) if any(map(len, ranges)) else frames.empty()
