"""A wish in a thread of its own: renewals go on whatever the program does meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from leasehold.clock import SystemClock, system_random
from leasehold.errors import LeaseLost
from leasehold.jobs.claimant import Claimant, Parting
from leasehold.jobs.run_log import Outcome
from leasehold.jobs.threads import LoopOver, call_in, post
from leasehold.stores import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from datetime import timedelta

    from leasehold.clock import Clock
    from leasehold.jobs.wish import Done, Held, Wish
    from leasehold.model import Ownership
    from leasehold.ports import Store
    from leasehold.runtime.loop_thread import LoopLink

T = TypeVar("T")

log = logging.getLogger("leasehold.jobs")

# Reserved in the moment in which its caller was called off.
_UNUSED = Parting(outcome=Outcome.NO_RUN, words="nobody waited for it any more")
_BROKEN = "the renewals have ended"
_RELEASE = 1.5


class Request:
    """One wish: asked for once, held at most once, and over.

    ``on_waiting``, ``on_lost`` and ``on_asked`` are called in the thread that renews: they must
    return at once.
    """

    def __init__(
        self,
        wish: Wish,
        *,
        store: str | Store,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        identity: Callable[[], tuple[str, str]] | None = None,
        link: LoopLink | None = None,
        on_waiting: Callable[[Held], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
        on_asked: Callable[[str | None], None] | None = None,
    ) -> None:
        """Ask for nothing yet. ``store``: a URL, or a store that serves any event loop.

        With a ``link`` it has no thread: it lives on the lease side of the link, and only the
        awaited methods (``…_awaited``) can be used.
        """
        self.wish = wish
        self.lost = threading.Event()
        self._store = store
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._identity = identity
        self._link = link
        self._living: asyncio.Task[None] | None = None
        self._told = _Telling(
            over=self.lost, on_waiting=on_waiting, on_lost=on_lost, on_asked=on_asked
        )
        self._answer: Future[Held | Done | Claimant | None] = Future()
        self._loop = asyncio.new_event_loop() if link is None else asyncio.get_running_loop()
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._stopped = asyncio.Event()
        self._parting: Parting | None = None
        self._thread: threading.Thread | None = None

    def ask(self, *, wait: timedelta | None) -> Held | Done | Claimant | None:
        """Block until it is held, or ``wait`` is over, or ``cancel`` was called: None.

        Raises:
            StoreUnavailable, StoreUnusable, InvalidUrl: the store can not be asked.
            UsageError: an occurrence is wanted of a job that has positions of its own.
        """
        wait_s = None if wait is None else wait.total_seconds()
        name = f"reservation of {self.wish.keys[0]}"
        # A daemon: a program that forgot to release must still be able to end.
        self._thread = threading.Thread(target=self._live, args=(wait_s,), name=name, daemon=True)
        self._thread.start()
        try:
            return self._answer.result()
        except BaseException:  # KeyboardInterrupt too: nobody would release it any more
            self.cancel()
            self._parting = _UNUSED
            self._post(self._stopped.set)
            raise

    def cancel(self) -> None:
        """End the waiting. From any thread, and from a signal handler."""
        self._post(self._end_waiting)

    def give_up(self, claimant: Claimant) -> None:
        """Renew it no more; from any thread."""
        self._post(claimant.give_up)

    def release(self, parting: Parting | None = None) -> None:
        """Let go; when this returns the store has heard of it, or time will end it.

        What the first of several calls says is what the log is told.
        """
        self._parting = self._parting or parting
        self._post(self._stopped.set)
        if self._thread is None or self._thread is threading.current_thread():
            return
        # More than the release may take: only a store that can not even be closed needs it.
        self._thread.join(_RELEASE * self.wish.leave_s)
        if self._thread.is_alive():
            log.warning("%s: the store hangs: time ends the lease", self.wish.keys[0])

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something in the thread of the reservation, and wait for it."""
        try:
            return call_in(self._loop, make, thread=self._thread)
        except LoopOver as error:
            raise LeaseLost(
                f"{self.wish.keys[0]} was released meanwhile",
                key=self.wish.keys[0],
                reason="released",
            ) from error

    # ------------------------------------------------------------ awaited

    async def ask_awaited(self, *, wait: timedelta | None) -> Held | Done | Claimant | None:
        """Await what ``ask`` returns."""
        if self._link is None:
            try:
                return await _in_thread(lambda: self.ask(wait=wait), call_off=self.cancel)
            except asyncio.CancelledError:
                self.release(_UNUSED)  # it may have come in the very moment of the calling off
                raise
        link, wait_s = self._link, None if wait is None else wait.total_seconds()
        self._living = asyncio.create_task(link.on_lease(lambda: self._main(wait_s)))
        self._living.add_done_callback(self._linked_ended)
        try:
            return await asyncio.wrap_future(self._answer)
        except asyncio.CancelledError:
            self.cancel()
            self.release(_UNUSED)
            raise

    async def call_awaited(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await what ``call`` returns."""
        if self._link is None:
            return await _in_thread(lambda: self.call(make))
        return await self._link.on_lease(make)

    async def release_awaited(self, parting: Parting | None = None) -> None:
        """Release it as ``release`` does. A cancelled task waits for it too."""
        if self._living is None:
            await _in_thread(lambda: self.release(parting))
        else:
            self.release(parting)
            await asyncio.wait([self._living])

    def _linked_ended(self, living: asyncio.Task[None]) -> None:
        error = None if living.cancelled() else living.exception()
        if not self._answer.done():
            self._answer.set_exception(error or asyncio.CancelledError())

    # ------------------------------------------------------------ the thread

    def _live(self, wait_s: float | None) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main(wait_s))
        except Exception as error:
            log.debug("the reservation of %s ended", self.wish.keys[0], exc_info=True)
            if not self._answer.done():
                self._answer.set_exception(error)

    async def _main(self, wait_s: float | None) -> None:
        async with self._opened() as store:
            claimant = Claimant(
                store,
                self.wish,
                told=self._told,
                clock=self._clock,
                rng=self._rng,
                identity=self._identity,
            )
            held: Held | Done | None = None
            try:
                with anyio.CancelScope() as self._scope:
                    if self._cancelled:
                        self._scope.cancel()
                    held = await claimant.take(wait_s=wait_s)
            except Exception:
                await claimant.leave()  # else nobody would have it for a whole lease
                raise
            if held is not None or not claimant.ownerships:
                await claimant.leave()
                self._answer.set_result(held)
                return
            self._answer.set_result(claimant)
            try:
                await self._hold(claimant)
            finally:
                claimant.lose(_BROKEN)  # nothing, if it has ended in order
            await claimant.leave(self._parting)

    async def _hold(self, claimant: Claimant) -> None:
        """Until it is released; a loss is told, and the work is waited for."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claimant.keep)
            await self._stopped.wait()
            claimant.release()

    def _end_waiting(self) -> None:
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Store]:
        if not isinstance(self._store, str):
            yield self._store
            return
        async with open_store(self._store, clock=self._clock) as store:
            yield store

    def _post(self, call: Callable[[], None]) -> None:
        if self._link is not None:
            self._link.to_lease(call)
            return
        with suppress(LoopOver):  # all is over
            post(self._loop, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Telling:
    """Passes a claimant's words on; a listener that fails ends no reservation."""

    over: threading.Event
    on_waiting: Callable[[Held], None] | None
    on_lost: Callable[[str], None] | None
    on_asked: Callable[[str | None], None] | None

    def waits(self, held: Held) -> None:
        _tell(self.on_waiting, held)

    def taken(self, ownerships: Mapping[str, Ownership]) -> None:
        """See ``Told``: ``ask`` returns, which says it."""

    def lost(self, reason: str) -> None:
        self.over.set()
        _tell(self.on_lost, reason)

    def asked(self, by: str | None) -> None:
        _tell(self.on_asked, by)


def _tell(listener: Callable[[Any], None] | None, what: object) -> None:
    if listener is None:
        return
    try:
        listener(what)
    except Exception:
        log.exception("a listener of a reservation failed")


async def _in_thread(work: Callable[[], T], *, call_off: Callable[[], None] = lambda: None) -> T:
    """Do it in another thread. Who is called off meanwhile waits for its end, and leaves then."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        call_off()
        while not doing.done():
            await asyncio.wait([doing])
        doing.exception()
        raise
