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
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold.adapters.azure.records import owner_of_ours
from leasehold.errors import StoreUnavailable
from leasehold.names import group_of, last_part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from leasehold.adapters.azure.arrears import Arrears
    from leasehold.adapters.azure.border import Border
    from leasehold.adapters.azure.records import Records
    from leasehold.clock import Clock
    from leasehold.model import Ownership

log = logging.getLogger("leasehold.azure")


class Parting:
    """Of all hosts of one ``MixedStore``, by holder."""

    def __init__(
        self,
        arrears: Arrears,
        borders: Mapping[str, Border],
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

    async def secure(self, border: Border, partitions: Iterable[str], *, limit_s: float) -> bool:
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
        self, ownerships: Iterable[Ownership], records_of: Callable[[str], Records], *, to: str
    ) -> None:
        """What was given up in ours is given to a client of theirs, or to nobody."""
        for (group, holder), partitions in _by_holder(ownerships).items():
            me = owner_of_ours(holder)
            await self.write_off(records_of(group), group, partitions, me, to=to)

    async def write_off(
        self, records: Records, group: str, partitions: Iterable[str], me: str, *, to: str = ""
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

    async def _secured(self, border: Border, partitions: Iterable[str], *, limit_s: float) -> None:
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
