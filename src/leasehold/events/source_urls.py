"""Open an event source by the text that names it: ``log:STREAM`` or ``eventhubs://NAMESPACE/HUB``.

The module of a scheme has ``open_source``, ``open_ranges``, ``name_of`` and ``shown``; it is
imported when it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from leasehold.events.source import EventSource, RangeSource

_LOG = "log:"
_LOG_MODULE = "leasehold.log.source"
_MODULES = {"eventhubs": "leasehold.azure.eventhubs"}


def open_source(text: str, *, store_url: str, name: str) -> EventSource:
    """Open ``log:STREAM``, or ``STREAM``: a stream of the log in the store. This blocks.

    A stream whose own name begins with ``log:`` is written with another one before it. An event hub
    is ``eventhubs://NAMESPACE/HUB``; it is not connected to before it is used.

    Raises:
        UsageError: no stream is named, or the store has no log.
        UnknownStream: there is no such stream; the message names those there are.
        InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be opened.
    """
    module, address = _resolve(text)
    opened: EventSource = module.open_source(address, store_url=store_url, name=name)
    return opened


def open_ranges(
    text: str, *, store_url: str, name: str = "reader", pinned: bool = False
) -> RangeSource:
    """Open what ``open_source`` opens, to read ranges of it. This blocks.

    ``pinned``: refuse to continue with a stream that was recreated under its name.
    """
    module, address = _resolve(text)
    opened: RangeSource = module.open_ranges(address, store_url=store_url, name=name, pinned=pinned)
    return opened


def name_of(text: str) -> str:
    """Return the name of the stream, or of the hub, that the text names."""
    if is_in_store(text):
        return stream_of(text)
    name: str = import_module(_MODULES[_scheme(text)]).name_of(text)
    return name


def is_in_store(text: str) -> bool:
    """Return whether the text names a stream of the log, which is in the store."""
    return _scheme(text) not in _MODULES


def shown(text: str) -> str:
    """Return the text without secrets."""
    if is_in_store(text):
        return text
    clean: str = import_module(_MODULES[_scheme(text)]).shown(text)
    return clean


def stream_of(text: str) -> str:
    """Return the name of the stream of the log in the text."""
    if not is_in_store(text):
        raise UsageError(f"{shown(text)} is an event hub, and a stream of the log is meant here")
    stream = text.removeprefix(_LOG)
    if "://" in stream:
        raise UsageError(
            f"{_scheme(stream)}:// is no kind of source: write log:STREAM, only STREAM, "
            "or eventhubs://NAMESPACE/HUB"
        )
    if not stream:
        raise UsageError(f"{text!r} names no stream: write log:STREAM, or only STREAM")
    return stream


def _resolve(text: str) -> tuple[Any, str]:
    """Return the module that opens it, and what to give to it."""
    if is_in_store(text):
        return import_module(_LOG_MODULE), stream_of(text)
    return import_module(_MODULES[_scheme(text)]), text


def _scheme(text: str) -> str:
    return text.partition("://")[0] if "://" in text else ""
