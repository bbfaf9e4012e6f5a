"""Many reservations under one lease: one renewal, however many keys are held.

Guarantees, beside those of ``holding``:

1. A key is held here only after the store agreed. ``on_lost`` is told once of each that was held
   and has to be given up, while there is time to stop, and before anybody else is let in.
2. Belief in a key ends before its release is sent, and never comes back: it has to be taken again,
   under a new epoch. What was said of it under the old one is not said of the new one.
3. What the store may have given without our hearing of it is given back as soon as that is seen.
4. Calls of one kind that come while one is under way go to the store together.
5. After the loss of the lease it asks for another by itself, as a new holder.

All of it belongs to one event loop, but for ``valid``, ``remaining_s`` and ``ownership``, which may
be asked from any thread.

Telling the store of keys that are given back: kept for one holder, or free for all.

Calls that come while one is under way wait, and go together in the next: group commit.

The keys that are held under the lease of the moment, and what each renewal says of them.

A key that was held and has to be given up is told once to ``on_lost``. What the store says is ours
and nobody knows of is owed: it will be given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from leasehold.core.lease_timing import CLOCK_RATE_ERROR
from leasehold.errors import LeaseholdError, LeaseLost, StoreError, StoreUnusable
from leasehold.jobs.bunch import Bunch
from leasehold.jobs.holding import TRUST_OVER, Ground, Holding, new_identity
from leasehold.jobs.wish import DEFAULT_LEASE, GROUP, grace_s, leave_s, timing_of
from leasehold.model import CheckpointWrite, HandOver, Note, Ownership, Refusal, State
from leasehold.names import check_name, group_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.jobs.bunch import Owed
    from leasehold.model import Changes, Checkpoint, Position, Resource
    from leasehold.ports import Store

log = logging.getLogger("leasehold.jobs")


class Tenancy:
    """One lease at a time, and its keys. It hears what becomes of the lease (see ``Hears``)."""

    def __init__(
        self,
        ground: Ground,
        *,
        on_lost: Callable[[str, str], None],
        on_asked: Callable[[str, str | None], None],
        on_owed: Callable[[], None],
    ) -> None:
        """Hold nothing yet. ``on_owed``: a renewal found something that is to be given back."""
        self.keys = Bunch()
        self.holding = Holding(ground)
        self.abroad: dict[str, Resource] = {}  # keys of other groups, as last seen
        self.claiming: frozenset[str] = frozenset()
        self.news = anyio.Event()
        self._ground, self._clock = ground, ground.clock
        self._on_lost, self._on_asked, self._on_owed = on_lost, on_asked, on_owed
        self._questions: dict[str, tuple[int, str | None]] = {}  # in which epoch, by whom

    def begin_anew(self) -> None:
        """The lease is over for good: another holder takes our place."""
        self.holding = Holding(self._ground)
        self._questions.clear()

    def resource(self, key: str) -> Resource | None:
        """A key as it was last seen; None if it was not."""
        seen, abroad = self.holding.view.resources.get(key), self.abroad.get(key)
        if seen is None or abroad is None:
            return seen or abroad
        return max(seen, abroad, key=lambda each: each.version)

    def remaining_s(self, key: str) -> float:
        """How long until the work on it must have stopped, if no renewal succeeds any more."""
        gone = self.keys.gone.get(key)
        if gone is not None:
            return max(0.0, gone.until_s - self._clock.boottime_s())
        return self.holding.remaining_s() if key in self.keys.held else 0.0

    def renewed(self, holding: Holding, changes: Changes, sent_s: float, /) -> None:
        held, now_s = self.keys.held, self._clock.boottime_s()
        for term in changes.ended:
            mine = held.get(term.key)
            if mine is not None and mine.epoch == term.epoch:
                self.lose(term.key, term.reason.value if term.reason else "lost", now_s)
        for resource in changes.resources:
            if resource.key not in self.claiming:
                self._look_for_stray(holding, resource)
            mine = held.get(resource.key)
            if mine is not None and resource.epoch >= mine.epoch:  # else it was not ours yet
                self._judge(holding, resource, sent_s)
        if any(peer.holder == holding.holder and peer.leave_requested for peer in changes.members):
            self._ask("", 0, None)
        if self.keys.owed:
            self._on_owed()
        if changes.resources or changes.members or changes.ended:
            self.news.set()
            self.news = anyio.Event()

    def _judge(self, holding: Holding, resource: Resource, sent_s: float) -> None:
        """What the news of a key that is held mean for it."""
        if resource.holder != holding.holder:
            self.lose(resource.key, "lost", self._clock.boottime_s())
        elif resource.state is State.BREAKING and resource.breaking_s is not None:
            # Counted from the moment of asking, and short of a clock that runs slow.
            until_s = sent_s + resource.breaking_s * (1 - CLOCK_RATE_ERROR)
            self.lose(resource.key, "broken", min(until_s, holding.trusted_until_s))
        elif resource.asked_by is not None:
            self._ask(resource.key, resource.epoch, resource.asked_by)

    def lost(self, holding: Holding, reason: str, until_s: float, /) -> None:
        if holding is not self.holding:
            return
        holding.end(reason, until_s=until_s)
        for key in tuple(self.keys.held):
            self.lose(key, reason, until_s)

    def in_doubt(self, holding: Holding, keys: Iterable[str]) -> None:
        """A claim of these got no answer; a renewal may have seen already that it succeeded."""
        for resource in filter(None, map(self.resource, keys)):
            self._look_for_stray(holding, resource)

    def _look_for_stray(self, holding: Holding, resource: Resource) -> None:
        lease = holding.lease
        if lease is not None and resource.holder == lease.holder:
            proof = Ownership(
                key=resource.key, epoch=resource.epoch, holder=lease.holder, token=lease.token
            )
            self.keys.stray(resource, proof)

    def lose(self, key: str, reason: str, until_s: float) -> None:
        """It is held no more, which is told; nothing if it was not."""
        if not self.keys.lose(key, until_s=until_s):
            return
        self._questions.pop(key, None)
        log.warning("%s: %s is lost (%s): stop the work on it", self.holding.holder, key, reason)
        try:
            self._on_lost(key, reason)
        except Exception:
            log.exception("a listener of a keyring failed")

    def _ask(self, key: str, epoch: int, by: str | None) -> None:
        """Pass a question on, once for each reservation."""
        if self._questions.get(key) == (epoch, by):
            return
        self._questions[key] = epoch, by
        try:
            self._on_asked(key, by)
        except Exception:
            log.exception("a listener of a keyring failed")


A = TypeVar("A")
R = TypeVar("R")

# For how long, as a part of the call before, the next one waits for those who were answered.
_LINGER = 0.25


class Lane(Generic[A, R]):
    """One call at a time. Whoever asks may be called off: the call goes on for the others."""

    def __init__(
        self,
        send: Callable[[Sequence[A]], Awaitable[Sequence[R | Exception]]],
        *,
        unclaimed: Callable[[R], None] = lambda _: None,
        weigh: Callable[[A], int] = lambda _: 1,
    ) -> None:
        """``send`` answers to each of what it is given, in order: a result, or its error.

        ``unclaimed`` hears a result that nobody waits for any more. ``weigh``: how many have asked
        together.
        """
        self._send = send
        self._unclaimed, self._weigh = unclaimed, weigh
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._weight = self._enough = 0
        self._full = asyncio.Event()

    async def ask(self, what: A) -> R:
        """Wait for the answer to this.

        Raises:
            Exception: what ``send`` gave for it, or raised.
        """
        answer = self._put(what)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._unclaimed(answer.result())  # it came in the very moment of the calling off
            raise

    def post(self, what: A) -> None:
        """Have it sent, and hear nothing of it."""
        self._put(what).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _put(self, what: A) -> asyncio.Future[R]:
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((what, answer))
        self._weight += self._weigh(what)
        if self._enough and self._weight >= self._enough:
            self._full.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return answer

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, weight, began_s = list(self._waiting), self._weight, loop.time()
                self._waiting.clear()
                self._weight = 0
                await self._answer(batch)
                await self._linger(weight, (loop.time() - began_s) * _LINGER)
        finally:
            self._serving = None

    async def _linger(self, enough: int, limit_s: float) -> None:
        """Those who were answered together are soon back, and better in one call than in two."""
        if enough <= 1 or self._weight >= enough:
            return
        self._enough = enough
        timer = asyncio.get_running_loop().call_later(limit_s, self._full.set)
        try:
            self._full.clear()
            await self._full.wait()
        finally:
            self._enough = 0
            timer.cancel()

    async def _answer(self, batch: list[tuple[A, asyncio.Future[R]]]) -> None:
        try:
            results: Sequence[R | Exception] = await self._send([what for what, _ in batch])
        except Exception as error:  # noqa: BLE001 - each of them is told
            results = [error] * len(batch)
        except BaseException:
            for _, answer in (*batch, *self._waiting):
                answer.cancel()
            raise
        for (_, answer), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                if not answer.done():
                    answer.set_exception(result)
            elif answer.done():  # it was called off
                self._unclaimed(result)
            else:
                answer.set_result(result)


async def settle(
    store: Store, owed: Collection[Owed], *, limit: timedelta, holding: Holding
) -> None:
    """Hand over what is to be kept for somebody, for so long at most, and release the rest.

    What can not be handed over is released. All of it may be said again.

    Raises:
        StoreUnavailable: no answer: unknown.
    """
    passed = [
        HandOver(ownership=each.proof, to=each.to, note=each.note or None)
        for each in owed
        if each.to is not None
    ]
    kept: Collection[str] = ()
    if passed:
        kept = await holding.call("hand_over", store.hand_over(passed, limit=limit))
    rest = [each for each in owed if each.proof.key not in kept]
    if rest:
        notes = {each.proof.key: each.note for each in rest if each.note}
        answer = store.release([each.proof for each in rest], notes=notes or None)
        await holding.call("release", answer)


T = TypeVar("T")

log = logging.getLogger("leasehold.jobs")

LEFT = "left"
_NOBODY_RENEWS = "the renewals have ended"

_MOMENT_S = 1e-6  # no clock tells less: a sleep this short may not move it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Take:
    """Keys that are wanted, with the note of each; ``fresh``: look again before saying no."""

    wanted: Mapping[str, str]
    fresh: bool

    @property
    def weight(self) -> int:
        """How many keys."""
        return len(self.wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Let:
    """So many keys are owed: tell the store of all that are."""

    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words(Generic[T]):
    """What is said of keys, each under the proof of the moment at which it was said."""

    said: Mapping[str, T]
    proofs: Mapping[str, Ownership]


class Keyring:
    """All that one process has reserved. Run ``keep`` in a task; ``leave`` ends it."""

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        lease: timedelta = DEFAULT_LEASE,
        clock: Clock,
        rng: random.Random,
        on_lost: Callable[[str, str], None] = lambda _key, _reason: None,
        on_asked: Callable[[str, str | None], None] = lambda _key, _by: None,
        identity: Callable[[], tuple[str, str]] | None = None,
        unheard: str = "",
    ) -> None:
        """Hold nothing yet.

        ``on_lost(key, reason)`` and ``on_asked(key, by)`` are called in the event loop and must
        return at once. An operator who asks the whole holder to leave is told as ``("", None)``.
        ``identity`` gives the end of a new holder id, and a new token. ``unheard`` is the last note
        of what is given back because nobody here has heard of it ("" leaves the one it has).

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
        """
        timing = timing_of(lease)
        self._store, self._clock = store, clock
        self._ground = Ground(
            store=store,
            name=check_name(name, what="holder name"),
            timing=timing,
            grace_s=grace_s(timing),
            leave_s=leave_s(timing),
            clock=clock,
            rng=rng,
            identity=identity or new_identity,
        )
        self._tenancy = Tenancy(
            self._ground,
            on_lost=on_lost,
            on_asked=on_asked,
            on_owed=lambda: self._turns.post(_Let(weight=0)),
        )
        self._keys = self._tenancy.keys
        self._keys.unheard = unheard
        self._turns: Lane[_Take | _Let, Mapping[str, Ownership]] = Lane(
            self._turn, unclaimed=self._give_back, weigh=lambda each: each.weight
        )
        self._marks: Lane[_Words[Position], Mapping[str, Refusal]] = Lane(self._write)
        self._notes: Lane[_Words[str], Sequence[str]] = Lane(self._say)
        self._scope: anyio.CancelScope | None = None
        self._left = self._joined = False
        self._ready = anyio.Event()

    # ------------------------------------------------------------ from any thread

    @property
    def holder(self) -> str:
        """Who we are to the others; another one after each loss of the lease."""
        return self._tenancy.holding.holder

    def valid(self, key: str) -> bool:
        """Whether the key may be acted upon at this very moment."""
        return key in self._keys.held and self._tenancy.holding.believes

    def remaining_s(self, key: str) -> float:
        """How long until the work on it must have stopped, if no renewal succeeds any more."""
        return self._tenancy.remaining_s(key)

    def ownership(self, key: str) -> Ownership | None:
        """The proof of holding the key; None if it is not held."""
        return self._keys.held.get(key)

    def resource(self, key: str) -> Resource | None:
        """A key of the jobs as it was last seen; None if it was not."""
        return self._tenancy.resource(key)

    # ------------------------------------------------------------ life

    async def keep(self) -> None:
        """Ask for the lease and renew it until ``leave``; after a loss ask for another one.

        Raises:
            StoreUnusable: at the first attempt. All other trouble is logged, and tried again.
        """
        try:
            with anyio.CancelScope() as self._scope:
                while not self._left:
                    await self._join()
                    self._ready.set()
                    await self._tenancy.holding.keep(hears=self._tenancy, watches=True)
                    self._ready = anyio.Event()
                    if not self._left:
                        self._tenancy.begin_anew()
        finally:
            # Nothing, if it has been left in order.
            self._tenancy.lost(self._tenancy.holding, _NOBODY_RENEWS, self._clock.boottime_s())

    @property
    def joined(self) -> bool:
        """Whether there is a lease to take keys under, as far as is known."""
        return self._ready.is_set()

    async def ready(self) -> None:
        """Wait until there is a lease to take keys under."""
        while not self._ready.is_set():
            await self._ready.wait()

    async def news(self) -> None:
        """Wait until a renewal says that something has changed."""
        await self._tenancy.news.wait()

    async def leave(self) -> None:
        """Release all and end the lease; ``keep`` returns. Call it when the work has stopped.

        A store that does not answer is told for 15 s at most, or one lease; then time ends it.
        """
        if self._left:
            return
        self._left = True
        holding, lease = self._tenancy.holding, self._tenancy.holding.lease
        for key in (*self._keys.held, *self._keys.gone):
            self._keys.owe(key, "")
        holding.end(LEFT)
        if self._scope is not None:
            self._scope.cancel()
        if lease is not None:
            await holding.leave(self._settle)

    # ------------------------------------------------------------ keys

    async def take(
        self, wanted: Mapping[str, str], *, fresh: bool = True
    ) -> Mapping[str, Ownership]:
        """Take those of the keys that can be had now, with these notes; return only these.

        What is held here already is not had a second time. With ``fresh`` the store is looked at
        once more before the answer is *no*; without, what the last renewal has shown decides.

        Raises:
            LeaseLost: there is no lease at the moment; ``ready`` waits for the next one.
            StoreUnavailable: no answer. What was given nevertheless will be given back, unless it
                is asked for again before.
            InvalidName: one of them is no key.
        """
        return await self._turns.ask(_Take(wanted=dict(wanted), fresh=fresh))

    async def release(
        self, notes: Mapping[str, str], *, to: Mapping[str, str] | None = None
    ) -> None:
        """Give keys back, each with its last note ("" leaves the one it has). Again is harmless.

        ``to``: the holder that a key is kept for, for the length of the lease at most. Also for
        keys that were lost and whose work has stopped. When this returns the store has
        heard of it; or it has not answered for 15 s, or one lease: then it is told later, or time
        ends it.
        """
        for key, note in notes.items():
            self._keys.owe(key, note, to=(to or {}).get(key))
        until_s = self._clock.boottime_s() + self._ground.leave_s
        failures = 0
        while any(key in self._keys.owed for key in notes):
            try:
                await self._turns.ask(_Let(weight=len(notes)))
            except StoreError as error:
                failures += 1
                log.info("%s: no answer to the release: %s", self.holder, error)
                left_s = until_s - self._clock.boottime_s()
                if left_s <= _MOMENT_S or self._left:
                    return
                pause_s = self._ground.pauses.pause_s(failures, self._ground.rng)
                await self._clock.sleep(min(pause_s, left_s))

    async def mark(self, marks: Mapping[str, Position]) -> Mapping[str, Refusal]:
        """Write the checkpoints of keys that are held; return the refused ones. Fenced is lost.

        Raises:
            StoreUnavailable: unknown whether they were written; the same call may be repeated.
            UsageError: a position can not be kept.
        """
        return await self._marks.ask(self._words(marks))

    async def annotate(self, notes: Mapping[str, str]) -> Sequence[str]:
        """Replace the notes of keys that are held; return the refused: those reservations are over.

        Raises:
            StoreUnavailable: unknown whether they were written; the same call may be repeated.
            UsageError: a note can not be kept.
        """
        return await self._notes.ask(self._words(notes))

    async def checkpoints(self) -> Mapping[str, Checkpoint]:
        """All checkpoints of jobs, by key.

        Raises:
            StoreUnavailable: no answer.
        """
        return await self._tenancy.holding.call("checkpoints", self._store.checkpoints(GROUP))

    # ------------------------------------------------------------ the lease

    async def _join(self) -> None:
        failures = 0
        while True:
            holding, sent_s = self._tenancy.holding, self._clock.boottime_s()
            try:
                await holding.join(())
                self._tenancy.renewed(holding, await holding.renew(), sent_s)
            except (StoreError, LeaseLost) as error:
                if isinstance(error, StoreUnusable) and not self._joined:
                    raise
                failures += 1
                log.warning("%s: no lease, failure %d: %s", holding.holder, failures, error)
                if isinstance(error, LeaseLost):
                    self._tenancy.begin_anew()
                await self._clock.sleep(self._ground.pauses.pause_s(failures, self._ground.rng))
            else:
                self._joined = True
                return

    # ------------------------------------------------------------ turns: releases, then claims

    async def _turn(
        self, batch: Sequence[_Take | _Let]
    ) -> Sequence[Mapping[str, Ownership] | Exception]:
        """One call for all releases that are owed, one for all claims, at the same time.

        But what is owed itself is claimed only when the store has confirmed the release: a release
        that came late would end what was claimed.
        """
        takes = [each for each in batch if isinstance(each, _Take)]
        won: dict[str, Ownership] = {}
        if any(key in self._keys.owed for take in takes for key in take.wanted):
            unsettled = await self._settled()
            trouble = await self._claimed(takes, won)
        else:
            unsettled, trouble = await asyncio.gather(self._settled(), self._claimed(takes, won))
        still = {key: each for key, each in won.items() if self._keys.held.get(key) is each}
        return [
            _share(each, still, trouble) if isinstance(each, _Take) else unsettled or {}
            for each in batch
        ]

    async def _settled(self) -> LeaseholdError | None:
        try:
            await self._settle()
        except LeaseholdError as error:
            return error
        return None

    async def _claimed(
        self, takes: Sequence[_Take], won: dict[str, Ownership]
    ) -> LeaseholdError | None:
        holding = self._tenancy.holding
        try:
            await self._claim_all(takes, won)
        except LeaseholdError as error:
            if isinstance(error, LeaseLost) and holding.believes:
                # If not, the watch says so, and how much time is left.
                self._tenancy.lost(holding, error.reason, self._clock.boottime_s())
            return error
        return None

    def _give_back(self, won: Mapping[str, Ownership]) -> None:
        """Nobody waits for them any more."""
        for key, proof in won.items():
            if self._keys.held.get(key) is proof:
                self._keys.owe(key, self._keys.unheard)
                self._turns.post(_Let(weight=0))

    async def _settle(self) -> None:
        owed = dict(self._keys.owed)
        if not owed:
            return
        holding, limit = self._tenancy.holding, timedelta(seconds=self._ground.timing.lease_s)
        await settle(self._store, owed.values(), limit=limit, holding=holding)
        self._keys.settled(owed)

    async def _claim_all(self, takes: Sequence[_Take], won: dict[str, Ownership]) -> None:
        wanted: dict[str, str] = {}
        for take in takes:
            for key, note in take.wanted.items():
                wanted.setdefault(key, note)
        if not wanted:
            return
        await self._claim(wanted, won)
        again = {key for take in takes if take.fresh for key in take.wanted}
        missed = {
            key: note
            for key, note in wanted.items()
            if key in again and key not in won and key not in self._keys.held
        }
        if missed:
            await self._look(missed)
            await self._claim(missed, won)

    async def _claim(self, wanted: Mapping[str, str], won: dict[str, Ownership]) -> None:
        holding = self._tenancy.holding
        lease = holding.lease
        if lease is None or not holding.believes:
            raise LeaseLost(
                f"{holding.holder} has no lease at the moment, so it can take nothing",
                key=holding.holder,
                reason=holding.ended or "not_held",
            )
        asked = [
            each
            for key, note in wanted.items()
            if (each := self._keys.want(key, note, seen=self.resource(key), me=holding.holder))
        ]
        if not asked:
            return
        self._tenancy.claiming = claiming = frozenset(each.key for each in asked)
        try:
            got = await self._trusted("claim", self._store.claim(lease, asked))
        except StoreError:
            self._tenancy.in_doubt(holding, claiming)
            raise
        finally:
            self._tenancy.claiming = frozenset()
        if not holding.believes:  # the answer came too late, and time will end it
            raise LeaseLost(
                f"{holding.holder}: the answer to the claim came too late",
                key=holding.holder,
                reason=holding.ended or TRUST_OVER,
            )
        won.update({each.key: each for each in got if self._keys.win(each)})

    async def _look(self, keys: Iterable[str]) -> None:
        """See these keys as they are now; those that nobody knows are declared."""
        await self._declare(keys)
        await self._refresh(keys)
        if await self._declare(keys):  # forgotten by an operator, as we see only now
            await self._refresh(keys)

    async def _declare(self, keys: Iterable[str]) -> bool:
        new = [key for key in keys if self.resource(key) is None]
        if new:
            await self._trusted("declare", self._store.declare(new))
        return bool(new)

    async def _refresh(self, keys: Iterable[str]) -> None:
        groups = {group_of(key) for key in keys}
        if GROUP in groups:
            holding, sent_s = self._tenancy.holding, self._clock.boottime_s()
            self._tenancy.renewed(holding, await holding.renew(), sent_s)
        abroad = self._tenancy.abroad
        for group in groups - {GROUP}:
            seen = await self._trusted("resources", self._store.resources(group))
            abroad.update(seen)
            for key in [key for key in abroad if group_of(key) == group and key not in seen]:
                del abroad[key]

    # ------------------------------------------------------------ checkpoints and notes

    def _words(self, said: Mapping[str, T]) -> _Words[T]:
        return _Words(said=dict(said), proofs=self._keys.proofs(said))

    async def _write(self, batch: Sequence[_Words[Position]]) -> Sequence[Mapping[str, Refusal]]:
        standing = [self._keys.still(words.proofs) for words in batch]
        marks: dict[str, CheckpointWrite] = {}
        for words, proofs in zip(batch, standing, strict=True):
            for key, proof in proofs.items():
                position = words.said[key]
                if key not in marks or position >= marks[key].position:
                    marks[key] = CheckpointWrite(ownership=proof, position=position)
        refused: Mapping[str, Refusal] = {}
        if marks:
            answer = self._store.checkpoint(list(marks.values()))
            refused = await self._trusted("checkpoint", answer)
        fenced = Refusal.FENCED
        self._fenced(each.ownership for key, each in marks.items() if refused.get(key) is fenced)
        return [
            {
                key: refused.get(key, fenced)
                for key in words.said
                if key in refused or key not in proofs
            }
            for words, proofs in zip(batch, standing, strict=True)
        ]

    async def _say(self, batch: Sequence[_Words[str]]) -> Sequence[Sequence[str]]:
        standing = [self._keys.still(words.proofs) for words in batch]
        notes = {
            key: Note(ownership=proof, text=words.said[key])
            for words, proofs in zip(batch, standing, strict=True)
            for key, proof in proofs.items()
        }
        refused: Sequence[str] = ()
        if notes:
            refused = await self._trusted("annotate", self._store.annotate(list(notes.values())))
        self._fenced(notes[key].ownership for key in refused)
        return [
            [key for key in words.said if key in refused or key not in proofs]
            for words, proofs in zip(batch, standing, strict=True)
        ]

    def _fenced(self, proofs: Iterable[Ownership]) -> None:
        """These were refused. What has been taken anew since they were sent is not lost by it."""
        for key in self._keys.still({proof.key: proof for proof in proofs}):
            self._tenancy.lose(key, "fenced", self._clock.boottime_s())

    async def _trusted(self, name: str, answer: Awaitable[T]) -> T:
        """A call to the store that is of no use when belief has ended."""
        holding = self._tenancy.holding
        return await holding.call(name, answer, within_s=holding.belief_s())


def _share(
    take: _Take, won: dict[str, Ownership], trouble: Exception | None
) -> Mapping[str, Ownership] | Exception:
    """What of all that was won is for this one; nobody else gets it then."""
    mine = {key: won.pop(key) for key in take.wanted if key in won}
    return trouble if trouble is not None and not mine else mine
