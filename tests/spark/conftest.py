"""The Spark session that the tests in ``session`` share, and the cluster of those in ``cluster``.

All tests with the session run in one worker, all that start drivers in turn in another one: so
never more than two workers are busy with JVMs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.jvm import UNCOMPILED, end, quick_jvm
from tests.support.spark_cluster import Cluster, cluster

from leasehold.spark import session


def pytest_itemcollected(item: pytest.Item) -> None:
    """JVMs take their time to start."""
    if item.get_closest_marker("spark") and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session(
        "tests",
        master="local[2]",
        settings={
            "spark.driver.extraJavaOptions": quick_jvm(),
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": "spark-warehouse-of-tests",
            "spark.python.task.killTimeout": "100ms",
            **UNCOMPILED,
        },
    )
    yield made
    end(made)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker, with room for four executors."""
    with cluster(tmp_path_factory.mktemp("cluster"), workers=1, cores=4, memory="4g") as made:
        yield made
