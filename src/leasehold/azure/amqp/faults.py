"""The only error of this package: bytes, or an order of frames, that AMQP does not allow."""

from __future__ import annotations

DECODE_ERROR = "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"


class AmqpFault(Exception):
    """Something that cannot be read or written. ``condition`` is the error condition of AMQP."""

    def __init__(self, description: str, *, condition: str = DECODE_ERROR) -> None:
        super().__init__(description)
        self.description = description
        self.condition = condition
