"""Read events from lines, JSON lines, CSV or Parquet as Arrow tables, one batch at a time.

What a pipe offers is passed on at once: a slow source does not wait for a full batch.
A value of a CSV that is written as JSON writes a number or a boolean is one in the event, digit for
digit; every other value is text. Each value is judged by itself, so a pipe needs no second pass.
A record that cannot be an event is refused with its number; the records before it are kept.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import BinaryIO

import pyarrow as pa

from leasehold.cli.log_formats import Fields, Format
from leasehold.errors import UsageError

_CHUNK_BYTES = 1 << 20
_LONGEST_SHOWN = 60
_OURS = {"key", "body", "properties"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
_JSON_BOOLEANS = frozenset(("true", "false"))
_MAP = pa.map_(pa.utf8(), pa.utf8())
# Its number in the source, its bytes where they are kept as they are, and its fields.
_Numbered = tuple[int, bytes | None, Mapping[str, object]]


def tables(
    source: BinaryIO, form: Format, fields: Fields, *, batch: int, read: Callable[[int], None]
) -> Iterator[pa.Table]:
    """The events of ``source``, at most ``batch`` in a table; ``read`` hears of the bytes."""
    if fields.strings and form is not Format.CSV:
        raise UsageError(f"--strings is for CSV, and this is {form.value}: leave it out")
    if form is Format.LINES:
        if fields.key or fields.body:
            raise UsageError("lines have no fields for --key or --body: add --format jsonl or csv")
        for lines in _lines(source, batch, read):
            yield pa.table({"body": pa.array(lines, pa.binary())})
    elif form is Format.JSONL:
        number = 0
        for lines in _lines(source, batch, read):
            yield from _tables(_parsed(lines, number + 1), fields, "line")
            number += len(lines)
    elif form is Format.CSV:
        yield from _csv(source, fields, batch, read)
    else:
        yield from _parquet(source, fields, batch, read)


def _lines(source: BinaryIO, batch: int, read: Callable[[int], None]) -> Iterator[list[bytes]]:
    """Lines without their ends. What was there at one look is not held back for more."""
    rest: list[bytes] = []  # the begin of a line that may be long: joined once
    more = getattr(source, "read1", source.read)
    while chunk := more(_CHUNK_BYTES):
        read(len(chunk))
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if not others:
            continue
        lines = [b"".join(rest), *others[:-1]]
        rest = [others[-1]]
        for at in range(0, len(lines), batch):
            yield [line.removesuffix(b"\r") for line in lines[at : at + batch]]
    if last := b"".join(rest):
        yield [last.removesuffix(b"\r")]


def _parsed(lines: list[bytes], first: int) -> Iterator[_Numbered]:
    """The records of JSON lines; empty lines are no records."""
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} is not JSON ({error}): {_short(line)}") from error
        if not isinstance(record, dict):
            raise UsageError(f"line {number} is not a JSON object: {_short(line)}")
        yield number, line.strip(), record


def _csv(
    source: BinaryIO, fields: Fields, batch: int, read: Callable[[int], None]
) -> Iterator[pa.Table]:
    records = _csv_records(source, read, typed=fields.body is None and not fields.strings)
    for first in records:
        yield from _tables(chain([first], islice(records, batch - 1)), fields, "row")


def _csv_records(
    source: BinaryIO, read: Callable[[int], None], *, typed: bool
) -> Iterator[_Numbered]:
    """Yield the rows; ``typed``: with a body in which numbers and booleans are no text."""
    rows = csv.DictReader(_csv_lines(source, read), strict=True)
    number = 1  # the first row names the fields
    try:
        for number, row in enumerate(rows, start=2):
            if None in row or None in row.values():
                raise UsageError(
                    f"row {number} of the CSV does not have the {len(rows.fieldnames or ())} "
                    "fields that its first row names"
                )
            yield number, _typed_body(row) if typed else None, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"the CSV can not be read after row {number}: {error}") from error


def _typed_body(row: Mapping[str, str]) -> bytes:
    pairs = (f"{_dumped(name)}:{_typed(value)}" for name, value in row.items())
    return f"{{{','.join(pairs)}}}".encode()


def _typed(value: str) -> str:
    if value in _JSON_BOOLEANS or _JSON_NUMBER.fullmatch(value):
        return value
    return _dumped(value)


def _csv_lines(source: BinaryIO, read: Callable[[int], None]) -> Iterator[str]:
    """Line by line, so that a byte that is no text takes nothing before it along."""
    encoding = "utf-8-sig"
    for line in source:
        read(len(line))
        yield from io.StringIO(line.decode(encoding), newline="")  # it also knows a lone \r
        encoding = "utf-8"


def _parquet(
    source: BinaryIO, fields: Fields, batch: int, read: Callable[[int], None]
) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - it takes a while, and few need it

    if not source.seekable():
        raise UsageError("Parquet is read from its end: give a file, not a pipe")
    try:
        parquet = pq.ParquetFile(source)
        total = source.seek(0, io.SEEK_END)
        done = number = 0
        for rows in parquet.iter_batches(batch_size=batch):
            if (
                fields.key is None
                and fields.body is None
                and "body" in rows.schema.names
                and set(rows.schema.names) <= _OURS
            ):
                yield from _with_bodies(rows, number + 1)
            else:
                yield from _tables(_numbered(rows.to_pylist(), number + 1), fields, "row")
            number += rows.num_rows
            now = total * number // max(parquet.metadata.num_rows, 1)
            read(now - done)
            done = now
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"this is no Parquet file that can be read: {error}") from error


def _numbered(rows: Iterable[Mapping[str, object]], first: int) -> Iterator[_Numbered]:
    for number, row in enumerate(rows, start=first):
        yield number, None, row


def _with_bodies(rows: pa.RecordBatch, first: int) -> Iterator[pa.Table]:
    """Events as they are, up to the first one without a body."""
    bad = rows.column("body").is_null().index(pa.scalar(True)).as_py()
    yield pa.Table.from_batches([rows if bad < 0 else rows.slice(0, bad)])
    if bad >= 0:
        raise UsageError(f"row {first + bad} has no body: it is null")


def _tables(records: Iterable[_Numbered], fields: Fields, what: str) -> Iterator[pa.Table]:
    """One table with an event for each record; if one is refused, first those before it."""
    keys: list[str | None] = []
    bodies: list[bytes] = []
    properties: list[list[tuple[str, str]] | None] = []
    refusal: UsageError | None = None
    try:
        for record in records:
            key, body, rest = _event(record, fields, what)
            keys.append(key)
            bodies.append(body)
            properties.append(rest)
    except UsageError as error:
        refusal = error
    yield pa.table(
        {
            "key": pa.array(keys, pa.utf8()),
            "body": pa.array(bodies, pa.binary()),
            "properties": pa.array(properties, _MAP),
        }
    )
    if refusal is not None:
        raise refusal


def _event(
    numbered: _Numbered, fields: Fields, what: str
) -> tuple[str | None, bytes, list[tuple[str, str]] | None]:
    """Key, body and properties. With a body of its own, the other fields are properties."""
    number, raw, record = numbered
    for field in (fields.key, fields.body):
        if field is not None and field not in record:
            raise UsageError(
                f"{what} {number} has no field {field!r}: it has {_short(', '.join(record))}"
            )
    try:
        found = record[fields.key] if fields.key is not None else None
        key = None if found is None else _text(found)
        if fields.body is None:
            return key, _dumped(record).encode() if raw is None else raw, None
        value = record[fields.body]
        body = value if isinstance(value, bytes) else _text(value).encode()
        rest = record.keys() - {fields.key, fields.body}
        pairs = [(_text(name), _text(record[name])) for name in record if name in rest]
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {number} can not be written as UTF-8: {error.reason}") from error
    return key, body, pairs or None


def _text(value: object) -> str:
    text = value if isinstance(value, str) else _dumped(value)
    text.encode()  # half a character, as JSON can write it, is no text
    return text


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _short(text: str | bytes) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
