"""The embedded event log: partitioned streams, written and read in place, without a server.

A stream has partitions; a partition is a row of segments; each segment is one file of
``leasehold.files`` with a single writer. The process that has the last segment open **owns** the
partition: its lease on that file, and the epoch that came with it, are the fence. Other producers
on the machine find the file held, and hand their batches to the owner over a Unix socket. When it
is dead or silent, one of them recovers the file, which shuts the old owner out, and goes on.

Writing, from the outside in: ``producer`` (a call), ``send_queue`` (its future, and a queue for
each partition), ``partition_router`` (who is the owner?), ``owner_link`` (the socket to it),
``partition_owner`` (one thread that stores all that waits with one sync, how to become it, and what
each producer has stored). The bytes are the business of ``events``, ``segment_format``,
``producer_states`` and ``segment``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.log.events import SENT_SCHEMA, STORED_SCHEMA, Event, EventBatch, partition_of
    from leasehold.log.log import Log
    from leasehold.log.options import LogOptions, ProducerOptions
    from leasehold.log.producer import Producer
    from leasehold.log.producer_batch import Receipt
    from leasehold.log.reader import PartitionReader
    from leasehold.log.retention import TrimPlan
    from leasehold.log.start import Start
    from leasehold.log.streams import Numbers, PartitionInfo, StreamInfo, StreamSettings

__all__ = [
    "SENT_SCHEMA",
    "STORED_SCHEMA",
    "Event",
    "EventBatch",
    "Log",
    "LogOptions",
    "Numbers",
    "PartitionInfo",
    "PartitionReader",
    "Producer",
    "ProducerOptions",
    "Receipt",
    "Start",
    "StreamInfo",
    "StreamSettings",
    "TrimPlan",
    "partition_of",
]

_HOMES = {
    "Event": "leasehold.log.events",
    "EventBatch": "leasehold.log.events",
    "Log": "leasehold.log.log",
    "LogOptions": "leasehold.log.options",
    "Numbers": "leasehold.log.streams",
    "PartitionInfo": "leasehold.log.streams",
    "PartitionReader": "leasehold.log.reader",
    "Producer": "leasehold.log.producer",
    "ProducerOptions": "leasehold.log.options",
    "Receipt": "leasehold.log.producer_batch",
    "SENT_SCHEMA": "leasehold.log.events",
    "STORED_SCHEMA": "leasehold.log.events",
    "Start": "leasehold.log.start",
    "StreamInfo": "leasehold.log.streams",
    "StreamSettings": "leasehold.log.streams",
    "TrimPlan": "leasehold.log.retention",
    "partition_of": "leasehold.log.events",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
