"""Open the store that a command inspects, and its log, if there is one.

A store need not have a log, and a stream need not be in it: then only heads and lags are not known.
Nothing is claimed, recovered, created or upgraded.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.to_thread

import leasehold.log
from leasehold.clock import SystemClock
from leasehold.errors import StoreUnusable, UnknownStream, UsageError, VolumeUnusable
from leasehold.insight.groups import GroupView, group_view, group_views, known_groups
from leasehold.insight.partition_ends import LogPositions, RememberedEnds
from leasehold.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from leasehold.clock import Clock
    from leasehold.log import Log
    from leasehold.ports import Store


class Inspector:
    """Made by ``open_inspector``: a store, and the log in the same database where there is one.

    ``failure``: why heads and lags are not known although there is a log; else empty.
    """

    def __init__(self, store: Store, *, url: str, clock: Clock) -> None:
        """Open no log yet: that happens at its first use."""
        self.store = store
        self.clock = clock
        self.failure = ""
        self._url = url
        self._log: Log | None = None
        self._asked = False

    async def positions(self, stream: str) -> LogPositions | None:
        """Return the positions of a stream; ``None`` if it is not in the embedded log."""
        if not self._asked:
            self._asked = True
            self._log = await anyio.to_thread.run_sync(self._opened)
        if self._log is None:
            return None
        known = await anyio.to_thread.run_sync(self._log.streams)
        if all(each.name != stream for each in known):
            return None
        return LogPositions(self._log, stream)

    async def group(self, stream: str, group: str, *, lags: bool = True) -> GroupView:
        """Return a group; without ``lags`` the log is not read.

        Raises:
            UnknownResource: the store knows no such group.
        """
        positions = await self.positions(stream) if lags else None
        now = self.clock.utc_now()
        try:
            view = await group_view(
                self.store, stream, group, now=now, source=positions, peek=positions
            )
        except UnknownStream:  # deleted since we asked
            return await group_view(self.store, stream, group, now=now)
        if positions is not None:
            self.failure = positions.failure
        return view

    async def groups(self) -> Sequence[GroupView]:
        """Return all groups, without how long events wait."""
        streams = {stream for stream, _ in await known_groups(self.store)}
        found = [(each, await self.positions(each)) for each in sorted(streams)]
        positions = {stream: each for stream, each in found if each is not None}
        sources = {stream: RememberedEnds(each) for stream, each in positions.items()}
        views = await group_views(self.store, now=self.clock.utc_now(), sources=sources)
        if positions:
            self.failure = next((each.failure for each in positions.values() if each.failure), "")
        return views

    async def close(self) -> None:
        """Close the log; the store stays open."""
        if self._log is not None:
            await anyio.to_thread.run_sync(self._log.close)

    def _opened(self) -> Log | None:
        try:
            options = leasehold.log.LogOptions(run_monitor=False)
            return leasehold.log.Log.open(self._url, name="look", options=options, create=False)
        except UsageError:
            return None  # no database that can keep a log, or one without a volume
        except (StoreUnusable, VolumeUnusable) as error:
            self.failure = str(error)
            return None


@asynccontextmanager
async def open_inspector(url: str, *, clock: Clock | None = None) -> AsyncIterator[Inspector]:
    """Open the store that ``url`` names, to read it. Creates and upgrades nothing.

    Raises:
        InvalidUrl: the URL names no store.
        UsageError: there is no store yet.
        StoreUnavailable: it does not answer.
        StoreUnusable: it cannot serve, or has the schema of another version.
    """
    clock = clock or SystemClock()
    async with open_store(url, clock=clock, create=False) as store:
        inspector = Inspector(store, url=url, clock=clock)
        try:
            yield inspector
        finally:
            with anyio.CancelScope(shield=True):
                await inspector.close()
