"""``Reserver``: for programs that reserve many jobs by name.

Guarantees:

- ``try_reserve`` is True for one reserver and one thread at a time, over all processes. After a
  loss it is False in the same program until the thread that had the job cancels. A thread that
  reserved a job before cannot end a reservation that another has made since.
- Reservations are renewed in the background, under one lease, until they are cancelled or the
  reserver is disposed of. If that fails, ``has_reservation`` is False in time and ``on_lost`` is
  called.
- A store failure is retried with growing pauses. No try begins after ``patience``; then it is an
  error, and never True.

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

_MAX_TRIES = 10
_BACKOFF = Backoff(base_s=2.0, max_s=60.0)
_DISPOSE_TIMEOUT_S = 30.0
_CACHED_KEYS = 4096


class _ReserveCall(LoopAnswer["Ownership | None"]):
    """A call to reserve a key under a lease of this length, or to release ``ownership``.

    The answer is the ownership; None: the key was not reserved, or it is released.
    """

    __slots__ = ("key", "lease", "note", "ownership")

    def __init__(
        self,
        *,
        key: str,
        note: str,
        lease: timedelta | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        super().__init__()
        self.key, self.note, self.lease, self.ownership = key, note, lease, ownership


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

        ``store`` is a URL, or a store that serves any event loop. ``patience`` is how long store
        failures are retried before they raise; by default one lease. ``on_lost(name, reason)`` is
        called in the thread that renews, and must not block.

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
            InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be used.
        """
        self._given, self._lease = store, lease
        timing_of(lease)
        self._timeout_s = (lease if patience is None else patience).total_seconds()
        self._name = check_name(holder_name or "reserver", what="holder name")
        self._on_lost = on_lost
        self._clock = clock or SystemClock()
        self._rng = system_random()
        self._note = RunNote(host=host_name(), pid=os.getpid())
        self._start_note = self._note.to_json()
        self._end_notes = {each: replace(self._note, outcome=each).to_json() for each in Outcome}
        self._cancelled_note = replace(
            self._note, outcome=Outcome.NO_RUN, words="called off"
        ).to_json()
        self._keyrings: dict[timedelta, tuple[Keyring, asyncio.Task[None]]] = {}
        self._keyring_of: dict[str, Keyring] = {}
        self._held: dict[
            str, Ownership
        ] = {}  # by key: returned to a caller, lost or not, and not cancelled yet
        self._thread_local = threading.local()  # by key: what this thread reserved last
        self._calls: deque[_ReserveCall] = deque()
        self._posted = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened: LoopAnswer[None] = LoopAnswer()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        # A daemon: a program that forgot to dispose of it must still be able to end.
        self._thread = threading.Thread(target=self._run_thread, name="reserver", daemon=True)
        self._thread.start()
        try:
            self._opened.of(self._thread)
        except BaseException:  # KeyboardInterrupt too: the caller could not dispose of it
            self.dispose()
            raise

    def try_reserve(self, name: str, seconds: float | None = None) -> bool:
        """Reserve a job; False if it is held already, by this reserver or another.

        After a loss it is False here until the thread that had it calls ``cancel_reservation``.

        ``seconds`` is the length of its lease: how long others wait after a crash of this process.
        By default it is that of the reserver. Each length in use is one more lease to renew.

        Raises:
            InvalidName, InvalidDuration: with what is wrong and what to write.
            StoreUnavailable, StoreUnusable: the store could not be used within ``patience``.
            LeaseLost: the reserver was disposed of.
        """
        lease = self._lease if seconds is None else timedelta(seconds=seconds)
        if lease not in self._keyrings:
            timing_of(lease)
        key = _key_of(name)
        ownership = self._submit(_ReserveCall(key=key, note=self._start_note, lease=lease))
        if ownership is None:
            return False
        self._thread_local.__dict__[key] = ownership
        return True

    def has_reservation(self, name: str) -> bool:
        """Return whether the job is reserved here and may continue now."""
        return self._holding(name) is not None

    def lease_id(self, name: str) -> str:
        """Return the id of the lease of the reservation, not a secret; empty if there is none."""
        keyring = self._holding(name)
        return "" if keyring is None else keyring.holder

    def epoch(self, name: str) -> int:
        """Return the fencing token of the reservation; 0 if there is none."""
        keyring = self._holding(name)
        ownership = None if keyring is None else keyring.ownership(job_key(name))
        return 0 if ownership is None else ownership.epoch

    def remaining(self, name: str) -> timedelta:
        """Return how long until the work must have stopped, if no renewal succeeds."""
        key = job_key(name)
        keyring = self._keyring_of.get(key)
        return timedelta(seconds=0.0 if keyring is None else keyring.remaining_s(key))

    def cancel_reservation(
        self,
        name: str,
        *,
        epoch: int | None = None,
        outcome: Outcome = Outcome.OK,
        words: str = "",
    ) -> None:
        """Release the job; without a reservation this does nothing.

        Call it when the work has stopped, also after a loss. ``epoch`` names the reservation: if it
        is over, nothing happens. Pass it wherever another thread than the one that reserved the job
        cancels it. Without it, a thread that has reserved the job ends its own reservation, and one
        that never has ends that of the program.

        ``outcome`` and ``words`` are for the log. A store that does not answer is retried for 15 s
        or one lease at most; then it is released later, or the lease expires.

        Raises:
            UsageError: this thread's own reservation is over, and another thread has one now.
        """
        key = _key_of(name)
        ownership = self._held.get(key)
        if ownership is None or epoch not in (None, ownership.epoch):
            return
        own = self._thread_local.__dict__.get(key, ownership)
        if epoch is None and own is not ownership:
            raise UsageError(
                f"the reservation of {name!r} that this thread had (epoch {own.epoch}) is over; "
                f"another thread has one now (epoch {ownership.epoch}), which goes on: cancel each "
                "once, or say which by epoch="
            )
        note = self._end_notes[outcome]
        if words:
            note = replace(self._note, outcome=outcome, words=words).to_json()
        with suppress(LeaseLost):  # it was disposed of, which has released all
            self._submit(_ReserveCall(key=key, note=note, ownership=ownership))

    def dispose(self) -> None:
        """Release all, and stop renewing. Safe to call twice."""
        with suppress(LoopOver):  # it was disposed of
            post(self._loop, self._stop.set)
        if self._thread is not threading.current_thread():
            self._thread.join(_DISPOSE_TIMEOUT_S)

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
        keyring, ownership = self._keyring_of.get(key), self._held.get(key)
        if keyring is None or ownership is None or keyring.ownership(key) is not ownership:
            return None  # also while a reservation that no thread waits for is released
        return keyring if keyring.valid(key) else None

    def _submit(self, call: _ReserveCall) -> Ownership | None:
        """Run the call in the thread of the reserver, together with those of other threads."""
        try:
            self._calls.append(call)
            if not self._posted:
                self._posted = True
                self._post_dispatch()
            return call.of(self._thread)
        except LoopOver as error:
            raise LeaseLost("the reserver was disposed of", reason="released") from error
        except BaseException:  # of a signal handler: no thread would cancel it
            with suppress(LoopOver):
                self._cancel_call(call)
            raise

    def _post_dispatch(self) -> None:
        post(self._loop, self._dispatch)

    def _cancel_call(self, call: _ReserveCall) -> None:
        """Cancel a call that no thread waits for. A release continues; a reservation ends."""
        if call.lease is not None and not call.cancel():
            with suppress(LeaseholdError):
                ownership = call.of(self._thread)
                if ownership is not None:  # reserved at the moment of the cancellation
                    self._calls.append(
                        _ReserveCall(key=call.key, note=self._cancelled_note, ownership=ownership)
                    )
        self._post_dispatch()  # in any case: posting may have been what was interrupted

    def _run_thread(self) -> None:
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
            await self._joined_keyring(self._lease, within_s=self._timeout_s)
            self._opened.give(None)
            await self._stop.wait()

    async def _leave(self) -> None:
        await asyncio.gather(*(keyring.leave() for keyring, _ in self._keyrings.values()))
        for _, keeping in self._keyrings.values():
            keeping.cancel()
        keepings = [keeping for _, keeping in self._keyrings.values()]
        await asyncio.gather(*keepings, return_exceptions=True)

    def _dispatch(self) -> None:
        """Start the calls made since the last time: one task for each lease."""
        self._posted = False  # later calls post again
        calls: dict[timedelta | Keyring, list[_ReserveCall]] = {}
        while self._calls:
            call = self._calls.popleft()
            if call.cancelled:
                continue
            calls.setdefault(call.lease or self._keyring_of[call.key], []).append(call)
        for where, together in calls.items():
            answering = self._answer(where, together)
            self._tasks.add(task := asyncio.create_task(answering))
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, where: timedelta | Keyring, calls: Sequence[_ReserveCall]) -> None:
        try:
            if isinstance(where, Keyring):
                await self._release(where, calls)
                for call in calls:
                    call.give(None)
            else:
                await self._reserve(where, calls)
        except BaseException as error:
            reported = error if isinstance(error, LeaseholdError) else LoopOver(str(error))
            for call in calls:
                call.fail(reported)
            if not isinstance(error, LeaseholdError):
                raise

    async def _reserve(self, lease: timedelta, calls: Sequence[_ReserveCall]) -> None:
        """Reserve the keys; of several threads that want one, the first has it."""
        wanted = {call.key: call.note for call in calls if call.key not in self._held}
        keyring, won = await self._take(wanted, lease) if wanted else (None, {})
        for call in calls:
            if not call.begin():
                continue  # it was cancelled; from here on it cannot be
            ownership = None if call.key in self._held else won.get(call.key)
            if ownership is not None and keyring is not None:
                self._held[call.key], self._keyring_of[call.key] = ownership, keyring
            call.give(ownership)
        left = [key for key, ownership in won.items() if self._held.get(key) is not ownership]
        if left and keyring is not None:
            await keyring.release(dict.fromkeys(left, self._cancelled_note))

    async def _release(self, keyring: Keyring, calls: Sequence[_ReserveCall]) -> None:
        """Release the keys whose reservation is not over yet."""
        releases = {call.key: call for call in calls if self._held.get(call.key) is call.ownership}
        try:
            await keyring.release({key: call.note for key, call in releases.items()})
        finally:
            for key, call in releases.items():
                if self._held.get(key) is call.ownership:
                    del self._held[key]

    async def _take(
        self, wanted: Mapping[str, str], lease: timedelta
    ) -> tuple[Keyring, Mapping[str, Ownership]]:
        until_s = self._clock.boottime_s() + self._timeout_s
        failures, left_s = 0, self._timeout_s
        while True:
            try:
                keyring = await self._joined_keyring(lease, within_s=left_s)
                won = await keyring.take(wanted)
            except (StoreUnavailable, LeaseLost) as error:
                failures += 1
                left_s = until_s - self._clock.boottime_s()
                if left_s <= 0 or failures >= _MAX_TRIES:
                    names = ", ".join(repr(last_part(key)) for key in wanted)
                    raise StoreUnavailable(
                        f"{names} could not be asked for in {failures} tries: {error}"
                    ) from error
                pause_s = min(left_s, _BACKOFF.pause_s(failures, self._rng))
                log.warning("try %d in %.1f s: %s", failures + 1, pause_s, error)
                await self._clock.sleep(pause_s)
                left_s = max(0.0, until_s - self._clock.boottime_s())
            else:
                return keyring, won

    async def _joined_keyring(self, lease: timedelta, *, within_s: float) -> Keyring:
        """Return the keyring for leases of this length, once it has its lease."""
        if lease not in self._keyrings:
            keyring = Keyring(
                self._store,
                name=self._name,
                lease=lease,
                clock=self._clock,
                rng=self._rng,
                on_lost=self._lost,
                unheard=self._cancelled_note,
            )
            self._keyrings[lease] = keyring, asyncio.create_task(keyring.keep())
        keyring, keeping = self._keyrings[lease]
        if keyring.joined:
            return keyring
        ready = asyncio.ensure_future(keyring.ready())
        try:
            both = asyncio.wait([ready, keeping], return_when=asyncio.FIRST_COMPLETED)
            await self._clock.bounded(both, seconds=within_s)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"the store gave no lease within {self._timeout_s:g} s: is it up?"
            ) from error
        finally:
            ready.cancel()
        if keeping.done():
            del self._keyrings[lease]
            await keeping  # raises what ended it
        return keyring

    def _lost(self, key: str, reason: str) -> None:
        if self._on_lost is not None:
            self._on_lost(last_part(key), reason)


@lru_cache(maxsize=_CACHED_KEYS)
def _key_of(name: str) -> str:
    return job_key(name)
