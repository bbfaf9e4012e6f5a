"""The rows of a read: which columns come from the event, which from its body, in which order.

A body is one JSON object, in UTF-8. A missing field is null, a field that was not requested is
omitted. Anything else is malformed: text that is not JSON, more than one object, a field with a
value of another type. Nothing is guessed: a number is not text, and 1.5 is not a whole number.

All bodies of a batch are parsed in one call into C++, exactly for each row. All bodies begin with
``{`` and end with ``}``, and are parsed as one text with a line break between them. A line break
between these two cannot be inside an object or a string, so the text is only valid if each body is;
and with as many rows as bodies each is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leasehold.errors import BatchFailed, UsageError
from leasehold.spark.reading import read_events
from leasehold.spark.schema import EVENTS, arrow_schema, check_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import DataType

    from leasehold.spark.reading import Range
    from leasehold.spark.source.filters import Pushed
    from leasehold.spark.source.options import ReadOptions

_PLAIN_TYPES = (BooleanType, NumericType, StringType, TimestampType, TimestampNTZType)
_MAX_SHOWN_BYTES = 60


class Decoder:
    """Decodes bodies to the columns ``fields``. It can be pickled."""

    def __init__(self, fields: StructType, *, null_malformed: bool = False) -> None:
        for field in fields.fields:
            _check_type(field.name, field.dataType, top=True)
            if not field.nullable:
                raise UsageError(f"the field {field.name} may be missing in a body: let it be null")
        self._schema = arrow_schema(fields)
        # Dates are numbers to the parser: they are read as text.
        self._parsed = pa.schema(
            [
                each.with_type(pa.utf8()) if pa.types.is_date(each.type) else each
                for each in self._schema
            ]
        )
        self._null_malformed = null_malformed

    @property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return self._schema

    def columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the fields of all rows of ``batch``: partition, sequence_number and body."""
        if not batch.num_rows:
            return [pa.array([], each.type) for each in self._schema]
        pieces = self._decode(batch)
        if len(pieces) == 1:
            return list(pieces[0].columns)
        return list(pa.concat_batches(pieces).columns)

    def _decode(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Parse all rows together if possible; else each half, down to the malformed row."""
        try:
            return [self._parse(batch.column("body"))]
        except pa.ArrowException as error:
            if batch.num_rows > 1:
                middle = batch.num_rows // 2
                return [*self._decode(batch.slice(0, middle)), *self._decode(batch.slice(middle))]
            if self._null_malformed:
                nulls = [pa.nulls(1, each.type) for each in self._schema]
                return [pa.RecordBatch.from_arrays(nulls, schema=self._schema)]
            raise _malformed(batch, error) from error

    def _parse(self, bodies: pa.Array) -> pa.RecordBatch:
        """Parse the bodies; raise ``ArrowException`` if one is malformed."""
        text = pc.utf8_trim_whitespace(bodies.cast(pa.utf8()))
        whole = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
        if not pc.all(whole, min_count=0).as_py():  # also: a null at the start ends the process
            raise pa.ArrowInvalid("it is no JSON object")
        one = pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text)
        joined = pc.binary_join(one, "\n").buffers()[2]
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._parsed, unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(bodies):
            raise pa.ArrowInvalid("it is not one JSON object")
        columns = [
            _combine_chunks(table.column(each.name).cast(each.type)) for each in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _check_type(name: str, kind: DataType, *, top: bool = False) -> None:
    """Raise ``UsageError`` if JSON has no such type."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_type(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif not isinstance(kind, _PLAIN_TYPES) and not (top and isinstance(kind, DateType)):
        raise UsageError(
            f"the field {name} can not be {kind.simpleString()}: JSON is decoded to boolean, "
            "numbers, string, timestamp, date (not inside others), array and struct; read it as "
            "string, or decode the body with from_json"
        )


def _malformed(batch: pa.RecordBatch, error: Exception) -> BatchFailed:
    partition = batch.column("partition")[0].as_py()
    number = batch.column("sequence_number")[0].as_py()
    body = batch.column("body")[0].as_py()
    shown = repr(body[:_MAX_SHOWN_BYTES])[1:] + ("…" if len(body) > _MAX_SHOWN_BYTES else "")
    why = str(error).partition("\n")[0].removesuffix(" in row 0")
    return BatchFailed(
        f"the body of event {number} of partition {partition} is not the JSON that was asked for "
        f"({why}): {shown}; correct the fields, or set json.mode to null",
        ranges=(f"{partition}[{number}, {number + 1})",),
    )


_EVENT_COLUMNS = frozenset(EVENTS.fieldNames())
_DECODING_COLUMNS = ("partition", "sequence_number", "body")  # the first two are for its errors


def default_schema(json: str) -> StructType | str:
    """Return the columns of a read without a schema; fields of JSON replace ``body``."""
    if not json:
        return EVENTS
    if json.lower() == "true":
        raise UsageError(
            'json is "true" and no schema is given: name the fields, as in '
            '.option("json", "carrier string, delay int")'
        )
    columns = [
        f"`{each.name}` {each.dataType.simpleString()}{'' if each.nullable else ' NOT NULL'}"
        for each in EVENTS.fields
        if each.name != "body"
    ]
    return ", ".join([*columns, json])


class Layout:
    """How rows with the columns ``wanted`` are built. It is pickled for the tasks."""

    def __init__(self, wanted: StructType, options: ReadOptions) -> None:
        names = wanted.fieldNames()
        if not names:  # an Arrow batch without columns has no rows either: they would not count
            raise UsageError(
                "the schema has no column, and rows without columns can not be told apart from no "
                'rows: name one, as in .schema("sequence_number long")'
            )
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"the columns {', '.join(repeated)} are there twice: a field of the body can not "
                "have the name of a column of the event; name all wanted columns with .schema(…)"
            )
        fields = StructType([each for each in wanted.fields if each.name not in _EVENT_COLUMNS])
        if not options.json:
            check_columns(wanted)
        check_columns(StructType([each for each in wanted.fields if each.name in _EVENT_COLUMNS]))
        self._wanted = arrow_schema(wanted)
        self._source, self._store = options.source, options.store
        self._decoder = (
            Decoder(fields, null_malformed=options.null_malformed) if fields.fields else None
        )
        self._read_schema = self._columns_to_read(names)

    def _columns_to_read(self, names: Sequence[str]) -> pa.Schema:
        """Return the columns of the event that have to be read."""
        stored = arrow_schema(EVENTS)
        own = [self._wanted.field(name) for name in names if name in _EVENT_COLUMNS]
        if self._decoder is not None:
            own += [stored.field(name) for name in _DECODING_COLUMNS if name not in names]
        return pa.schema(own)

    def rows(self, ranges: Sequence[Range], pushed: Pushed) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the ranges that pass the filters."""
        for batch in read_events(self._source, self._store, ranges, self._read_schema):
            left = pushed.apply(batch) if pushed.tests else batch
            if left.num_rows:
                yield left if self._decoder is None else self._with_fields(left, self._decoder)

    def _with_fields(self, batch: pa.RecordBatch, decoder: Decoder) -> pa.RecordBatch:
        found = dict(zip(decoder.schema.names, decoder.columns(batch), strict=True))
        columns = [found[name] if name in found else batch.column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    @property
    def _names(self) -> list[str]:
        return list(self._wanted.names)
