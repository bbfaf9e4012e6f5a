"""Our receiver when its token ends, and when its source is closed meanwhile."""

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

from leasehold.errors import StoreUnavailable, UsageError
from leasehold.log import Start
from leasehold.sources.eventhubs import EventHubsSource
from leasehold.sources.eventhubs.ranges import EventHubsRanges
from leasehold.sources.eventhubs.refusals import UNAUTHORIZED, Refusal
from leasehold.sources.eventhubs.tokens import Token

SEND: dict[str, Any] = {"group": "billing", "epoch": 1, "name": "host-a"}


def test_a_link_whose_token_has_ended_is_made_anew_with_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after hours without Entra ID: the hub ends the link, though the identity is a good one."""
    monkeypatch.setattr("leasehold.sources.eventhubs.receiver._SOUND_S", 0.0)
    with running_hub(tmp_path) as hub:

        async def test() -> None:
            async with source_of(hub) as source:
                receiver = await source.receiver("0", start=Start.latest(), **SEND)
                tokens, shown = source.keeper._tokens, list[str]()

                async def token(audience: str) -> Token:
                    shown.append(audience)
                    return await tokens.token(audience)

                source.keeper._tokens = SimpleNamespace(token=token)
                assert receiver.link is not None
                receiver.link.on_end(Refusal(condition=UNAUTHORIZED, description="ExpiredToken"))
                await asyncio.to_thread(hub.store, b"after it")
                assert [each.body for each in await taken(receiver, 1)] == [b"after it"]
                assert len(shown) == 1
                assert source.keeper.connections == 1

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
