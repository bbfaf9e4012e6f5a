"""Which rows fit a Delta table, and which tables this sink can write to. Pure.

The schema of a Delta table is written as Spark writes its own, so the two are compared as Spark
types. Columns are matched by name, in any order. A table that we make takes nulls everywhere: what
Spark says of nulls depends on how a column was computed, not on what it means.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from leasehold.errors import SinkUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable

_KEEPABLE = (
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.DateType,
    t.DecimalType,
    t.DoubleType,
    t.FloatType,
    t.IntegerType,
    t.LongType,
    t.ShortType,
    t.StringType,
    t.TimestampNTZType,
    t.TimestampType,
)
_PARTITIONABLE = (
    t.BooleanType,
    t.ByteType,
    t.DateType,
    t.IntegerType,
    t.LongType,
    t.ShortType,
    t.StringType,
)
_NOT_IN_NAMES = " ,;{}()\n\t="
_CHECKED_BY_OTHERS = (
    "delta.generationExpression",
    "delta.identity.start",
    "delta.invariants",
    "CURRENT_DEFAULT",
)
_RETENTION = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"


def refuse_unfit_table(
    sink: str,
    schema: t.StructType,
    settings: Mapping[str, str | None],
    partition_by: Sequence[str] = (),
) -> None:
    """Let pass only a table whose rules we keep.

    Raises:
        SinkUnfit: it has rules that we do not keep; the message names all of them.
    """
    reasons = [*_reasons(schema, settings), *_reasons_cut(schema, partition_by)]
    if reasons:
        raise SinkUnfit(
            f"{sink} can not be written to: {'; '.join(reasons)}. Nothing was written. Change the "
            "table, or write to another one"
        )


def refuse_unfit_rows(sink: str, rows: t.StructType, table: t.StructType) -> None:
    """Let pass only rows whose columns are those of the table.

    Raises:
        SinkUnfit: they are not; the message names each difference.
    """
    found = list(differences(rows, table))
    if found:
        raise SinkUnfit(
            f"the rows do not fit {sink}: {'; '.join(found)}. Nothing was written. Make the "
            "transformation give the columns of the table, or change the table"
        )


def differences(rows: t.StructType, table: t.StructType) -> Iterator[str]:
    """Each difference, in words."""
    have = {each.name: each for each in rows}
    want = {each.name: each for each in table}
    for name, field in want.items():
        if name not in have:
            yield f"column {name} ({field.dataType.simpleString()}) is missing"
        elif not _fits(have[name].dataType, field.dataType):
            yield (
                f"column {name} is {_words(have[name].dataType)} in the rows and "
                f"{_words(field.dataType)} in the table"
            )
    for name, field in have.items():
        if name not in want:
            yield f"column {name} ({field.dataType.simpleString()}) is not in the table"


def refuse_unfit_new(sink: str, rows: t.StructType, partition_by: Sequence[str]) -> None:
    """Let pass only columns that a new table can have.

    Raises:
        SinkUnfit: it can not; the message names each reason.
    """
    reasons = list(_reasons_new(rows, partition_by))
    if reasons:
        raise SinkUnfit(
            f"no table with these columns can be made at {sink}: {'; '.join(reasons)}. Nothing "
            "was written. Name or convert the columns in the transformation"
        )


def nullable(kind: t.DataType) -> t.DataType:
    """The same type, with nulls allowed everywhere, and without comments."""
    if isinstance(kind, t.StructType):
        return all_nullable(kind)
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def columns_of(table: DeltaTable) -> t.StructType:
    """The columns of a table, as Spark types."""
    return t.StructType.fromJson(json.loads(table.schema().to_json()))


def all_nullable(columns: t.StructType) -> t.StructType:
    """The same columns, with nulls allowed everywhere, and without comments."""
    return t.StructType([t.StructField(each.name, nullable(each.dataType)) for each in columns])


def required(table: t.StructType) -> tuple[str, ...]:
    """The columns that take no null."""
    return tuple(each.name for each in table if not each.nullable)


def _reasons(schema: t.StructType, settings: Mapping[str, str | None]) -> Iterator[str]:
    if _RETENTION in settings:
        yield (
            f"{_RETENTION} is set, so the table forgets how far each partition was written, and "
            "rows would come twice: unset it"
        )
    if (settings.get(_MAPPING) or "none") != "none":
        yield f"its columns have other names in the files ({_MAPPING})"
    checks = sorted(key for key in settings if key.startswith("delta.constraints."))
    if checks:
        yield f"it has rules for rows that this sink does not check ({', '.join(checks)})"
    for field in schema:
        rules = [rule for rule in _CHECKED_BY_OTHERS if rule in field.metadata]
        if rules:
            yield f"column {field.name} is computed or checked by the table ({', '.join(rules)})"


def _reasons_cut(schema: t.StructType, partition_by: Sequence[str]) -> Iterator[str]:
    """Values of other types would not be in the names of directories as Delta has them."""
    for name in partition_by:
        if not isinstance(schema[name].dataType, _PARTITIONABLE):
            yield (
                f"it is partitioned by {name}, which is {schema[name].dataType.simpleString()}: "
                "this sink cuts tables by text, whole numbers, dates or true and false"
            )


def _reasons_new(rows: t.StructType, partition_by: Sequence[str]) -> Iterator[str]:
    if not rows.fields:
        yield "there are none"
    names = [each.name.lower() for each in rows]
    for field in rows:
        if names.count(field.name.lower()) > 1:
            yield f"column {field.name} is there twice (upper and lower case are the same)"
        if not field.name or set(field.name) & set(_NOT_IN_NAMES):
            yield f"column {field.name!r} has one of the characters {_NOT_IN_NAMES!r}, or no name"
        if not _keepable(field.dataType):
            yield f"column {field.name} is {field.dataType.simpleString()}, which Delta lacks"
    for name in partition_by:
        if name not in rows.fieldNames():
            yield f"partition_by names {name}, which is no column"
        elif not isinstance(rows[name].dataType, _PARTITIONABLE):
            yield (
                f"partition_by names {name}, which is {rows[name].dataType.simpleString()}: a "
                "table is cut by text, whole numbers, dates or true and false"
            )
    if rows.fields and set(rows.fieldNames()) <= set(partition_by):
        yield "partition_by names all columns, so that none is left for the files"


def _keepable(kind: t.DataType) -> bool:
    if isinstance(kind, t.StructType):
        return all(_keepable(each.dataType) for each in kind)
    if isinstance(kind, t.ArrayType):
        return _keepable(kind.elementType)
    if isinstance(kind, t.MapType):
        return _keepable(kind.keyType) and _keepable(kind.valueType)
    return isinstance(kind, _KEEPABLE)


def _fits(rows: t.DataType, table: t.DataType) -> bool:
    """Whether the values can be stored as they are. A null deep inside can not be looked for."""
    if isinstance(rows, t.StructType) and isinstance(table, t.StructType):
        return rows.fieldNames() == table.fieldNames() and all(
            _fits(a.dataType, b.dataType) and (b.nullable or not a.nullable)
            for a, b in zip(rows, table, strict=True)
        )
    if isinstance(rows, t.ArrayType) and isinstance(table, t.ArrayType):
        return _fits(rows.elementType, table.elementType) and (
            table.containsNull or not rows.containsNull
        )
    if isinstance(rows, t.MapType) and isinstance(table, t.MapType):
        return (
            _fits(rows.keyType, table.keyType)
            and _fits(rows.valueType, table.valueType)
            and (table.valueContainsNull or not rows.valueContainsNull)
        )
    return rows == table


def _words(kind: t.DataType) -> str:
    """A type for people; nested ones with what they say of nulls."""
    if isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        return json.dumps(kind.jsonValue())
    return kind.simpleString()
