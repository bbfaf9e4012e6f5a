"""What a reset of checkpoints would do: the next event of each partition before and after it.

A plan changes nothing; ``ResetPlan.positions`` is the argument of ``Store.reset``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import Trimmed, UsageError
from leasehold.events.start import Start, StartKind
from leasehold.model import Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.insight.groups import GroupView
    from leasehold.insight.partition_ends import LogPositions
    from leasehold.insight.partitions import PartitionView


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReset:
    """One partition of a plan. ``now`` and ``then`` are the numbers of the next event.

    ``None``: there is no checkpoint, and the processor's own start position decides. ``again`` and
    ``skipped`` count events; they are not known where ``now`` or ``then`` is not.
    """

    partition: str
    key: str
    now: int | None
    then: int | None
    again: int | None
    skipped: int | None
    held_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """What a reset would do, in the order of the partitions.

    ``stream`` is the identity of the stream that the positions are of; empty if it is not known.
    """

    partitions: tuple[PartitionReset, ...]
    stream: str = ""

    @property
    def positions(self) -> Mapping[str, Position | None]:
        """The new checkpoints by key; ``None``: to be removed."""
        return {
            each.key: None
            if each.then is None
            else Position(sequence_number=each.then - 1, stream=self.stream)
            for each in self.partitions
        }

    @property
    def held(self) -> Sequence[PartitionReset]:
        """Partitions that are owned: while there is one, nothing can be reset."""
        return [each for each in self.partitions if each.held_by is not None]


async def plan_reset(
    view: GroupView,
    *,
    to: Start | None,
    positions: LogPositions | None,
    partitions: Sequence[str] = (),
) -> ResetPlan:
    """Plan to put the checkpoints of a group to ``to`` (``None``: remove them).

    Raises:
        UnknownResource: the group has no such partition.
        Trimmed: retention has removed the event at ``to`` in one of them.
        UsageError: ``to`` is beyond the end of one of them, or cannot be found without a log.
    """
    chosen = [view.partition(each) for each in dict.fromkeys(partitions)] or view.partitions
    if to is not None and positions is None and to.kind is not StartKind.SEQUENCE:
        raise UsageError(
            f"{view.stream!r} is no stream of the log in this store, so nobody can tell where "
            f"{str(to)!r} is: use seq:N, or remove the checkpoints"
        )
    stream = "" if positions is None else await positions.identity()
    plan = [_planned(each, await _next_number(each, to, positions)) for each in chosen]
    return ResetPlan(partitions=tuple(plan), stream=stream)


async def _next_number(
    part: PartitionView, to: Start | None, positions: LogPositions | None
) -> int | None:
    if to is None:
        return None
    if positions is None:
        return to.value
    try:
        return await positions.sequence_of(part.partition, to)
    except Trimmed as error:
        message = f"partition {part.partition}: {error}"
        raise Trimmed(message, earliest=error.earliest) from error
    except UsageError as error:
        raise UsageError(f"partition {part.partition}: {error}") from error


def _planned(part: PartitionView, then: int | None) -> PartitionReset:
    now = None if part.checkpoint is None else part.checkpoint + 1
    again = skipped = None
    if now is not None and then is not None:
        # Only events that exist can repeat: none that retention has removed, and none of a
        # former stream of this name, to which a checkpoint beyond the head refers.
        end = now if part.head is None else min(now, part.head + 1)
        again, skipped = max(0, end - max(then, part.first or 0)), max(0, then - now)
    return PartitionReset(
        partition=part.partition,
        key=part.key,
        now=now,
        then=then,
        again=again,
        skipped=skipped,
        held_by=part.held_by,
    )
