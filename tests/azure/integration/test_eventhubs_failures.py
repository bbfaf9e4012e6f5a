"""The receiver when its token expires, and when its source is closed in the meantime."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.eventhubs import address_of, in_loop, source_of, taken
from tests.support.hub import running_hub, until

from leasehold.azure import EventHubsSource
from leasehold.azure.eventhubs.address import parse
from leasehold.azure.eventhubs.credentials import Token
from leasehold.azure.eventhubs.service_errors import (
    NOT_FOUND,
    UNAUTHORIZED,
    RequestContext,
    ServiceError,
    to_leasehold_error,
)
from leasehold.azure.eventhubs.source import EventHubsRanges
from leasehold.errors import StoreUnavailable, UsageError
from leasehold.events import Start

SEND: dict[str, Any] = {"group": "billing", "epoch": 1, "name": "host-a"}


def test_a_link_whose_token_has_ended_is_made_anew_with_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after hours without Entra ID: the hub ends the link, though the identity is a good one."""
    monkeypatch.setattr("leasehold.azure.eventhubs.receiver._STABLE_S", 0.0)
    with running_hub(tmp_path) as hub:

        async def test() -> None:
            async with source_of(hub) as source:
                receiver = await source.receiver("0", start=Start.latest(), **SEND)
                tokens, shown = source.connection_manager._tokens, list[str]()

                async def token(audience: str) -> Token:
                    shown.append(audience)
                    return await tokens.token(audience)

                source.connection_manager._tokens = SimpleNamespace(token=token)
                assert receiver.link is not None
                receiver.link.on_end(
                    ServiceError(condition=UNAUTHORIZED, description="ExpiredToken")
                )
                await asyncio.to_thread(hub.store, b"after it")
                assert [each.body for each in await taken(receiver, 1)] == [b"after it"]
                assert len(shown) == 1
                assert source.connection_manager.connections == 1

        in_loop(test)


def test_what_is_waited_for_is_told_at_the_first_failure(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken_port:  # nobody listens there
        taken_port.bind(("127.0.0.1", 0))
        port = taken_port.getsockname()[1]
        keys = "SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        text = quote(f"Endpoint=sb://127.0.0.1:{port};{keys}", safe="")
        address = f"eventhubs:///orders?connection={text}"

        async def test() -> None:
            async with EventHubsSource(address, patience=timedelta(seconds=0.3)) as source:
                with pytest.raises(StoreUnavailable):
                    await source.partitions()

        in_loop(test)
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said == [f"no connection to 127.0.0.1:{port} yet (Connection refused); trying for 0.3 s"]


HINT = "a server without TLS needs UseDevelopmentEmulator=true in the connection string"


def _told(address: str, caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """The first warning and the error of a source that can not connect."""

    async def test() -> str:
        async with EventHubsSource(address, patience=timedelta(seconds=0.3)) as source:
            with pytest.raises(StoreUnavailable) as told:
                await source.partitions()
            return str(told.value)

    caplog.clear()
    error = asyncio.run(test())
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    return warning, error


def test_tls_to_a_hub_without_it_is_told_with_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_hub(tmp_path) as hub:
        encrypted = hub.url().replace("UseDevelopmentEmulator=true;", "")
        assert encrypted != hub.url()
        warning, error = _told(f"eventhubs:///hub?connection={quote(encrypted, safe='')}", caplog)
    assert warning.endswith(f"trying for 0.3 s; {HINT}")
    assert HINT in error
    assert "no answer in time" not in warning + error  # there was one


def test_a_name_that_nobody_knows_is_no_matter_of_tls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", unknown)
    keys = quote("SharedAccessKeyName=a;SharedAccessKey=b", safe="")
    address = f"eventhubs:///orders?connection={quote('Endpoint=sb://contoso.invalid;')}{keys}"
    warning, error = _told(address, caplog)
    assert warning == (
        "no connection to contoso.invalid:5671 yet (Name or service not known); trying for 0.3 s"
    )
    assert "can not be used: Name or service not known. Check the name" in error
    assert "UseDevelopmentEmulator" not in error


def test_another_group_is_advised_only_where_a_group_was_asked_for() -> None:
    address = parse("eventhubs://contoso/orders", {})
    service_error = ServiceError(condition=NOT_FOUND, description="could not be found")
    said = str(to_leasehold_error(service_error, RequestContext(address=address)))
    assert said.endswith("check the name, or create it")
    said = str(
        to_leasehold_error(
            service_error, RequestContext(address=address, consumer_group="billing", partition="0")
        )
    )
    assert "its consumer group 'billing'" in said
    assert "?consumer_group=…" in said


def test_a_source_that_is_closed_connects_no_more(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:

        async def test() -> None:
            source = source_of(hub)
            receiver = await source.receiver("0", start=Start.latest(), **SEND)
            source._receivers.clear()  # as one that is just being opened
            await source.close()
            with pytest.raises(UsageError, match="closed"):
                await taken(receiver, 1)
            await asyncio.to_thread(until, lambda: not hub.server.connections)

        in_loop(test)


def test_ranges_that_are_closed_say_so(tmp_path: Path) -> None:
    """A forked process has no thread that could answer either: it is told, and does not wait."""
    with running_hub(tmp_path) as hub:
        ranges = EventHubsRanges(address_of(hub))
        ranges.close()
        ranges.close()
        with pytest.raises(UsageError, match="forked"):
            ranges.partitions()
