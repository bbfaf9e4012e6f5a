"""Where events come from: the contract, and the embedded log behind it.

``EventSource`` and ``Receiver`` are the contract; ``Event``, ``EventBatch`` and ``Start`` are what
they speak of. ``LogSource`` is the embedded log: ``watch`` has the one thread that wakes its
receivers. ``DeadLetters`` take the events that nobody could work on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.log.events import Event, EventBatch
    from leasehold.log.start import Start
    from leasehold.sources.dead_letters import DeadLetter, DeadLetters, LogDeadLetters
    from leasehold.sources.log import LogSource
    from leasehold.sources.opening import open_source
    from leasehold.sources.port import EventSource, PartitionEnds, Receiver

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "Event",
    "EventBatch",
    "EventSource",
    "LogDeadLetters",
    "LogSource",
    "PartitionEnds",
    "Receiver",
    "Start",
    "open_source",
]

_HOMES = {
    "DeadLetter": "leasehold.sources.dead_letters",
    "DeadLetters": "leasehold.sources.dead_letters",
    "Event": "leasehold.log.events",
    "EventBatch": "leasehold.log.events",
    "EventSource": "leasehold.sources.port",
    "LogDeadLetters": "leasehold.sources.dead_letters",
    "LogSource": "leasehold.sources.log",
    "PartitionEnds": "leasehold.sources.port",
    "Receiver": "leasehold.sources.port",
    "Start": "leasehold.log.start",
    "open_source": "leasehold.sources.opening",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
