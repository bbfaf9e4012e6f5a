"""Reserving a job from asyncio: the same reservation, and methods to await.

The lease is renewed in a thread of its own, as for everybody else: an event loop that is blocked
for a while, by the job's own work, does not cost the reservation. Such a loop hears of a loss only
when it runs again; ``check`` is right even then.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from leasehold.errors import LeaseLost
from leasehold.jobs.policy import OnCrash
from leasehold.jobs.request import Request
from leasehold.jobs.reservation import Reservation, reserved, verdict
from leasehold.jobs.wish import DEFAULT_LEASE, Done, Held, Wish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from leasehold.clock import Clock
    from leasehold.jobs.run_log import Outcome
    from leasehold.ports import Store

T = TypeVar("T")

_AT_ONCE = timedelta(0)


class AsyncReservation:
    """A job that is reserved here; see ``Reservation``. It belongs to the loop it was made in.

    It is an asynchronous context manager: leaving the block releases it.
    """

    def __init__(self, job: Reservation, lost: asyncio.Event) -> None:
        """``lost`` is set when ``job`` is."""
        self._job = job
        self.lost = lost
        self.key: str = job.key
        self.name: str = job.name
        self.epoch: int = job.epoch
        self.epochs: Mapping[str, int] = job.epochs
        self.holder: str = job.holder
        self.lease_id: str = job.lease_id
        self.occurrence: datetime | None = job.occurrence
        self.attempt: int = job.attempt

    def __repr__(self) -> str:
        return f"<Async{repr(self._job)[1:]}"

    @property
    def why_lost(self) -> str | None:
        """How it ended; None while it is held."""
        return self._job.why_lost

    def remaining(self) -> timedelta:
        """How long it is until the work must have stopped, if no renewal succeeds any more."""
        return self._job.remaining()

    def check(self) -> None:
        """Return if the job may go on at this very moment.

        Raises:
            LeaseLost: it may not, with the reason.
        """
        self._job.check()

    async def mark(self, number: int, *, note: str = "") -> None:
        """See ``Reservation.mark``."""
        await _elsewhere(lambda: self._job.mark(number, note=note))

    async def progress(self, words: str) -> None:
        """See ``Reservation.progress``."""
        await _elsewhere(lambda: self._job.progress(words))

    def give_up(self) -> None:
        """See ``Reservation.give_up``."""
        self._job.give_up()

    async def release(
        self,
        *,
        to: str | None = None,
        outcome: Outcome | None = None,
        exit_code: int | None = None,
        words: str = "",
    ) -> None:
        """See ``Reservation.release``. Who is called off meanwhile waits for it nevertheless."""
        await _elsewhere(
            lambda: self._job.release(to=to, outcome=outcome, exit_code=exit_code, words=words)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outcome, words = verdict(error)
        await self.release(outcome=outcome, words=words)


async def try_reserve_async(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = _AT_ONCE,
    occurrence: datetime | None = None,
    on_crash: OnCrash = OnCrash.RUN_AGAIN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    clock: Clock | None = None,
) -> AsyncReservation | Held | Done:
    """Reserve a job, or say who has it; see ``try_reserve``. Calling it off ends the waiting.

    A store that is given as such, not by its URL, is used in another thread and event loop: it
    must be one that serves any.

    Raises:
        InvalidName, InvalidDuration: with what is wrong and what to write.
        UnknownStore, StoreUnavailable, StoreUnusable: the store can not be asked.
        UsageError: the occurrence has no time zone, or the job has positions of its own.
    """
    wish = Wish.of(
        (name, *also),
        lease=lease,
        holder_name=holder_name,
        occurrence=occurrence,
        on_crash=on_crash,
        schedule=schedule,
    )
    loop, lost = asyncio.get_running_loop(), asyncio.Event()

    def tell(_reason: str) -> None:
        try:
            loop.call_soon_threadsafe(lost.set)
        except RuntimeError:  # the loop is closed: nobody listens
            return

    request = Request(wish, store=store, clock=clock, on_lost=tell)
    try:
        answer = await _elsewhere(lambda: request.ask(wait=wait), call_off=request.cancel)
    except asyncio.CancelledError:
        request.release()  # it may have come in the very moment of the calling off
        raise
    if isinstance(answer, Held | Done):
        return answer
    if answer is None:
        raise LeaseLost(f"nobody waits for {name!r} any more", key=wish.keys[0], reason="cancelled")
    return AsyncReservation(Reservation(request, answer), lost)


@asynccontextmanager
async def reserve_async(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = None,
    occurrence: datetime | None = None,
    on_crash: OnCrash = OnCrash.RUN_AGAIN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[AsyncReservation]:
    """Have a job reserved in a block; see ``reserve``. It is released at the end of the block.

    Raises:
        JobHeld: ``wait`` is over and somebody else has it; the message says who.
        JobDone: the run of the occurrence is over.
        InvalidName, InvalidDuration, UnknownStore, StoreUnavailable, StoreUnusable, UsageError: as
            there.
    """
    answer = await try_reserve_async(
        name,
        store=store,
        lease=lease,
        wait=wait,
        occurrence=occurrence,
        on_crash=on_crash,
        schedule=schedule,
        also=also,
        holder_name=holder_name,
        clock=clock,
    )
    async with reserved(answer) as job:
        yield job


async def _elsewhere(work: Callable[[], T], *, call_off: Callable[[], None] = lambda: None) -> T:
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
