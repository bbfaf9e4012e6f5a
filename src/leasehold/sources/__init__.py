"""Where events come from: the contract, and the embedded log behind it.

``EventSource`` and ``Receiver`` are the contract; ``Event``, ``EventBatch`` and ``Start`` are what
they speak of. ``LogSource`` is the embedded log: ``watch`` has the one thread that wakes its
receivers. ``DeadLetters`` take the events that nobody could work on.
"""

from __future__ import annotations

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
