"""The line that a pipeline writes for a batch."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.spark.pipeline.events import BatchCommitted, PipelinePartitionOpened, ProgressLines
from leasehold.testing.clock import ManualClock


def line_of(**written_lines: Any) -> str:
    """What is written about a batch with these numbers, of a driver with two partitions."""
    lines: list[str] = []
    progress = ProgressLines(lines.append, clock=ManualClock())
    for partition in ("0", "1"):
        opened = {"epoch": 1, "position": 0, "by": "sink"}
        progress(PipelinePartitionOpened(holder="driver", partition=partition, **opened))  # type: ignore[arg-type]
    usual: dict[str, Any] = {"ranges": (), "rows_out": 0, "plan_s": 0, "stage_s": 0, "commit_s": 0}
    progress(BatchCommitted(holder="driver", **usual | written_lines))
    return lines[-1]


def test_a_line_has_both_rates_the_time_and_the_lag() -> None:
    written_lines = {"number": 3, "rows": 1_000, "batch_s": 0.25, "lag_events": 345}
    assert line_of(**written_lines, in_per_s=2_000.4, done_per_s=4_000) == (
        "batch 3: 1,000 rows in 0.25 s, 2,000/s in, 4,000/s done, lag 345, 2 partitions"
    )
    assert line_of(**written_lines, in_per_s=0.0, done_per_s=4_000) == (
        "batch 3: 1,000 rows in 0.25 s, 4,000/s done, lag 345, 2 partitions"
    )


@pytest.mark.parametrize("rate", [0.4, 99_999.4, 99_999.5, 9_999_499, 9_999_500, 9_999e6])
@pytest.mark.parametrize("lag", [0, 99_999, 100_000, 9_999_999, 9_999_000_000])
def test_a_line_fits_a_terminal(rate: float, lag: int) -> None:
    written_lines = {"number": 9_999_999, "rows": 500_000, "batch_s": 1234.56, "lag_events": lag}
    line = line_of(**written_lines, in_per_s=rate, done_per_s=rate)
    assert len(line) <= 80
    assert "lag " in line
