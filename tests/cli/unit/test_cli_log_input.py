"""Events out of lines, JSON lines, CSV and Parquet."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leasehold.cli.log_formats import Fields, Format, format_of
from leasehold.cli.log_input import tables
from leasehold.errors import UsageError
from leasehold.events.event import sent_batch


def events(data: bytes, form: Format, batch: int = 100, **fields: Any) -> list[dict[str, Any]]:
    """What would be stored: every table must be one that can be sent."""
    found: list[dict[str, Any]] = []
    for table in tables(io.BytesIO(data), form, Fields(**fields), batch=batch, read=lambda _: None):
        assert table.num_rows <= batch
        found += sent_batch(table).to_pylist()
    return found


def bodies(found: list[dict[str, Any]]) -> list[bytes]:
    return [each["body"] for each in found]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl", Format.JSONL),
        ("a.NDJSON", Format.JSONL),
        ("a.csv", Format.CSV),
        ("a.parquet", Format.PARQUET),
        ("a.log", Format.LINES),
        ("-", Format.LINES),
    ],
)
def test_the_name_of_a_file_says_its_format(name: str, form: Format) -> None:
    assert format_of(Path(name)) is form


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\ntwo\r\n", [b"one", b"two"]),
        (b"one\n\nthree\n", [b"one", b"", b"three"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_each_line_is_an_event(data: bytes, expected: list[bytes]) -> None:
    assert bodies(events(data, Format.LINES)) == expected


def test_lines_are_cut_into_batches_and_all_bytes_are_counted() -> None:
    data, read = b"0123456789\n" * 250_000, 0

    def count(number: int) -> None:
        nonlocal read
        read += number

    found = list(tables(io.BytesIO(data), Format.LINES, Fields(), batch=1000, read=count))
    assert max(table.num_rows for table in found) == 1000
    assert sum(table.num_rows for table in found) == 250_000
    assert set(pa.concat_tables(found).column("body").unique().to_pylist()) == {b"0123456789"}
    assert read == len(data)


def test_what_a_pipe_has_to_give_does_not_wait_for_more() -> None:
    out, into = os.pipe()
    os.write(into, b"one\ntw")
    with os.fdopen(out, "rb") as source:
        found = tables(source, Format.LINES, Fields(), batch=1000, read=lambda _: None)
        assert next(found).to_pylist() == [{"body": b"one"}]
        os.write(into, b"o\n")
        os.close(into)
        assert next(found).to_pylist() == [{"body": b"two"}]
        assert list(found) == []


def test_lines_have_no_fields() -> None:
    with pytest.raises(UsageError, match="--format"):
        events(b"one", Format.LINES, key="x")


def test_a_json_line_is_the_body_as_it_was_written() -> None:
    data = b'{"user": "ann",  "n": 1}\n\n  {"user": null, "n": 2}  \n'
    found = events(data, Format.JSONL, key="user")
    assert bodies(found) == [b'{"user": "ann",  "n": 1}', b'{"user": null, "n": 2}']
    assert [each["key"] for each in found] == ["ann", None]
    assert [each["properties"] for each in found] == [None, None]


def test_with_a_body_of_its_own_the_other_fields_are_properties() -> None:
    data = '{"id": 7, "text": "grüß", "at": "noon", "tags": [1, true]}\n'.encode()
    [found] = events(data, Format.JSONL, key="id", body="text")
    assert (found["key"], found["body"]) == ("7", "grüß".encode())
    assert found["properties"] == [("at", "noon"), ("tags", "[1,true]")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"user": 1}\n{"user"\n', "line 2 is not JSON"),
        (b"[1, 2]\n", "line 1 is not a JSON object"),
        (b'\n{"usr": 1}\n', "line 2 has no field 'user': it has usr"),
        (b"\xff\n", "line 1 is not JSON"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_number(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        events(data, Format.JSONL, key="user")


def before_the_refusal(data: bytes, form: Format, words: str, **fields: Any) -> int:
    """How many events were handed on before a record was refused."""
    found = tables(io.BytesIO(data), form, Fields(**fields), batch=100, read=lambda _: None)
    counts: list[int] = []
    with pytest.raises(UsageError, match=words):
        counts.extend(sent_batch(table).num_rows for table in found)
    return sum(counts)


def test_records_before_a_bad_one_are_handed_on_first() -> None:
    jsonl = b'{"a": 1}\n{"a": 2}\n[]\n{"a": 4}\n'
    assert before_the_refusal(jsonl, Format.JSONL, "line 3") == 2
    assert before_the_refusal(b'{"a": 1}\n{"b": 2}\n', Format.JSONL, "line 2", key="a") == 1
    half = b'{"a": "x"}\n{"a": "\\ud800"}\n'
    assert before_the_refusal(half, Format.JSONL, "line 2 can not be written", key="a") == 1
    assert before_the_refusal(b"a,b\n1,2\n3,4\n5\n", Format.CSV, "row 4") == 2
    assert before_the_refusal(b"a\n1\n2\n\xff\n", Format.CSV, "after row 3") == 2
    assert before_the_refusal(b'a\n1\n"open\n', Format.CSV, "after row 2") == 1
    rows = pa.table({"body": [b"1", b"2", None, b"4"]})
    assert before_the_refusal(parquet(rows), Format.PARQUET, "row 3 has no body") == 2


def test_the_numbers_of_lines_go_on_over_batches() -> None:
    data = b'{"a": 1}\n' * 7 + b"x\n"
    with pytest.raises(UsageError, match="line 8 is not JSON"):
        events(data, Format.JSONL, batch=3)


def test_a_csv_row_is_a_json_object_or_body_and_properties() -> None:
    data = '\ufeffuser,note\r\nann,"two\nlines"\nbob,\n'.encode()
    whole = events(data, Format.CSV, key="user")
    assert bodies(whole) == [
        b'{"user":"ann","note":"two\\nlines"}',
        b'{"user":"bob","note":""}',
    ]
    assert [each["key"] for each in whole] == ["ann", "bob"]
    parts = events(data, Format.CSV, body="note", batch=1)
    assert bodies(parts) == [b"two\nlines", b""]
    assert parts[0]["properties"] == [("user", "ann")]


@pytest.mark.parametrize(
    ("value", "json_text"),
    [
        ("7", "7"),
        ("-12.50", "-12.50"),
        ("1e-3", "1e-3"),
        ("999999999999999999", "999999999999999999"),
        ("true", "true"),
        ("0", "0"),
        ("007", '"007"'),
        ("+49", '"+49"'),
        ("1,5", '"1,5"'),
        (" 7", '" 7"'),
        ("9999999999999999999", '"9999999999999999999"'),
        ("NaN", '"NaN"'),
        ("True", '"True"'),
        ("1_000", '"1_000"'),
        ("1e999", '"1e999"'),
        ("\u0661", '"\u0661"'),
        ("", '""'),
    ],
)
def test_numbers_and_booleans_of_a_csv_are_such_unless_strings_are_asked_for(
    value: str, json_text: str
) -> None:
    data = f'user,n\nann,"{value}"\n'.encode()
    (body,) = bodies(events(data, Format.CSV, key="user"))
    assert body.decode() == f'{{"user":"ann","n":{json_text}}}'
    json.loads(body)
    (text,) = bodies(events(data, Format.CSV, strings=True))
    assert json.loads(text) == {"user": "ann", "n": value}
    (alone,) = bodies(events(data, Format.CSV, body="n"))
    assert alone.decode() == value


def test_strings_are_for_csv() -> None:
    with pytest.raises(UsageError, match="--strings is for CSV, and this is jsonl"):
        events(b"{}", Format.JSONL, strings=True)


@pytest.mark.parametrize(
    ("data", "key", "words"),
    [
        (b"a,b\n1,2\n3\n", "a", "row 3 of the CSV"),
        (b"a,b\n1,2,3\n", "a", "row 2 of the CSV"),
        (b"a\n\xff\n", "a", "can not be read"),
        (b'a\n"open\n', "a", "can not be read"),
        (b"a\n1\n", "x", "row 2 has no field 'x'"),
    ],
)
def test_a_csv_that_is_wrong_says_where(data: bytes, key: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        events(data, Format.CSV, key=key)


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def test_a_parquet_file_of_events_goes_in_as_it_is() -> None:
    rows = [{"key": "k", "body": b"\x00\xff", "properties": [("a", "b")]}]
    schema = pa.schema(
        [("key", pa.utf8()), ("body", pa.binary()), ("properties", pa.map_(pa.utf8(), pa.utf8()))]
    )
    data = parquet(pa.Table.from_pylist(cast("list[dict[str, Any]]", rows * 5), schema=schema))
    assert events(data, Format.PARQUET, batch=2) == rows * 5


def test_any_other_parquet_file_is_read_by_its_fields() -> None:
    data = parquet(pa.table({"user": ["ann", None], "n": [1, 2]}))
    whole = events(data, Format.PARQUET, key="user")
    assert bodies(whole) == [b'{"user":"ann","n":1}', b'{"user":null,"n":2}']
    parts = events(data, Format.PARQUET, body="n")
    assert bodies(parts) == [b"1", b"2"]
    assert parts[0]["properties"] == [("user", "ann")]


def test_what_is_no_parquet_is_refused() -> None:
    with pytest.raises(UsageError, match="Parquet"):
        events(b"user,n\n1,2\n", Format.PARQUET)
