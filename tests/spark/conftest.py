"""One Spark session for all tests of this directory: they run in one worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leasehold.spark.sessions import session

HERE = Path(__file__).parent
# Compiled once is enough for a test: half the CPU of a start.
QUICK_JVM = "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that shares the session goes to one worker."""
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session(
        "tests",
        master="local[2]",
        settings={
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": "spark-warehouse-of-tests",
        },
    )
    yield made
    made.stop()
