"""Filters: what is taken is applied to the letter, and no more is read than need be."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from leasehold.events import Start
from leasehold.spark.reading import Range
from leasehold.spark.source.filters import NOTHING, push_filters

START = datetime(2026, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)
KEYS = ("a", "b", None)
ORDERS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
Row = tuple[str, int, datetime, str | None]
NAMES = ("partition", "sequence_number", "enqueued_at", "key")
# Two partitions of twelve events; three at each microsecond.
ROWS: list[Row] = [
    (partition, number, START + number // 3 * US, KEYS[number % 3])
    for partition in ("0", "1")
    for number in range(12)
]


def find(partition: str, start: Start) -> int:
    at_us = (START - datetime(1970, 1, 1, tzinfo=UTC)) // US
    return min(max((start.value - at_us) * 3, 0), 12)


def left_of(filters: list[Filter]) -> tuple[list[Row], list[Filter], int]:
    """The rows that are left, the filters given back, and how many rows were read."""
    pushed, rest = push_filters(filters)
    ranges = [Range(partition=each, start=0, end=12) for each in ("0", "1")]
    rows = [
        row
        for each in pushed.narrow(ranges, find)
        for row in ROWS
        if row[0] == each.partition and each.start <= row[1] < each.end
    ]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    kinds = (pa.utf8(), pa.int64(), pa.timestamp("us", "UTC"), pa.utf8())
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    batch = pushed.apply(pa.RecordBatch.from_arrays(arrays, names=list(NAMES)))
    return [tuple(row.values()) for row in batch.to_pylist()], rest, len(rows)


def passes(row: Row, each: Filter) -> bool:
    value = row[NAMES.index(each.attribute[0])]  # type: ignore[attr-defined]
    match each:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case In(value=values):
            return value in values
        case _:
            return value is not None and ORDERS[type(each)](value, each.value)  # type: ignore[attr-defined]


def comparing(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    return st.builds(
        lambda kind, value: kind((column,), value), st.sampled_from(list(ORDERS)), values
    )


FILTERS = st.one_of(
    comparing("sequence_number", st.integers(-2, 14)),
    comparing("enqueued_at", st.integers(-2, 6).map(lambda n: START + n * US)),
    st.builds(lambda p: EqualTo(("partition",), p), st.sampled_from(["0", "1", "2"])),
    st.builds(lambda p: In(("partition",), tuple(p)), st.sets(st.sampled_from("012"), min_size=1)),
    st.builds(
        lambda n: In(("sequence_number",), tuple(n)), st.sets(st.integers(0, 13), min_size=1)
    ),
    st.builds(lambda k: EqualTo(("key",), k), st.sampled_from("abc")),
    st.builds(lambda k: In(("key",), tuple(k)), st.sets(st.sampled_from("abc"), min_size=1)),
    st.sampled_from([IsNull(("key",)), IsNotNull(("key",)), IsNotNull(("partition",))]),
)


@pytest.mark.spec("S2")
@given(st.lists(FILTERS, max_size=4))
def test_filters_that_are_taken_are_applied_exactly(filters: list[Filter]) -> None:
    rows, rest, _ = left_of(filters)

    assert rest == []
    assert rows == [row for row in ROWS if all(passes(row, each) for each in filters)]


@pytest.mark.parametrize(
    ("each", "read"),
    [
        (EqualTo(("partition",), "1"), 12),
        (GreaterThan(("sequence_number",), 9), 4),
        (EqualTo(("sequence_number",), 3), 2),
        (In(("sequence_number",), (3, 5)), 6),
        (GreaterThanOrEqual(("enqueued_at",), START + 3 * US), 6),
        (LessThan(("enqueued_at",), START + US), 6),
        (EqualTo(("key",), "a"), 24),
    ],
)
def test_what_a_filter_leaves_out_is_not_even_read(each: Filter, read: int) -> None:
    assert left_of([each])[2] == read


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(("key",), "a")),
        StringStartsWith(("key",), "a"),
        GreaterThan(("key",), "a"),
        LessThan(("partition",), "5"),
        EqualTo(("body",), b"x"),
        EqualTo(("key",), None),
        In(("key",), ("a", None)),
        In(("key",), ()),
        EqualTo(("sequence_number",), 1.5),
        GreaterThan(("enqueued_at",), datetime(2026, 1, 1)),  # noqa: DTZ001 - of no zone
        IsNull(("sequence_number",)),
        IsNotNull(("n",)),
        EqualTo(("key", "inside"), "a"),
    ],
)
def test_any_other_filter_is_given_back(each: Filter) -> None:
    pushed, rest = push_filters([each, EqualTo(("key",), "b")])

    assert rest == [each]
    assert pushed.tests


def test_without_filters_all_is_read() -> None:
    ranges = (Range(partition="0", start=3, end=12),)

    assert NOTHING.narrow(ranges, find) == ranges
    assert push_filters([]) == (NOTHING, [])


def test_what_was_taken_goes_to_the_tasks() -> None:
    pushed, _ = push_filters([EqualTo(("key",), "a"), In(("key",), ("a", "b"))])

    assert pickle.loads(pickle.dumps(pushed)) == pushed
