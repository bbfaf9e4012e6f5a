"""Azure Event Hubs as an event source: our own AMQP receiver, which decodes straight into Arrow.

::

    source ── manager: one connection, its tokens ── connection ── sessions ── a link per partition
       └── receiver: position, gaps, trouble ────────── takes Arrow batches from ──────┘

``address`` reads ``eventhubs://…``; ``fast_decode`` and ``rows`` are the way from frames to
Arrow, ``sections`` what becomes of all else in a message. Everything but the address is
loaded when it is used: whoever reads a log needs nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from leasehold.sources.eventhubs.address import Address, is_address, parse, shown

if TYPE_CHECKING:
    from leasehold.sources.eventhubs.receiver import EventHubsReceiver
    from leasehold.sources.eventhubs.sections import original
    from leasehold.sources.eventhubs.source import EventHubsSource

__all__ = [
    "Address",
    "EventHubsReceiver",
    "EventHubsSource",
    "is_address",
    "original",
    "parse",
    "shown",
]

_LATE = {
    "EventHubsReceiver": "leasehold.sources.eventhubs.receiver",
    "EventHubsSource": "leasehold.sources.eventhubs.source",
    "original": "leasehold.sources.eventhubs.sections",
}


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
