"""Finds the owner of a partition: this process, another process, or none yet.

``deliver`` sends producer batches to the owner. If there is none, this process becomes the owner.
If the owner has crashed (its socket refuses connections) or does not answer in time (its process is
paused), its segment is recovered, which fences it, and the next owner continues after it. That is
always safe: an owner that resumes later cannot add anything that readers see.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

from leasehold.clock import host_name, system_random
from leasehold.core.backoff import Backoff
from leasehold.errors import (
    FileHeld,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    StoreUnavailable,
    TailUncertain,
    UnknownFile,
    VolumeUnusable,
)
from leasehold.files.model import FileState
from leasehold.log.owner_address import AddressRefused, is_on_this_machine, is_own_address
from leasehold.log.owner_link import HEARTBEATS_PER_TIMEOUT, OwnerRequest
from leasehold.log.partition_owner import PartitionOwner, newest_segment, open_next_segment
from leasehold.log.producer_batch import OwnerGone, OwnerMoved, OwnerSilent
from leasehold.log.retention import trim
from leasehold.log.streams import LogCounts, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.clock import Clock
    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace
    from leasehold.log.owner_link import OwnerClient
    from leasehold.log.producer_batch import ProducerBatch, StoredBatch, StreamPartition
    from leasehold.log.streams import Catalog, LogCounters, StreamInfo, StreamSettings

log = logging.getLogger("leasehold.log")

_RETRY_BACKOFF = Backoff(base_s=0.01, max_s=0.5)
_RETRYABLE = (
    OwnerMoved,
    OwnerGone,
    OwnerSilent,
    RecoveryInProgress,
    StoreUnavailable,
    TailUncertain,
    VolumeUnusable,
    LeaseLost,
    UnknownFile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterContext:
    """What all partitions of one log share."""

    files: Namespace
    catalog: Catalog
    clock: Clock
    counts: LogCounters
    soft_limit_s: float
    socket_directories: tuple[str, ...]
    start_server: Callable[[], None]


class PartitionRouter:
    """One partition. Safe to use from several threads."""

    def __init__(
        self, partition: StreamPartition, context: RouterContext, *, created_at: str
    ) -> None:
        """``created_at`` distinguishes the stream from another one of its name."""
        self.partition = partition
        self.created_at = created_at
        self._context = context
        self._lock = threading.Lock()
        self._owner: PartitionOwner | None = None
        self._remote: FileStatus | None = None  # the segment that another process writes
        self._from_base = 0
        self._has_recovered = False
        self._rng = system_random()
        self._closed = threading.Event()

    @property
    def owner(self) -> PartitionOwner | None:
        """This process as the owner, if it is."""
        owner = self._owner
        return owner if owner is not None and owner.alive else None

    def deliver(
        self,
        batches: Sequence[ProducerBatch],
        *,
        durable: bool,
        owner_client: OwnerClient,
        deadline_s: float,
    ) -> tuple[StoredBatch, ...]:
        """Have the owner store producer batches exactly once; retry until ``deadline_s``."""
        for failures in count(1):
            try:
                return self._try_deliver(
                    batches, durable=durable, owner_client=owner_client, deadline_s=deadline_s
                )
            except _RETRYABLE as error:
                if self._closed.is_set():
                    self._current_stream()  # closed because it was deleted?
                remaining_s = deadline_s - self._context.clock.boottime_s()
                if remaining_s <= 0 or self._closed.is_set():
                    raise StoreUnavailable(
                        f"{self.partition} could not be written in time; the events may be stored "
                        f"or not: {error}"
                    ) from error
                log.info("%s: %s: trying again", self.partition, error)
                self._closed.wait(min(_RETRY_BACKOFF.pause_s(failures, self._rng), remaining_s))
        raise AssertionError("unreachable")  # pragma: no cover

    def close(self) -> None:
        """Release the partition, if this process owns it, after storing what waits."""
        with self._lock:
            self._closed.set()
            owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()

    def _try_deliver(
        self,
        batches: Sequence[ProducerBatch],
        *,
        durable: bool,
        owner_client: OwnerClient,
        deadline_s: float,
    ) -> tuple[StoredBatch, ...]:
        owner, remote = self._find_owner(deadline_s)
        if owner is not None:
            answer = owner.submit(batches, durable=durable)
            remaining_s = deadline_s - self._context.clock.boottime_s()
            if not wait((answer,), timeout=max(remaining_s, 0.0)).done:
                raise StoreUnavailable("the volumes did not answer in time")
            return answer.result()
        assert remote is not None  # noqa: S101 - one of the two is set
        heartbeat_s = owner_client.owner_timeout_s / HEARTBEATS_PER_TIMEOUT
        request = OwnerRequest(
            partition=self.partition, batches=batches, durable=durable, heartbeat_s=heartbeat_s
        )
        try:
            stored = owner_client.send(request, to=remote.address, deadline_s=deadline_s)
        except (OwnerGone, OwnerSilent) as error:
            self._fence_owner(remote, error, deadline_s)
            raise
        except AddressRefused as error:
            if self._context.files.status(remote.path).idle_s <= self._context.soft_limit_s:
                self._forget(remote)
                raise
            self._fence_owner(remote, error, deadline_s)
            raise OwnerMoved(str(error)) from error
        except OwnerMoved:
            self._forget(remote)
            raise
        self._context.counts.add(LogCounts(forwarded=len(batches)))
        return stored

    def _find_owner(self, deadline_s: float) -> tuple[PartitionOwner | None, FileStatus | None]:
        """Return this process as the owner, or the segment of another; become it if none is."""
        owner, remote = self.owner, self._remote
        if owner is not None or remote is not None:
            return owner, remote
        with self._lock:
            if self._closed.is_set():
                raise OwnerMoved("the log is being closed")
            if self.owner is not None or self._remote is not None:
                return self.owner, self._remote
            if self._owner is not None:
                self._owner.close()  # it has ended; its segment is closed or taken over
            settings = self._current_stream().settings
            last = newest_segment(self._context.files, self.partition, from_base=self._from_base)
            if last is not None:
                self._from_base = base_of(last.path) or 0
            if last is not None and last.state is not FileState.CLOSED:
                if self._is_reachable(last):
                    self._remote, self._has_recovered = last, False
                    return None, last
                self._recover(last, deadline_s)
            self._owner = self._become_owner(settings)
            return self._owner, None

    def _is_reachable(self, last: FileStatus) -> bool:
        """Return whether its writer can be reached; if not, the segment may be recovered now."""
        if last.state is FileState.RECOVERING or last.holder == self._context.files.holder:
            return False
        is_here = is_on_this_machine(last)
        if is_here and is_own_address(last.address, self._context.socket_directories):
            return True
        if last.idle_s > self._context.soft_limit_s:
            return False
        if is_here:
            why = (
                f"at {last.address!r}, which is not a socket of this user in "
                f"{' or '.join(self._context.socket_directories)} and is not used: run producers "
                "of one partition as the same user, with the same socket_directory"
            )
        else:
            is_namesake = last.host == host_name()
            machine = "another machine that is called" if is_namesake else "the machine"
            why = (
                f"on {machine} {last.host}: producers on several machines cannot share a "
                "partition without a hub; run them on one machine, or give each its own partitions"
            )
        raise FileHeld(
            f"{self.partition} is being written by {last.holder} {why}",
            path=last.path,
            holder=last.holder,
            host=last.host,
            since=last.opened_at,
            epoch=last.epoch,
            retry_after_s=max(self._context.soft_limit_s - last.idle_s, 0.0),
            address=last.address,
        )

    def _current_stream(self) -> StreamInfo:
        return self._context.catalog.same(self.partition.stream, self.created_at)

    def _become_owner(self, settings: StreamSettings) -> PartitionOwner:
        self._context.start_server()
        opened = open_next_segment(
            self._context.files, self.partition, settings, from_base=self._from_base
        )
        self._from_base = opened.append_state.next_sequence
        self._context.counts.add(LogCounts(taken=1, recovered=int(self._has_recovered)))
        self._has_recovered = False
        log.info("%s is written here from %d on", self.partition, self._from_base)
        return PartitionOwner(
            self.partition,
            opened,
            settings,
            files=self._context.files,
            clock=self._context.clock,
            counts=self._context.counts,
            on_roll=self._apply_retention,
        )

    def _apply_retention(self) -> None:
        """Remove what the stream no longer keeps of this partition; a failure is retried later."""
        try:
            stream = self._current_stream()
            if stream.settings.retain_age_s or stream.settings.retention_bytes:
                trim(
                    stream,
                    files=self._context.files,
                    catalog=self._context.catalog,
                    clock=self._context.clock,
                    execute=True,
                    partitions=(self.partition.number,),
                )
        except (LeaseholdError, OSError) as error:
            log.warning("%s: old segments could not be removed: %s", self.partition, error)

    def _fence_owner(self, remote: FileStatus, error: LeaseholdError, deadline_s: float) -> None:
        """Fence a crashed or silent owner, unless another process has done so already."""
        with self._lock:
            if self._remote is not remote:
                return
            self._remote = None
            now = self._context.files.status(remote.path)
            if now.epoch == remote.epoch and now.state is FileState.OPEN:
                to_recover: FileStatus | None = remote
            else:
                to_recover = self._next_segment_of(remote)
            if to_recover is not None:
                log.warning("%s: %s: recovering %s", self.partition, error, to_recover.path)
                self._recover(to_recover, deadline_s)

    def _next_segment_of(self, remote: FileStatus) -> FileStatus | None:
        """Return the segment that the same owner has begun since, if it still writes it.

        The owner has been silent for its whole time limit: it is not asked, and waited for, again.
        """
        last = newest_segment(
            self._context.files, self.partition, from_base=base_of(remote.path) or 0
        )
        if last is None or last.state is not FileState.OPEN:
            return None
        same = (last.holder, last.address) == (remote.holder, remote.address)
        return last if same else None

    def _recover(self, last: FileStatus, deadline_s: float) -> None:
        remaining_s = max(deadline_s - self._context.clock.boottime_s(), 0.0)
        self._context.files.recover(last.path, timeout=timedelta(seconds=remaining_s))
        self._has_recovered = True

    def _forget(self, remote: FileStatus) -> None:
        with self._lock:
            if self._remote is remote:
                self._remote = None
