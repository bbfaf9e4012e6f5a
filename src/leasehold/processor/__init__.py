"""Processors: hosts that share the partitions of a stream, and work on what they own.

Two sides that never wait for each other::

    lease side (a thread of its own)            work side (the loop of the user)
    ┌─> renew ─> take in ─> plan ─> act ─┐      one pump for each partition:
    └────────────── wait <───────────────┘      receiver ─> intake ─> handler ─> position
          │ opened, drain, closed ─────────────────> open, drain, close
          └─ checkpoints, many in one call <──────── positions, drained, give up

**The lease side.** *Renew* is one call, whatever is owned; in a quiet group it is the only one.
Its answer is the only way a member learns anything: what it lost, what it is asked for, who came
and who went. *Plan* is a pure function of what it knows. *Act* claims what is free and hands over
what is too much; a step whose answer is lost is not repeated blindly: the next renewal tells how
it went. What a member believes is kept by ``Holdings``, and rests on three rules:

1. It believes in a key only after the store agreed, and only while its trust window lasts.
2. It stops believing *before* it sends a release or a hand-over, and never takes the same epoch
   up again after that, whatever becomes of the message.
3. When the trust window ends without an answer, everything is closed at once, and the member
   comes back as a new holder with a new lease.

**The work side.** No handler can delay a renewal, and no partition another one. Whether an
ownership may still be acted upon is asked of its ``Tenure``, which looks at the clock in the moment
of asking. A handler that was paused for longer than its lease finds every call of its context
refused.

**Hand-over.** The member says *drain*; the pump takes nothing more in, lets the call that is under
way end, calls ``on_partition_close``, has the position stored, and says *drained*; only then does
the member stop believing and pass the key on. After ``drain_timeout`` it does so by force.

=====================  =======================================================================
module                 holds
=====================  =======================================================================
``processor``          ``EventProcessor``: start, stop, run, both sides together
``lease_thread``       the member and its handler, in a thread of its own
``checkpoint_writer``  checkpoints of all partitions, coalesced, and where a partition goes on
``pump_manager``       the pumps, discovery of partitions, the watchdog
``pump``               one partition: ``prefetch_buffer``, ``delivery``, ``handlers``
``context``            what handlers are given
``events``             everything worth knowing, as events and sums; ``metrics`` exports it
=====================  =======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.core.checkpoint_policy import CheckpointPolicy
    from leasehold.core.poison_policy import PoisonPolicy
    from leasehold.processor.context import BlockingContext, PartitionContext
    from leasehold.processor.events import (
        CloseReason,
        HookEvent,
        PartitionState,
        PartitionStatus,
        ProcessorCounts,
    )
    from leasehold.processor.handlers import PartitionClient
    from leasehold.processor.options import LoadMeasure, OnTrimmed, ProcessorOptions
    from leasehold.processor.processor import EventProcessor, blocking

__all__ = [
    "BlockingContext",
    "CheckpointPolicy",
    "CloseReason",
    "EventProcessor",
    "HookEvent",
    "LoadMeasure",
    "OnTrimmed",
    "PartitionClient",
    "PartitionContext",
    "PartitionState",
    "PartitionStatus",
    "PoisonPolicy",
    "ProcessorCounts",
    "ProcessorOptions",
    "blocking",
]

_HOMES = {
    "BlockingContext": "leasehold.processor.context",
    "CheckpointPolicy": "leasehold.core.checkpoint_policy",
    "CloseReason": "leasehold.processor.events",
    "ProcessorCounts": "leasehold.processor.events",
    "EventProcessor": "leasehold.processor.processor",
    "HookEvent": "leasehold.processor.events",
    "LoadMeasure": "leasehold.processor.options",
    "OnTrimmed": "leasehold.processor.options",
    "ProcessorOptions": "leasehold.processor.options",
    "PartitionClient": "leasehold.processor.handlers",
    "PartitionContext": "leasehold.processor.context",
    "PartitionStatus": "leasehold.processor.events",
    "PoisonPolicy": "leasehold.core.poison_policy",
    "PartitionState": "leasehold.processor.events",
    "blocking": "leasehold.processor.processor",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
