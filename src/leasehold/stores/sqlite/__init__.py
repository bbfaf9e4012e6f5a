"""The SQLite store, by URL: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.stores.sqlite.location import path_of
from leasehold.stores.sqlite.store import SqliteStore as SqliteStore

if TYPE_CHECKING:
    from leasehold.clock import Clock


async def open_url(url: str, clock: Clock, *, create: bool = True) -> SqliteStore:
    """Open the file that the URL names, made or brought up to date where needed.

    Without ``create`` no file is made and no schema changed.

    Raises:
        InvalidUrl: there is no path in the URL, or more than a path.
        UsageError: there is no such store yet, without ``create``.
        StoreUnavailable: other processes kept it locked for too long.
        StoreUnusable: no such directory, read-only, full, damaged, newer, or not ours.
    """
    return await SqliteStore.open(path_of(url), clock=clock, url=url, create=create)
