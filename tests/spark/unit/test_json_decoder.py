"""JSON out of bodies: exact for each row, however the rows come together."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasehold.errors import BatchFailed, UsageError
from leasehold.spark.schema import arrow_schema
from leasehold.spark.source.layout import Decoder

N = StructType([StructField("n", LongType())])


def batch_of(*bodies: bytes) -> pa.RecordBatch:
    count = len(bodies)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["4"] * count, pa.utf8()),
            pa.array(range(100, 100 + count), pa.int64()),
            pa.array(bodies, pa.binary()),
        ],
        names=["partition", "sequence_number", "body"],
    )


def decoded(fields: StructType, *bodies: bytes, null_malformed: bool = False) -> list[Any]:
    made = Decoder(fields, null_malformed=null_malformed)
    columns = made.columns(batch_of(*bodies))
    batch = pa.RecordBatch.from_arrays(columns, schema=made.schema)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(fields)
    rows: list[Any] = batch.to_pylist()
    return rows


def field(kind: DataType) -> StructType:
    return StructType([StructField("x", kind)])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BooleanType(), "true", True),
        (IntegerType(), "-7", -7),
        (LongType(), str(2**62), 2**62),
        (DoubleType(), "1.5", 1.5),
        (DoubleType(), "1", 1.0),
        (DecimalType(10, 2), "1.25", Decimal("1.25")),
        (StringType(), '"a\\n\\u00e9"', "a\né"),
        (DateType(), '"2026-01-02"', date(2026, 1, 2)),
        (TimestampType(), '"2026-01-02T03:04:05.5Z"', datetime(2026, 1, 2, 3, 4, 5, 500000, UTC)),
        (TimestampType(), '"2026-01-02T03:04:05+02:00"', datetime(2026, 1, 2, 1, 4, 5, 0, UTC)),
        (ArrayType(LongType()), "[1, null]", [1, None]),
        (field(StringType()), '{"x": "y", "z": 1}', {"x": "y"}),
        (ArrayType(field(LongType())), '[{"x": 1}, {}]', [{"x": 1}, {"x": None}]),
        (LongType(), "null", None),
    ],
)
def test_each_type_is_decoded(kind: DataType, text: str, value: object) -> None:
    assert decoded(field(kind), f'{{"x": {text}}}'.encode(), b"{}") == [{"x": value}, {"x": None}]


def test_blanks_and_line_breaks_around_and_inside_a_body_do_no_harm() -> None:
    bodies = (b' {"n":\n 1}\r\n', b'{"n": 2}', b'{\n"n"\n:\n3\n}\n')

    assert decoded(N, *bodies) == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"null", b"[]", b"5", b'"{}"', b"{", b'{"n": 1', b'{"n": 1}}', b"nonsense"),
        *(b'{"n": 1}{"n": 2}', b'{"n": 1} null {"n": 2}', b'{"n": 1.5}', b'{"n": "1"}', b"\xff{}"),
        *(b'{"n": 1, "n": 2}', b'{"n": 99999999999999999999}', b'{"m": "a\nb"}', b'{"n": 1,}'),
    ],
)
def test_a_malformed_body_is_named_or_null_and_spoils_no_other(body: bytes) -> None:
    around = [json.dumps({"n": number}).encode() for number in range(8)]
    bodies = [*around[:3], body, *around[3:]]

    with pytest.raises(BatchFailed, match="event 103 of partition 4") as caught:
        decoded(N, *bodies)

    assert caught.value.ranges == ("4[103, 104)",)
    rows = decoded(N, *bodies, null_malformed=True)
    assert [row["n"] for row in rows] == [0, 1, 2, None, *range(3, 8)]


def test_bodies_that_are_only_right_together_are_malformed() -> None:
    # Together they are three rows in three bodies, and none of them is right.
    bodies = (b'{"n": ', b"1}", b'{"n": 2}{"n": 3}')

    assert decoded(N, *bodies, null_malformed=True) == [{"n": None}] * 3


def test_a_long_malformed_body_is_shown_in_short() -> None:
    with pytest.raises(BatchFailed) as caught:
        decoded(N, b"x" * 10_000)

    assert len(str(caught.value)) < 400


@given(
    st.lists(
        st.one_of(
            st.integers(-(2**63), 2**63 - 1).map(
                lambda n: json.dumps({"n": n, "m": "}{"}).encode()
            ),
            st.binary(max_size=8),
            st.sampled_from([b"null", b"{}{}", b"{", b"}", b'{"n":', b"1}", b'{"n":"\n"}']),
        ),
        max_size=12,
    )
)
def test_rows_together_are_the_rows_one_by_one(bodies: list[bytes]) -> None:
    alone = [decoded(N, body, null_malformed=True)[0] for body in bodies]

    assert decoded(N, *bodies, null_malformed=True) == alone


@pytest.mark.parametrize(
    "kind", [BinaryType(), MapType(StringType(), LongType()), ArrayType(DateType())]
)
def test_a_type_that_json_does_not_have_is_refused(kind: DataType) -> None:
    with pytest.raises(UsageError, match="the field x"):
        Decoder(field(kind))


def test_a_field_must_allow_null() -> None:
    with pytest.raises(UsageError, match="the field n may be missing"):
        Decoder(StructType([StructField("n", LongType(), nullable=False)]))


def test_a_decoder_goes_to_the_tasks() -> None:
    copy = pickle.loads(pickle.dumps(Decoder(N)))

    assert copy.columns(batch_of(b'{"n": 5}'))[0].to_pylist() == [5]
