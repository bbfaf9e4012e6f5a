"""The embedded event log: partitioned streams, written and read in place, without a server.

A stream has partitions. A partition is a list of segments; each segment is one file of
``leasehold.files`` with a single writer. The process that has the last segment open **owns** the
partition: its lease on that file, and the epoch of that lease, are the fence. Other producers on
the machine find the file held, and send their batches to the owner over a Unix socket. If the owner
has crashed or does not answer, one of them recovers the file, which fences the old owner, and takes
over.

Writing, from the outside in: ``producer`` (a call), ``send_queue`` (its future, and a queue for
each partition), ``partition_router`` (finds the owner), ``owner_link`` (the socket to it),
``partition_owner`` (one thread that stores all queued batches with one sync). ``segment_format``,
``producer_states`` and ``segment`` define the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.log.log import Log
    from leasehold.log.options import LogOptions, ProducerOptions
    from leasehold.log.producer import LogDeadLetters, Producer
    from leasehold.log.producer_batch import Receipt
    from leasehold.log.reader import PartitionReader
    from leasehold.log.retention import TrimPlan
    from leasehold.log.source import LogSource
    from leasehold.log.streams import LogCounts, PartitionInfo, StreamInfo, StreamSettings

__all__ = [
    "Log",
    "LogCounts",
    "LogDeadLetters",
    "LogOptions",
    "LogSource",
    "PartitionInfo",
    "PartitionReader",
    "Producer",
    "ProducerOptions",
    "Receipt",
    "StreamInfo",
    "StreamSettings",
    "TrimPlan",
]

_HOMES = {
    "Log": "leasehold.log.log",
    "LogDeadLetters": "leasehold.log.producer",
    "LogOptions": "leasehold.log.options",
    "LogSource": "leasehold.log.source",
    "LogCounts": "leasehold.log.streams",
    "PartitionInfo": "leasehold.log.streams",
    "PartitionReader": "leasehold.log.reader",
    "Producer": "leasehold.log.producer",
    "ProducerOptions": "leasehold.log.options",
    "Receipt": "leasehold.log.producer_batch",
    "StreamInfo": "leasehold.log.streams",
    "StreamSettings": "leasehold.log.streams",
    "TrimPlan": "leasehold.log.retention",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
