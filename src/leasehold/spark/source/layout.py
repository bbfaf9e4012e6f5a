"""The rows of a read: which columns come from the event, which out of its body, in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from leasehold.errors import UsageError
from leasehold.spark.reading import events
from leasehold.spark.schema import EVENTS, arrow_of, checked
from leasehold.spark.source.decode import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasehold.spark.ranges import Range
    from leasehold.spark.source.filters import Pushed
    from leasehold.spark.source.options import ReadOptions

_OF_EVENTS = frozenset(EVENTS.fieldNames())
_FOR_DECODING = ("partition", "sequence_number", "body")  # the first two are for its errors


def declared(json: str) -> StructType | str:
    """The columns of a read without a schema of its own: with fields of JSON, they stand for body.

    Raises:
        UsageError: JSON is to be decoded, and nobody says into which fields.
    """
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
    """How rows with the columns ``wanted`` are made. It goes to the tasks by pickle."""

    def __init__(self, wanted: StructType, options: ReadOptions) -> None:
        """Look at the columns.

        Raises:
            UsageError: one is unknown, there twice, or of a type that it can not have; or there is
                none.
        """
        names = wanted.fieldNames()
        if not names:  # an Arrow batch without columns has no rows either: they would not count
            raise UsageError(
                "the schema has no column, and rows without columns can not be told apart from no "
                'rows: name one, as in .schema("sequence_number long")'
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"the columns {', '.join(twice)} are there twice: a field of the body can not have "
                "the name of a column of the event; name all wanted columns with .schema(…)"
            )
        fields = StructType([each for each in wanted.fields if each.name not in _OF_EVENTS])
        if not options.json:
            checked(wanted)
        checked(StructType([each for each in wanted.fields if each.name in _OF_EVENTS]))
        self._wanted = arrow_of(wanted)
        self._source, self._store = options.source, options.store
        self._decoder = (
            Decoder(fields, null_malformed=options.null_malformed) if fields.fields else None
        )
        self._read = self._reading(names)

    def _reading(self, names: Sequence[str]) -> pa.Schema:
        """The columns of the event that have to be read."""
        stored = arrow_of(EVENTS)
        own = [self._wanted.field(name) for name in names if name in _OF_EVENTS]
        if self._decoder is not None:
            own += [stored.field(name) for name in _FOR_DECODING if name not in names]
        return pa.schema(own)

    def rows(self, ranges: Sequence[Range], pushed: Pushed) -> Iterator[pa.RecordBatch]:
        """All rows of the ranges that pass the filters.

        Raises:
            BatchFailed: a body is malformed.
            LeaseholdError: as ``reading.events``.
        """
        for batch in events(self._source, self._store, ranges, self._read):
            left = pushed.applied(batch) if pushed.tests else batch
            if left.num_rows:
                yield left if self._decoder is None else self._decoded(left, self._decoder)

    def _decoded(self, batch: pa.RecordBatch, decoder: Decoder) -> pa.RecordBatch:
        found = dict(zip(decoder.schema.names, decoder.columns(batch), strict=True))
        columns = [found[name] if name in found else batch.column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    @property
    def _names(self) -> list[str]:
        return list(self._wanted.names)
