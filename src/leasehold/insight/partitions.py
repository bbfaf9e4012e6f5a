"""One partition of a group: its owner, its checkpoint, its backlog, and what a reset would do.

The plan of a reset has the next event of each partition before and after it. It changes nothing;
``ResetPlan.positions`` is the argument of ``Store.reset``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import Trimmed, UsageError
from leasehold.events.start import Start, StartKind
from leasehold.model import Position, State
from leasehold.names import last_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.events.source import PartitionEnds
    from leasehold.insight.groups import GroupView
    from leasehold.insight.inspector import LogPositions
    from leasehold.model import Checkpoint, MemberRecord, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition; what is not known is ``None``.

    Attributes:
        owner: who has it, or had it last if its lease has ended (``state`` is expired).
        renewed_ago_s, time_left_s: of the owner's lease, by the store's clock.
        breaking_s: until a break takes effect.
        checkpoint: the number of the last event that is done.
        first, head: the numbers of the oldest event that is kept and of the newest one.
        lag_events: how many events wait; not known without a checkpoint, unless there is no event,
            nor if ``beyond_end``.
        lag_s: how long the oldest of them has waited; 0 if none does.
        missed_events: how many events retention has removed before they were done.
        beyond_end: the checkpoint lies beyond the head, as after a stream was deleted and made
        anew. handed_to: for whom a free key is reserved. asked_by: who requested it.
        failing: where the owner's handler fails now, such as ``at 901, attempt 3``.
    """

    partition: str
    key: str
    state: State
    owner: str | None
    host: str | None
    pid: int | None
    epoch: int
    renewed_ago_s: float | None
    time_left_s: float | None
    breaking_s: float | None
    checkpoint: int | None
    checkpoint_epoch: int | None
    checkpointed_at: datetime | None
    first: int | None
    head: int | None
    lag_events: int | None
    lag_s: float | None
    missed_events: int | None
    beyond_end: bool
    handed_to: str | None
    asked_by: str | None
    failing: str | None

    @property
    def held_by(self) -> str | None:
        """Who owns it, or for whom it is reserved; ``None`` if it is free."""
        if self.state in (State.LEASED, State.BREAKING):
            return self.owner
        return self.handed_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The events that wait in a partition, by its checkpoint and its ends."""

    lag_events: int | None = None
    missed_events: int | None = None
    next_number: int | None = None  # the oldest event that waits, if one does
    beyond_end: bool = False


def waiting(checkpoint: Checkpoint | None, ends: PartitionEnds | None) -> Backlog:
    """Return how many events wait, and which is the oldest of them."""
    if ends is None:
        return Backlog()
    if checkpoint is None:
        # The processor's own start position decides; but without events nothing waits.
        return Backlog(lag_events=0) if ends.next == ends.first else Backlog()
    resumes_at, known = checkpoint.resumes_at, checkpoint.position.stream
    if resumes_at > ends.next or (ends.stream and known not in {"", ends.stream}):
        return Backlog(beyond_end=True)  # of another stream of this name, whose numbers differ
    oldest = max(resumes_at, ends.first)
    return Backlog(
        lag_events=ends.next - oldest,
        missed_events=oldest - resumes_at,
        next_number=oldest if oldest < ends.next else None,
    )


def partition_view(
    resource: Resource,
    *,
    owner: MemberRecord | None,
    checkpoint: Checkpoint | None,
    ends: PartitionEnds | None,
    waits_since: datetime | None,
    now: datetime,
) -> PartitionView:
    """Combine what the store and the source know of one partition."""
    wait = waiting(checkpoint, ends)
    return PartitionView(
        partition=last_part(resource.key),
        key=resource.key,
        state=resource.state,
        owner=resource.holder,
        host=(owner.info.host or None) if owner else None,
        pid=(owner.info.pid or None) if owner else None,
        epoch=resource.epoch,
        renewed_ago_s=renewed_ago_s(owner) if owner else None,
        time_left_s=_time_left_s(resource, owner),
        breaking_s=resource.breaking_s,
        checkpoint=checkpoint.position.sequence_number if checkpoint else None,
        checkpoint_epoch=checkpoint.epoch if checkpoint else None,
        checkpointed_at=checkpoint.updated_at if checkpoint else None,
        first=ends.first if ends and ends.next > ends.first else None,
        head=ends.next - 1 if ends and ends.next else None,
        lag_events=wait.lag_events,
        lag_s=_lag_s(wait, waits_since, now),
        missed_events=wait.missed_events,
        beyond_end=wait.beyond_end,
        handed_to=resource.handed_to,
        asked_by=resource.asked_by,
        failing=owner.info.failing.get(resource.key) if owner else None,
    )


def renewed_ago_s(member: MemberRecord) -> float | None:
    """Return how long ago a member renewed; ``None`` if the store does not know."""
    return max(0.0, member.duration_s - member.remaining_s) if member.duration_s else None


def _time_left_s(resource: Resource, owner: MemberRecord | None) -> float | None:
    if resource.state is State.EXPIRED:
        return 0.0
    return owner.remaining_s if owner else None


def _lag_s(wait: Backlog, waits_since: datetime | None, now: datetime) -> float | None:
    if wait.lag_events == 0:
        return 0.0
    if waits_since is None or wait.next_number is None:
        return None
    # Clocks of two machines: an event from the future has just come.
    return max(0.0, (now - waits_since).total_seconds())


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
