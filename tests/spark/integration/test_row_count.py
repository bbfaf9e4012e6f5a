"""The count at the end of a campaign finds what is wrong, and its events are as promised."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from bench import spark, spark_scene
from bench.report import Bar
from deltalake import write_deltalake
from tests.support.drivers import Crew, crew


def put(group: Crew, *rows: tuple[str, int]) -> None:
    partitions, numbers = zip(*rows, strict=True)
    table = pa.table({"partition": list(partitions), "sequence_number": list(numbers)})
    write_deltalake(str(group.table), table, mode="append")


def test_the_count_finds_lost_doubled_and_unknown_rows(tmp_path: Path) -> None:
    with crew(tmp_path, partitions=2) as group:
        group.fill(3, partitions=2)
        assert group.faults() == Counter(lost=6)
        put(group, ("0", 0), ("0", 1), ("0", 2), ("1", 0))
        assert group.faults() == Counter(lost=2)
        put(group, ("1", 1), ("1", 2))
        assert not group.faults()
        put(group, ("1", 1))
        assert group.faults() == Counter(doubled=1)
        put(group, ("0", 3), ("7", 0))
        assert group.faults() == Counter(doubled=1, unknown=2)


def test_events_have_the_size_that_is_promised_and_no_two_are_alike() -> None:
    keys, bodies = spark_scene.bodies(1_000, seed=3)
    assert {len(each) for each in bodies.to_pylist()} == {200}
    assert len(set(bodies.to_pylist())) == 1_000
    assert len(set(keys.to_pylist())) > 500
    assert spark.FULL.events == 5_000_000
    assert spark.FULL.faults == 100


@pytest.mark.parametrize(("ours", "met"), [(1.0, True), (3.0, False)])
def test_a_row_of_two_costs_is_judged_by_their_ratio(ours: float, met: bool) -> None:
    row = spark_scene.faster("it", ours, 2.0, Bar(words=">= 1.0 x", least=1.0))
    assert row.met is met
    assert row.ratio == pytest.approx(2.0 / ours, rel=0.01)
