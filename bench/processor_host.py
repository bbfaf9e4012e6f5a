"""One host with very many partitions: what idleness costs, and what a slow handler keeps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from bench.processor_scene import BODY_BYTES, STREAM, Scene, child, scene, told
from bench.report import Bar, Row, cost

from leasehold.log import ProducerOptions

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

_MIB = 1 << 20
_BATCH_BYTES = 64 << 10
_PREFETCH_BYTES = 256 << 10
_ROWS = 250


def idle(*, partitions: int, settle_s: float, window_s: float) -> Sequence[Row]:
    """Each partition has events, all handled, and a producer that could send more."""
    with scene(partitions=partitions) as made, made.log.producer(STREAM) as producer:
        for number in range(partitions):
            producer.send(_table(1), partition=number)
        producer.flush()
        words = (f"--events={partitions}", f"--settle-s={settle_s}", f"--window-s={window_s}")
        with child("idle", made.url, *words) as process:
            found = told(process)
    assert found["held"] == partitions
    what = f"an idle host with {partitions} partitions: % of a core"
    return [cost(what, found["share"] * 100, bar=Bar(words="< 2", most=1.99))]


def memory(*, partitions: int, seconds: float) -> Sequence[Row]:
    """What the host has in memory of its own, before the load and after it."""
    words = (f"--partitions={partitions}", f"--batch-bytes={_BATCH_BYTES}")
    with (
        scene(partitions=partitions) as made,
        child("slow", made.url, *words, f"--prefetch-bytes={_PREFETCH_BYTES}") as process,
    ):
        empty = _asked(process)
        sent_bytes = _sent_bytes(made, partitions, seconds)
        full = _asked(process)
        sent_bytes += _sent_bytes(made, partitions, seconds)
        later = _asked(process)
    limit = partitions * (_PREFETCH_BYTES + 2 * _BATCH_BYTES)
    what = f"{partitions} partitions, a slow handler, {sent_bytes / _MIB:,.0f} MiB sent: MiB"
    grown = (later["own"] - empty["own"]) / _MIB
    bar = Bar(words=f"<= {limit / _MIB:,.0f} (queues)", most=limit / _MIB)
    return [
        cost(f"{what} of own memory more than before", grown, bar=bar),
        cost("the same: of it in the second half of the time", (later["own"] - full["own"]) / _MIB),
        cost("the same: MiB of bodies that wait", later["waiting"] * BODY_BYTES / _MIB),
        cost("the same: MiB of the host's own memory before", empty["own"] / _MIB),
        cost(
            "the same: MiB more of the log mapped, which is page cache",
            (later["mapped"] - empty["mapped"]) / _MIB,
        ),
    ]


def _asked(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdin is not None
    process.stdin.write("how much\n")
    process.stdin.flush()
    found: dict[str, int] = told(process)
    return found


def _sent_bytes(made: Scene, partitions: int, seconds: float) -> int:
    """As fast as it goes; gives what was sent."""
    sent, until_s = 0, time.monotonic() + seconds
    table = _table(_ROWS)
    with made.log.producer(STREAM, ProducerOptions()) as producer:
        while time.monotonic() < until_s:
            for number in range(partitions):
                producer.send(table, partition=number)
                sent += _ROWS * BODY_BYTES
    return sent


def _table(rows: int) -> pa.Table:
    return pa.table({"body": [bytes(BODY_BYTES)] * rows})
