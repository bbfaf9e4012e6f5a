"""The columns of a Parquet sink: which there may be, and in what two sets of them differ. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import types

from leasehold.errors import SinkUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PLAIN = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)


def check_columns(schema: types.StructType, *, sink: str, partition_by: Sequence[str]) -> None:
    """Refuse rows that could not be read again as they are.

    Raises:
        SinkUnfit: the message names the columns.
    """
    wrong = []
    lower = [field.name.lower() for field in schema.fields]
    if not lower:
        wrong.append("there is no column")
    for field in schema.fields:
        if lower.count(field.name.lower()) > 1:
            wrong.append(f"{field.name!r} is there twice (upper and lower case are alike)")
        if bad := ", ".join(sorted(set(_foreign(field.dataType)))):
            wrong.append(f"{field.name!r} holds {bad}, which can not be kept: cast it")
    for name in partition_by:
        found = [field for field in schema.fields if field.name == name]
        if not found:
            wrong.append(f"{name!r} is in partition_by and no column")
        elif not isinstance(found[0].dataType, _PLAIN):
            wrong.append(f"{name!r} is in partition_by and of many values: take a plain column")
    if wrong:
        raise SinkUnfit(f"these rows do not fit {sink}: {'; '.join(wrong)}. Nothing was written")


def check_same(there: types.StructType, here: types.StructType, *, sink: str) -> None:
    """Refuse rows with other columns than those of the first commit. Their order may differ.

    Raises:
        SinkUnfit: the message lists the differences.
    """
    if found := list(differences(there, here)):
        raise SinkUnfit(
            f"these rows do not fit {sink}: {'; '.join(found)}. All batches of a sink have the "
            "same columns: cast or rename them, or write to another directory. Nothing was written"
        )


def differences(there: types.StructType, here: types.StructType) -> Iterator[str]:
    """What differs, in words. Whether a column may be null does not count."""
    held = {field.name: field.dataType.simpleString() for field in there.fields}
    given = {field.name: field.dataType.simpleString() for field in here.fields}
    for name, kind in held.items():
        if name not in given:
            yield f"{name!r} ({kind}) is missing"
        elif given[name] != kind:
            yield f"{name!r} is {kind} there and {given[name]} here"
    for name, kind in given.items():
        if name not in held:
            yield f"{name!r} ({kind}) is new"


def to_text(schema: types.StructType) -> str:
    """The columns as JSON, for the manifest."""
    bare = types.StructType(
        [types.StructField(field.name, field.dataType) for field in schema.fields]
    )
    return bare.json()


def from_text(text: str) -> types.StructType:
    """The columns that ``to_text`` wrote."""
    return types.StructType.fromJson(json.loads(text))


def quoted(name: str) -> str:
    """A column's name for Spark, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _foreign(kind: types.DataType) -> Iterator[str]:
    match kind:
        case types.ArrayType():
            yield from _foreign(kind.elementType)
        case types.MapType():
            yield from _foreign(kind.keyType)
            yield from _foreign(kind.valueType)
        case types.StructType():
            for field in kind.fields:
                yield from _foreign(field.dataType)
        case _ if not isinstance(kind, _PLAIN):
            yield kind.simpleString()
