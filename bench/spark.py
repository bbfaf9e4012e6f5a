"""Spark: reading beside Parquet, batches beside Structured Streaming, drivers that join and die.

``python -m bench.spark --quick`` takes a tenth of the events and of the faults.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from bench import spark_batches, spark_group, spark_reading
from bench.report import Job, Part, main

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``events`` of 200 bytes are read; ``batches`` of 1,000 rows are timed."""

    events: int
    rounds: int
    batches: int
    sustained: int
    batch_events: int
    joined_rows: int
    partitions: int
    lease_s: float
    faults: int
    drivers: int


FULL = Sizes(
    events=5_000_000,
    rounds=3,
    batches=60,
    sustained=5_000_000,
    batch_events=500_000,
    joined_rows=1_000,
    partitions=8,
    lease_s=10.0,
    faults=100,
    drivers=3,
)
SMALL = Sizes(
    events=2_000,
    rounds=1,
    batches=2,
    sustained=2_000,
    batch_events=1_000,
    joined_rows=200,
    partitions=2,
    lease_s=3.0,
    faults=1,
    drivers=1,
)


def jobs(sizes: Sizes) -> Sequence[Job]:
    """Those of this process first: they share one Spark session."""
    return [
        Job(
            what="reading",
            run=partial(spark_reading.reading, events=sizes.events, rounds=sizes.rounds),
        ),
        Job(
            what="small batches",
            run=partial(
                spark_batches.fixed_cost, batches=sizes.batches, rounds=max(sizes.rounds - 1, 1)
            ),
        ),
        Job(
            what="a backlog",
            run=partial(
                spark_batches.sustained,
                events=sizes.sustained,
                rounds=sizes.rounds,
                batch_events=sizes.batch_events,
            ),
        ),
        Job(
            what="a second driver",
            run=partial(
                spark_group.second_driver,
                rows=sizes.joined_rows,
                partitions=sizes.partitions,
                lease_s=sizes.lease_s,
            ),
        ),
        Job(
            what="chaos",
            run=partial(spark_group.chaos, faults=sizes.faults, drivers=sizes.drivers),
        ),
    ]


PART = Part(
    name="spark",
    about="One machine: log, store and tables on its disk. Sides in turns, medians. Parquet wins "
    "where it may leave columns out by itself (Spark tells a Python source nothing of what a query "
    "needs; .schema(…) does) and where its footers hold the answer.",
    jobs=lambda small: jobs(SMALL if small else FULL),
)

QUICK = replace(FULL, events=500_000, rounds=2, sustained=500_000, batch_events=100_000, faults=10)

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--quick"]
    quick = replace(PART, jobs=lambda small: jobs(SMALL if small else QUICK))
    sys.exit(main([quick if "--quick" in sys.argv else PART], words))
