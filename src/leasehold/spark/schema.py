"""The columns of an event as Spark sees them, and the same as Arrow.

Spark takes a batch only if its Arrow schema is exactly the one that Spark derives from the columns:
order, types and nullability. ``EVENTS`` is chosen so that the columns of the log fit unchanged.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

EVENTS = StructType(
    [
        StructField("partition", StringType(), nullable=False),
        StructField("sequence_number", LongType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("enqueued_at", TimestampType(), nullable=False),
        StructField("key", StringType()),
        StructField("body", BinaryType(), nullable=False),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("epoch", LongType(), nullable=False),
    ]
)


def select_columns(columns: Iterable[str]) -> StructType:
    """Return only these columns of ``EVENTS``, in this order."""
    return StructType([_field(name) for name in columns])


def check_columns(wanted: StructType) -> StructType:
    """Return the same columns, if an event can fill them."""
    for field in wanted.fields:
        known = _field(field.name)
        if field.dataType != known.dataType:
            raise UsageError(
                f"the column {field.name} of an event is {known.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: read it as that, and cast it afterwards"
            )
        if known.nullable and not field.nullable:
            raise UsageError(f"the column {field.name} of an event may be null: say nullable=True")
    return wanted


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark wants batches of these columns to have."""
    return to_arrow_schema(columns, timezone="UTC")


def _field(name: str) -> StructField:
    names = EVENTS.fieldNames()
    if name not in names:
        near = get_close_matches(name.lower(), names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
        raise UsageError(f"an event has no column {name!r}: {hint}")
    return EVENTS[name]
