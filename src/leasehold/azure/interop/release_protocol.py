"""The order in which a host releases partitions to Azure's clients.

::

    last checkpoint in our store ──> in Azure's records ──> record written once more
                                              ──> released in our store ──> record freed

A client that claims a partition reads its checkpoint right after. So the checkpoint must be in the
records first, and no client may have claimed before. Writing the record once more, by
compare-and-set, proves that, and defeats every claim that was begun before it.

Guarantees:

* Nothing is released before its last checkpoint is in Azure's records, unless that takes longer
  than a lease. Even then the record names the host until the checkpoint is there.
* What a client has claimed before is the client's, and ends in our store as stolen. Whether a
  client has claimed is waited for, but not for longer than a lease.
* Nothing here waits for Azure's storage for longer than its timeout.
* One checkpoint write of a partition runs at a time, so none overtakes a newer one; and none that
  hangs delays another partition.
* A checkpoint write that failed, or had to wait for the one before it, is dropped if another owner
  has had the partition since: its checkpoint must not be overwritten by an older one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from leasehold.azure.interop.records import host_owner_id
from leasehold.errors import StoreUnavailable
from leasehold.names import group_of, last_part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from leasehold.azure.interop.reconciler import Reconciler
    from leasehold.azure.interop.records import OwnershipRecords
    from leasehold.clock import Clock
    from leasehold.model import CheckpointWrite, Ownership, Position

log = logging.getLogger("leasehold.azure")


class PendingCheckpoints:
    """Checkpoints of one host that are not in Azure's records yet. For one event loop."""

    def __init__(
        self,
        put: Callable[[str, Position], Awaitable[None]],
        *,
        allowed: Callable[[CheckpointWrite], bool],
        clock: Clock,
    ) -> None:
        """``put`` writes the checkpoint of a key to Azure's records.

        ``allowed``: whether no other owner has had the partition of a write since.
        """
        self._put = put
        self._allowed = allowed
        self._clock = clock
        self._due: dict[str, CheckpointWrite] = {}
        self._failed: dict[str, CheckpointWrite] = {}
        self._newest: dict[str, CheckpointWrite] = {}
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._is_logged = False

    @property
    def failed(self) -> bool:
        """Whether there are writes to retry."""
        return bool(self._failed)

    def is_pending(self, key: str) -> bool:
        """Return whether the checkpoint of this key is not in Azure's records yet."""
        return key in self._due or key in self._failed

    def add(self, writes: Iterable[CheckpointWrite]) -> None:
        """Queue these; each replaces an older one of its key."""
        for write in filter(self._is_newer, writes):
            self._failed.pop(write.ownership.key, None)
            self._due[write.ownership.key] = self._newest[write.ownership.key] = write

    def add_missing(self, writes: Iterable[CheckpointWrite]) -> None:
        """Add writes that a previous owner could not do: they are retried."""
        for write in filter(self._is_newer, writes):
            if not self.is_pending(write.ownership.key):
                self._failed[write.ownership.key] = self._newest[write.ownership.key] = write

    def retry(self) -> None:
        """Queue what failed if it is still allowed, and otherwise drop it."""
        failed, self._failed = self._failed, {}
        self._due = {
            key: write for key, write in failed.items() if self._allowed(write)
        } | self._due

    def forget(self, key: str) -> None:
        """Drop what is queued for this key."""
        self._due.pop(key, None)
        self._failed.pop(key, None)
        self._newest.pop(key, None)

    async def write(self, *, timeout_s: float, keys: Collection[str] | None = None) -> None:
        """Write what is queued, and return in time. What takes longer continues in the background.

        Only the ``keys`` are waited for, if they are given.
        """
        loop = asyncio.get_running_loop()
        for key in [each for each in self._due if each not in self._writers]:
            self._writers[key] = loop.create_task(self._write_key(key))
        waited = [writer for key, writer in self._writers.items() if keys is None or key in keys]
        if waited:
            try:
                await self._clock.bounded(asyncio.wait(waited), seconds=timeout_s)
            except TimeoutError:
                self._log_failure("no answer in time")

    async def close(self) -> None:
        """Cancel the running writes; those of an event loop that has ended are gone."""
        loop, writers = asyncio.get_running_loop(), [*self._writers.values()]
        self._writers.clear()
        left = [each for each in writers if each.get_loop() is loop]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _write_key(self, key: str) -> None:
        """Write until nothing is queued for this key."""
        try:
            has_waited = False
            while (write := self._due.get(key)) is not None:
                # If it is no longer allowed, the next read of the records decides.
                is_stale = has_waited and not self._allowed(write)
                is_done = not is_stale and await self._write_one(key, write)
                has_waited = True
                if self._due.get(key) is write:  # otherwise a newer one has replaced it
                    del self._due[key]
                    if not is_done:
                        self._failed[key] = write
        finally:
            self._writers.pop(key, None)
        self._is_logged = self._is_logged and bool(self._due or self._failed)

    async def _write_one(self, key: str, write: CheckpointWrite) -> bool:
        try:
            await self._put(key, write.position)
        except StoreUnavailable as error:
            self._log_failure(f"{key}: {error}")
            return False
        return True

    def _is_newer(self, write: CheckpointWrite) -> bool:
        known = self._newest.get(write.ownership.key)
        if known is None or known.ownership.epoch != write.ownership.epoch:
            return True
        return known.position <= write.position

    def _log_failure(self, error: str) -> None:
        # Logged once: it is retried in every cycle.
        level = logging.DEBUG if self._is_logged else logging.WARNING
        log.log(level, "a checkpoint is not in the records of Azure's clients yet: %s", error)
        self._is_logged = True


