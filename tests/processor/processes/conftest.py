"""A store with a log in it: SQLite, unless a test asks for PostgreSQL by its parameter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.postgres import database


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path}/log.db"
    else:
        with database() as made:
            yield made


@pytest.fixture(params=["postgres"])
def empty_url() -> Iterator[str]:
    """A store for leases that was never opened."""
    with database(migrated=False) as made:
        yield made
