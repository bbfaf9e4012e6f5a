"""Stores, by URL.

========================  =====================================================
URL                       store
========================  =====================================================
``memory://``             this process only; gone when it ends
``sqlite:///path/to.db``  all processes of one machine; no server
``postgresql://…``        any number of machines; needs ``leasehold[postgres]``
``azure-blob://…``        any number of machines; a container of Azure Storage
========================  =====================================================
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from leasehold.clock import Clock, SystemClock
from leasehold.errors import InvalidUrl, UsageError
from leasehold.ports import Store

if TYPE_CHECKING:
    from types import ModuleType

    from leasehold.stores.postgres.transactions import Transactions

Opener = Callable[..., Awaitable[Store]]

_MODULES = {
    "memory": "leasehold.stores.memory",
    "sqlite": "leasehold.stores.sqlite",
    "postgresql": "leasehold.stores.postgres",
    "postgres": "leasehold.stores.postgres",
    "azure-blob": "leasehold.azure.blob_store",
}
_EXTRAS = {"postgresql": "postgres", "postgres": "postgres", "azure-blob": "azure"}
_TRANSACTIONS = {
    "postgresql": "leasehold.stores.postgres.transactions",
    "postgres": "leasehold.stores.postgres.transactions",
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=://)")
_EXAMPLES = (
    "memory://, sqlite:///path/to/leases.db, postgresql://user@host/database "
    "or azure-blob://account/container"
)


@asynccontextmanager
async def open_store(
    url: str, *, clock: Clock | None = None, create: bool = True
) -> AsyncIterator[Store]:
    """Open the store that ``url`` names, created or brought up to date where needed.

    Without ``create`` nothing is created and no schema is changed: for commands that read.

    Raises:
        InvalidUrl: the URL names no store; the message says what to write instead.
        UsageError: there is no store yet, without ``create``.
        StoreUnavailable: there is no answer.
        StoreUnusable: it can not serve: read-only, full, damaged, or of a newer version; without
            ``create`` also of an older one.
    """
    store = await _connected(url, clock, create=create)
    try:
        yield store
    finally:
        await store.close()


def open_transactions(
    url: str, *, clock: Clock | None = None, max_connections: int = 8
) -> Transactions:
    """Transactions in the store's own database: a caller's statements and its checkpoint as one.

    Connects to nothing yet.

    Raises:
        UsageError: this store can not do it; the message says what to do instead.
        InvalidUrl: the URL names no store; the message says what to write instead.
    """
    scheme = _scheme(url)
    if scheme not in _TRANSACTIONS:
        raise UsageError(
            f"the {scheme} store has no transactions for statements of your own: keep the leases "
            "in the PostgreSQL database that you write to (postgresql://…), or store the epoch "
            "and the position with your data, as docs/exactly-once.md shows"
        )
    made: Transactions = _loaded(_TRANSACTIONS[scheme], scheme).Transactions.of(
        url, clock=clock or SystemClock(), max_connections=max_connections
    )
    return made


async def _connected(url: object, clock: Clock | None, *, create: bool) -> Store:
    scheme = _scheme(url)
    opener: Opener = _loaded(_MODULES[scheme], scheme).open_url
    return await opener(str(url), clock or SystemClock(), create=create)


def _scheme(url: object) -> str:
    scheme = urlsplit(url).scheme.lower() if isinstance(url, str) else ""
    if scheme not in _MODULES:
        raise InvalidUrl(f"{_described(url)} names no store{_hint(scheme)}: write {_EXAMPLES}")
    return scheme


def _loaded(module: str, scheme: str) -> ModuleType:
    # A store is imported when it is asked for: its driver may not be installed.
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidUrl(
            f"the {scheme} store needs the package {error.name!r}: "
            f"pip install 'leasehold[{_EXTRAS[scheme]}]'"
        ) from error


def _described(url: object) -> str:
    """Name the URL in an error by its scheme alone: the rest may hold a password or a signature."""
    if not isinstance(url, str):
        return f"a {type(url).__name__}"
    found = _SCHEME.match(url)
    return f"a URL of scheme {found[0]!r}" if found else "a text without a scheme"


def _hint(scheme: str) -> str:
    meant = get_close_matches(scheme, _MODULES, n=1) if scheme else []
    return f" (did you mean {meant[0]}://?)" if meant else ""
