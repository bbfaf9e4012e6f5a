"""Which rows and which tables a Delta sink takes."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from leasehold.errors import SinkUnfit
from leasehold.spark.sinks.delta.commit_rules import (
    all_nullable,
    differences,
    refuse_unfit_new,
    refuse_unfit_table,
    required,
)


def columns(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


def test_the_order_of_columns_and_their_nulls_do_not_matter() -> None:
    rows = t.StructType(
        [t.StructField("b", t.StringType(), nullable=False), t.StructField("a", t.LongType())]
    )
    assert list(differences(rows, columns(a=t.LongType(), b=t.StringType()))) == []


def test_every_difference_is_named() -> None:
    rows = columns(a=t.IntegerType(), c=t.DateType())
    table = columns(a=t.LongType(), b=t.StringType())
    assert list(differences(rows, table)) == [
        "column a is int in the rows and bigint in the table",
        "column b (string) is missing",
        "column c (date) is not in the table",
    ]


@pytest.mark.parametrize("deep", [False, True])
def test_a_null_inside_is_refused_where_the_table_takes_none(deep: bool) -> None:
    def made(*, nulls: bool) -> t.StructType:
        array = t.ArrayType(t.LongType(), containsNull=nulls)
        return columns(a=columns(x=array) if deep else array)

    assert list(differences(made(nulls=False), made(nulls=True))) == []
    assert len(list(differences(made(nulls=True), made(nulls=False)))) == 1


def test_a_new_table_takes_nulls_everywhere() -> None:
    strict = t.StructType(
        [
            t.StructField("a", t.LongType(), nullable=False),
            t.StructField("m", t.MapType(t.StringType(), t.LongType(), valueContainsNull=False)),
        ]
    )
    assert required(strict) == ("a",)
    made = all_nullable(strict)
    assert required(made) == ()
    assert made["m"].dataType == t.MapType(t.StringType(), t.LongType())


@pytest.mark.parametrize(
    ("rows", "by", "reason"),
    [
        (columns(), (), "there are none"),
        (columns(**{"a b": t.LongType()}), (), "has one of the characters"),
        (columns(a=t.LongType(), A=t.LongType()), (), "is there twice"),
        (columns(a=t.ArrayType(t.DayTimeIntervalType())), (), "which Delta lacks"),
        (columns(a=t.LongType()), ("b",), "which is no column"),
        (columns(a=t.DoubleType(), b=t.LongType()), ("a",), "which is double"),
        (columns(a=t.LongType()), ("a",), "names all columns"),
    ],
)
def test_what_no_table_can_have_is_refused(
    rows: t.StructType, by: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(SinkUnfit, match=reason):
        refuse_unfit_new("delta:/t", rows, by)


@pytest.mark.parametrize(
    "settings",
    [
        {"delta.columnMapping.mode": "name"},
        {"delta.constraints.positive": "a > 0"},
        {"delta.setTransactionRetentionDuration": "interval 7 days"},
    ],
)
def test_a_table_with_rules_that_are_not_kept_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(SinkUnfit, match="Nothing was written"):
        refuse_unfit_table("delta:/t", columns(a=t.LongType()), settings)


def test_a_computed_column_is_refused_and_ordinary_settings_pass() -> None:
    computed = t.StructType(
        [t.StructField("a", t.LongType(), metadata={"delta.generationExpression": "1"})]
    )
    with pytest.raises(SinkUnfit, match="column a is computed"):
        refuse_unfit_table("delta:/t", computed, {})
    ordinary = {"delta.columnMapping.mode": "none", "delta.appendOnly": "true"}
    refuse_unfit_table("delta:/t", columns(a=t.LongType()), ordinary)
