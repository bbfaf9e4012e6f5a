"""One wish from waiting to the end, in an event loop: the lease, the claim, the renewals.

Rules, the same as a member's:

1. A key is believed to be held only after the store agreed, and only while trust in the lease
   lasts; that is counted from the moment a request was *sent*.
2. Belief ends ``grace_s`` before trust does, so that the work can stop before anybody else is let
   in. Once it has ended it never comes back: a late answer changes nothing.
3. Belief ends before a release is sent.
4. One claim takes all keys in one step. Who got only some of them gives them back at once.
"""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import anyio

from leasehold.clock import host_name, new_suffix, new_token
from leasehold.core.ladder import Ladder
from leasehold.core.timing import CLOCK_RATE_ERROR
from leasehold.core.view import View
from leasehold.errors import (
    CheckpointBehind,
    FencedWrite,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from leasehold.jobs.wish import GROUP, Held
from leasehold.model import (
    HandOver,
    Lease,
    Mark,
    MarkRefusal,
    MemberInfo,
    Ownership,
    State,
    Wanted,
)
from leasehold.names import holder_id

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from leasehold.clock import Clock
    from leasehold.jobs.wish import Told, Wish
    from leasehold.model import Changes, Position, Resource
    from leasehold.ports import Store

T = TypeVar("T")

log = logging.getLogger("leasehold.jobs")

_SHORTEST_PAUSE_S = 0.02
_HELD = frozenset((State.LEASED, State.BREAKING))
RELEASED = "released"
TRUST_OVER = "trust window over"
GIVEN_UP = "given up"


class Claimant:
    """One holder with one wish. ``take``, then ``keep`` until it ends, then ``leave``.

    ``valid``, ``remaining_s`` and ``ended`` may be asked from any thread.
    """

    def __init__(
        self,
        store: Store,
        wish: Wish,
        *,
        told: Told,
        clock: Clock,
        rng: random.Random,
        identity: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        """Know nothing yet. ``identity`` gives the end of a new holder id, and a new token."""
        self.wish = wish
        self.ended: str | None = None
        self.ownerships: Mapping[str, Ownership] = {}
        self._store = store
        self._told = told
        self._clock = clock
        self._rng = rng
        self._identity = identity or (lambda: (new_suffix(), new_token()))
        self._ladder = Ladder(base_s=wish.timing.renew_s / 8, most_s=wish.timing.renew_s)
        self._info = MemberInfo(host=host_name(), pid=os.getpid())
        self._me: tuple[str, str] | None = None
        self._lease: Lease | None = None
        self._granted_once = False
        self._trusted_until_s = 0.0
        self._next_end_s = math.inf
        self._view = View()
        self._named: tuple[str, int, str] | None = None
        self._asked: object = self
        self._over = anyio.Event()

    # ------------------------------------------------------------ from any thread

    @property
    def valid(self) -> bool:
        """Whether the keys may be acted upon at this very moment."""
        return bool(self.ownerships) and self.ended is None and self._believes()

    def remaining_s(self) -> float:
        """How long it is until the work must have stopped, if no renewal succeeds any more."""
        if not self.ownerships or self.ended == RELEASED:
            return 0.0
        return max(0.0, self._trusted_until_s - self._clock.boottime_s())

    # ------------------------------------------------------------ waiting

    async def take(self, *, wait_s: float | None) -> Held | None:
        """Hold all keys when this returns None; else say who has one, after ``wait_s`` seconds.

        Raises:
            StoreUnusable: at the first call. Later trouble is logged, and tried again.
            StoreUnavailable: there was no answer within ``wait_s``.
        """
        until_s = math.inf if wait_s is None else self._clock.boottime_s() + wait_s
        failures = 0
        while True:
            try:
                blocked = await self._look()
                if blocked is None:
                    return None
                if self._clock.boottime_s() >= until_s:
                    return await self._who(blocked)
            except (StoreError, LeaseLost) as error:
                never = isinstance(error, StoreUnusable) and not self._granted_once
                if never or self._clock.boottime_s() >= until_s:
                    raise
                failures += 1
                self._note_trouble(error, failures)
                pause_s = self._ladder.pause_s(failures, self._rng)
            else:
                failures, pause_s = 0, self._pause_s()
            await self._clock.sleep(min(pause_s, until_s - self._clock.boottime_s()))

    async def _look(self) -> Resource | None:
        """Claim all keys if they can be had; else return one that can not."""
        lease = self._lease or await self._join()
        self._view.apply(await self._renew(lease))
        known = self._view.resources
        if any(key not in known for key in self.wish.keys):  # forgotten by an operator
            await self._call("declare", self._store.declare(self.wish.keys))
            self._view.apply(await self._renew(lease))
        wanted = [known[key] for key in self.wish.keys]
        blocked = [each for each in wanted if not _can_be_had(each, lease.holder)]
        if blocked:
            mine = [_proof(each, lease) for each in wanted if each.holder == lease.holder]
        else:
            asked = [Wanted(key=each.key, seen_epoch=each.epoch) for each in wanted]
            mine = list(await self._call("claim", self._store.claim(lease, asked)))
            if len(mine) == len(wanted):
                self._open({each.key: each for each in mine})
                return None
            won = {each.key for each in mine}
            blocked = [each for each in wanted if each.key not in won]
        if mine:  # half of it is of no use, and somebody else may want it
            await self._call("release", self._store.release(mine))
        await self._name_holder(blocked[0])
        return blocked[0]

    async def _join(self) -> Lease:
        # Without an answer it is unknown whether the lease exists: the same grant is asked again.
        suffix, token = self._me = self._me or self._identity()
        holder = holder_id(self.wish.name, host=self._info.host, suffix=suffix)
        await self._call("declare", self._store.declare(self.wish.keys))
        sent_s = self._clock.boottime_s()
        lease_s = self.wish.timing.lease_s
        lease = await self._call(
            "grant",
            self._store.grant(
                holder=holder,
                token=token,
                group=GROUP,
                duration=timedelta(seconds=lease_s),
                info=self._info,
            ),
        )
        self._lease, self._granted_once, self._view = lease, True, View()
        self._trusted_until_s = self.wish.timing.trusted_until(sent_s)
        return lease

    def _open(self, won: Mapping[str, Ownership]) -> None:
        if not self._believes():
            raise LeaseLost("the answer to the claim came too late", reason=TRUST_OVER)
        self.ownerships = {key: won[key] for key in self.wish.keys}
        first = won[self.wish.keys[0]]
        log.info("%s: %s reserved, epoch %d", first.holder, ", ".join(won), first.epoch)
        self._told.taken(self.ownerships)

    async def _name_holder(self, resource: Resource) -> None:
        """Say once who is waited for; if the store can not tell, at the next look."""
        this = (resource.key, resource.epoch, resource.holder or "")
        if this != self._named:
            held = await self._who(resource)
            self._named = this
            log.info("waiting: %s", held)
            self._told.waits(held)

    async def _who(self, resource: Resource) -> Held:
        peers = await self._call("peers", self._store.peers(GROUP))
        terms = await self._call("history", self._store.history(resource.key, limit=1))
        holder = resource.holder or resource.handed_to or (terms[0].holder if terms else "somebody")
        peer = peers.get(holder)
        return Held(
            key=resource.key,
            holder=holder,
            host=peer.info.host if peer else "",
            pid=peer.info.pid if peer else 0,
            epoch=resource.epoch,
            since=terms[0].started_at if terms and terms[0].epoch == resource.epoch else None,
            ends_in_s=peer.remaining_s if peer else 0.0,
        )

    def _pause_s(self) -> float:
        """Until the next look: soon, and sooner if somebody's lease ends before."""
        end_s = self._next_end_s - self._clock.boottime_s() + _SHORTEST_PAUSE_S
        return min(self.wish.look_s, max(end_s, _SHORTEST_PAUSE_S))

    def _note_trouble(self, error: Exception, failures: int) -> None:
        if isinstance(error, LeaseLost):
            self._lease = self._me = None
        log.warning("waiting for %s: failure %d in a row: %s", self.wish.keys[0], failures, error)

    # ------------------------------------------------------------ holding

    async def keep(self) -> None:
        """Renew until the reservation is released or lost."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renewing)
            tasks.start_soon(self._watch)
            await self._over.wait()
            tasks.cancel_scope.cancel()

    def release(self) -> None:
        """Believe no more; ``keep`` returns, and ``leave`` tells the store."""
        if self.ended is None:
            self.ended = RELEASED
        self._over.set()

    def lose(self, reason: str, *, until_s: float | None = None) -> None:
        """Believe no more, and say so. The work must have stopped by ``until_s``, or now."""
        if self.ended is not None:
            return
        self.ended = reason
        end_s = self._clock.boottime_s() if until_s is None else until_s
        self._trusted_until_s = min(self._trusted_until_s, end_s)
        log.warning("%s is lost (%s): stop the work on it", ", ".join(self.ownerships), reason)
        self._over.set()
        self._told.lost(reason)

    def give_up(self) -> None:
        """Believe no more, and renew no more: the work must stop while trust still lasts."""
        self.lose(GIVEN_UP, until_s=self._trusted_until_s)

    async def leave(self, *, to: str | None = None) -> None:
        """End the lease, so that others need not wait; call it when the work has stopped.

        With ``to`` the keys are kept for that holder. If the store does not answer within
        ``leave_s`` of the wish, time ends it.
        """
        lease, self._lease = self._lease, None
        self._over.set()
        if lease is None:
            return
        limit_s = self.wish.leave_s
        try:
            await self._clock.bounded(self._leaving(lease, to), seconds=limit_s)
        except TimeoutError:
            log.warning(
                "%s: the store has not heard of the release for %.3g s: time ends the lease",
                lease.holder,
                limit_s,
            )

    async def _leaving(self, lease: Lease, to: str | None) -> None:
        failures, limit_s = 0, self.wish.leave_s
        ladder = Ladder(base_s=limit_s / 32, most_s=limit_s / 4)
        while True:
            try:
                await self._send_leave(lease, to)
            except StoreError as error:
                failures += 1
                log.info("%s: no answer to the release: %s", lease.holder, error)
                await self._clock.sleep(ladder.pause_s(failures, self._rng))
            else:
                return

    async def _send_leave(self, lease: Lease, to: str | None) -> None:
        if to is not None and self.ownerships:
            passed = [HandOver(ownership=each, to=to) for each in self.ownerships.values()]
            limit = timedelta(seconds=self.wish.timing.lease_s)
            await self._call("hand_over", self._store.hand_over(passed, limit=limit), trusted=False)
        await self._call("revoke", self._store.revoke(lease), trusted=False)

    async def mark(self, position: Position) -> None:
        """Store ``position`` as the job's checkpoint, under its epoch.

        Raises:
            LeaseLost: the reservation ended before there was an answer.
            FencedWrite: the store refused it: the reservation has ended. It is lost now.
            CheckpointBehind: what is stored is ahead; it stays.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
        """
        key = self.wish.keys[0]
        mark = Mark(ownership=self.ownerships[key], position=position)
        try:
            refused = await self._call("checkpoint", self._store.checkpoint([mark]))
        except StoreUnavailable as error:
            if self.valid:
                raise
            why = self.ended or TRUST_OVER
            raise LeaseLost(
                f"{key} was lost ({why}) before the store answered to its checkpoint",
                key=key,
                epoch=mark.ownership.epoch,
                reason=why,
            ) from error
        if refused.get(key) is MarkRefusal.FENCED:
            self.lose("fenced")
            epoch = mark.ownership.epoch
            raise FencedWrite(
                f"the checkpoint of {key} was refused: the reservation (epoch {epoch}) has ended; "
                "stop the work on it",
                key=key,
                epoch=epoch,
                reason="fenced",
            )
        if refused:
            raise CheckpointBehind(
                f"the checkpoint of {key} is ahead of {position.sequence_number}: it stays where "
                "it is; write positions in order"
            )

    async def _renewing(self) -> None:
        failures, pause_s = 0, self.wish.timing.renew_s
        while self.ended is None:
            await self._clock.sleep(pause_s)
            lease = self._lease
            if lease is None or not self._believes():
                return  # the watch says so
            try:
                sent_s = self._clock.boottime_s()
                self._take_in(lease, await self._renew(lease), sent_s)
            except LeaseLost as lost:
                self.lose(lost.reason)
            except StoreError as error:
                failures += 1
                pause_s = self._ladder.pause_s(failures, self._rng)
                log.warning("%s: no renewal, failure %d: %s", lease.holder, failures, error)
            else:
                failures, pause_s = 0, self.wish.timing.renew_s

    async def _watch(self) -> None:
        """End belief in time, whatever a call to the store is waiting for."""
        while self.ended is None:
            left_s = self._trusted_until_s - self.wish.grace_s - self._clock.boottime_s()
            if left_s <= 0:
                self.lose(TRUST_OVER, until_s=self._trusted_until_s)
                return
            await self._clock.sleep(min(left_s, self._clock.slice_s))

    def _take_in(self, lease: Lease, changes: Changes, sent_s: float) -> None:
        self._view.apply(changes)
        for term in changes.ended:
            mine = self.ownerships.get(term.key)
            if mine is not None and mine.epoch == term.epoch:
                self.lose(term.reason.value if term.reason else "lost")
        for resource in changes.resources:
            if resource.key not in self.ownerships:
                continue
            if resource.holder != lease.holder:
                self.lose("lost")
            elif resource.state is State.BREAKING and resource.breaking_s is not None:
                # Counted from the moment of asking, and short of a clock that runs slow.
                until_s = sent_s + resource.breaking_s * (1 - CLOCK_RATE_ERROR)
                self.lose("broken", until_s=until_s)
            elif resource.asked_by is not None:
                self._ask(resource.asked_by)
        if any(peer.holder == lease.holder and peer.dismissed for peer in changes.peers):
            self._ask(None)

    def _ask(self, by: str | None) -> None:
        if by != self._asked:
            self._asked = by
            self._told.asked(by)

    # ------------------------------------------------------------ the store

    def _believes(self) -> bool:
        return self._clock.boottime_s() < self._trusted_until_s - self.wish.grace_s

    async def _renew(self, lease: Lease) -> Changes:
        sent_s = self._clock.boottime_s()
        changes = await self._call("renew", self._store.renew(lease, since=self._view.version))
        if self.ended is None:  # else an answer that came late would prolong what is over
            self._trusted_until_s = self.wish.timing.trusted_until(sent_s)
        left_s = math.inf if changes.next_end_s is None else changes.next_end_s
        self._next_end_s = self._clock.boottime_s() + left_s
        return changes

    async def _call(self, name: str, answer: Awaitable[T], *, trusted: bool = True) -> T:
        """One call to the store; while something is held never longer than belief lasts.

        Raises:
            StoreUnavailable: no answer in time: unknown.
        """
        limit_s = self.wish.timing.call_s
        if trusted and self.ownerships:
            left_s = self._trusted_until_s - self.wish.grace_s - self._clock.boottime_s()
            limit_s = min(limit_s, left_s)
        with suppress(TimeoutError):
            return await self._clock.bounded(answer, seconds=max(0.0, limit_s))
        raise StoreUnavailable(f"{name}: no answer within {limit_s:.3g} s")


def _can_be_had(resource: Resource, holder: str) -> bool:
    if resource.holder == holder:
        return True
    free = resource.holder is None or resource.state not in _HELD
    return free and resource.handed_to in (None, holder)


def _proof(resource: Resource, lease: Lease) -> Ownership:
    return Ownership(key=resource.key, epoch=resource.epoch, holder=lease.holder, token=lease.token)
