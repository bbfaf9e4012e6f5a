"""One lease of one holder: asked for, renewed, believed in, ended.

Rules, the same as a member's:

1. The lease is believed in only after the store agreed, and only while trust in it lasts; that is
   counted from the moment a request was *sent*.
2. Belief ends ``grace_s`` before trust does, so that the work can stop before anybody else is let
   in. Once it has ended it never comes back: a late answer changes nothing.

Belief may be asked for from any thread; all else belongs to one event loop.
"""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from leasehold.clock import host_name, new_suffix, new_token
from leasehold.core.backoff import Backoff
from leasehold.errors import LeaseLost, StoreError, StoreUnavailable
from leasehold.jobs.wish import GROUP
from leasehold.lease.group_state import GroupState
from leasehold.model import MemberInfo
from leasehold.names import holder_id

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from leasehold.clock import Clock
    from leasehold.core.lease_timing import LeaseTiming
    from leasehold.model import Changes, Lease
    from leasehold.ports import Store

T = TypeVar("T")

log = logging.getLogger("leasehold.jobs")

TRUST_OVER = "local_deadline"
_AFTER_AN_END_S = 0.02


def new_identity() -> tuple[str, str]:
    """The end of a new holder id, and a new token."""
    return new_suffix(), new_token()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the leases of one program have in common.

    Attributes:
        store: where they are.
        name: the first part of the holder's id, for people.
        timing: of the lease.
        grace_s: belief ends this long before trust does: the time to stop in.
        leave_s: how long a store that does not answer is told of the end: then time ends it.
        clock, rng: of this process.
        identity: gives the end of a new holder id, and a new token.
    """

    store: Store
    name: str
    timing: LeaseTiming
    grace_s: float
    leave_s: float
    clock: Clock
    rng: random.Random
    identity: Callable[[], tuple[str, str]] = new_identity

    @property
    def pauses(self) -> Backoff:
        """Between attempts to reach a store that is in trouble."""
        return Backoff(base_s=self.timing.renew_s / 8, max_s=self.timing.renew_s)


class Hears(Protocol):
    """Who is told what becomes of a lease. Both return at once."""

    def renewed(self, holding: Holding, changes: Changes, sent_s: float, /) -> None:
        """It is renewed, by a request that was sent at that moment; this has changed."""
        ...

    def lost(self, holding: Holding, reason: str, until_s: float, /) -> None:
        """Call ``end``: it is over. The work must have stopped by ``until_s``."""
        ...


class Holding:
    """One lease. ``join``, then ``keep`` until belief in it has ended, then ``leave``."""

    def __init__(self, ground: Ground) -> None:
        """Know nothing yet. The holder id is new, and never used again."""
        suffix, self._token = ground.identity()
        self.info = MemberInfo(host=host_name(), pid=os.getpid())
        self.holder = holder_id(ground.name, host=self.info.host, suffix=suffix)
        self.lease: Lease | None = None
        self.view = GroupState()
        self.ended: str | None = None
        self.trusted_until_s = 0.0
        self.next_end_s = math.inf
        self.over = anyio.Event()
        self._ground = ground
        self._clock = ground.clock

    # ------------------------------------------------------------ belief

    @property
    def believes(self) -> bool:
        """Whether what the lease covers may be acted upon at this very moment."""
        return self.ended is None and self.belief_s() > 0

    def belief_s(self) -> float:
        """How long belief lasts if no renewal succeeds any more."""
        return self.trusted_until_s - self._ground.grace_s - self._clock.boottime_s()

    def remaining_s(self) -> float:
        """How long it is until the work must have stopped, if no renewal succeeds any more."""
        return max(0.0, self.trusted_until_s - self._clock.boottime_s())

    def end(self, reason: str, *, until_s: float | None = None) -> bool:
        """Believe no more; False if that was so before. Trust lasts until ``until_s`` at most."""
        self.over.set()
        if self.ended is not None:
            return False
        self.ended = reason
        if until_s is not None:
            self.trusted_until_s = min(self.trusted_until_s, until_s)
        return True

    # ------------------------------------------------------------ life

    async def join(self, keys: Sequence[str]) -> Lease:
        """Declare the keys and ask for the lease. Without an answer the same grant is asked again.

        Raises:
            StoreUnavailable: no answer: unknown whether the lease exists.
            LeaseLost: this holder's lease has ended already: make a new one.
        """
        store = self._ground.store
        if keys:
            await self.call("declare", store.declare(keys))
        sent_s = self._clock.boottime_s()
        lease = await self.call(
            "grant",
            store.grant(
                holder=self.holder,
                token=self._token,
                group=GROUP,
                duration=timedelta(seconds=self._ground.timing.lease_s),
                info=self.info,
            ),
        )
        self.lease = lease
        self.trusted_until_s = self._ground.timing.trusted_until(sent_s)
        return lease

    async def renew(self) -> Changes:
        """Extend the lease, take in what has changed, and return it.

        Raises:
            StoreUnavailable: no answer in time.
            LeaseLost: the lease has ended, or was never granted.
        """
        lease = self.lease
        if lease is None:
            raise LeaseLost(f"{self.holder} has no lease", key=self.holder, reason="not_held")
        sent_s = self._clock.boottime_s()
        answer = self._ground.store.renew(lease, since=self.view.version)
        changes = await self.call("renew", answer)
        if self.ended is None:  # else an answer that came late would prolong what is over
            until_s = self._ground.timing.trusted_until(sent_s)
            self.trusted_until_s = max(self.trusted_until_s, until_s)
        left_s = math.inf if changes.next_end_s is None else changes.next_end_s
        self.next_end_s = self._clock.boottime_s() + left_s
        self.view.apply(changes)
        return changes

    async def keep(self, *, hears: Hears, watches: bool = False) -> None:
        """Renew until belief has ended; who ``watches`` also when another's lease may end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renewing, hears, watches)
            tasks.start_soon(self._watching, hears)
            await self.over.wait()
            tasks.cancel_scope.cancel()

    async def _renewing(self, hears: Hears, watches: bool) -> None:  # noqa: FBT001
        failures, pause_s = 0, self._pause_s(watches)
        while self.ended is None:
            await self._clock.sleep(pause_s)
            if not self.believes:
                return  # the watch says so
            sent_s = self._clock.boottime_s()
            try:
                hears.renewed(self, await self.renew(), sent_s)
            except LeaseLost as lost:
                hears.lost(self, lost.reason, self._clock.boottime_s())
            except StoreError as error:
                failures += 1
                # From one call to the next: to have waited for an answer in vain was a pause.
                spent_s = self._clock.boottime_s() - sent_s
                step_s = self._ground.pauses.pause_s(failures, self._ground.rng)
                pause_s = max(0.0, step_s - spent_s)
                log.warning("%s: no renewal, failure %d: %s", self.holder, failures, error)
            else:
                failures, pause_s = 0, self._pause_s(watches)

    def _pause_s(self, watches: bool) -> float:  # noqa: FBT001
        renew_s = self._ground.timing.renew_s
        if not watches:
            return renew_s
        end_s = self.next_end_s - self._clock.boottime_s() + _AFTER_AN_END_S
        return min(renew_s, max(end_s, renew_s / 100))

    async def _watching(self, hears: Hears) -> None:
        """End belief in time, whatever a call to the store is waiting for."""
        while self.ended is None:
            left_s = self.belief_s()
            if left_s <= 0:
                hears.lost(self, TRUST_OVER, self.trusted_until_s)
                return
            await self._clock.sleep(min(left_s, self._clock.slice_s))

    async def leave(self, last_words: Callable[[], Awaitable[None]] | None = None) -> None:
        """End the lease, so that others need not wait; call it when the work has stopped.

        ``last_words`` are said before, and again if there was no answer. If the store does not
        answer within ``leave_s``, time ends the lease.
        """
        lease, self.lease = self.lease, None
        self.over.set()
        if lease is None:
            return
        limit_s = self._ground.leave_s
        try:
            await self._clock.bounded(self._leaving(lease, last_words), seconds=limit_s)
        except TimeoutError:
            log.warning(
                "%s: the store has not heard of the release for %.3g s: time ends the lease",
                self.holder,
                limit_s,
            )

    async def _leaving(
        self, lease: Lease, last_words: Callable[[], Awaitable[None]] | None
    ) -> None:
        failures, limit_s = 0, self._ground.leave_s
        backoff = Backoff(base_s=limit_s / 32, max_s=limit_s / 4)
        while True:
            try:
                if last_words is not None:
                    await last_words()
                lapsed = self.ended == TRUST_OVER
                await self.call("revoke", self._ground.store.revoke(lease, lapsed=lapsed))
            except StoreError as error:
                failures += 1
                log.info("%s: no answer to the release: %s", self.holder, error)
                await self._clock.sleep(backoff.pause_s(failures, self._ground.rng))
            else:
                return

    # ------------------------------------------------------------ the store

    async def call(self, name: str, answer: Awaitable[T], *, within_s: float = math.inf) -> T:
        """One call to the store, never longer than the timing says, or ``within_s``.

        Raises:
            StoreUnavailable: no answer in time: unknown.
        """
        limit_s = max(0.0, min(self._ground.timing.call_s, within_s))
        with suppress(TimeoutError):
            return await self._clock.bounded(answer, seconds=limit_s)
        raise StoreUnavailable(f"{name}: no answer within {limit_s:.3g} s")
