"""The store as a simulated host reaches it: over a network that delays, loses and repeats.

A request that was sent is in flight, whatever becomes of the sender: it may arrive after the sender
has given up, or has crashed. The state behind the network is the real ``Registry``.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.names import check_name
from leasehold.stores.validation import (
    check_hand_over_request,
    checked_keys,
    checked_lease,
    checked_notes,
    checked_positions,
    limit_s,
)
from leasehold.testing.sim.faults import draw_call_faults
from leasehold.testing.sim.host import START

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    from leasehold.stores.registry import Registry
    from leasehold.testing.sim.host import Host

T = TypeVar("T")


class SimServer:
    """The one store of a simulated world: the registry, its clock, and its outages."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.up = True
        self.in_flight = 0

    def now(self) -> float:
        """Return the store's clock, the only one that decides."""
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        """Return the store's time of day, for the history."""
        return START + timedelta(seconds=self.now())


class SimStore:
    """A ``Store`` on one host, connected to the server by an unreliable network."""

    def __init__(self, server: SimServer, host: Host) -> None:
        self.server = server
        self.host = host

    @property
    def url(self) -> str:
        """The URL of the simulated store."""
        return "simulated://"

    async def declare(self, keys: Sequence[str]) -> int:
        """Send ``declare``."""
        checked = checked_keys(keys)
        return await self.send(lambda r: r.declare(checked))

    async def forget(self, keys: Sequence[str]) -> int:
        """Send ``forget``."""
        checked, server = checked_keys(keys), self.server
        return await self.send(lambda r: r.forget(checked, server.now(), server.wall()))

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """Send ``grant``."""
        lease = checked_lease(holder=holder, token=token, group=group, duration=duration)
        server = self.server
        return await self.send(lambda r: r.grant(lease, info, server.now(), server.wall()))

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """Send ``renew``."""
        server = self.server
        return await self.send(lambda r: r.renew(lease, since, info, server.now(), server.wall()))

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        """Send ``revoke``."""
        server = self.server
        return await self.send(
            lambda r: r.revoke(lease, server.now(), server.wall(), lapsed=lapsed)
        )

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """Send ``claim``."""
        server = self.server
        return await self.send(
            lambda r: r.claim(lease, wanted, force=force, now=server.now(), wall=server.wall())
        )

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """Send ``ask``."""
        server = self.server
        return await self.send(lambda r: r.ask(lease, wanted, server.now(), server.wall()))

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """Send ``hand_over``."""
        kept_s, server = limit_s(limit, what="hand-over limit"), self.server
        return await self.send(
            lambda r: r.hand_over(hand_overs, kept_s, server.now(), server.wall())
        )

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Send ``release``."""
        checked, server = checked_notes(ownerships, notes), self.server
        return await self.send(
            lambda r: r.release(ownerships, checked, server.now(), server.wall())
        )

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """Send ``break_``."""
        after_s, server = limit_s(after, what="break period"), self.server
        return await self.send(lambda r: r.break_(key, epoch, after_s, server.now(), server.wall()))

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """Send ``checkpoint``."""
        server = self.server
        return await self.send(lambda r: r.checkpoint(marks, server.now(), server.wall()))

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """Send ``annotate``."""
        return await self.send(lambda r: r.annotate(notes, self.server.now()))

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        """Send ``request_hand_over``."""
        check_hand_over_request(key, epoch=epoch, to=to)
        server = self.server
        return await self.send(
            lambda r: r.request_hand_over(key, epoch, to, server.now(), server.wall())
        )

    async def request_leave(self, holder: str) -> bool:
        """Send ``request_leave``."""
        check_name(holder, what="holder")
        server = self.server
        return await self.send(lambda r: r.request_leave(holder, server.now(), server.wall()))

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """Send ``reset``."""
        checked, server = checked_positions(positions), self.server
        return await self.send(lambda r: r.reset(checked, server.now(), server.wall()))

    async def groups(self) -> Sequence[str]:
        """Send ``groups``."""
        return await self.send(lambda r: r.groups())

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """Send ``checkpoints``."""
        return await self.send(lambda r: r.checkpoints(group))

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """Send ``resources``."""
        return await self.send(lambda r: r.resources(group, self.server.now()))

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """Send ``members``."""
        return await self.send(lambda r: r.members(group, self.server.now()))

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """Send ``history``."""
        return await self.send(lambda r: r.history(key, limit))

    async def fenced_writes(self, group: str) -> int:
        """Send ``fenced_writes``."""
        return await self.send(lambda r: r.fenced_writes(group))

    async def close(self) -> None:
        """Close nothing: the server outlives its connections."""

    async def send(self, step: Callable[[Registry], T]) -> T:
        """Send a request and wait for what comes back, if anything does."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        faults = draw_call_faults(self.host.rates, self.host.rng)
        self.server.in_flight += 1
        if faults.refused:
            refusal = StoreUnavailable("connection refused")
            loop.call_later(faults.answer_s or 0.0, _settle, answer, None, refusal)
        if faults.request_s is not None:
            loop.call_later(faults.request_s, self._arrive, step, answer, faults.answer_s)
            if faults.again_s is not None:
                loop.call_later(faults.request_s + faults.again_s, self._arrive, step, answer, None)
        try:
            result = await answer
        except LeaseholdError:
            await self.host.gate()  # an error, too, reaches only a host that runs
            raise
        finally:
            self.server.in_flight -= 1
        await self.host.gate()
        return result

    def _arrive(
        self, step: Callable[[Registry], T], answer: asyncio.Future[T], answer_s: float | None
    ) -> None:
        if not self.server.up:
            return
        result: T | None = None
        error: LeaseholdError | None = None
        try:
            result = step(self.server.registry)
        except LeaseholdError as refusal:
            error = refusal
        if answer_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(answer_s, _settle, answer, result, error)


def _settle(answer: asyncio.Future[Any], result: object, error: LeaseholdError | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
