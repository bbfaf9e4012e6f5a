"""The memory store: one process, nothing kept. For tests, examples and the simulator."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from leasehold.core.token_digest import (
    lease_with_digest,
    ownership_with_digest,
    with_digests,
)
from leasehold.errors import InvalidUrl
from leasehold.names import check_name
from leasehold.runtime.process_check import ProcessCheck
from leasehold.stores.registry import Registry
from leasehold.stores.validation import (
    check_hand_over_request,
    checked_keys,
    checked_lease,
    checked_notes,
    checked_positions,
    limit_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from leasehold.clock import Clock
    from leasehold.model import (
        Changes,
        Checkpoint,
        CheckpointWrite,
        HandOver,
        KeyClaim,
        Lease,
        MemberInfo,
        MemberRecord,
        Note,
        Ownership,
        Position,
        Refusal,
        Resource,
        Term,
    )

T = TypeVar("T")


class MemoryStore:
    """A ``Store`` in this process. Its clock is the one handed in.

    Safe to use from several threads and event loops: one step at a time, and no call waits for
    longer than the steps of the others take.
    """

    def __init__(self, clock: Clock) -> None:
        """An empty store."""
        self._clock = clock
        self._process_check = ProcessCheck(self.url)
        self._lock = threading.Lock()
        self.registry = Registry()

    @property
    def url(self) -> str:
        """The URL of the store, without secrets."""
        return "memory://"

    async def declare(self, keys: Sequence[str]) -> int:
        """Declare keys; return how many are new."""
        checked = checked_keys(keys)
        return self._step(lambda r, _now, _wall: r.declare(checked))

    async def forget(self, keys: Sequence[str]) -> int:
        """Forget keys without an owner; return how many were forgotten."""
        checked = checked_keys(keys)
        return self._step(lambda r, now, wall: r.forget(checked, now, wall))

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """Grant a lease."""
        lease = checked_lease(holder=holder, token=token, group=group, duration=duration)
        kept = lease_with_digest(lease)
        granted = self._step(lambda r, now, wall: r.grant(kept, info, now, wall))
        return replace(granted, token=token)

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """Extend a lease; return what changed."""
        kept = lease_with_digest(lease)
        return self._step(lambda r, now, wall: r.renew(kept, since, info, now, wall))

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        """End a lease and all that it holds."""
        kept = lease_with_digest(lease)
        self._step(lambda r, now, wall: r.revoke(kept, now, wall, lapsed=lapsed))

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """Claim keys under a lease; return what was won."""
        kept = lease_with_digest(lease)
        taken = self._step(
            lambda r, now, wall: r.claim(kept, wanted, force=force, now=now, wall=wall)
        )
        return [replace(each, token=lease.token) for each in taken]

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """Ask the owner of a key to hand it over."""
        kept = lease_with_digest(lease)
        return self._step(lambda r, now, wall: r.ask(kept, wanted, now, wall))

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """Hand keys over to other holders; return the keys that were passed."""
        kept_s = limit_s(limit, what="hand-over limit")
        proven = with_digests(hand_overs)
        return self._step(lambda r, now, wall: r.hand_over(proven, kept_s, now, wall))

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Release keys; return those that are released."""
        checked = checked_notes(ownerships, notes)
        proven = [ownership_with_digest(each) for each in ownerships]
        return self._step(lambda r, now, wall: r.release(proven, checked, now, wall))

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """Break one ownership, after a while."""
        after_s = limit_s(after, what="break period")
        return self._step(lambda r, now, wall: r.break_(key, epoch, after_s, now, wall))

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """Write checkpoints; return the refused ones."""
        proven = with_digests(marks)
        return self._step(lambda r, now, wall: r.checkpoint(proven, now, wall))

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """Replace the notes of terms; return the refused keys."""
        proven = with_digests(notes)
        return self._step(lambda r, now, _wall: r.annotate(proven, now))

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        """Request that the owner hands a key over."""
        check_hand_over_request(key, epoch=epoch, to=to)
        return self._step(lambda r, now, wall: r.request_hand_over(key, epoch, to, now, wall))

    async def request_leave(self, holder: str) -> bool:
        """Request that a member leaves its group."""
        check_name(holder, what="holder")
        return self._step(lambda r, now, wall: r.request_leave(holder, now, wall))

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """Set or remove checkpoints of keys without an owner; return the owners of the others."""
        checked = checked_positions(positions)
        return self._step(lambda r, now, wall: r.reset(checked, now, wall))

    async def groups(self) -> Sequence[str]:
        """List the groups that have keys."""
        return self._step(lambda r, _now, _wall: r.groups())

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """Read the checkpoints of a group."""
        return self._step(lambda r, _now, _wall: r.checkpoints(group))

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """Read the keys of a group."""
        return self._step(lambda r, now, _wall: r.resources(group, now))

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """Read the members of a group."""
        return self._step(lambda r, now, _wall: r.members(group, now))

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """Read the terms of a key, newest first."""
        return self._step(lambda r, _now, _wall: r.history(key, limit))

    async def fenced_writes(self, group: str) -> int:
        """Return how many writes were fenced in a group."""
        return self._step(lambda r, _now, _wall: r.fenced_writes(group))

    async def close(self) -> None:
        """Close the store; no lease ends by that."""

    def _step(self, step: Callable[[Registry, float, datetime], T]) -> T:
        # First: the lock may have been held at the time of the fork.
        self._process_check.check()
        # The clock is read under the lock: a step that had to wait is judged by the time it is
        # taken at, and time never goes back from one step to the next.
        with self._lock:
            return step(self.registry, self._clock.boottime_s(), self._clock.utc_now())


async def open_url(url: str, clock: Clock, *, create: bool = True) -> MemoryStore:  # noqa: ARG001 - always new
    """A new, empty store: two calls give two stores.

    Raises:
        InvalidUrl: the URL says more than ``memory://``: there are no stores with names.
    """
    if url.lower() != "memory://":
        raise InvalidUrl("a store in memory has no name: write memory:// alone")
    return MemoryStore(clock)
