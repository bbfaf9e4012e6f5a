"""Dead letters: events that no handler could process, with the reason.

A dead letter is the unchanged event (key, body and properties) with the error beside it. It is
stored before the processor continues. If there is too little space, the description of the error is
cut; the event never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from leasehold.events.event import Event


MAX_TRACEBACK_BYTES = 8 << 10
MAX_REASON_BYTES = 1 << 10
_SHORT_REASON_BYTES = 128
PREFIX = "leasehold-"
_CUT = "… (cut)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event, where it came from, and why it was given up.

    ``reason`` is the type of the error and its message (``reason_of``); ``attempts`` how often it
    was tried.
    """

    event: Event
    stream: str
    group: str
    partition: str
    epoch: int
    attempts: int
    reason: str
    traceback: str
    failed_at: datetime

    def properties(self) -> dict[str, str]:
        """Return the event's own properties, and Leasehold's, which begin with ``leasehold-``."""
        own_properties = {
            "reason": _first_part(self.reason, MAX_REASON_BYTES),
            "traceback": _last_part(self.traceback, MAX_TRACEBACK_BYTES),
            "stream": self.stream,
            "group": self.group,
            "partition": self.partition,
            "sequence-number": str(self.event.sequence_number),
            "epoch": str(self.epoch),
            "attempts": str(self.attempts),
            "failed-at": self.failed_at.isoformat(),
        }
        return {**self.event.properties, **_named(own_properties)}

    def short_properties(self) -> dict[str, str]:
        """Return the event's own, and of Leasehold's only what fits almost always."""
        own_properties = {
            "reason": _first_part(self.reason, _SHORT_REASON_BYTES),
            "partition": self.partition,
            "sequence-number": str(self.event.sequence_number),
        }
        return {**self.event.properties, **_named(own_properties)}


class DeadLetters(Protocol):
    """A store for dead letters."""

    async def send(self, letters: Sequence[DeadLetter]) -> None:
        """Store them; they are durable when this returns. Sent again, they may be stored twice."""
        ...

    async def close(self) -> None:
        """Release its resources."""
        ...


def _named(own_properties: dict[str, str]) -> dict[str, str]:
    return {f"{PREFIX}{name}": text for name, text in own_properties.items()}


def _first_part(text: str, max_bytes: int) -> str:
    """Return the beginning, where an error is named. What is cut off is not encoded first."""
    raw = _clean(text[: max_bytes + 1])
    if len(raw) <= max_bytes:
        return raw.decode()
    end = "… (cut)"
    return raw[: max_bytes - len(end.encode())].decode(errors="ignore") + end


def _last_part(text: str, max_bytes: int) -> str:
    """Return the end of it, where the error itself is named."""
    raw = _clean(text)
    if len(raw) <= max_bytes:
        return raw.decode()
    kept = raw[len(raw) - max_bytes + len(_CUT.encode()) :]
    return _CUT + kept.decode(errors="ignore")


def _clean(text: str) -> bytes:
    """Encode as UTF-8. An error may quote what is not valid text."""
    return text.encode(errors="replace")
