"""Azure Event Hubs as an event source: our own AMQP receiver, which decodes straight into Arrow.

::

    source ── manager: one connection, its tokens ── connection ── sessions ── a link per partition
       └── receiver: position, gaps, trouble ────────── takes Arrow batches from ──────┘

``address`` reads ``eventhubs://…``; ``fast_decode`` and ``rows`` are the way from frames to
Arrow, ``sections`` what becomes of all else in a message. Everything but the address is
loaded when it is used: whoever reads a log needs nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.azure.eventhubs.address import name_of, shown
from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.azure.eventhubs.source import open_ranges, open_source

__all__ = ["name_of", "open_ranges", "open_source", "shown"]  # what events.source_urls needs

_HOMES = {
    "open_ranges": "leasehold.azure.eventhubs.source",
    "open_source": "leasehold.azure.eventhubs.source",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
