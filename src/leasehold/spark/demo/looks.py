"""What the store says of the group at one moment: who owns what, and how far everything is. Pure.

Nothing here comes from the drivers: their own word is no proof.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.model import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.insight import GroupView, PartitionView

_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A partition. ``owner`` is ``None`` while nobody's lease covers it; ``done`` counts events."""

    partition: str
    owner: str | None
    epoch: int
    done: int
    head: int
    done_epoch: int

    @property
    def waiting(self) -> int:
        """How many events are in the log, and not yet in the table for all that the store knows."""
        return max(0, self.head - self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The group at ``at_s``."""

    at_s: float
    parts: tuple[Part, ...] = ()

    @property
    def done(self) -> int:
        """Events that are in the table, for all that the store knows."""
        return sum(each.done for each in self.parts)

    @property
    def stored(self) -> int:
        """Events in the log."""
        return sum(each.head for each in self.parts)

    def owned_by(self, name: str) -> tuple[str, ...]:
        """The partitions of a driver."""
        return tuple(each.partition for each in self.parts if each.owner == name)

    @property
    def all_owned(self) -> bool:
        """Whether each partition has an owner."""
        return bool(self.parts) and all(each.owner is not None for each in self.parts)


def driver_of(holder: str) -> str:
    """The name of a driver in the id under which the group knows it: ``A-host-1f2e3d4c``."""
    return holder.partition("-")[0]


def look_of(view: GroupView, *, at_s: float) -> Look:
    """The view of a group, as the demo needs it."""
    return Look(at_s=at_s, parts=tuple(map(_part, view.partitions)))


def _part(view: PartitionView) -> Part:
    held = view.state in (State.LEASED, State.BREAKING) and view.owner is not None
    return Part(
        partition=view.partition,
        owner=driver_of(view.owner) if held and view.owner else None,
        epoch=view.epoch,
        done=0 if view.checkpoint is None else view.checkpoint + 1,
        head=0 if view.head is None else view.head + 1,
        done_epoch=view.checkpoint_epoch or 0,
    )


@dataclass(slots=True)
class Rates:
    """Events per second of each driver of late, by the checkpoints of its partitions."""

    _seen: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)
    _totals: dict[str, int] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)

    def add(self, look: Look) -> None:
        """Take a further look into account."""
        for part in look.parts:
            moved = part.done - self._done.get(part.partition, 0)
            if moved > 0 and part.owner is not None:
                self._totals[part.owner] = self._totals.get(part.owner, 0) + moved
            self._done[part.partition] = part.done
        self._seen.append((look.at_s, dict(self._totals)))
        while len(self._seen) > 2 and self._seen[1][0] <= look.at_s - _WINDOW_S:  # noqa: PLR2004
            self._seen.popleft()

    def total(self, name: str) -> int:
        """All events of a driver."""
        return self._totals.get(name, 0)

    def per_s(self, name: str) -> float:
        """Its rate now."""
        if not self._seen:
            return 0.0
        (began_s, before), (now_s, now) = self._seen[0], self._seen[-1]
        moved = now.get(name, 0) - before.get(name, 0)
        return moved / (now_s - began_s) if now_s > began_s else 0.0


def listed(partitions: Sequence[str]) -> str:
    """``partition 3`` or ``partitions 0, 2, 5``."""
    noun = "partition" if len(partitions) == 1 else "partitions"
    return f"{noun} {', '.join(partitions)}"
