"""The partitions that this driver owns: a member of the group, in a separate thread.

Guarantees: the lease is renewed whatever Spark does. A partition that is to be handed over is
released when no batch that reads it is in progress, and no new one begins with it. A loss is known
here immediately, and ``on_lost`` is called, so that the job can be cancelled.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

import anyio.from_thread

from leasehold.clock import system_random
from leasehold.errors import StoreError
from leasehold.lease.handle import Handle
from leasehold.lease.member import Member
from leasehold.model import CheckpointWrite, EndReason, Position
from leasehold.names import last_part, partition_group, partition_key
from leasehold.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from anyio.from_thread import BlockingPortal

    from leasehold.clock import Clock
    from leasehold.model import Checkpoint, Ownership, Refusal, Resource, Term
    from leasehold.ports import Store
    from leasehold.spark.pipeline.options import PipelineOptions

_MAX_TERMS = 100


class OwnedPartitions:
    """``with`` joins the group and leaves it. All methods but ``Keeper``'s are for one thread."""

    def __init__(
        self,
        store: str,
        *,
        stream: str,
        group: str,
        name: str,
        options: PipelineOptions,
        clock: Clock,
        on_lost: Callable[[Ownership, str], None],
        identity: str = "",
    ) -> None:
        """``on_lost`` is called in the lease's thread, and must return immediately.

        ``identity`` is that of the stream, for its checkpoints.
        """
        self.group = partition_group(stream, group)
        self._store_url = store
        self._stream = stream
        self._group_name = group
        self._options = options.member(group=self.group, name=name)
        self._clock = clock
        self._on_lost = on_lost
        self._identity = identity
        self._changed = threading.Condition()
        self._new: dict[str, Handle] = {}
        self._held: dict[str, Handle] = {}
        self._draining: set[str] = set()
        self._busy: Counter[str] = Counter()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._portal_owner = anyio.from_thread.start_blocking_portal(
            name=f"leases of {self._options.name}"
        )
        self._portal: BlockingPortal = self._portal_owner.__enter__()
        try:
            self._store: Store = self._portal.call(
                self._stack.enter_async_context, open_store(self._store_url, clock=self._clock)
            )
            self._member = Member(
                self._store,
                self._options,
                keeper=self,
                clock=self._clock,
                rng=system_random(),
            )
        except BaseException:
            self._portal_owner.__exit__(None, None, None)
            raise
        self._running: Future[None] | None = None
        return self

    def join(self, partitions: Sequence[str]) -> None:
        """Declare the partitions; with the first call, begin to acquire some of them."""
        keys = [partition_key(self._stream, self._group_name, each) for each in partitions]
        self._portal.call(self._store.declare, keys)
        if self._running is None:
            self._running = self._portal.start_task_soon(self._member.run)
            self._running.add_done_callback(lambda _: self._report())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._running is not None:
                self._portal.call(self._member.drain)
                with suppress(BaseException if error is not None else StoreError):
                    self._running.result()
        finally:
            self._portal.call(self._stack.aclose)
            self._portal_owner.__exit__(kind, error, trace)

    # ------------------------------------------------------- for the driver

    @property
    def holder(self) -> str:
        """The id under which the group knows this driver."""
        return self._member.holder or self._options.name

    def check(self) -> None:
        """Return while the member runs; raise the error that has ended it."""
        if self._running is not None and self._running.done():
            self._running.result()

    @property
    def has_left(self) -> bool:
        """Whether the member has left the group: it was stopped, or an operator sent it away."""
        return self._running is not None and self._running.done()

    def take_new(self) -> dict[str, Handle]:
        """Return acquired partitions that were not opened yet, by id; they now count as busy."""
        with self._changed:
            taken = {each.partition: each for key, each in self._new.items()}
            for handle in taken.values():
                self._busy[handle.ownership.key] += 1
            self._new.clear()
            return taken

    def opened(self, ownership: Ownership) -> None:
        """Add a partition that this driver now owns."""
        with self._changed:
            handle = Handle(ownership=ownership, member=self._member)
            self._held[ownership.key] = self._new[ownership.key] = handle
            self._changed.notify_all()

    def drain(self, ownership: Ownership) -> bool:
        """Admit no further batch of the partition; return whether none is running."""
        with self._changed:
            self._draining.add(ownership.key)
            self._changed.notify_all()
            return not self._busy[ownership.key]

    def closed(self, ownership: Ownership, reason: str) -> None:
        """Forget a partition that was released or lost."""
        with self._changed:
            handle = self._held.get(ownership.key)
            if handle is not None and handle.ownership == ownership:
                handle.ended = reason
                del self._held[ownership.key]
                self._new.pop(ownership.key, None)
                self._draining.discard(ownership.key)
            self._changed.notify_all()
        self._on_lost(ownership, reason)

    def usable(self) -> dict[str, Handle]:
        """Return the partitions that a new batch may read, by id: held, open, not draining."""
        with self._changed:
            return {
                each.partition: each
                for key, each in self._held.items()
                if key not in self._new and key not in self._draining and each.valid
            }

    def begin(self, handles: Sequence[Handle]) -> bool:
        """Begin a batch with these partitions; return False if one was lost or is draining."""
        with self._changed:
            keys = [each.ownership.key for each in handles]
            fit = all(each.ended is None for each in handles) and self._draining.isdisjoint(keys)
            if fit:
                self._busy.update(keys)
            return fit

    def end(self, handles: Sequence[Handle]) -> None:
        """End a batch; release what was waiting for that."""
        idle = []
        with self._changed:
            for handle in handles:
                key = handle.ownership.key
                self._busy[key] -= 1
                if not self._busy[key] and key in self._draining:
                    idle.append(handle.ownership)
        for ownership in idle:
            self._portal.call(self._member.drained, ownership)

    def wait(self, seconds: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Return when something has changed here, or after this many seconds."""
        with self._changed:
            if not self._new and not unless():
                self._changed.wait(seconds)

    def pause(self, seconds: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait this many seconds, whatever changes here, unless ``unless`` returns true."""
        until_s = self._clock.boottime_s() + seconds
        while not unless() and (left_s := until_s - self._clock.boottime_s()) > 0:
            with self._changed:  # a signal handler only sets what ``unless`` reads
                self._changed.wait(min(left_s, self._clock.slice_s))

    def wake(self) -> None:
        """Wake all waiting threads. From any thread, not from a signal handler."""
        self._report()

    def fenced(self, handle: Handle) -> None:
        """End an ownership under which a sink has refused a write."""
        self._portal.call(self._member.fenced, handle.ownership)

    def leave(self) -> None:
        """Begin to leave: what is idle is handed over, the rest when its batch ends."""
        self._portal.call(self._member.drain)

    # -------------------------------------------------- asked of the store

    def write_checkpoints(
        self, positions: Mapping[str, tuple[Handle, int]]
    ) -> Mapping[str, Refusal]:
        """Write the checkpoint of each partition: all events before the given number are done."""
        writes = [
            CheckpointWrite(
                ownership=handle.ownership,
                position=Position(sequence_number=number - 1, stream=self._identity),
            )
            for handle, number in positions.values()
        ]
        refused: Mapping[str, Refusal] = self._portal.call(self._member.mark, writes)
        return refused

    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """Return all checkpoints of the group, by key."""
        found: Mapping[str, Checkpoint] = self._portal.call(self._store.checkpoints, self.group)
        return found

    def epoch(self, key: str) -> int:
        """Return the epoch of the partition as the store knows it now."""
        found: Mapping[str, Resource] = self._portal.call(self._store.resources, self.group)
        return found[key].epoch if key in found else 0

    def checkpointed_positions(self) -> dict[str, int]:
        """Return the first event of each partition, by id, that no checkpoint covers."""
        return {last_part(key): found.resumes_at for key, found in self.checkpoints().items()}

    def reset_epoch(self, key: str) -> int:
        """Return the epoch of the last checkpoint reset by an operator; 0: never."""
        terms: Sequence[Term] = self._portal.call(self._history, key)
        return max((each.epoch for each in terms if each.reason is EndReason.RESET), default=0)

    def call(self, work: Callable[..., object], *arguments: object) -> object:
        """Run an async function in the thread of the lease, for what needs an event loop."""
        return self._portal.call(work, *arguments)

    async def _history(self, key: str) -> Sequence[Term]:
        return await self._store.history(key, limit=_MAX_TERMS)

    def _report(self) -> None:
        with self._changed:
            self._changed.notify_all()
