"""Groups in a real store, as commands find them: leases that nobody renews, and living members."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import anyio
import anyio.from_thread

from leasehold import LeaseTiming, Member, MemberOptions, Ownership, open_store
from leasehold.clock import Clock
from leasehold.model import CheckpointWrite, KeyClaim, Lease, MemberInfo, Position
from leasehold.names import partition_group, partition_key
from leasehold.ports import Store

T = TypeVar("T")
LONG = timedelta(minutes=10)
PATIENCE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One group in the store at ``url``."""

    url: str
    stream: str = "orders"
    group: str = "billing"

    @property
    def name(self) -> str:
        return partition_group(self.stream, self.group)

    def key(self, partition: object) -> str:
        return partition_key(self.stream, self.group, str(partition))

    def run(self, step: Callable[[Store], Awaitable[T]], *, clock: Clock | None = None) -> T:
        async def work() -> T:
            async with open_store(self.url, clock=clock) as store:
                return await step(store)

        return anyio.run(work)

    def declare(self, partitions: Sequence[object]) -> None:
        self.run(lambda store: store.declare([self.key(each) for each in partitions]))

    def join(
        self,
        holder: str,
        *partitions: object,
        lease: timedelta = LONG,
        clock: Clock | None = None,
        **info: object,
    ) -> list[Ownership]:
        """A member that owns these, and does nothing more: its lease is long."""
        about = MemberInfo(**{"host": "web1", "pid": 4711, **info})  # type: ignore[arg-type]

        async def step(store: Store) -> list[Ownership]:
            granted = await store.grant(
                holder=holder, token=f"t-{holder}", group=self.name, duration=lease, info=about
            )
            seen = await store.resources(self.name)
            keys = [self.key(each) for each in partitions]
            wanted = [KeyClaim(key=key, seen_epoch=seen[key].epoch) for key in keys]
            return list(await store.claim(granted, wanted))

        return self.run(step, clock=clock)

    def leave(self, holder: str) -> None:
        lease = Lease(holder=holder, token=f"t-{holder}", group=self.name, duration_s=1.0)
        self.run(lambda store: store.revoke(lease))

    def mark(self, owned: Sequence[Ownership], number: int) -> None:
        position = Position(sequence_number=number)
        marks = [CheckpointWrite(ownership=each, position=position) for each in owned]
        assert not self.run(lambda store: store.checkpoint(marks))

    def checkpoints(self) -> dict[str, int]:
        """The number of the last event that is done, by partition."""
        found = self.run(lambda store: store.checkpoints(self.name))
        return {
            key.rpartition("/")[2]: each.position.sequence_number for key, each in found.items()
        }


class _Keeper:
    """Stops whenever it is asked to."""

    def opened(self, ownership: Ownership) -> None: ...

    def drain(self, ownership: Ownership) -> bool:
        return True

    def closed(self, ownership: Ownership, reason: str) -> None: ...


@contextmanager
def living_members(scene: Scene, *names: str) -> Iterator[list[str]]:
    """Real members in a thread of their own; their ids, once they share all the keys."""
    # Renewed much more often than needed: a busy machine costs no lease, and all goes quickly.
    timing = LeaseTiming.of(lease=LONG, renew_interval=timedelta(seconds=0.2))
    ready, stop = threading.Event(), threading.Event()
    members: list[Member] = []

    async def live() -> None:
        async with open_store(scene.url) as store, anyio.create_task_group() as tasks:
            for name in names:
                options = MemberOptions(group=scene.name, name=name, timing=timing)
                members.append(Member(store, options, keeper=_Keeper()))
                tasks.start_soon(members[-1].run)
            count = len(await store.resources(scene.name))
            while sum(len(each.held()) for each in members) < count:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            ready.set()
            await anyio.to_thread.run_sync(stop.wait)
            for each in members:
                each.drain()

    thread = threading.Thread(target=partial(anyio.run, live), name="members")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S), "the members did not share the keys"
        yield [each.holder or "" for each in members]
    finally:
        stop.set()
        thread.join()
