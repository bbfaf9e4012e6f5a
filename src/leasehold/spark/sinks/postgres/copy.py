"""Copying the rows of one task into a staging table. It runs on an executor.

All rows of an attempt come in one transaction and carry the attempt's id. Only those of attempts
that answered are taken later, so it does no harm if Spark runs a task twice or kills it halfway.

A row is never a Python object: each Arrow batch becomes CSV in one call, and the server reads that.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from leasehold.errors import SinkUnfit
from leasehold.spark.sinks.postgres.target import (
    composed,
    connected,
    meaning,
    stage_name,
)
from leasehold.stores.postgres.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

ATTEMPT = "leasehold attempt"
_UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What became of an attempt.

    ``refused``: why the server does not take the rows; ``away``: why it could not be asked.
    """

    attempt: str
    rows: int
    refused: str | None = None
    away: str | None = None


def copy_rows(batches: Iterable[pa.RecordBatch], *, url: str, batch: str, attempt: str) -> Copied:
    """Copy all rows and commit them. Without rows nobody is asked."""
    address = Address.of(url)
    rows = 0
    try:
        with ExitStack() as stack:
            copy: psycopg.Copy | None = None
            for each in batches:
                if not each.num_rows:
                    continue
                if copy is None:
                    connection = stack.enter_context(connected(address))
                    stack.enter_context(connection.transaction())
                    cursor = stack.enter_context(connection.cursor())
                    statement = composed(
                        "copy",
                        stage=sql.Identifier(stage_name(batch)),
                        columns=sql.SQL(", ").join(map(sql.Identifier, each.schema.names)),
                        attempt=sql.Identifier(ATTEMPT),
                    )
                    copy = stack.enter_context(cursor.copy(statement))
                copy.write(to_csv(each, attempt))
                rows += each.num_rows
    except psycopg.Error as error:
        found = meaning(error, address)
        if isinstance(found, SinkUnfit):
            return Copied(attempt=attempt, rows=0, refused=str(found))
        return Copied(attempt=attempt, rows=0, away=str(found))
    return Copied(attempt=attempt, rows=rows)


def to_csv(batch: pa.RecordBatch, attempt: str) -> memoryview:
    """The rows as COPY reads them: null is nothing, an empty text has quotes."""
    columns = [_plain(column) for column in batch.columns]
    columns.append(pa.repeat(pa.scalar(attempt, pa.string()), batch.num_rows))
    table = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, ATTEMPT])
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False))
    return memoryview(sink.getvalue())


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return to_hex(column)
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(_UTC)  # the same moments; a column without a zone shall hold UTC
    return column


def to_hex(column: pa.BinaryArray) -> pa.StringArray:
    r"""Bytes as PostgreSQL writes them, ``\x0aff``: one conversion for all of them."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    inside = b"" if data is None else memoryview(data)[offsets[0] : offsets[-1]].hex().encode()
    moved = ((offsets - offsets[0]) * 2).astype(np.int32)
    text = pa.StringArray.from_buffers(len(column), pa.py_buffer(moved), pa.py_buffer(inside))
    marked = pc.binary_join_element_wise("\\x", text, "")
    return pc.if_else(column.is_valid(), marked, pa.scalar(None, pa.string()))
