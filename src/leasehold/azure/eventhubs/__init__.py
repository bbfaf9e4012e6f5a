"""Azure Event Hubs as an event source: an AMQP receiver that decodes into Arrow.

::

    source ── manager: one connection, its tokens ── connection ── sessions ── a link per partition
       └── receiver: position, gaps, retries ────────── takes Arrow batches from ──────┘

``address`` reads ``eventhubs://…``; ``fast_decode`` and ``rows`` turn frames into Arrow, and
``amqp.event_properties`` keeps the rest of a message. Everything but the address is loaded on first
use, since readers of a log do not need it.
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