class ReleaseProtocol:
    """The releases of all hosts of one ``MixedStore``, by holder."""

    def __init__(
        self,
        pending: PendingCheckpoints,
        reconcilers: Mapping[str, Reconciler],
        *,
        bounded: Callable[[Awaitable[None]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """``bounded`` gives up with ``StoreUnavailable``."""
        self._pending = pending
        self._reconcilers = reconcilers
        self._bounded = bounded
        self._clock = clock
        self._waiting_since_s: dict[Ownership, float] = {}  # since when it waits to be released

    async def retry_pending(self, *, timeout_s: float) -> None:
        """Write what could not be written so far; call it after the records were read.

        What takes longer than the timeout continues in the background.
        """
        self._pending.retry()
        await self._pending.write(timeout_s=timeout_s)

    async def secure_all(self, ownerships: Collection[Ownership], *, timeout_s: float) -> set[str]:
        """Prepare the release of these; return the keys that have to wait."""
        unsure: set[str] = set()
        for (_, holder), partitions in _by_holder(ownerships).items():
            reconciler = self._reconcilers.get(holder)
            if reconciler is not None and not await self.secure(
                reconciler, partitions, timeout_s=timeout_s
            ):
                unsure.add(holder)
        return {
            each.key for each in ownerships if self._must_wait(each, sure=each.holder not in unsure)
        }

    async def secure(
        self, reconciler: Reconciler, partitions: Iterable[str], *, timeout_s: float
    ) -> bool:
        """Ensure that a later claim begins where this host ended; False if that is not certain.

        What a client has claimed before is given to its stand-in, as stolen.
        """
        try:
            await self._bounded(self._confirm(reconciler, partitions, timeout_s=timeout_s))
        except StoreUnavailable as error:
            log.warning(
                "%s: not sure what Azure's clients have claimed: %s", reconciler.owner_id, error
            )
            return False
        return True

    async def free_all_records(
        self,
        ownerships: Iterable[Ownership],
        records_of: Callable[[str], OwnershipRecords],
        *,
        to: str,
    ) -> None:
        """Give what was released in our store to a client, or to no owner."""
        for (group, holder), partitions in _by_holder(ownerships).items():
            owner_id = host_owner_id(holder)
            await self.free_records(records_of(group), group, partitions, owner_id, to=to)

    async def free_records(
        self,
        records: OwnershipRecords,
        group: str,
        partitions: Iterable[str],
        owner_id: str,
        *,
        to: str = "",
    ) -> None:
        """Take this host out of records; if that fails, they are free when they expire."""
        named = {each for each in partitions if records.named_owner(each) == owner_id}
        waiting = {each for each in named if self._pending.is_pending(f"{group}/{each}")}
        if waiting:
            log.warning(
                "%s: our name stays in the records of Azure's clients, for the last checkpoint is "
                "not there yet",
                ", ".join(sorted(waiting)),
            )
        try:
            await self._bounded(records.replace_owner(named - waiting, owner_id, to))
        except StoreUnavailable as error:
            names = ", ".join(sorted(named - waiting))
            log.warning("%s could not be given to Azure's clients: %s", names, error)

    async def _confirm(
        self, reconciler: Reconciler, partitions: Iterable[str], *, timeout_s: float
    ) -> None:
        if self._pending.failed:
            await reconciler.records.refresh()
        await self.retry_pending(timeout_s=timeout_s)
        await reconciler.confirm(partitions)

    def _must_wait(self, ownership: Ownership, *, sure: bool) -> bool:
        """Return whether to wait for something that may still come within a lease.

        That is the last checkpoint in Azure's records, or certainty that no client has claimed it.
        """
        reconciler = self._reconcilers.get(ownership.holder)
        if reconciler is None or (sure and not self._pending.is_pending(ownership.key)):
            self._waiting_since_s.pop(ownership, None)
            return False
        now_s = self._clock.boottime_s()
        if ownership not in self._waiting_since_s:
            # Older ones were released in spite of it, and are no longer asked for.
            old_s = now_s - 2 * reconciler.lease_s
            self._waiting_since_s = {
                each: at_s for each, at_s in self._waiting_since_s.items() if at_s > old_s
            }
        return now_s - self._waiting_since_s.setdefault(ownership, now_s) < reconciler.lease_s


def raise_if_waiting(waiting: Collection[str]) -> None:
    """Raise ``StoreUnavailable`` if keys have to wait: they are released later."""
    if waiting:
        names = ", ".join(sorted(map(last_part, waiting)))
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
