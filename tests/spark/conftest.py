"""One Spark session for the tests of this directory that ask for it: they run in one worker.

The others start drivers of their own, as processes. They run in turn, in one other worker, together
with those of ``tests/cluster``: so never more than two workers are busy with JVMs. Who is who says
``tests/conftest.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.jvm import quick_jvm

from leasehold.spark.sessions import session

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """JVMs take their time to start."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session(
        "tests",
        master="local[2]",
        settings={
            "spark.driver.extraJavaOptions": quick_jvm(),
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": "spark-warehouse-of-tests",
        },
    )
    yield made
    made.stop()
