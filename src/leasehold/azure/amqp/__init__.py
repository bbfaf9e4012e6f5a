"""AMQP 1.0 as bytes: values, frames, performatives and messages. Nothing here does I/O.

Guarantees: damaged input raises ``AmqpFault`` and nothing else; decoded values take memory in
proportion to their bytes. Every field of a performative is written, also null, and never as the
empty list type, since widely used clients find fields by their position.
"""

from __future__ import annotations

from leasehold.azure.amqp.faults import AmqpFault

__all__ = ["AmqpFault"]
