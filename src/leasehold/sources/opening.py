"""Event sources by name, as people write them in a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import UsageError
from leasehold.sources.log import LogSource

if TYPE_CHECKING:
    from leasehold.sources.port import EventSource

_LOG = "log:"


def open_source(text: str, *, store_url: str, name: str) -> EventSource:
    """Open ``log:STREAM``, or ``STREAM``: a stream of the log in the store. This blocks.

    A stream whose own name begins with ``log:`` is written with another one before it.

    Raises:
        UsageError: no stream is named, or the store has no log.
        UnknownStream: there is no such stream; the message names those there are.
        UnknownStore, StoreUnavailable, StoreUnusable: the store can not be opened.
    """
    return LogSource.open(store_url, stream_of(text), name=name)


def stream_of(text: str) -> str:
    """The name of the stream in the text.

    Raises:
        UsageError: there is none.
    """
    stream = text.removeprefix(_LOG)
    if not stream:
        raise UsageError(f"{text!r} names no stream: write log:STREAM, or only STREAM")
    return stream
