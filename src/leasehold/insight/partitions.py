"""One partition of a group: its owner, its checkpoint and its backlog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.model import State
from leasehold.names import last_part

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.events.source import PartitionEnds
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
    resumes_at = checkpoint.resumes_at
    if resumes_at > ends.next:
        return Backlog(beyond_end=True)
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
