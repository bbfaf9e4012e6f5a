"""AMQP 1.0 as bytes: values, frames, performatives and messages. Nothing here does any I/O.

Guarantees: what is damaged raises ``AmqpFault`` and nothing else; what is read takes memory in
proportion to its bytes; every field of a performative is written, also null, and never as the
empty list type, since widely used clients find fields by their place.
"""

from __future__ import annotations

from leasehold.azure.amqp.faults import AmqpFault

__all__ = ["AmqpFault"]
