"""What a small batch costs, and what a large backlog yields: pipelines beside plain Spark."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.report import Bar, Row
from bench.spark_scene import JSON_COLUMNS, STREAM, Scene, cpu_s, faster, load, scene
from pyspark.sql import functions as sf

from leasehold.spark import Commit, SinkPosition, Staged, Written
from leasehold.spark.pipeline.events import BatchCommitted
from leasehold.spark.pipeline.options import PipelineOptions
from leasehold.spark.pipeline.pipeline import Pipeline
from leasehold.spark.sinks.delta.sink import DeltaSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.processor.events import HookEvent
    from leasehold.spark import Batch, Sink

_SMALL_BATCH = 1_000
_COLD = 5  # batches at the beginning that are not counted
_FIXED = Bar(words="<= 0.8", most=0.8)
_SUSTAINED = Bar(words=">= 0.7 x", least=0.7)
_NUMBERS = count()


class Nowhere:
    """A sink that does all of a sink's work but the writing, as Spark's ``noop`` does."""

    name = "nowhere"
    atomic = True

    def __init__(self) -> None:
        self._known: dict[str, SinkPosition] = {}

    def open(self, spark: SparkSession) -> None:
        """Nothing to open."""

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:  # noqa: ARG002
        found = {each: self._known.get(each, SinkPosition()) for each in epochs}
        for each, epoch in epochs.items():
            self._known[each] = SinkPosition(position=found[each].position, epoch=epoch)
        return found

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:  # noqa: ARG002
        self._known.update(places)

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:  # noqa: ARG002
        frame.write.format("noop").mode("overwrite").save()
        return Staged(None)

    def commit(self, staged: Staged, batch: Batch) -> Written:  # noqa: ARG002
        for share in batch.shares:
            place = SinkPosition(position=share.range.end, epoch=share.epoch)
            self._known[share.range.partition] = place
        return Written(rows=batch.rows)

    def discard(self, staged: Staged) -> None:
        """Nothing is kept."""

    def commits(self, group: str) -> Iterator[Commit]:  # noqa: ARG002
        return iter(())

    def close(self) -> None:
        """Nothing to close."""


@dataclass(slots=True)
class Watch:
    """When each batch was committed."""

    committed_s: list[float] = field(default_factory=list)

    def __call__(self, told: HookEvent) -> None:
        if isinstance(told, BatchCommitted):
            self.committed_s.append(time.perf_counter())


def fixed_cost(*, batches: int, rounds: int) -> Sequence[Row]:
    """Batches of 1,000 rows, one after the other: the time from one to the next."""
    with scene(events=(batches + _COLD) * _SMALL_BATCH) as made:
        ours: list[float] = []
        peer: list[float] = []
        cpu = {"ours": 0.0, "peer": 0.0}
        for turn in range(rounds + 1):
            for side, run, times in (("ours", _pipeline, ours), ("peer", _stream, peer)):
                began_s = cpu_s()
                found = run(made)
                if turn:  # the first of each only warms Spark up
                    times += [1_000 * (b - a) for a, b in pairwise(found[_COLD:])]
                    cpu[side] += cpu_s() - began_s
        each = 1_000 / (rounds * (batches + _COLD))
    quick, slow = median(ours), median(peer)
    return [
        load(),
        Row(
            what="a batch of 1,000 rows into nothing: ms from one to the next; peer: Structured "
            "Streaming, tuned, over the same source",
            ours=float(f"{quick:.3g}"),
            peer=float(f"{slow:.3g}"),
            ratio=float(f"{quick / slow:.3g}"),
            bar=f"{_FIXED.words} x",
            met=_FIXED.met(quick / slow),
        ),
        faster("the same: CPU ms, with start and end", cpu["ours"] * each, cpu["peer"] * each),
    ]


def _pipeline(made: Scene) -> list[float]:
    watch = Watch()
    run_pipeline(made, Nowhere(), watch=watch, batch_events=_SMALL_BATCH)
    return watch.committed_s


def run_pipeline(
    made: Scene,
    sink: Sink,
    *,
    watch: Watch | None = None,
    batch_events: int,
    function: Any = lambda events: events,
) -> None:
    """The whole log, by a group that nobody had before."""
    options = PipelineOptions(batch_events=batch_events)
    hooks = [watch] if watch is not None else []
    group = f"bench-{next(_NUMBERS)}"
    pipeline = Pipeline(made.spark, f"log:{STREAM}", made.url, group, options=options, hooks=hooks)
    pipeline.transform(function).write_to(sink).run(until_caught_up=True)


def _stream(made: Scene) -> list[float]:
    """When each micro-batch began, by Spark's own word."""
    query = (
        made.spark.readStream.format("leasehold")
        .option("store", made.url)
        .option("maxEventsPerTrigger", str(_SMALL_BATCH))
        .load(STREAM)
        .writeStream.format("noop")
        .option("checkpointLocation", str(made.root / f"checkpoint-{next(_NUMBERS)}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = [each.timestamp for each in query.recentProgress]
    return [datetime.fromisoformat(each).timestamp() for each in told]


# ------------------------------------------------------------------ sustained


def sustained(*, events: int, rounds: int, batch_events: int) -> Sequence[Row]:
    """A backlog into a Delta table, and the same rows by one job into Parquet files."""
    with scene(events=events) as made:
        times: dict[str, list[float]] = {"ours": [], "peer": []}
        cpus: dict[str, list[float]] = {"ours": [], "peer": []}
        for turn in range(rounds + 1):
            for side in ("ours", "peer") if turn % 2 else ("peer", "ours"):
                place = made.root / f"{side}-{turn}"
                began_s, began_cpu_s = time.perf_counter(), cpu_s()
                _sink_all(made, place, side=side, batch_events=batch_events)
                if turn:
                    times[side].append(time.perf_counter() - began_s)
                    cpus[side].append(cpu_s() - began_cpu_s)
                shutil.rmtree(place)
    wall = {side: median(each) for side, each in times.items()}
    millions = events / 1e6
    ours, peer = (events / wall[side] for side in ("ours", "peer"))
    return [
        load(),
        Row(
            what="a backlog, JSON decoded, into Delta by batches: events/s; peer: one plain job "
            "into Parquet",
            ours=round(ours),
            peer=round(peer),
            ratio=float(f"{ours / peer:.3g}"),
            bar=_SUSTAINED.words,
            met=_SUSTAINED.met(ours / peer),
        ),
        faster(
            "the same: CPU s per million events",
            median(cpus["ours"]) / millions,
            median(cpus["peer"]) / millions,
        ),
    ]


def _sink_all(made: Scene, place: Path, *, side: str, batch_events: int) -> None:
    if side == "ours":
        run_pipeline(made, DeltaSink(str(place)), batch_events=batch_events, function=measurements)
    else:
        measurements(made.read()).write.parquet(str(place))


def measurements(events: DataFrame) -> DataFrame:
    """The body's columns beside where the event came from."""
    parsed = sf.from_json(events.body.cast("string"), JSON_COLUMNS).alias("it")
    return events.select("partition", "sequence_number", "key", parsed).select(
        "partition", "sequence_number", "key", "it.temperature", "it.humidity"
    )
