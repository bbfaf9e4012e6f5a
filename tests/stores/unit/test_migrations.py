"""The steps of the schemas have one order: two of one number would be one step to a database."""

from __future__ import annotations

from leasehold.stores.postgres.migrations import migrations as on_postgres
from leasehold.stores.sqlite.migrations import _MIGRATION, _folder


def test_each_step_on_postgresql_has_a_number_of_its_own() -> None:
    numbers = [step.number for step in on_postgres()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_each_step_on_sqlite_has_a_number_of_its_own() -> None:
    found = [_MIGRATION.fullmatch(path.name) for path in _folder().iterdir()]
    numbers = sorted(int(match[1]) for match in found if match)
    assert numbers == list(range(1, len(numbers) + 1))
