"""Stores, by URL.

==========================  ===============================================================
URL                         store
==========================  ===============================================================
``memory://``               this process only; gone when it ends
``sqlite:///path/to.db``    all processes of one machine; no server
``postgresql://…``          any number of machines; needs ``leasehold[postgres]``
==========================  ===============================================================
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from urllib.parse import urlsplit

from leasehold.clock import Clock, SystemClock
from leasehold.errors import UnknownStore
from leasehold.ports import Store

Opener = Callable[[str, Clock], Awaitable[Store]]

_MODULES = {
    "memory": "leasehold.stores.memory",
    "sqlite": "leasehold.stores.sqlite",
    "postgresql": "leasehold.stores.postgres",
    "postgres": "leasehold.stores.postgres",
}
_EXTRAS = {"postgresql": "postgres", "postgres": "postgres"}
_EXAMPLES = "memory://, sqlite:///path/to/leases.db or postgresql://user@host/database"


@asynccontextmanager
async def open_store(url: str, *, clock: Clock | None = None) -> AsyncIterator[Store]:
    """Open the store that ``url`` names, made or brought up to date where needed.

    Raises:
        UnknownStore: the URL names no store; the message says what to write instead.
        StoreUnavailable: there is no answer.
        StoreUnusable: it can not serve: read-only, full, damaged, or of a newer version.
    """
    store = await _connected(url, clock)
    try:
        yield store
    finally:
        await store.close()


async def _connected(url: object, clock: Clock | None) -> Store:
    scheme = urlsplit(url).scheme.lower() if isinstance(url, str) else ""
    if scheme not in _MODULES:
        raise UnknownStore(f"{_without_secrets(url)!r} names no store: write {_EXAMPLES}")
    # A store is imported when it is asked for: its driver may not be installed.
    try:
        module = import_module(_MODULES[scheme])
    except ImportError as error:
        raise UnknownStore(
            f"the {scheme} store needs the package {error.name!r}: "
            f"pip install 'leasehold[{_EXTRAS[scheme]}]'"
        ) from error
    opener: Opener = module.open_url
    return await opener(str(url), clock or SystemClock())


def _without_secrets(url: object) -> object:
    if not isinstance(url, str):
        return url
    head, at, tail = url.rpartition("@")
    return f"{head.split('://', maxsplit=1)[0]}://…@{tail}" if at else url
