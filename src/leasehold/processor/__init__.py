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
the member stop believing and pass the key on. After ``drain_limit`` it does so by force.

=================  ====================================================================
module             holds
=================  ====================================================================
``processor``      ``EventProcessor``: start, stop, run, both sides together
``lease_side``     the member and its keeper; ``member``, ``cycle``, ``holdings`` below it
``marks``          checkpoints of all partitions, coalesced
``floor``          the pumps, discovery of partitions, the watchdog
``pump``           one partition; ``opening``, ``intake``, ``delivery``, ``handlers`` below it
``context``        what handlers are given; ``tenure``: whether they may still act
``hooks``          everything worth knowing, as events and sums
=================  ====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.core.checkpointing import CheckpointPolicy
    from leasehold.core.poison import PoisonPolicy
    from leasehold.processor.context import BlockingContext, PartitionContext
    from leasehold.processor.hooks import CloseReason, Counts, HookEvent
    from leasehold.processor.processor import EventProcessor, blocking
    from leasehold.processor.pull import PartitionClient
    from leasehold.processor.settings import Load, OnTrimmed, Options
    from leasehold.processor.status import PartitionStatus, PumpState

__all__ = [
    "BlockingContext",
    "CheckpointPolicy",
    "CloseReason",
    "Counts",
    "EventProcessor",
    "HookEvent",
    "Load",
    "OnTrimmed",
    "Options",
    "PartitionClient",
    "PartitionContext",
    "PartitionStatus",
    "PoisonPolicy",
    "PumpState",
    "blocking",
]

_HOMES = {
    "BlockingContext": "leasehold.processor.context",
    "CheckpointPolicy": "leasehold.core.checkpointing",
    "CloseReason": "leasehold.processor.hooks",
    "Counts": "leasehold.processor.hooks",
    "EventProcessor": "leasehold.processor.processor",
    "HookEvent": "leasehold.processor.hooks",
    "Load": "leasehold.processor.settings",
    "OnTrimmed": "leasehold.processor.settings",
    "Options": "leasehold.processor.settings",
    "PartitionClient": "leasehold.processor.pull",
    "PartitionContext": "leasehold.processor.context",
    "PartitionStatus": "leasehold.processor.status",
    "PoisonPolicy": "leasehold.core.poison",
    "PumpState": "leasehold.processor.status",
    "blocking": "leasehold.processor.processor",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
