"""What log, Event Hubs, processor and Spark share: events, sources of events, dead letters.

``Event`` and ``EventBatch`` are what a stream holds, ``Start`` defines where to begin.
``EventSource`` and ``Receiver`` are the contract of a source, ``DeadLetters`` that of a store for
events that no handler could process. ``open_source`` opens a source by its URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.events.dead_letters import DeadLetter, DeadLetters
    from leasehold.events.event import SENT_SCHEMA, STORED_SCHEMA, Event, EventBatch, partition_of
    from leasehold.events.source import EventSource, PartitionEnds, Receiver
    from leasehold.events.source_urls import open_source
    from leasehold.events.start import Start

__all__ = [
    "SENT_SCHEMA",
    "STORED_SCHEMA",
    "DeadLetter",
    "DeadLetters",
    "Event",
    "EventBatch",
    "EventSource",
    "PartitionEnds",
    "Receiver",
    "Start",
    "open_source",
    "partition_of",
]

_HOMES = {
    "DeadLetter": "leasehold.events.dead_letters",
    "DeadLetters": "leasehold.events.dead_letters",
    "Event": "leasehold.events.event",
    "EventBatch": "leasehold.events.event",
    "EventSource": "leasehold.events.source",
    "PartitionEnds": "leasehold.events.source",
    "Receiver": "leasehold.events.source",
    "SENT_SCHEMA": "leasehold.events.event",
    "STORED_SCHEMA": "leasehold.events.event",
    "Start": "leasehold.events.start",
    "open_source": "leasehold.events.source_urls",
    "partition_of": "leasehold.events.event",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
