"""Processors: hosts that share the partitions of a stream, and work on what they own.

A processor has two event loops that never wait for each other::

    lease thread                                work loop (the user's)
    ┌─> renew ─> take in ─> plan ─> act ─┐      one pump for each partition:
    └────────────── wait <───────────────┘      receiver ─> buffer ─> handler ─> position
          │ opened, drain, closed ─────────────────> open, drain, close
          └─ checkpoints, many in one call <──────── positions, drained, give up

**The lease thread.** *Renew* is one call, however many keys are owned; in a quiet group it is the
only one. A member learns only from its answer: what it lost, what it is asked for, which members
joined and left. *Plan* is a pure function of what it knows. *Act* claims what is free and hands
over what is too much. A step whose answer is lost is not repeated blindly: the next renewal
returns its outcome. ``Holdings`` keeps what a member treats as owned, by three rules:

1. A key is owned locally only after the store agreed, and only until the local lease deadline.
2. Local ownership ends *before* a release or a hand-over is sent, and the same epoch is never
   taken up again after that, whatever becomes of the message.
3. When the local deadline passes without an answer, everything is closed immediately, and the
   member comes back as a new holder with a new lease.

**The work loop.** No handler can delay a renewal, and no partition another one. Whether an
ownership may still be acted upon is asked of its ``Handle``, which checks the clock at that time.
A handler that was paused for longer than its lease finds every call of its context refused.

**Hand-over.** The member calls *drain*; the pump receives nothing more, lets the call in progress
end, calls ``on_partition_close``, has the position stored, and reports *drained*; only then does
the member end its local ownership and pass the key on. After ``drain_timeout`` it does so forcibly.

=====================  =======================================================================
module                 holds
=====================  =======================================================================
``processor``          ``EventProcessor``: start, stop, run
``lease_thread``       the member and its key handler, in their own thread
``checkpoint_writer``  checkpoints of all partitions, coalesced, and where a partition resumes
``pump_manager``       the pumps, discovery of partitions, the watchdog
``pump``               one partition: prefetch buffer, position, receiver
``delivery``           one batch to its handler, and what follows a failure
``handlers``           calls of the user's functions, and the pull style
``context``            what handlers are given
``events``             hook events and counts; ``metrics`` exports them
``options``            the settings
=====================  =======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.core.checkpoint_policy import CheckpointPolicy
    from leasehold.core.poison_policy import PoisonPolicy
    from leasehold.processor.context import AsyncPartitionContext, PartitionContext
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
    "AsyncPartitionContext",
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
    "AsyncPartitionContext": "leasehold.processor.context",
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
