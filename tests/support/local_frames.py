"""A frame without Spark: what a sink asks of one, run in this process over Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class LocalFrame:
    """``tasks`` parts, each given to the function as Spark would, and its answers collected."""

    def __init__(self, schema: StructType, table: pa.Table, *, tasks: int = 2) -> None:
        self.schema = schema
        self._table = table
        self._tasks = tasks

    def select(self, *names: str) -> LocalFrame:
        bare = [name.strip("`") for name in names]
        return LocalFrame(
            StructType([self.schema[name] for name in bare]),
            self._table.select(bare),
            tasks=self._tasks,
        )

    def mapInArrow(self, task: Task, answer: str) -> LocalAnswers:  # noqa: N802 - Spark's name
        size = -(-self._table.num_rows // self._tasks)
        parts = [self._table.slice(n * size, size) for n in range(self._tasks)]
        return LocalAnswers([task(iter(part.to_batches())) for part in parts])


class LocalAnswers:
    def __init__(self, answers: Sequence[Iterator[pa.RecordBatch]]) -> None:
        self._answers = answers

    def collect(self) -> list[tuple[Any, ...]]:
        return [
            tuple(row.values())
            for answer in self._answers
            for batch in answer
            for row in batch.to_pylist()
        ]


def local_frame(
    schema: StructType | str, rows: Sequence[Sequence[object]], *, tasks: int = 2
) -> DataFrame:
    """Rows of these columns, ``"id bigint, word string"``."""
    kinds = schema if isinstance(schema, StructType) else parsed(schema)
    arrow = to_arrow_schema(kinds, timezone="UTC")
    arrays = [
        pa.array([row[number] for row in rows], field.type) for number, field in enumerate(arrow)
    ]
    table = pa.Table.from_arrays(arrays, schema=arrow)
    return cast("DataFrame", LocalFrame(kinds, table, tasks=tasks))


def parsed(text: str) -> StructType:
    """A schema of simple types; Spark's own parser needs its JVM."""
    from pyspark.sql import types

    kinds = {
        "bigint": types.LongType(),
        "int": types.IntegerType(),
        "double": types.DoubleType(),
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "boolean": types.BooleanType(),
        "date": types.DateType(),
        "timestamp": types.TimestampType(),
        "timestamp_ntz": types.TimestampNTZType(),
        "decimal": types.DecimalType(10, 2),
        "array": types.ArrayType(types.LongType()),
        "interval": types.DayTimeIntervalType(),
    }
    parts = [part.split() for part in text.split(",")]
    return StructType([types.StructField(name, kinds[kind]) for name, kind in parts])
