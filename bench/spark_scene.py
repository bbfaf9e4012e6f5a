"""A log of JSON events and the same rows as Parquet; and what a piece of work costs Spark.

Wall time on a machine with other guests says little alone, so CPU seconds are taken beside it: of
this process, of its JVM, and of all Python workers below them.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bench.report import Row
from tests.support import sessions

from leasehold.log import Log, LogOptions
from leasehold.spark.sessions import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bench.report import Bar
    from pyspark.sql import DataFrame, SparkSession

STREAM = "bench"
BODY_BYTES = 200
DEVICES = 1_000
PARTITIONS = 8
JSON_COLUMNS = "device string, temperature double, humidity double"
_CHUNK = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An open log with one stream, and a directory for all else."""

    root: Path
    log: Log
    spark: SparkSession
    events: int

    @property
    def url(self) -> str:
        return f"sqlite:///{self.root}/leases.db"

    def read(self, columns: str | None = None, **options: str) -> DataFrame:
        """The whole log through the data source."""
        reader = self.spark.read.format("leasehold").option("store", self.url).options(**options)
        return (reader.schema(columns) if columns else reader).load(STREAM)

    def parquet(self) -> DataFrame:
        """The same rows and columns, as Spark writes them; made when it is first asked for."""
        place = self.root / "parquet"
        if not place.exists():
            self.read().write.parquet(str(place))
        return self.spark.read.parquet(str(place))


def bodies(rows: int, *, seed: int) -> tuple[pa.Array, pa.Array]:
    """Keys, and JSON bodies of 200 bytes, no two alike."""
    rng = np.random.default_rng(seed)
    keys = pc.binary_join_element_wise(
        "device-", pa.array(rng.integers(0, DEVICES, rows)).cast(pa.string()), ""
    )
    numbers = [pa.array(rng.integers(0, 10_000, rows)).cast(pa.string()) for _ in range(2)]
    start = pc.binary_join_element_wise(
        '{"device": "', keys, '", "temperature": ', numbers[0], ', "humidity": ', numbers[1], ""
    )
    noise = rng.integers(0, 1 << 63, (rows, 9), dtype=np.uint64).view(np.uint8)
    text = "".join(bytes(noise.reshape(-1)).hex())
    width = noise.shape[1] * 2
    fill = pa.array([text[at : at + width] for at in range(0, rows * width, width)])
    room = pc.subtract(BODY_BYTES - len(', "note": ""}'), pc.binary_length(start))
    cut = pa.array(
        [note[:most] for note, most in zip(fill.to_pylist(), room.to_pylist(), strict=True)]
    )
    body = pc.binary_join_element_wise(start, ', "note": "', cut, '"}', "")
    return keys, body.cast(pa.binary())


def fill(log: Log, events: int, *, partitions: int = PARTITIONS) -> None:
    """Put so many events into the stream, evenly."""
    with log.producer(STREAM) as producer:
        sent = []
        for turn, first in enumerate(range(0, events, _CHUNK)):
            rows = min(_CHUNK, events - first)
            keys, body = bodies(rows, seed=turn)
            table = pa.table({"key": keys, "body": body})
            for part in range(partitions):
                start, end = rows * part // partitions, rows * (part + 1) // partitions
                sent.append(producer.send(table.slice(start, end - start), partition=part))
        for each in sent:
            each.result(120)


@contextmanager
def scene(*, events: int, partitions: int = PARTITIONS) -> Iterator[Scene]:
    """Filled; thrown away at the end. The Spark session is that of the process."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        log = stack.enter_context(
            Log.open(
                f"sqlite:///{root}/leases.db",
                volumes=[root / "volume"],
                options=LogOptions(run_monitor=False),
            )
        )
        log.create(STREAM, partitions=partitions)
        fill(log, events, partitions=partitions)
        made = session("bench", settings={"spark.driver.memory": "4g"})
        yield Scene(root=root, log=log, spark=made, events=events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one piece of work, in seconds; the median of some rounds."""

    wall_s: float
    cpu_s: float


def compare(work: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Cost]:
    """Each piece once for warmth, then in turns, so that what else runs here hits all alike."""
    for each in work.values():
        each()
    found: dict[str, list[Cost]] = {name: [] for name in work}
    for turn in range(rounds):
        names = list(work)[:: -1 if turn % 2 else 1]
        for name in names:
            found[name].append(_timed(work[name]))
    return {
        name: Cost(
            wall_s=median(each.wall_s for each in costs), cpu_s=median(e.cpu_s for e in costs)
        )
        for name, costs in found.items()
    }


def _timed(work: Callable[[], object]) -> Cost:
    began_s, began_cpu_s = time.perf_counter(), cpu_s()
    work()
    return Cost(wall_s=time.perf_counter() - began_s, cpu_s=cpu_s() - began_cpu_s)


def cpu_s() -> float:
    """What this process and all below it have used so far."""
    return sum(each.cpu_s for each in sessions.below(os.getpid(), sessions.everything()))


def load() -> Row:
    """How busy the machine is, for whoever reads the figures."""
    return Row(what="load of this machine (last minute)", ours=round(os.getloadavg()[0], 1))


def faster(what: str, ours: float, peer: float, bar: Bar | None = None) -> Row:
    """A row of two costs; the ratio, how many times less ours is, is what the bar is about."""
    ratio = peer / ours if ours else 0.0
    return Row(
        what=what,
        ours=float(f"{ours:.3g}"),
        peer=float(f"{peer:.3g}"),
        ratio=float(f"{ratio:.3g}"),
        bar=bar.words if bar else None,
        met=bar.met(ratio) if bar else True,
    )
