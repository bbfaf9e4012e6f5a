"""A manager of reservations, for programs that reserve many jobs by name: yes or no.

Guarantees:

- ``try_reserve`` is True for one reserver and one thread at a time, over all processes. Who has
  been told so, and has lost it since, keeps the others of its own program out until it cancels.
  No thread that reserved a job before can end a reservation that another has made since.
- What is reserved is renewed in the background, all of it under one lease, until it is cancelled
  or the reserver is disposed of. When that fails ``has_reservation`` is False, in time, and
  ``on_lost`` is told.
- Trouble with the store is tried again with growing pauses. No try begins after ``patience``. It
  is an error then, and never a yes.

All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from leasehold.clock import SystemClock, host_name, system_random
from leasehold.core.backoff import Backoff
from leasehold.errors import LeaseholdError, LeaseLost, StoreUnavailable, UsageError
from leasehold.jobs.keyring import Keyring
from leasehold.jobs.run_log import Outcome, RunNote
from leasehold.jobs.threads import LoopAnswer, LoopOver, post
from leasehold.jobs.wish import DEFAULT_LEASE, timing_of
from leasehold.names import check_name, job_key, last_part
from leasehold.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from leasehold.clock import Clock
    from leasehold.model import Ownership
    from leasehold.ports import Store

log = logging.getLogger("leasehold.jobs")

_TRIES = 10
_PAUSES = Backoff(base_s=2.0, max_s=60.0)
_DISPOSAL_S = 30.0
_KEYS = 4096


class _ReserveCall(LoopAnswer["Ownership | None"]):
    """A key to be taken under a lease of this length, or the one that was ``had`` to be given back.

    The answer is the proof of what was taken; None: it was not, or is given back.
    """

    __slots__ = ("had", "key", "lease", "note")

    def __init__(
        self,
        *,
        key: str,
        note: str,
        lease: timedelta | None = None,
        had: Ownership | None = None,
    ) -> None:
        super().__init__()
        self.key, self.note, self.lease, self.had = key, note, lease, had


class Reserver:
    """All reservations of a program. A context manager: leaving the block disposes of it."""

    def __init__(
        self,
        store: str | Store,
        *,
        lease: timedelta = DEFAULT_LEASE,
        patience: timedelta | None = None,
        holder_name: str | None = None,
        on_lost: Callable[[str, str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Start a thread, open the store and ask for a lease.

        ``store``: a URL, or a store that serves any event loop. ``patience``: how long trouble with
        the store is borne before it is an error; one lease if it is not given. ``on_lost(name,
        reason)`` is called in the thread that renews, and must return at once.

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
            InvalidUrl, StoreUnavailable, StoreUnusable: the store can not be asked.
        """
        self._given, self._lease = store, lease
        timing_of(lease)
        self._patience_s = (lease if patience is None else patience).total_seconds()
        self._name = check_name(holder_name or "reserver", what="holder name")
        self._on_lost = on_lost
        self._clock = clock or SystemClock()
        self._rng = system_random()
        self._said = RunNote(host=host_name(), pid=os.getpid())
        self._begins = self._said.note()
        self._ends = {each: replace(self._said, outcome=each).note() for each in Outcome}
        self._unheard = replace(self._said, outcome=Outcome.NO_RUN, words="called off").note()
        self._rings: dict[timedelta, tuple[Keyring, asyncio.Task[None]]] = {}
        self._ring_of: dict[str, Keyring] = {}
        self._had: dict[str, Ownership] = {}  # told to somebody, lost or not, and not cancelled yet
        self._own = threading.local()  # by key, what this very thread was told last
        self._asks: deque[_ReserveCall] = deque()
        self._called = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened: LoopAnswer[None] = LoopAnswer()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        # A daemon: a program that forgot to dispose of it must still be able to end.
        self._thread = threading.Thread(target=self._live, name="reserver", daemon=True)
        self._thread.start()
        try:
            self._opened.of(self._thread)
        except BaseException:  # KeyboardInterrupt too: nobody would dispose of it any more
            self.dispose()
            raise

    def try_reserve(self, name: str, seconds: float | None = None) -> bool:
        """Reserve a job: True if it is ours now, False if somebody has it, this reserver included.

        After a loss it is False here until the one who had it has called ``cancel_reservation``.

        ``seconds``: the length of its lease, which is how long after our death others wait for it;
        if not given, that of the reserver. Each length in use is one lease more to renew.

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
            StoreUnavailable, StoreUnusable: the store could not be asked, for all the patience.
            LeaseLost: the reserver was disposed of.
        """
        lease = self._lease if seconds is None else timedelta(seconds=seconds)
        if lease not in self._rings:
            timing_of(lease)
        key = _key_of(name)
        proof = self._ask(_ReserveCall(key=key, note=self._begins, lease=lease))
        if proof is None:
            return False
        self._own.__dict__[key] = proof
        return True

    def has_reservation(self, name: str) -> bool:
        """Whether the job is reserved here, and may go on, at this very moment."""
        return self._holding(name) is not None

    def lease_id(self, name: str) -> str:
        """Names the lease the job is reserved under, which is no secret; empty if it is not."""
        ring = self._holding(name)
        return "" if ring is None else ring.holder

    def epoch(self, name: str) -> int:
        """The fencing token of the reservation; 0 if there is none."""
        ring = self._holding(name)
        proof = None if ring is None else ring.ownership(job_key(name))
        return 0 if proof is None else proof.epoch

    def remaining(self, name: str) -> timedelta:
        """How long until the work on it must have stopped, if no renewal succeeds any more."""
        key = job_key(name)
        ring = self._ring_of.get(key)
        return timedelta(seconds=0.0 if ring is None else ring.remaining_s(key))

    def cancel_reservation(
        self,
        name: str,
        *,
        epoch: int | None = None,
        outcome: Outcome = Outcome.OK,
        words: str = "",
    ) -> None:
        """Release the job at once; without a reservation it is harmless.

        Call it when the work has stopped, also after a loss. ``epoch`` says which reservation is
        meant: if it is over, nothing happens. Give it wherever another thread than the one that
        reserved the job cancels it. Without, a thread that has reserved the job ends its own, and
        one that never has ends that of the program.

        ``outcome`` and ``words`` are for the log. A store that does not answer is told for 15 s at
        most, or one lease; then later, or time ends it.

        Raises:
            UsageError: this thread's own reservation is over, and another thread has one now.
        """
        key = _key_of(name)
        had = self._had.get(key)
        if had is None or epoch not in (None, had.epoch):
            return
        own = self._own.__dict__.get(key, had)
        if epoch is None and own is not had:
            raise UsageError(
                f"the reservation of {name!r} that this thread had (epoch {own.epoch}) is over; "
                f"another thread has one now (epoch {had.epoch}), which goes on: cancel each once, "
                "or say which by epoch="
            )
        note = self._ends[outcome]
        if words:
            note = replace(self._said, outcome=outcome, words=words).note()
        with suppress(LeaseLost):  # it was disposed of, which has released all
            self._ask(_ReserveCall(key=key, note=note, had=had))

    def dispose(self) -> None:
        """Release all and renew nothing any more. Again is harmless."""
        with suppress(LoopOver):  # it was disposed of
            post(self._loop, self._stop.set)
        if self._thread is not threading.current_thread():
            self._thread.join(_DISPOSAL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.dispose()

    # ------------------------------------------------------------ the thread

    def _holding(self, name: str) -> Keyring | None:
        key = job_key(name)
        ring, proof = self._ring_of.get(key), self._had.get(key)
        if ring is None or proof is None or ring.ownership(key) is not proof:
            return None  # also for the moment in which what nobody waits for is given back
        return ring if ring.valid(key) else None

    def _ask(self, ask: _ReserveCall) -> Ownership | None:
        """Have it done in the thread of the reserver, with all that others ask for just now."""
        try:
            self._asks.append(ask)
            if not self._called:
                self._called = True
                self._call()
            return ask.of(self._thread)
        except LoopOver as error:
            raise LeaseLost("the reserver was disposed of", reason="released") from error
        except BaseException:  # of a signal handler: nobody would cancel it any more
            with suppress(LoopOver):
                self._call_off(ask)
            raise

    def _call(self) -> None:
        post(self._loop, self._share_out)

    def _call_off(self, ask: _ReserveCall) -> None:
        """Nobody waits for the answer. A release goes on; what is had, or will be, is given back.

        Also after an answer that was an error: then nothing was had.
        """
        if ask.lease is not None and not ask.cancel():
            with suppress(LeaseholdError):
                had = ask.of(self._thread)
                if had is not None:  # in the very moment of the calling off
                    self._asks.append(_ReserveCall(key=ask.key, note=self._unheard, had=had))
        self._call()  # in any case: the call may have been what was interrupted

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except Exception as error:
            log.debug("the reserver ended", exc_info=True)
            self._opened.fail(error)

    async def _main(self) -> None:
        async with AsyncExitStack() as undo:
            store = self._given
            if isinstance(store, str):
                store = await undo.enter_async_context(open_store(store, clock=self._clock))
            self._store = store
            undo.push_async_callback(self._leave)
            await self._ring(self._lease, within_s=self._patience_s)
            self._opened.give(None)
            await self._stop.wait()

    async def _leave(self) -> None:
        await asyncio.gather(*(ring.leave() for ring, _ in self._rings.values()))
        for _, keeping in self._rings.values():
            keeping.cancel()
        keepings = [keeping for _, keeping in self._rings.values()]
        await asyncio.gather(*keepings, return_exceptions=True)

    def _share_out(self) -> None:
        """Send what has been asked for since the last time: one task for each lease, no more."""
        self._called = False  # whoever comes from now on calls again
        asks: dict[timedelta | Keyring, list[_ReserveCall]] = {}
        while self._asks:
            ask = self._asks.popleft()
            if ask.cancelled:
                continue
            asks.setdefault(ask.lease or self._ring_of[ask.key], []).append(ask)
        for where, together in asks.items():
            answering = self._answer(where, together)
            self._tasks.add(task := asyncio.create_task(answering))
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, where: timedelta | Keyring, asks: Sequence[_ReserveCall]) -> None:
        try:
            if isinstance(where, Keyring):
                await self._let_go(where, asks)
                for ask in asks:
                    ask.give(None)
            else:
                await self._have(where, asks)
        except BaseException as error:
            told = error if isinstance(error, LeaseholdError) else LoopOver(str(error))
            for ask in asks:
                ask.fail(told)
            if not isinstance(error, LeaseholdError):
                raise

    async def _have(self, lease: timedelta, asks: Sequence[_ReserveCall]) -> None:
        """Take what is asked for; of several threads the first has it."""
        wanted = {ask.key: ask.note for ask in asks if ask.key not in self._had}
        ring, won = await self._take(wanted, lease) if wanted else (None, {})
        for ask in asks:
            if not ask.begin():
                continue  # it was called off; from here on it can not be
            proof = None if ask.key in self._had else won.get(ask.key)
            if proof is not None and ring is not None:
                self._had[ask.key], self._ring_of[ask.key] = proof, ring
            ask.give(proof)
        left = [key for key, proof in won.items() if self._had.get(key) is not proof]
        if left and ring is not None:
            await ring.release(dict.fromkeys(left, self._unheard))

    async def _let_go(self, ring: Keyring, asks: Sequence[_ReserveCall]) -> None:
        """Release what was had; of what is over meanwhile nothing is left to be released."""
        had = {ask.key: ask for ask in asks if self._had.get(ask.key) is ask.had}
        try:
            await ring.release({key: ask.note for key, ask in had.items()})
        finally:
            for key, ask in had.items():
                if self._had.get(key) is ask.had:
                    del self._had[key]

    async def _take(
        self, wanted: Mapping[str, str], lease: timedelta
    ) -> tuple[Keyring, Mapping[str, Ownership]]:
        until_s = self._clock.boottime_s() + self._patience_s
        failures, left_s = 0, self._patience_s
        while True:
            try:
                ring = await self._ring(lease, within_s=left_s)
                had = await ring.take(wanted)
            except (StoreUnavailable, LeaseLost) as error:
                failures += 1
                left_s = until_s - self._clock.boottime_s()
                if left_s <= 0 or failures >= _TRIES:
                    names = ", ".join(repr(last_part(key)) for key in wanted)
                    raise StoreUnavailable(
                        f"{names} could not be asked for in {failures} tries: {error}"
                    ) from error
                pause_s = min(left_s, _PAUSES.pause_s(failures, self._rng))
                log.warning("try %d in %.1f s: %s", failures + 1, pause_s, error)
                await self._clock.sleep(pause_s)
                left_s = max(0.0, until_s - self._clock.boottime_s())
            else:
                return ring, had

    async def _ring(self, lease: timedelta, *, within_s: float) -> Keyring:
        """The keyring for leases of this length, when it has one."""
        if lease not in self._rings:
            ring = Keyring(
                self._store,
                name=self._name,
                lease=lease,
                clock=self._clock,
                rng=self._rng,
                on_lost=self._lost,
                unheard=self._unheard,
            )
            self._rings[lease] = ring, asyncio.create_task(ring.keep())
        ring, keeping = self._rings[lease]
        if ring.joined:
            return ring
        ready = asyncio.ensure_future(ring.ready())
        try:
            both = asyncio.wait([ready, keeping], return_when=asyncio.FIRST_COMPLETED)
            await self._clock.bounded(both, seconds=within_s)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"the store gave no lease within {self._patience_s:g} s: is it up?"
            ) from error
        finally:
            ready.cancel()
        if keeping.done():
            del self._rings[lease]
            await keeping  # raises what ended it
        return ring

    def _lost(self, key: str, reason: str) -> None:
        if self._on_lost is not None:
            self._on_lost(last_part(key), reason)


@lru_cache(maxsize=_KEYS)
def _key_of(name: str) -> str:
    return job_key(name)
