"""Statistics of a data file as Delta keeps them, from the footer of the Parquet file. Pure.

Readers skip files by them, so a bound may be too wide and never too narrow. Text that is long, and
numbers with a fraction (a NaN is above all bounds for Spark and in none for Parquet), have none.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_COLUMNS = 32
_LONGEST_TEXT = 64
_MILLISECOND = timedelta(milliseconds=1)


def stats_of(footer: Any) -> str:
    """The statistics of the file with this footer, as JSON. ``footer``: a ``FileMetaData``."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, name in _flat_columns(footer):
        parts = [footer.row_group(i).column(index).statistics for i in range(footer.num_row_groups)]
        if any(part is None for part in parts):
            continue
        if all(part.has_null_count for part in parts):
            nulls[name] = sum(part.null_count for part in parts)
        parts = [part for part in parts if part.num_values]
        if not parts or not all(part.has_min_max for part in parts):
            continue
        low = _bound(min((part.min for part in parts), key=_order), up=False)
        high = _bound(max((part.max for part in parts), key=_order), up=True)
        if low is not None and high is not None:
            lows[name], highs[name] = low, high
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }
    )


def _flat_columns(footer: Any) -> Iterator[tuple[int, str]]:
    """The first columns that are no part of another."""
    for index in range(min(footer.num_columns, _MOST_COLUMNS)):
        column = footer.schema.column(index)
        if column.path == column.name and column.max_repetition_level == 0:
            yield index, column.name


def _order(value: Any) -> Any:
    return value if not isinstance(value, str) else value.encode("utf-8")


def _bound(value: Any, *, up: bool) -> Any:
    """The value as Delta writes it; None if it is of a kind that has no bound."""
    match value:
        case bool():
            return None
        case int():
            return value
        case str():
            return value if len(value) <= _LONGEST_TEXT else None
        case datetime():
            return _moment(value, up=up)
        case date():
            return value.isoformat()
        case _:
            return None


def _moment(value: datetime, *, up: bool) -> str | None:
    """Delta keeps milliseconds here: cut off below, rounded up above."""
    rest = timedelta(microseconds=value.microsecond % 1000)
    try:
        cut = value - rest + (_MILLISECOND if up and rest else timedelta(0))
    except OverflowError:
        return None
    zone = "" if value.tzinfo is None else "Z"
    if cut.tzinfo is not None:
        cut = cut.astimezone(UTC).replace(tzinfo=None)
    return cut.isoformat(timespec="milliseconds") + zone
