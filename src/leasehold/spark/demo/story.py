"""The story of the demo in lines: who takes what from whom, and how long it took. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.spark.demo.looks import listed

if TYPE_CHECKING:
    from leasehold.spark.demo.looks import Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that happened. ``tone``: good, bad or plain, for its colour."""

    at_s: float
    words: str
    tone: str = "plain"


@dataclass(slots=True)
class Story:
    """All that happened so far."""

    lines: list[Line] = field(default_factory=list)
    _owners: dict[str, str] = field(default_factory=dict)
    _gone: dict[str, tuple[float, str]] = field(default_factory=dict)

    def tell(self, at_s: float, words: str, tone: str = "plain") -> Line:
        """Something that the demo did or heard."""
        line = Line(at_s=at_s, words=words, tone=tone)
        self.lines.append(line)
        return line

    def lost(self, name: str, at_s: float, how: str) -> None:
        """A driver works no more: ``how`` is ``was killed`` or ``was stopped``."""
        self._gone[name] = (at_s, how)

    def back(self, name: str) -> None:
        """It works again."""
        self._gone.pop(name, None)

    def see(self, look: Look) -> list[Line]:
        """Tell which partitions have changed their owner since the last look."""
        moved: dict[tuple[str, str], list[str]] = defaultdict(list)
        for part in look.parts:
            before = self._owners.get(part.partition, "")
            if part.owner is not None and part.owner != before:
                moved[before, part.owner].append(part.partition)
                self._owners[part.partition] = part.owner
        return [
            self.tell(look.at_s, self._words(before, now, parts, look.at_s))
            for (before, now), parts in moved.items()
        ]

    def _words(self, before: str, now: str, parts: list[str], at_s: float) -> str:
        if not before:
            return f"{now} takes {listed(parts)}"
        if before in self._gone:
            since_s, how = self._gone[before]
            return f"{now} takes {listed(parts)}, {at_s - since_s:.1f} s after {before} {how}"
        return f"{before} hands {listed(parts)} over to {now}"
