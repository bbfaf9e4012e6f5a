"""The memory store: one process, nothing kept. For tests, examples and the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import UnknownStore
from leasehold.stores.registry import Registry
from leasehold.stores.shared import checked_keys, checked_lease, limit_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from leasehold.clock import Clock
    from leasehold.model import (
        Changes,
        Checkpoint,
        HandOver,
        Lease,
        Mark,
        MarkRefusal,
        MemberInfo,
        Ownership,
        Peer,
        Resource,
        Term,
        Wanted,
    )


class MemoryStore:
    """A ``Store`` in this process. Its clock is the one handed in."""

    def __init__(self, clock: Clock) -> None:
        """An empty store."""
        self._clock = clock
        self.registry = Registry()

    @property
    def url(self) -> str:
        """See ``Store``."""
        return "memory://"

    async def declare(self, keys: Sequence[str]) -> int:
        """See ``Store``."""
        return self.registry.declare(checked_keys(keys))

    async def forget(self, keys: Sequence[str]) -> int:
        """See ``Store``."""
        return self.registry.forget(checked_keys(keys), self._now(), self._clock.utc_now())

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """See ``Store``."""
        lease = checked_lease(holder=holder, token=token, group=group, duration=duration)
        return self.registry.grant(lease, info, self._now(), self._clock.utc_now())

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """See ``Store``."""
        return self.registry.renew(lease, since, info, self._now(), self._clock.utc_now())

    async def revoke(self, lease: Lease) -> None:
        """See ``Store``."""
        self.registry.revoke(lease, self._now(), self._clock.utc_now())

    async def claim(
        self, lease: Lease, wanted: Sequence[Wanted], *, force: bool = False
    ) -> Sequence[Ownership]:
        """See ``Store``."""
        return self.registry.claim(
            lease, wanted, force=force, now=self._now(), wall=self._clock.utc_now()
        )

    async def ask(self, lease: Lease, wanted: Wanted) -> bool:
        """See ``Store``."""
        return self.registry.ask(lease, wanted, self._now(), self._clock.utc_now())

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """See ``Store``."""
        kept_s = limit_s(limit, what="hand-over limit")
        return self.registry.hand_over(hand_overs, kept_s, self._now(), self._clock.utc_now())

    async def release(self, ownerships: Sequence[Ownership]) -> Sequence[str]:
        """See ``Store``."""
        return self.registry.release(ownerships, self._now(), self._clock.utc_now())

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """See ``Store``."""
        after_s = limit_s(after, what="break period")
        return self.registry.break_(key, epoch, after_s, self._now(), self._clock.utc_now())

    async def checkpoint(self, marks: Sequence[Mark]) -> Mapping[str, MarkRefusal]:
        """See ``Store``."""
        return self.registry.checkpoint(marks, self._now(), self._clock.utc_now())

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """See ``Store``."""
        return self.registry.checkpoints(group)

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """See ``Store``."""
        return self.registry.resources(group, self._now())

    async def peers(self, group: str) -> Mapping[str, Peer]:
        """See ``Store``."""
        return self.registry.peers(group, self._now())

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """See ``Store``."""
        return self.registry.history(key, limit)

    async def fenced_writes(self, group: str) -> int:
        """See ``Store``."""
        return self.registry.fenced_writes(group)

    async def close(self) -> None:
        """See ``Store``."""

    def _now(self) -> float:
        return self._clock.boottime_s()


async def open_url(url: str, clock: Clock) -> MemoryStore:
    """A new, empty store: two calls give two stores.

    Raises:
        UnknownStore: the URL says more than ``memory://``: there are no stores with names.
    """
    if url.lower() != "memory://":
        raise UnknownStore(f"{url!r}: a store in memory has no name; write memory://")
    return MemoryStore(clock)
