"""Make the database, bring it up to date, and notice that the machine was restarted.

The SQL of this store, read from the ``.sql`` files beside it.
"""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnusable
from leasehold.stores.validation import no_store_yet, older_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from leasehold.clock import Clock
    from leasehold.stores.sqlite.database import Database, Transaction

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


@cache
def queries() -> Mapping[str, str]:
    """Every statement of ``queries.sql``, by its name."""
    _, *parts = _NAME.split(_folder().joinpath("queries.sql").read_text(encoding="utf-8"))
    return MappingProxyType(dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True)))


@cache
def migrations() -> Mapping[int, str]:
    """The text of each migration, by its number, in order."""
    found = {
        int(match[1]): path.read_text(encoding="utf-8")
        for path in _folder().iterdir()
        if (match := _MIGRATION.fullmatch(path.name))
    }
    return MappingProxyType(dict(sorted(found.items())))


def statements(text: str) -> Iterator[str]:
    """The single statements of a script: the driver's own way to run one would commit first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _folder() -> Traversable:
    return files(__package__).joinpath("sql")


# "LEAS": how `file`, other programs and we know our own databases from those of others.
APPLICATION_ID = 0x4C454153
_MIN_SQLITE = (3, 37)  # STRICT tables


def prepare(database: Database, *, clock: Clock, boot_id: str, create: bool = True) -> None:
    """Leave the database ready for use. Any number of processes may do this at once.

    Without ``create`` its schema is not touched. Only after a restart of the machine is something
    written even then: all leases have ended.

    Raises:
        UsageError: there is no store in it yet, without ``create``.
        StoreUnavailable: locked by others for too long.
        StoreUnusable: not ours, newer than we know, read-only, full or damaged; or SQLite too old.
    """
    if sqlite3.sqlite_version_info < _MIN_SQLITE:
        raise StoreUnusable(
            f"this Python has SQLite {sqlite3.sqlite_version}, and 3.37 or newer is needed"
        )
    # Looked at before it is touched: a database of somebody else is left as it is.
    schema = database.read(lambda tx: _schema_of(tx, database.path))
    if not create:
        _check_current(schema, database.path)
    database.use_write_ahead_log()

    def ready(tx: Transaction) -> None:
        if create:
            _bring_up_to_date(tx, database.path)
        _begin_boot(tx, clock=clock, boot_id=boot_id)

    if create or database.read(lambda tx: tx.meta())[1] != boot_id:
        database.write(ready)
    database.keep_identity()


def _schema_of(tx: Transaction, path: Path) -> int:
    known = max(migrations())
    application, schema = tx.pragma("application_id"), tx.pragma("user_version")
    tables = tx.one("tables")
    if application == schema == 0 and tables == (0,):
        return 0
    if application != APPLICATION_ID:
        raise StoreUnusable(f"{path} is the database of another application: choose another path")
    if schema > known:
        raise StoreUnusable(
            f"{path} was made by a newer Leasehold (schema {schema}, this one knows {known}): "
            "upgrade this one"
        )
    return schema


def _check_current(schema: int, path: Path) -> None:
    if not schema:
        raise no_store_yet(str(path))
    if schema < max(migrations()):
        raise older_schema(str(path), found=schema, needed=max(migrations()))


def _bring_up_to_date(tx: Transaction, path: Path) -> None:
    # Asked again under the write lock: ten processes may have seen the new file as empty.
    schema = _schema_of(tx, path)
    for number, text in migrations().items():
        if number > schema:
            for statement in statements(text):
                tx.script(statement)
            tx.set_pragma("user_version", number)
            tx.set_pragma("application_id", APPLICATION_ID)


def _begin_boot(tx: Transaction, *, clock: Clock, boot_id: str) -> None:
    version, known = tx.meta()
    if known == boot_id:
        # Written all the same: a file that we may only read is to fail here and not at the first
        # claim. BEGIN IMMEDIATE alone does not tell.
        tx.run("meta_write", version=version)
        return
    # The seconds of the old boot mean nothing now. Whoever held a lease is gone with it.
    wall, version = clock.utc_now().isoformat(), version + 1
    tx.run("reboot_terms", wall=wall, version=version)
    tx.run("reboot_resources", version=version)
    tx.run("reboot_leases", wall=wall, version=version)
    tx.run("reboot_guests")
    tx.run("reboot_ends", now=clock.boottime_s())
    tx.run("reboot_file_holders")
    tx.run("reboot_file_attempts")
    tx.run("meta_boot", version=version, boot_id=boot_id)
