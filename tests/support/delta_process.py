"""Driver processes that write to a Delta table, and may die at a named point."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pandas as pd  # noqa: F401 - pyarrow imports it at last: once, before the fork
from tests.support.delta_tables import GROUP, batch, opened, staged

from leasehold.errors import FencedWrite, SinkChanged
from leasehold.spark.sinks.delta.storage import Storage
from leasehold.spark.sinks.delta.table_log import DeltaLog

STEP = 5


def race(path: Path, rows: int) -> None:
    """Under one epoch, as two threads of a broken driver would: each offers all batches."""
    sink = opened(path)
    sink.fence(GROUP, {"0": 1})
    for start in range(0, rows, STEP):
        each = batch(("0", start, start + STEP, 1))
        rows_of = staged(path, each, name=f"part-leasehold-{os.getpid()}-{start}")
        try:
            sink.commit(rows_of, each)
        except SinkChanged:
            sink.discard(rows_of)  # the other one is further on


def fight(path: Path, rows: int, epoch: int) -> None:
    """Take the partition again and again, each time under a higher epoch, until all is written."""
    sink = opened(path)
    while True:
        known = sink.fence(GROUP, {"0": epoch})["0"]
        position = known.position or 0
        while position < rows and known.epoch <= epoch:
            each = batch(("0", position, position + STEP, epoch), holder=str(os.getpid()))
            files = staged(path, each, name=f"part-leasehold-{os.getpid()}-{epoch}-{position}")
            try:
                sink.commit(files, each)
            except FencedWrite:
                sink.discard(files)
                break
            position += STEP
        if position >= rows:
            return
        epoch += 2


def die(path: Path, point: str) -> None:
    """Fence, stage and commit one batch, and be killed at the point."""

    def dead(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), SIGKILL)

    sink = opened(path)
    if point == "in a fence without a table":
        Path.replace = dead  # type: ignore[assignment, method-assign]
    elif point == "before the fence":
        DeltaLog.write = dead  # type: ignore[method-assign]
    elif point == "after the fence":
        DeltaLog._sync = dead  # type: ignore[method-assign]
    known = sink.fence(GROUP, {"0": 7})["0"]
    start = known.position or 0
    each = batch(("0", start, start + STEP, 7))
    files = staged(path, each, name=f"part-leasehold-{os.getpid()}")
    if point == "between stage and commit":
        dead()
    elif point == "before the commit, in the table's creation":
        Storage.finish_root = dead  # type: ignore[method-assign]
    else:
        real = DeltaLog._sync

        def dead_after_rows(log: DeltaLog, version: int) -> None:
            if version:
                dead()
            real(log, version)

        DeltaLog._sync = dead_after_rows  # type: ignore[assignment, method-assign]
    sink.commit(files, each)
