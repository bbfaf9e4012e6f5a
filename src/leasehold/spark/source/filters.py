"""Filters that Spark pushes down: which are accepted, what they leave to read, and their test.

An accepted filter is applied here exactly, because Spark does not apply it again; all others are
returned. Filters on the partition, the number and the time also shorten the ranges, so that what
they exclude is not even read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from leasehold.events.start import Start, StartKind
from leasehold.spark.reading import Range
from leasehold.spark.schema import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql.datasource import Filter

_EPOCH_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMES = pa.timestamp("us", "UTC")
_EQUALITIES = (EqualTo, In)
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_NEVER_NULL = frozenset(each.name for each in EVENTS.fields if not each.nullable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Whole numbers from ``first`` up to, and without, ``end``; None means unbounded."""

    first: int | None = None
    end: int | None = None

    def intersect(self, *, first: int | None = None, end: int | None = None) -> Bounds:
        """Return the intersection with other bounds."""
        firsts = [each for each in (self.first, first) if each is not None]
        ends = [each for each in (self.end, end) if each is not None]
        return Bounds(first=max(firsts, default=None), end=min(ends, default=None))

    def limited_by(self, each: Filter) -> Bounds:
        """Return what a comparison with a whole number leaves of it."""
        first: int | None = None
        end: int | None = None
        match each:
            case EqualTo(value=value):
                first, end = value, value + 1
            case GreaterThan(value=value):
                first = value + 1
            case GreaterThanOrEqual(value=value):
                first = value
            case LessThan(value=value):
                end = value
            case LessThanOrEqual(value=value):
                end = value + 1
            case In(value=values):
                first, end = min(values), max(values) + 1
        return self.intersect(first=first, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The accepted filters. ``tests``: the column, the function of Arrow, its value."""

    partitions: frozenset[str] | None = None
    numbers: Bounds = field(default_factory=Bounds)
    times_us: Bounds = field(default_factory=Bounds)
    tests: tuple[tuple[str, str, Any], ...] = ()

    def narrow(
        self, ranges: Iterable[Range], find: Callable[[str, Start], int]
    ) -> tuple[Range, ...]:
        """Return what is left to be read. ``find`` returns the event number of a start."""
        return tuple(
            left
            for each in ranges
            if self.partitions is None or each.partition in self.partitions
            if len(left := self._narrow(each, find))
        )

    def _narrow(self, whole: Range, find: Callable[[str, Start], int]) -> Range:
        bounds = Bounds(first=whole.start, end=whole.end)
        bounds = bounds.intersect(first=self.numbers.first, end=self.numbers.end)
        since_us, until_us = self.times_us.first, self.times_us.end
        if since_us is not None:
            start = Start(kind=StartKind.TIME, value=since_us)
            bounds = bounds.intersect(first=find(whole.partition, start))
        if until_us is not None:
            bounds = bounds.intersect(
                end=find(whole.partition, Start(kind=StartKind.TIME, value=until_us))
            )
        first, end = bounds.first or 0, bounds.end or 0
        return Range(partition=whole.partition, start=first, end=max(first, end))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return only the rows that pass all tests."""
        for column, name, value in self.tests:
            arguments = [batch.column(column)]
            if name == "is_in":
                mask = pc.is_in(*arguments, value_set=value)
            else:
                mask = pc.call_function(name, arguments + ([] if value is None else [value]))
            batch = batch.filter(mask)
        return batch


NOTHING = Pushed()


def push_filters(filters: Sequence[Filter]) -> tuple[Pushed, list[Filter]]:
    """Return the accepted filters, and those that Spark has to apply."""
    pushed = NOTHING
    rest: list[Filter] = []
    for each in filters:
        taken = _push(pushed, each)
        if taken is None:
            rest.append(each)
        else:
            pushed = taken
    return pushed, rest


def _push(pushed: Pushed, each: Filter) -> Pushed | None:
    """Add this filter; return None if it is not supported."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if isinstance(each, IsNotNull) and column in _NEVER_NULL:
        return pushed
    push = _PUSHERS.get(column)
    return push(pushed, each) if push is not None else None


def _with_partitions(pushed: Pushed, each: Filter) -> Pushed | None:
    if not isinstance(each, _EQUALITIES) or not _compares_only(each, str):
        return None
    found = frozenset(_values(each))
    return replace(
        pushed, partitions=found if pushed.partitions is None else pushed.partitions & found
    )


def _with_numbers(pushed: Pushed, each: Filter) -> Pushed | None:
    if not isinstance(each, (*_COMPARISONS, In)) or not _compares_only(each, int):
        return None
    pushed = replace(pushed, numbers=pushed.numbers.limited_by(each))
    if isinstance(each, In):  # the others are fully expressed by the bounds
        return _with_test(pushed, "sequence_number", "is_in", pa.array(each.value, pa.int64()))
    return pushed


def _with_times(pushed: Pushed, each: Filter) -> Pushed | None:
    name = _COMPARISONS.get(type(each))
    if name is None or not _compares_only(each, datetime) or each.value.utcoffset() is None:  # type: ignore[attr-defined]
        return None
    value_us = (each.value - _EPOCH_BEGAN) // _MICROSECOND  # type: ignore[attr-defined]
    bound = type(each)(("enqueued_at",), value_us)  # type: ignore[call-arg]
    pushed = replace(pushed, times_us=pushed.times_us.limited_by(bound))
    return _with_test(pushed, "enqueued_at", name, pa.scalar(value_us, _TIMES))


def _with_keys(pushed: Pushed, each: Filter) -> Pushed | None:
    if isinstance(each, IsNull | IsNotNull):
        name = "is_null" if isinstance(each, IsNull) else "is_valid"
        return _with_test(pushed, "key", name, None)
    if not isinstance(each, _EQUALITIES) or not _compares_only(each, str):
        return None
    if isinstance(each, In):
        return _with_test(pushed, "key", "is_in", pa.array(each.value, pa.utf8()))
    return _with_test(pushed, "key", "equal", pa.scalar(each.value, pa.utf8()))


_PUSHERS = {
    "partition": _with_partitions,
    "sequence_number": _with_numbers,
    "enqueued_at": _with_times,
    "key": _with_keys,
}


def _with_test(pushed: Pushed, column: str, name: str, value: Any) -> Pushed:
    return replace(pushed, tests=(*pushed.tests, (column, name, value)))


def _values(each: EqualTo | In) -> tuple[Any, ...]:
    return tuple(each.value) if isinstance(each, In) else (each.value,)


def _compares_only(each: Any, kind: type) -> bool:
    """Return whether it compares with values of this kind only, and with one at least."""
    values = _values(each)
    return bool(values) and all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    )
