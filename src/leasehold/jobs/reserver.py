"""A manager of reservations, for programs that reserve many jobs by name: yes or no.

Guarantees:

- ``try_reserve`` is True for one reserver and one thread at a time, over all processes. Who has
  been told so, and has lost it since, keeps the others of its own program out until it cancels.
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
from concurrent.futures import Future, InvalidStateError
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.clock import SystemClock, host_name, system_random
from leasehold.core.ladder import Ladder
from leasehold.errors import LeaseholdError, LeaseLost, StoreUnavailable
from leasehold.jobs.entry import Outcome, Said
from leasehold.jobs.keyring import Keyring
from leasehold.jobs.threads import LoopOver, answer_of
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
_PAUSES = Ladder(base_s=2.0, most_s=60.0)
_DISPOSAL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """A key to be taken under a lease of this length, or, without, to be given back."""

    key: str
    note: str
    lease: timedelta | None = None
    answer: Future[bool] = field(default_factory=Future)


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
            UnknownStore, StoreUnavailable, StoreUnusable: the store can not be asked.
        """
        self._given, self._lease = store, lease
        timing_of(lease)
        self._patience_s = (lease if patience is None else patience).total_seconds()
        self._name = check_name(holder_name or "reserver", what="holder name")
        self._on_lost = on_lost
        self._clock = clock or SystemClock()
        self._rng = system_random()
        self._said = Said(host=host_name(), pid=os.getpid())
        self._begins = self._said.note()
        self._unheard = replace(self._said, outcome=Outcome.NOTHING, words="called off").note()
        self._rings: dict[timedelta, tuple[Keyring, asyncio.Task[None]]] = {}
        self._ring_of: dict[str, Keyring] = {}
        self._had: dict[str, Ownership] = {}  # told to somebody, lost or not, and not cancelled yet
        self._asks: deque[_Ask] = deque()
        self._called = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        # A daemon: a program that forgot to dispose of it must still be able to end.
        self._thread = threading.Thread(target=self._live, name="reserver", daemon=True)
        self._thread.start()
        try:
            self._opened.result()
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
        timing_of(lease)
        return self._ask(_Ask(key=job_key(name), note=self._begins, lease=lease))

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
        self, name: str, *, outcome: Outcome = Outcome.OK, words: str = ""
    ) -> None:
        """Release the job at once; without a reservation it is harmless.

        Call it when the work has stopped, also after a loss, and only where ``try_reserve`` was
        True: whatever thread calls it, it is the reservation of this program that ends. ``outcome``
        and ``words`` are for the log. A store that does not answer is told for 15 s at most, or one
        lease; then later, or time ends it.
        """
        key = job_key(name)
        if key not in self._ring_of:
            return
        note = replace(self._said, outcome=outcome, words=words).note()
        with suppress(LeaseLost):  # it was disposed of, which has released all
            self._ask(_Ask(key=key, note=note))

    def dispose(self) -> None:
        """Release all and renew nothing any more. Again is harmless."""
        with suppress(RuntimeError):  # the loop is closed: it was disposed of
            self._loop.call_soon_threadsafe(self._stop.set)
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

    def _ask(self, ask: _Ask) -> bool:
        """Have it done in the thread of the reserver, with all that others ask for just now."""
        try:
            self._asks.append(ask)
            if not self._called:
                self._called = True
                self._call()
            return answer_of(ask.answer, thread=self._thread)
        except LoopOver as error:
            raise LeaseLost("the reserver was disposed of", reason="released") from error
        except BaseException:  # of a signal handler: nobody would cancel it any more
            with suppress(LoopOver):
                self._call_off(ask)
            raise

    def _call(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._share_out)
        except RuntimeError as error:
            if not self._loop.is_closed():  # then it is of a signal handler
                raise
            raise LoopOver from error

    def _call_off(self, ask: _Ask) -> None:
        """Nobody waits for the answer. A release goes on; what is had, or will be, is given back.

        Also after an answer that was an error: then nothing was had.
        """
        if ask.lease is not None and not ask.answer.cancel():
            had = ask.answer.exception() is None and ask.answer.result()
            if had:  # in the very moment of the calling off
                self._asks.append(_Ask(key=ask.key, note=self._unheard))
        self._call()  # in any case: the call may have been what was interrupted

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except Exception as error:
            log.debug("the reserver ended", exc_info=True)
            if not self._opened.done():
                self._opened.set_exception(error)

    async def _main(self) -> None:
        async with AsyncExitStack() as undo:
            store = self._given
            if isinstance(store, str):
                store = await undo.enter_async_context(open_store(store, clock=self._clock))
            self._store = store
            undo.push_async_callback(self._leave)
            await self._ring(self._lease, within_s=self._patience_s)
            self._opened.set_result(None)
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
        asks: dict[timedelta | Keyring, list[_Ask]] = {}
        while self._asks:
            ask = self._asks.popleft()
            if ask.answer.cancelled():
                continue
            asks.setdefault(ask.lease or self._ring_of[ask.key], []).append(ask)
        for where, together in asks.items():
            answering = self._answer(where, together)
            self._tasks.add(task := asyncio.create_task(answering))
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, where: timedelta | Keyring, asks: Sequence[_Ask]) -> None:
        try:
            if isinstance(where, Keyring):
                await self._let_go(where, {ask.key: ask.note for ask in asks})
                for ask in asks:
                    ask.answer.set_result(False)
            else:
                await self._have(where, asks)
        except BaseException as error:
            told = error if isinstance(error, LeaseholdError) else LoopOver(str(error))
            for ask in asks:
                if not ask.answer.done():
                    with suppress(InvalidStateError):  # it is called off just now
                        ask.answer.set_exception(told)
            if not isinstance(error, LeaseholdError):
                raise

    async def _have(self, lease: timedelta, asks: Sequence[_Ask]) -> None:
        """Take what is asked for; of several threads the first has it."""
        wanted = {ask.key: ask.note for ask in asks if ask.key not in self._had}
        ring, won = await self._take(wanted, lease) if wanted else (None, {})
        for ask in asks:
            if not ask.answer.set_running_or_notify_cancel():
                continue  # it was called off; from here on it can not be
            proof = None if ask.key in self._had else won.get(ask.key)
            if proof is not None and ring is not None:
                self._had[ask.key], self._ring_of[ask.key] = proof, ring
            ask.answer.set_result(proof is not None)
        left = [key for key, proof in won.items() if self._had.get(key) is not proof]
        if left and ring is not None:
            await ring.release(dict.fromkeys(left, self._unheard))

    async def _let_go(self, ring: Keyring, notes: Mapping[str, str]) -> None:
        had = {key: self._had.get(key) for key in notes}
        try:
            await ring.release(notes)
        finally:
            for key, proof in had.items():
                if proof is not None and self._had.get(key) is proof:
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
