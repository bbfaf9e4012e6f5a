"""Drivers as processes of their own, on a cluster: a second one joins, and all are hurt."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.chaos import KINDS, Plan, campaign
from bench.report import Row, at_most, cost, exactly
from bench.spark_scene import load
from tests.support.drivers import crew
from tests.support.spark_cluster import cluster, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

_NONE = exactly(0)


def second_driver(*, rows: int, partitions: int, lease_s: float) -> Sequence[Row]:
    """One driver works alone; another one comes, and takes its half between two batches."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as text:
        root = Path(text)
        with (
            cluster(root / "cluster", workers=2, cores=1, memory="1g") as made,
            crew(root / "crew", partitions=partitions) as group,
        ):
            group.fill(rows, partitions=partitions)
            first, second = (
                group.begin(
                    name,
                    master=made.master,
                    conf=settings(),
                    lease_s=lease_s,
                    batch_events=partitions * 50,
                    task_s=0.1,
                    tasks=1,
                    go=name == "first",
                )
                for name in ("first", "second")
            )
            first.says("committed", times=3)
            second.says("up")
            second.tell("go")
            half = partitions // 2
            second.says("opened", times=half)
            group.until(lambda: len(first.held()) == half, "the first has given half")
            group.all_committed()
            joined_s = second.of("joining")[0]["when_s"]
            moved_s = second.of("opened")[half - 1]["when_s"] - joined_s
            wrong = group.faults()
            for each in (first, second):
                each.leave()
    cycle_s = lease_s * 0.3
    return [
        load(),
        cost("a second driver joins: rows lost or twice", sum(wrong.values()), bar=_NONE),
        cost(
            f"the same: cycles of {cycle_s:g} s until its half had moved",
            moved_s / cycle_s,
            bar=at_most(2),
        ),
        cost("the same: seconds", moved_s),
    ]


def chaos(*, faults: int, drivers: int) -> Sequence[Row]:
    """See ``bench.chaos``."""
    seed = int.from_bytes(os.urandom(4), "big")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        found = campaign(Plan(seed=seed, faults=faults, drivers=drivers), Path(root))
    done = ", ".join(f"{found.faults[kind]} x {kind}" for kind in KINDS)
    what = f"rows lost or doubled of {found.events:,}, by {faults} faults ({done}; seed {seed})"
    return [
        cost(what, found.bad_rows, bar=_NONE),
        Row(what="the same: late commits that were refused", ours=found.refused),
    ]
