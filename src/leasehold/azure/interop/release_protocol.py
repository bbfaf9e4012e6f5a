"""The order in which a host of ours gives partitions away among Azure's clients.

::

    last checkpoint in ours ──> in theirs ──> our name written once more ──> free in ours
                                                                               └──> name taken out

Whoever claims a partition reads its checkpoint right after it. So all that matters is that ours is
there first, and that nobody has claimed before: the name that is written once more, by compare and
set, shows that, and takes the ground from under every claim that was begun before it.

Guarantees:

* Nothing is given up before its last checkpoint is in theirs, unless that takes longer than a
  lease. Even then our name stays in the record until it is there.
* What a client has claimed before is its own, and ends in ours as stolen. Whether one has is waited
  for, but not for longer than a lease.
* Nothing here waits for theirs for longer than it is allowed to.

Checkpoints that our store has taken and that are not in the records of Azure's clients yet.

Guarantees:

* One write of a partition is under way at a time, so none overtakes a newer one; and none that
  hangs holds up another partition.
* Whoever has them written waits for a limited time: what takes longer goes on behind it. Storage
  that hangs holds up nobody.
* What failed is tried again when ``retry`` is called, unless somebody else has had the partition
  since: its own checkpoint must not be overwritten by an older one. The same holds for what had to
  wait for the write before it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from leasehold.azure.interop.records import owner_of_ours
from leasehold.errors import StoreUnavailable
from leasehold.names import group_of, last_part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from leasehold.azure.interop.reconciler import Reconciler
    from leasehold.azure.interop.records import OwnershipRecords
    from leasehold.clock import Clock
    from leasehold.model import CheckpointWrite, Ownership, Position

log = logging.getLogger("leasehold.azure")


class PendingReleases:
    """Those of one host. For one event loop."""

    def __init__(
        self,
        put: Callable[[str, Position], Awaitable[None]],
        *,
        allowed: Callable[[CheckpointWrite], bool],
        clock: Clock,
    ) -> None:
        """Nothing is due. ``put`` writes the checkpoint of a key to theirs.

        ``allowed``: whether nobody else has had the partition of a mark since.
        """
        self._put = put
        self._allowed = allowed
        self._clock = clock
        self._due: dict[str, CheckpointWrite] = {}
        self._failed: dict[str, CheckpointWrite] = {}
        self._newest: dict[str, CheckpointWrite] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._is_told = False

    @property
    def failed(self) -> bool:
        """Whether something is there to be tried again."""
        return bool(self._failed)

    def owes(self, key: str) -> bool:
        """Whether the checkpoint of this key is not in theirs yet."""
        return key in self._due or key in self._failed

    def add(self, marks: Iterable[CheckpointWrite]) -> None:
        """These are due; each takes the place of an older one of its key."""
        for mark in filter(self._is_news, marks):
            self._failed.pop(mark.ownership.key, None)
            self._due[mark.ownership.key] = self._newest[mark.ownership.key] = mark

    def inherit(self, marks: Iterable[CheckpointWrite]) -> None:
        """Somebody before us could not write these: they are tried as what failed here."""
        for mark in filter(self._is_news, marks):
            if not self.owes(mark.ownership.key):
                self._failed[mark.ownership.key] = self._newest[mark.ownership.key] = mark

    def retry(self) -> None:
        """What failed is due again if it is allowed, and else forgotten."""
        failed, self._failed = self._failed, {}
        self._due = {key: mark for key, mark in failed.items() if self._allowed(mark)} | self._due

    def forget(self, key: str) -> None:
        """Nothing is due for this key any more."""
        self._due.pop(key, None)
        self._failed.pop(key, None)
        self._newest.pop(key, None)

    async def write(self, *, limit_s: float, keys: Collection[str] | None = None) -> None:
        """Write what is due. Return in time, whatever has come of it.

        Only the ``keys`` are waited for, if they are given.
        """
        loop = asyncio.get_running_loop()
        for key in [each for each in self._due if each not in self._lanes]:
            self._lanes[key] = loop.create_task(self._written(key))
        waited = [lane for key, lane in self._lanes.items() if keys is None or key in keys]
        if waited:
            try:
                await self._clock.bounded(asyncio.wait(waited), seconds=limit_s)
            except TimeoutError:
                self._tell("no answer in time")

    async def close(self) -> None:
        """What is under way is given up; if its event loop has ended, it was already."""
        loop, lanes = asyncio.get_running_loop(), [*self._lanes.values()]
        self._lanes.clear()
        left = [each for each in lanes if each.get_loop() is loop]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _written(self, key: str) -> None:
        """Until nothing is due for this key."""
        try:
            has_waited = False
            while (mark := self._due.get(key)) is not None:
                # If it is not allowed any more, the next look at the records has the last word.
                is_stale = has_waited and not self._allowed(mark)
                is_done = not is_stale and await self._one(key, mark)
                has_waited = True
                if self._due.get(key) is mark:  # else a newer one has taken its place
                    del self._due[key]
                    if not is_done:
                        self._failed[key] = mark
        finally:
            self._lanes.pop(key, None)
        self._is_told = self._is_told and bool(self._due or self._failed)

    async def _one(self, key: str, mark: CheckpointWrite) -> bool:
        try:
            await self._put(key, mark.position)
        except StoreUnavailable as trouble:
            self._tell(f"{key}: {trouble}")
            return False
        return True

    def _is_news(self, mark: CheckpointWrite) -> bool:
        known = self._newest.get(mark.ownership.key)
        if known is None or known.ownership.epoch != mark.ownership.epoch:
            return True
        return known.position <= mark.position

    def _tell(self, trouble: str) -> None:
        # Said once: it is tried again in every cycle.
        level = logging.DEBUG if self._is_told else logging.WARNING
        log.log(level, "a checkpoint is not in the records of Azure's clients yet: %s", trouble)
        self._is_told = True


class ReleaseProtocol:
    """Of all hosts of one ``MixedStore``, by holder."""

    def __init__(
        self,
        arrears: PendingReleases,
        borders: Mapping[str, Reconciler],
        *,
        in_time: Callable[[Awaitable[None]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """Nothing is given away yet. ``in_time`` gives up with ``StoreUnavailable``."""
        self._arrears = arrears
        self._borders = borders
        self._in_time = in_time
        self._clock = clock
        self._owed_s: dict[Ownership, float] = {}  # since when it waits to be given up

    async def catch_up(self, *, limit_s: float) -> None:
        """After a look at the records: write what could not be written so far.

        What takes longer than the limit goes on behind this.
        """
        self._arrears.retry()
        await self._arrears.write(limit_s=limit_s)

    async def secure_all(self, ownerships: Collection[Ownership], *, limit_s: float) -> set[str]:
        """Before these are given away; the keys that have to wait."""
        unsure: set[str] = set()
        for (_, holder), partitions in _by_holder(ownerships).items():
            border = self._borders.get(holder)
            if border is not None and not await self.secure(border, partitions, limit_s=limit_s):
                unsure.add(holder)
        return {
            each.key for each in ownerships if self._waits(each, sure=each.holder not in unsure)
        }

    async def secure(
        self, border: Reconciler, partitions: Iterable[str], *, limit_s: float
    ) -> bool:
        """Whoever claims one of them after this begins where we ended; False if that is not sure.

        What a client has claimed before is given to it in ours, as stolen.
        """
        try:
            await self._in_time(self._secured(border, partitions, limit_s=limit_s))
        except StoreUnavailable as trouble:
            log.warning("%s: not sure what Azure's clients have claimed: %s", border.me, trouble)
            return False
        return True

    async def write_off_all(
        self,
        ownerships: Iterable[Ownership],
        records_of: Callable[[str], OwnershipRecords],
        *,
        to: str,
    ) -> None:
        """What was given up in ours is given to a client of theirs, or to nobody."""
        for (group, holder), partitions in _by_holder(ownerships).items():
            me = owner_of_ours(holder)
            await self.write_off(records_of(group), group, partitions, me, to=to)

    async def write_off(
        self,
        records: OwnershipRecords,
        group: str,
        partitions: Iterable[str],
        me: str,
        *,
        to: str = "",
    ) -> None:
        """Take our name out of records; if that fails, they are free when they look dead."""
        ours = {each for each in partitions if records.named(each) == me}
        owed = {each for each in ours if self._arrears.owes(f"{group}/{each}")}
        if owed:
            log.warning(
                "%s: our name stays in the records of Azure's clients, for the last checkpoint is "
                "not there yet",
                ", ".join(sorted(owed)),
            )
        try:
            await self._in_time(records.exchange(ours - owed, me, to))
        except StoreUnavailable as trouble:
            names = ", ".join(sorted(ours - owed))
            log.warning("%s could not be given to Azure's clients: %s", names, trouble)

    async def _secured(
        self, border: Reconciler, partitions: Iterable[str], *, limit_s: float
    ) -> None:
        if self._arrears.failed:
            await border.records.look()
        await self.catch_up(limit_s=limit_s)
        await border.confirm(partitions)

    def _waits(self, ownership: Ownership, *, sure: bool) -> bool:
        """Whether something is to be waited for, which may still come within a lease.

        That is the last checkpoint in theirs, or to be sure that no client has claimed it.
        """
        border = self._borders.get(ownership.holder)
        if border is None or (sure and not self._arrears.owes(ownership.key)):
            self._owed_s.pop(ownership, None)
            return False
        now_s = self._clock.boottime_s()
        if ownership not in self._owed_s:
            old_s = now_s - 2 * border.lease_s  # given up in spite of it, and asked for no more
            self._owed_s = {each: at_s for each, at_s in self._owed_s.items() if at_s > old_s}
        return now_s - self._owed_s.setdefault(ownership, now_s) < border.lease_s


def must_be_ready(owed: Collection[str]) -> None:
    """Have the keys given up later that have to wait.

    Raises:
        StoreUnavailable: there are such.
    """
    if owed:
        names = ", ".join(sorted(map(last_part, owed)))
        raise StoreUnavailable(
            f"{names}: not given up yet, for the last checkpoint is not in the records of Azure's "
            "clients, or it is not sure what they have claimed"
        )


def _by_holder(ownerships: Iterable[Ownership]) -> dict[tuple[str, str], list[str]]:
    """The partitions of each group and holder."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in ownerships:
        found.setdefault((group_of(each.key), each.holder), []).append(last_part(each.key))
    return found
