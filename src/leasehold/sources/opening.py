"""Event sources by name, as people write them in a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import UsageError
from leasehold.sources.eventhubs.address import is_address, shown
from leasehold.sources.eventhubs.address import parse as parse_address
from leasehold.sources.log import LogSource

if TYPE_CHECKING:
    from leasehold.sources.port import EventSource

_LOG = "log:"


def open_source(text: str, *, store_url: str, name: str) -> EventSource:
    """Open ``log:STREAM``, or ``STREAM``: a stream of the log in the store. This blocks.

    A stream whose own name begins with ``log:`` is written with another one before it. An event hub
    is ``eventhubs://NAMESPACE/HUB``; it is not connected to before it is used.

    Raises:
        UsageError: no stream is named, or the store has no log.
        UnknownStream: there is no such stream; the message names those there are.
        UnknownStore, StoreUnavailable, StoreUnusable: the store can not be opened.
    """
    if is_address(text):
        # Only here: whoever reads a log needs nothing of it.
        from leasehold.sources.eventhubs.source import EventHubsSource  # noqa: PLC0415

        return EventHubsSource(text)
    return LogSource.open(store_url, stream_of(text), name=name)


def name_of(text: str) -> str:
    """The name of the stream, or of the hub, that the text names.

    Raises:
        UsageError: there is none.
    """
    return parse_address(text).hub if is_address(text) else stream_of(text)


def stream_of(text: str) -> str:
    """The name of the stream of the log in the text.

    Raises:
        UsageError: there is none.
    """
    if is_address(text):
        raise UsageError(f"{shown(text)} is an event hub, and a stream of the log is meant here")
    stream = text.removeprefix(_LOG)
    if "://" in stream:
        raise UsageError(
            f"{stream.partition('://')[0]}:// is no kind of source: write log:STREAM, only STREAM, "
            "or eventhubs://NAMESPACE/HUB"
        )
    if not stream:
        raise UsageError(f"{text!r} names no stream: write log:STREAM, or only STREAM")
    return stream
