"""The columns of an event, as Spark and as Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from leasehold.errors import UsageError
from leasehold.events import STORED_SCHEMA
from leasehold.spark.schema import EVENTS, arrow_schema, check_columns, select_columns


@pytest.mark.spec("S2")
def test_columns_of_the_log_fit_spark_as_they_lie() -> None:
    wanted = arrow_schema(EVENTS)

    assert wanted == to_arrow_schema(EVENTS, timezone="UTC")
    assert pa.schema(list(wanted)[1:]) == STORED_SCHEMA
    assert wanted.field("partition") == pa.field("partition", pa.utf8(), nullable=False)


def test_columns_are_cut_in_any_order() -> None:
    assert select_columns(["body", "key"]).fieldNames() == ["body", "key"]
    assert arrow_schema(select_columns(["body"])).field("body").type == pa.binary()


def test_an_unknown_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no column 'sequence': did you mean sequence_number"):
        select_columns(["sequence"])
    with pytest.raises(UsageError, match="no column 'xyzzy': it has partition, sequence_number"):
        select_columns(["xyzzy"])


def test_a_column_of_another_type_is_refused_with_its_type() -> None:
    with pytest.raises(UsageError, match="the column partition of an event is string, not int"):
        check_columns(StructType([StructField("partition", IntegerType())]))


def test_a_key_may_be_null_so_a_schema_must_allow_it() -> None:
    strict = StructType([StructField("key", StringType(), nullable=False)])

    with pytest.raises(UsageError, match="key of an event may be null"):
        check_columns(strict)
    assert check_columns(select_columns(["key", "body"])) == select_columns(["key", "body"])
