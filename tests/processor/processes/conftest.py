"""Both stores, each with a log in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.postgres import database


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/log.db"
    else:
        with database() as made:
            yield made


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place for leases that nobody has ever opened."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db"
    else:
        with database(migrated=False) as made:
            yield made
