"""Tokens of Entra ID: what azure-identity logs stays off the screen, its reason is in our error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import anyio
import pytest

from leasehold.azure.blob_store.credentials import Bearer
from leasehold.azure.eventhubs.credentials import EntraCredential
from leasehold.errors import StoreUnavailable, StoreUnusable
from leasehold.stores.identity import reason_of, token_of
from leasehold.testing.clock import ManualClock

ITS_LOG = logging.getLogger("azure.identity._credentials.chained")
FIRST = "DefaultAzureCredential failed to retrieve a token from the included credentials."
NOTHING_SET_UP = (
    "\tEnvironmentCredential: EnvironmentCredential authentication unavailable.\n"
    "Visit https://aka.ms/x to troubleshoot this issue.\n"
    "\tAzureCliCredential: Azure CLI not found on path\n"
    "\tAzurePowerShellCredential: PowerShell is not installed"
)


class Refusing:
    """As ``DefaultAzureCredential``: it logs what it then raises."""

    def __init__(self, attempts: str) -> None:
        self._words = f"{FIRST}\nAttempted credentials:\n{attempts}\nTo mitigate this issue, …"

    def get_token(self, *scopes: str) -> object:
        del scopes
        ITS_LOG.warning("%s", self._words)
        raise RuntimeError(self._words)


@pytest.fixture(autouse=True)
def _level_is_put_back() -> Iterator[None]:
    logger = logging.getLogger("azure.identity")
    before = logger.level
    yield
    assert logger.level == before


def test_one_error_and_no_log_of_azure_identity(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreUnusable, match="azure-identity says: DefaultAzure") as caught:
        Bearer(Refusing(NOTHING_SET_UP), ManualClock()).headers("GET", "/", {}, {})
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreUnavailable, match="azure-identity says: DefaultAzure"):
        anyio.run(EntraCredential(Refusing(NOTHING_SET_UP)).token, "sb://contoso/orders")
    assert caplog.records == []
    ITS_LOG.warning("afterwards")
    assert [each.getMessage() for each in caplog.records] == ["afterwards"]


def test_the_way_of_signing_in_that_was_set_up_is_the_reason() -> None:
    attempts = "\tEnvironmentCredential: Authentication failed: AADSTS7000215: Invalid secret\n"
    refusing = Refusing(attempts + NOTHING_SET_UP)
    with pytest.raises(StoreUnusable, match=r"EnvironmentCredential: .*AADSTS7000215"):
        Bearer(refusing, ManualClock()).headers("GET", "/", {}, {})
    assert reason_of(RuntimeError("")) == "RuntimeError"
    assert len(reason_of(RuntimeError("x" * 1000))) == 300


def test_a_logger_that_was_set_to_be_read_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="azure.identity"), pytest.raises(RuntimeError):
        token_of(Refusing(NOTHING_SET_UP), "scope")
    assert len(caplog.records) == 1


def test_it_is_quiet_until_the_last_of_several_has_its_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def get_token(self, scope: str) -> str:
            entered.set()
            assert leave.wait(100)
            ITS_LOG.warning("late")
            return scope

    asking = threading.Thread(target=token_of, args=(Slow(), "scope"))
    asking.start()
    assert entered.wait(100)
    with pytest.raises(RuntimeError):
        token_of(Refusing(NOTHING_SET_UP), "scope")
    leave.set()
    asking.join()
    assert caplog.records == []
