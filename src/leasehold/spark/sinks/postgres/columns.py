"""The columns of a PostgreSQL table, and whether the columns of a frame fit them. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types

from leasehold.errors import SinkUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WHOLE = ("int2", "int4", "int8", "numeric")
# For each Spark type: the type to create, and those (as in pg_type) into which no value is bent.
_KINDS: dict[type[types.DataType], tuple[str, tuple[str, ...]]] = {
    types.BooleanType: ("boolean", ("bool",)),
    types.ByteType: ("smallint", (*_WHOLE, "float4", "float8")),
    types.ShortType: ("smallint", (*_WHOLE, "float4", "float8")),
    types.IntegerType: ("integer", (*_WHOLE[1:], "float8")),
    types.LongType: ("bigint", _WHOLE[2:]),
    types.FloatType: ("real", ("float4", "float8")),
    types.DoubleType: ("double precision", ("float8",)),
    types.DecimalType: ("numeric", ("numeric",)),
    types.BinaryType: ("bytea", ("bytea",)),
    types.DateType: ("date", ("date", "timestamp")),
    types.TimestampType: ("timestamptz", ("timestamptz", "timestamp")),
    types.TimestampNTZType: ("timestamp", ("timestamp",)),
    types.StringType: ("text", ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of the table. ``kind``: its SQL type; ``base``: its name in pg_type."""

    name: str
    kind: str
    base: str
    is_needed: bool


def kind_for(field: types.StructField) -> str | None:
    """Return the type for a new column; None if there is none."""
    for spark_type, (kind, _) in _KINDS.items():
        if isinstance(field.dataType, spark_type):
            if isinstance(field.dataType, types.DecimalType):
                return f"{kind}({field.dataType.precision},{field.dataType.scale})"
            return kind
    return None


def check_known(schema: types.StructType, *, sink: str, key: Sequence[str]) -> None:
    """Refuse columns that no table could have."""
    names = Counter(field.name for field in schema.fields)
    wrong = [f"{name!r} is there twice" for name, count in names.items() if count > 1]
    wrong += [] if names else ["there is no column"]
    wrong += [f"{name!r} is in key and no column" for name in key if name not in names]
    wrong += [
        f"{field.name!r} is {field.dataType.simpleString()}: write to_json(…) of it, or cast it"
        for field in schema.fields
        if kind_for(field) is None
    ]
    if wrong:
        raise _unfit(sink, wrong)


def check_fit(schema: types.StructType, columns: Sequence[TableColumn], *, sink: str) -> None:
    """Refuse a frame whose rows the table could not take unchanged."""
    if wrong := list(differences(schema, columns)):
        raise _unfit(sink, wrong)


def differences(schema: types.StructType, columns: Sequence[TableColumn]) -> Iterator[str]:
    """Yield each difference as text. The order of columns is ignored."""
    there = {column.name: column for column in columns}
    given = {field.name for field in schema.fields}
    for field in schema.fields:
        shown = field.dataType.simpleString()
        if field.name not in there:
            yield f"the table has no column {field.name!r} ({shown})"
        elif not _fits(field, there[field.name]):
            column = there[field.name]
            yield f"{field.name!r} is {column.kind} in the table and {shown} here: cast it"
    for column in columns:
        if column.is_needed and column.name not in given:
            yield f"{column.name!r} ({column.kind}) may not be null, has no default and is missing"


def _fits(field: types.StructField, column: TableColumn) -> bool:
    if isinstance(field.dataType, types.StringType):
        return column.base != "bytea"  # the server reads each type from its text
    return any(
        isinstance(field.dataType, spark_type) and column.base in bases
        for spark_type, (_, bases) in _KINDS.items()
    )


def _unfit(sink: str, wrong: Sequence[str]) -> SinkUnfit:
    return SinkUnfit(f"these rows do not fit {sink}: {'; '.join(wrong)}. Nothing was written")
