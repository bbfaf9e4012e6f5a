"""A URL that cannot be used is never quoted: a mistyped one may hold a password or a signature."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import anyio
import pytest

from leasehold.azure.eventhubs.address import parse, shown
from leasehold.clock import SystemClock
from leasehold.errors import LeaseholdError
from leasehold.events import open_source
from leasehold.events.source_urls import shown as shown_source
from leasehold.stores import open_store, open_transactions
from leasehold.stores.blocking import open_blocking

SECRET = "s3cret"
URLS = [
    f"postgressql:///app?password={SECRET}",
    f"postgresq://app:{SECRET}@db/app",
    f"azureblob://account/container?sig={SECRET}",
    f"azure-blob//account/container?sas=sig={SECRET}",
    f"host=db user=app password={SECRET}",
    f"//app:{SECRET}@db/app",
    f"memory://app:{SECRET}@db",
    f"sqlite://app:{SECRET}@db",
    f"sqlite:///leases.db?key={SECRET}",
    f"eventhub://app:{SECRET}@ns/orders",
    f"eventhubs://app:{SECRET}#x@ns/orders",
    f"eventhubs://app:a?{SECRET}@ns/orders",
    f"eventhubs://app:a/{SECRET}@ns/orders",
    f"eventhubs://ns/orders?connection=Endpoint=sb://h;SharedAccessKey=a@{SECRET}",
    f"log:eventhubs://app:{SECRET}@ns/orders",
]


async def _store(url: str) -> None:
    async with open_store(url):
        pass


def _source(url: str) -> None:
    open_source(url, store_url="memory://", name="me")


def _blocking(url: str) -> None:
    open_blocking(url, queries={}, clock=SystemClock(), guard=None).close()


OPENERS: list[Callable[[str], object]] = [
    lambda url: anyio.run(_store, url),
    open_transactions,
    _blocking,
    _source,
    parse,
]


@pytest.mark.parametrize("opener", OPENERS, ids=["store", "transactions", "log", "source", "hub"])
@pytest.mark.parametrize("url", URLS)
def test_no_part_of_a_url_that_may_be_a_secret_is_in_an_error(
    url: str, opener: Callable[[str], object]
) -> None:
    told: list[str] = []
    try:
        opener(url)
    except LeaseholdError as error:
        told += [*traceback.format_exception_only(error), repr(error), repr(vars(error))]
    assert SECRET not in " ".join(told)


@pytest.mark.parametrize("url", URLS)
def test_what_is_shown_of_an_address_holds_no_secret(url: str) -> None:
    assert SECRET not in shown(url) or not url.startswith("eventhubs://")
    assert SECRET not in shown_source(url) or not url.startswith("eventhubs://")


def test_a_mistyped_scheme_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(LeaseholdError, match=r"'postgressql' .*did you mean postgresql://"):
        anyio.run(_store, f"postgressql:///app?password={SECRET}")


def test_an_address_without_secrets_is_shown() -> None:
    assert shown("eventhubs://ns.example:5671/orders") == "eventhubs://ns.example:5671/orders"
    assert shown(f"eventhubs://app:{SECRET}@ns/orders?arrow=off") == "eventhubs://ns/orders"
