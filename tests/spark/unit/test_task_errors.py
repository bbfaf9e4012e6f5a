"""What Spark tells of errors of ours, and what a standby makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from leasehold.errors import SinkUnfit, UsageError
from leasehold.spark.reading import usage_error_in
from leasehold.spark.standby_query import Standby

TOLD = """[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):
  File "reader.py", line 1, in initialOffset
leasehold.errors.{error}: the words
 SQLSTATE: 38000"""


@pytest.mark.parametrize("error", ["UsageError", "InvalidOptions", "SinkUnfit"])
def test_a_wrong_use_that_spark_tells_of_is_raised_without_a_restart(error: str) -> None:
    nobody: Any = None
    driver = Standby(nobody, name="rows", checkpoint_location="/ck", store="memory://")
    with pytest.raises(UsageError, match=r"^the words$"):
        driver._pause_after(StreamingQueryException(TOLD.format(error=error)), 1)


def test_an_error_of_ours_is_known_by_itself() -> None:
    error = SinkUnfit("no such column")
    assert usage_error_in(error) is error


@pytest.mark.parametrize("error", ["StoreUnavailable", "UnknownStream", "NoErrorOfOurs"])
def test_what_a_restart_may_help_is_no_wrong_use(error: str) -> None:
    assert usage_error_in(StreamingQueryException(TOLD.format(error=error))) is None
    assert usage_error_in(ValueError(TOLD.format(error="UsageError"))) is None
