"""Where events go that nobody could work on, with all that is known of why.

A dead letter is the event as it was, key and body and properties, with what happened beside it. It
is stored before the one who failed with it goes on. Of what happened there is less if there is no
room for it; the event is never cut.
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
        """The event's own properties, and ours: those that begin with ``leasehold-``."""
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
        """The event's own, and of ours only what fits almost always."""
        own_properties = {
            "reason": _first_part(self.reason, _SHORT_REASON_BYTES),
            "partition": self.partition,
            "sequence-number": str(self.event.sequence_number),
        }
        return {**self.event.properties, **_named(own_properties)}


class DeadLetters(Protocol):
    """Takes dead letters, and keeps them."""

    async def send(self, letters: Sequence[DeadLetter]) -> None:
        """Store them; they are safe when this returns. Sent again, they may be there twice."""
        ...

    async def close(self) -> None:
        """Give back what belongs to it."""
        ...


def _named(own_properties: dict[str, str]) -> dict[str, str]:
    return {f"{PREFIX}{name}": text for name, text in own_properties.items()}


def _first_part(text: str, max_bytes: int) -> str:
    """The beginning of it, where an error is named. What is cut off is not encoded first."""
    raw = _clean(text[: max_bytes + 1])
    if len(raw) <= max_bytes:
        return raw.decode()
    end = "… (cut)"
    return raw[: max_bytes - len(end.encode())].decode(errors="ignore") + end


def _last_part(text: str, max_bytes: int) -> str:
    """The end of it, where the error itself is named."""
    raw = _clean(text)
    if len(raw) <= max_bytes:
        return raw.decode()
    kept = raw[len(raw) - max_bytes + len(_CUT.encode()) :]
    return _CUT + kept.decode(errors="ignore")


def _clean(text: str) -> bytes:
    """As UTF-8. An error may quote what is no text at all."""
    return text.encode(errors="replace")
