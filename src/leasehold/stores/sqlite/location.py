"""Where a SQLite store lies: the path in its URL, and a database there that is ready for use."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from leasehold.clock import boot_id as this_boot
from leasehold.errors import InvalidUrl, StoreUnusable
from leasehold.runtime.private_files import create_file
from leasehold.stores.sqlite.database import Database
from leasehold.stores.sqlite.migrations import prepare
from leasehold.stores.validation import no_store_yet

if TYPE_CHECKING:
    from pathlib import Path

    from leasehold.clock import Clock

BUSY_LIMIT_S = 5.0
_EXAMPLES = "sqlite:///leases.db for a file here, or sqlite:////var/lib/leases.db"


def path_of(url: str) -> str:
    """The path in a URL.

    Raises:
        InvalidUrl: there is none, or more than a path.
    """
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if not url.lower().startswith("sqlite:///") or not path:
        raise InvalidUrl(f"the SQLite URL has no path after three slashes: write {_EXAMPLES}")
    if parts.query or parts.fragment:
        raise InvalidUrl(
            f"a SQLite URL has no options: write {_EXAMPLES}; in a path write %3F for ? and %23 "
            "for #"
        )
    return path


def ready_database(
    path: Path, clock: Clock, boot_id: str, busy_limit_s: float, *, create: bool = True
) -> Database:
    """Open the file; with ``create``, made or brought up to date where needed.

    Raises:
        UsageError: there is no such store yet, without ``create``.
        StoreUnavailable: other processes kept it locked for too long.
        StoreUnusable: it can not serve.
    """
    if not create and not path.exists():
        raise no_store_yet(str(path))
    if create:
        _create_private(path)
    database = Database(path, busy_limit_s=busy_limit_s)
    try:
        prepare(database, clock=clock, boot_id=boot_id, create=create)
    except BaseException:
        database.close()
        raise
    return database


def _create_private(path: Path) -> None:
    """Create the file if there is none. SQLite gives its log and other files the same mode."""
    with suppress(OSError):  # it is there; or it can not be made, and opening it says why
        os.close(create_file(path.resolve()))


def check_path(path: Path) -> None:
    """Refuse a path at which no database can be.

    Raises:
        InvalidUrl: the path is that of a database in memory.
        StoreUnusable: it is a directory, or there is no directory for it.
    """
    if path.name == ":memory:":
        raise InvalidUrl("a database in memory is not shared with anybody: write memory://")
    if path.is_dir():
        raise StoreUnusable(f"{path} is a directory: name a file in it, such as {path}/leases.db")
    if not path.parent.is_dir():
        raise StoreUnusable(f"there is no directory {path.parent}: create it")


def machine_boot_id() -> str:
    """Name this start of this machine.

    Raises:
        StoreUnusable: the machine does not tell.
    """
    try:
        return this_boot()
    except OSError as error:
        raise StoreUnusable(
            f"this machine does not tell its boot id ({error}): the SQLite store needs Linux"
        ) from error
