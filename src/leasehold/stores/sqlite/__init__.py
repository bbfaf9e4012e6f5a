"""The SQLite store, by URL: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from leasehold.errors import UnknownStore
from leasehold.stores.sqlite.store import SqliteStore as SqliteStore

if TYPE_CHECKING:
    from leasehold.clock import Clock

_EXAMPLES = "sqlite:///leases.db for a file here, or sqlite:////var/lib/leases.db"


async def open_url(url: str, clock: Clock) -> SqliteStore:
    """Open the file that the URL names, made or brought up to date where needed.

    Raises:
        UnknownStore: there is no path in the URL, or more than a path.
        StoreUnavailable: other processes kept it locked for too long.
        StoreUnusable: no such directory, read-only, full, damaged, newer, or not ours.
    """
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if not url.lower().startswith("sqlite:///") or not path:
        raise UnknownStore(f"{url!r} has no path after three slashes: write {_EXAMPLES}")
    if parts.query or parts.fragment:
        raise UnknownStore(
            f"{url!r}: a SQLite URL has no options; in a path write %3F for ? and %23 for #"
        )
    return await SqliteStore.open(path, clock=clock, url=url)
