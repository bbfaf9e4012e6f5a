"""How the schema comes to be: numbered files in ``sql/``, each applied once, in one transaction.

Ten hosts that start at once are harmless: who comes second waits, then finds nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import psycopg

from leasehold.errors import StoreUnusable
from leasehold.stores.validation import no_store_yet, older_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.stores.postgres.connections import Connection, Connections

_HERE = files("leasehold.stores.postgres")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    text: bytes


@cache
def queries() -> Mapping[str, bytes]:
    """The statements of ``queries.sql``, by name."""
    text = (_HERE / "queries.sql").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name.strip(): query.strip().rstrip(";").encode() for name, _, query in parts}


@cache
def migrations() -> Sequence[Migration]:
    """All steps this version knows, in their order."""
    found = sorted(
        (file for file in (_HERE / "sql").iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    parts = ((file, file.name.removesuffix(".sql").partition("_")) for file in found)
    return [Migration(int(number), name, file.read_bytes()) for file, (number, _, name) in parts]


async def missing(connections: Connections) -> Sequence[Migration]:
    """The steps that the database lacks. Reads only.

    Raises:
        StoreUnusable: it was made by a newer version.
    """
    async with connections.borrowed() as connection:
        done = await _done(connection)
    known = migrations()
    if done > known[-1].number:
        raise StoreUnusable(
            f"the schema leasehold at {connections.address.where} was made by a newer Leasehold "
            f"(migration {done}, this one knows {known[-1].number}): upgrade this one"
        )
    return [step for step in known if step.number > done]


def check_current(connections: Connections, steps: Sequence[Migration]) -> None:
    """Refuse a database that lacks steps, because the caller may not change it.

    Raises:
        UsageError: there is no store in it.
        StoreUnusable: its schema is that of an older version.
    """
    where, known = connections.address.url, migrations()
    if len(steps) == len(known):
        raise no_store_yet(where)
    if steps:
        raise older_schema(where, found=steps[0].number - 1, needed=known[-1].number)


async def apply(connections: Connections, steps: Sequence[Migration]) -> None:
    """Take those of the steps that nobody else has taken meanwhile."""
    for step in steps:
        async with connections.borrowed() as connection, connection.transaction():
            await connection.execute(queries()["migration_lock"])
            if await _done(connection) >= step.number:
                continue
            await connection.execute(step.text)
            await connection.execute(
                queries()["migration_done"], {"number": step.number, "name": step.name}
            )


async def _done(connection: Connection) -> int:
    """The number of the last step taken; 0 in a database that has none of our tables."""
    try:
        # Of its own, or a savepoint: to find no table is an error, which ends a transaction.
        async with connection.transaction():
            row = await (await connection.execute(queries()["migrated"])).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    return int(row[0]) if row else 0
