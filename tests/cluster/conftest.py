"""One standalone cluster for all tests of this directory: they run in one worker, in turn.

It is the worker of all other tests that start Spark drivers too: see ``tests/spark/conftest.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spark_cluster import Cluster, cluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """JVMs take their time to start."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers, with room for two executors each."""
    with cluster(tmp_path_factory.mktemp("cluster"), workers=2, cores=2, memory="2g") as made:
        yield made
