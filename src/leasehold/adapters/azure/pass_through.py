"""A store that passes every call on to another one: the ground for those that change a few."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from leasehold.stores import open_store

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
        Note,
        Ownership,
        Peer,
        Position,
        Resource,
        Term,
        Wanted,
    )
    from leasehold.ports import Store


class PassThrough:
    """A ``Store``. Opened by its URL, it belongs to the event loop that uses it first."""

    def __init__(self, store: str | Store, *, clock: Clock) -> None:
        """Connects to nothing yet; a store that is handed in is not closed."""
        self._given = store
        self._clock = clock
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._store: Store | None = None if isinstance(store, str) else store

    @property
    def url(self) -> str:
        """See ``Store``."""
        if self._store is not None:
            return self._store.url
        return f"{urlsplit(str(self._given)).scheme}://…"  # the rest may hold a secret

    async def inner(self) -> Store:
        """The store that is asked."""
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    opened = open_store(str(self._given), clock=self._clock)
                    self._store = await self._opened.enter_async_context(opened)
        return self._store

    async def declare(self, keys: Sequence[str]) -> int:
        """See ``Store``."""
        return await (await self.inner()).declare(keys)

    async def forget(self, keys: Sequence[str]) -> int:
        """See ``Store``."""
        return await (await self.inner()).forget(keys)

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """See ``Store``."""
        store = await self.inner()
        return await store.grant(
            holder=holder, token=token, group=group, duration=duration, info=info
        )

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """See ``Store``."""
        return await (await self.inner()).renew(lease, since=since, info=info)

    async def revoke(self, lease: Lease) -> None:
        """See ``Store``."""
        await (await self.inner()).revoke(lease)

    async def claim(
        self, lease: Lease, wanted: Sequence[Wanted], *, force: bool = False
    ) -> Sequence[Ownership]:
        """See ``Store``."""
        return await (await self.inner()).claim(lease, wanted, force=force)

    async def ask(self, lease: Lease, wanted: Wanted) -> bool:
        """See ``Store``."""
        return await (await self.inner()).ask(lease, wanted)

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).hand_over(hand_overs, limit=limit)

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).release(ownerships, notes=notes)

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """See ``Store``."""
        return await (await self.inner()).break_(key, epoch=epoch, after=after)

    async def checkpoint(self, marks: Sequence[Mark]) -> Mapping[str, MarkRefusal]:
        """See ``Store``."""
        return await (await self.inner()).checkpoint(marks)

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).annotate(notes)

    async def suggest(self, key: str, *, epoch: int, to: str) -> bool:
        """See ``Store``."""
        return await (await self.inner()).suggest(key, epoch=epoch, to=to)

    async def dismiss(self, holder: str) -> bool:
        """See ``Store``."""
        return await (await self.inner()).dismiss(holder)

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """See ``Store``."""
        return await (await self.inner()).reset(positions)

    async def groups(self) -> Sequence[str]:
        """See ``Store``."""
        return await (await self.inner()).groups()

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """See ``Store``."""
        return await (await self.inner()).checkpoints(group)

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """See ``Store``."""
        return await (await self.inner()).resources(group)

    async def peers(self, group: str) -> Mapping[str, Peer]:
        """See ``Store``."""
        return await (await self.inner()).peers(group)

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """See ``Store``."""
        return await (await self.inner()).history(key, limit=limit)

    async def fenced_writes(self, group: str) -> int:
        """See ``Store``."""
        return await (await self.inner()).fenced_writes(group)

    async def close(self) -> None:
        """Close what was opened here. Leases are left as they are."""
        await self._opened.aclose()
