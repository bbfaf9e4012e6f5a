"""Each migration has its own number: two that were written at the same time clash here."""

from __future__ import annotations

from importlib.resources import files

import pytest


@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_each_migration_has_its_own_number(store: str) -> None:
    names = [each.name for each in files(f"leasehold.stores.{store}").joinpath("sql").iterdir()]
    numbers = sorted(int(name[:4]) for name in names if name[:4].isdigit())
    assert numbers == list(range(1, len(numbers) + 1))
