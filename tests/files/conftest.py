"""Namespaces for tests: on both stores, or on one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.namespaces import World, world


@pytest.fixture(params=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def one(tmp_path: Path) -> Iterator[World]:
    with world("sqlite", tmp_path) as made:
        yield made
