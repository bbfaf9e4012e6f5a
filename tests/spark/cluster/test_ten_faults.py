"""Ten faults of the campaign of ``make chaos``: drivers and executors killed and paused."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.chaos import KINDS, Plan, campaign
from tests.support.spark_cluster import Cluster


@pytest.mark.soak
@pytest.mark.spec("S3", "S4", "B5")
def test_ten_random_kills_and_pauses_lose_no_row_and_double_none(
    standalone: Cluster, tmp_path: Path
) -> None:
    plan = Plan(seed=20, faults=10, drivers=2, partitions=4, events_per_s=200)
    found = campaign(plan, tmp_path, on=standalone)
    assert sum(found.faults.values()) == 10
    assert set(found.faults) <= set(KINDS)
    assert found.events > 800
    assert not found.wrong, (plan, found.notes)
