"""Reserving a job: one process at a time has it, kept alive in the background.

``reserve`` waits for it, ``try_reserve`` asks once. Guarantees:

- Of all that reserve the same name in the same store one at most has it. Several names are had
  together or not at all.
- Whoever has lost it hears so at once, and before anybody else can have it: ``lost`` is set while
  there is still time to stop. ``check`` is right even directly after a pause of the process.
- ``epoch`` rises with each reservation of a name. Show it to whatever the job writes to: a place
  that keeps the highest epoch it has seen refuses a job that slept through its lease.
- With an ``occurrence`` the run of that moment is reserved: once it is done nobody gets it again,
  however short it was and whatever the clocks say.
- The log of the job tells of each reservation: begun in the step that takes it, ended in the step
  that releases it.

Reserving a job from asyncio: the same reservation, and methods to await.

The lease is renewed in a thread of its own, as for everybody else: an event loop that is blocked
for a while, by the job's own work, does not cost the reservation. Such a loop hears of a loss only
when it runs again; ``check`` is right even then.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from leasehold.errors import JobDone, JobHeld, LeaseLost, UsageError
from leasehold.jobs.claimant import Parting
from leasehold.jobs.holding import TRUST_OVER
from leasehold.jobs.policy import OnCrash
from leasehold.jobs.request import Request
from leasehold.jobs.run_log import Outcome
from leasehold.jobs.wish import DEFAULT_LEASE, Done, Held, Wish
from leasehold.model import Position
from leasehold.names import last_part

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from leasehold.clock import Clock
    from leasehold.jobs.claimant import Claimant
    from leasehold.ports import Store

J = TypeVar("J")

_AT_ONCE = timedelta(0)


class Reservation:
    """A job that is reserved here. All methods may be called from any thread.

    It is a context manager: leaving the block releases it. By an error: as failed, with the error's
    words; by ``LeaseLost``: as lost.
    """

    def __init__(self, request: Request, claimant: Claimant) -> None:
        """``request`` holds it already."""
        self._request = request
        self._claimant = claimant
        self.key: str = claimant.wish.keys[0]

    def __repr__(self) -> str:
        state = self.why_lost or "held"
        return f"<Reservation of {self.name!r}, epoch {self.epoch}, {state}>"

    @property
    def name(self) -> str:
        """The job."""
        return last_part(self.key)

    @property
    def epoch(self) -> int:
        """The fencing token: higher than that of every earlier reservation of this job."""
        return self.epochs[self.key]

    @property
    def epochs(self) -> Mapping[str, int]:
        """The epoch of each reserved key."""
        return {key: each.epoch for key, each in self._claimant.ownerships.items()}

    @property
    def holder(self) -> str:
        """Who we are to the others."""
        return self._claimant.ownerships[self.key].holder

    @property
    def lease_id(self) -> str:
        """Names this reservation's lease: no two have the same, and it is no secret."""
        return self.holder

    @property
    def occurrence(self) -> datetime | None:
        """The moment whose run this is, in UTC; None if it is reserved without one."""
        return self._claimant.wish.occurrence

    @property
    def attempt(self) -> int:
        """1 for the first try of the occurrence, 2 after one that crashed, and so on."""
        return self._claimant.said.attempt

    @property
    def lost(self) -> threading.Event:
        """Set when the job must stop: from then on until ``remaining`` is over."""
        return self._request.lost

    @property
    def why_lost(self) -> str | None:
        """How it ended; None while it is held."""
        if self._claimant.valid:
            return None
        return self._claimant.ended or TRUST_OVER

    def remaining(self) -> timedelta:
        """How long it is until the work must have stopped, if no renewal succeeds any more."""
        return timedelta(seconds=self._claimant.remaining_s())

    def check(self) -> None:
        """Return if the job may go on at this very moment.

        Raises:
            LeaseLost: it may not, with the reason.
        """
        why = self.why_lost
        if why is not None:
            raise LeaseLost(
                f"job {self.name!r} is not reserved here any more ({why}; epoch {self.epoch}): "
                "stop, and leave the rest to the one that follows",
                key=self.key,
                epoch=self.epoch,
                reason=why,
            )

    def mark(self, number: int, *, note: str = "") -> None:
        """Store how far the job is, fenced by its epoch: the checkpoint of its key.

        Not for the runs of occurrences: there the checkpoint tells which of them are done.

        Raises:
            LeaseLost: the reservation has ended here, before it was sent or before the answer.
            FencedWrite: the store says that it has ended.
            CheckpointBehind: a higher number is stored; it stays.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
            UsageError: it is no number from -1 up, the note can not be kept, or an occurrence is
                reserved.
        """
        if self.occurrence is not None:
            raise UsageError(
                f"the checkpoint of {self.name!r} tells which occurrences are done, so it can have "
                "no positions of its own: keep them where the job writes, or use progress()"
            )
        position = Position(sequence_number=number, offset=note)
        self.check()
        self._request.call(lambda: self._claimant.mark(position))

    def progress(self, words: str) -> None:
        """Have the log of the job say how far the run is; the last words stay. Fenced as a mark is.

        Raises:
            LeaseLost: the reservation has ended here, before it was sent or before the answer.
            FencedWrite: the store says that it has ended.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
        """
        self.check()
        self._request.call(lambda: self._claimant.progress(words))

    def give_up(self) -> None:
        """Renew it no more, for work that does not stop: it is ``lost`` in a moment.

        Nobody else has it before ``remaining`` is over. ``release`` it when the work has stopped.
        """
        self._request.give_up(self._claimant)

    def release(
        self,
        *,
        to: str | None = None,
        outcome: Outcome | None = None,
        exit_code: int | None = None,
        words: str = "",
    ) -> None:
        """Let go at once; others may have it when this returns. Again is harmless.

        Call it when the work has stopped. ``to``: the holder that it is kept for. A store that does
        not answer is told for as long as the lease lasts, 15 s at most; then time ends it.

        ``outcome`` (ok, or handed over if it is), ``exit_code`` and ``words`` are for the log. An
        occurrence that ended as ok or failed is done; after any other outcome it is still open.
        """
        default = Outcome.OK if to is None else Outcome.HANDED_OVER
        parting = Parting(to=to, outcome=outcome or default, exit_code=exit_code, words=words)
        self._request.release(parting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outcome, words = verdict(error)
        self.release(outcome=outcome, words=words)


def verdict(error: BaseException | None) -> tuple[Outcome, str]:
    """What the log is told of a block that was left by this error, or by none."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return Outcome.OK, ""
    text = str(error)
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, LeaseLost):
        return Outcome.LOST, words
    # Who was interrupted or called off has not come to an end: the occurrence is still open.
    ended = isinstance(error, Exception | SystemExit)
    return (Outcome.FAILED if ended else Outcome.KILLED), words


def try_reserve(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = _AT_ONCE,
    occurrence: datetime | None = None,
    on_crash: OnCrash = OnCrash.RERUN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    on_lost: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Reservation | Held | Done:
    """Reserve a job, or say who has it. Blocks for ``wait`` at most; None waits for ever.

    ``occurrence``: reserve the run of this moment, to the second; ``Done`` says that it is over.
    If it was started and its holder died it is run again, or with ``OnCrash.ABANDON`` not.
    ``schedule`` is the schedule's text, for the log. ``also`` are further names, had together with
    the first or not at all. ``on_lost`` is called with the reason, in another thread, and must
    return at once.

    Raises:
        InvalidName, InvalidDuration: with what is wrong and what to write.
        InvalidUrl, StoreUnavailable, StoreUnusable: the store can not be asked.
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
    request = Request(wish, store=store, clock=clock, on_lost=on_lost)
    answer = request.ask(wait=wait)
    if isinstance(answer, Held | Done):
        return answer
    if answer is None:
        raise LeaseLost(f"nobody waits for {name!r} any more", key=wish.keys[0], reason="cancelled")
    return Reservation(request, answer)


@contextmanager
def reserve(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = None,
    occurrence: datetime | None = None,
    on_crash: OnCrash = OnCrash.RERUN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    on_lost: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Iterator[Reservation]:
    """Have a job reserved in a block; see ``try_reserve``. It is released at the end of the block.

    Raises:
        JobHeld: ``wait`` is over and somebody else has it; the message says who.
        JobDone: the run of the occurrence is over.
        InvalidName, InvalidDuration, InvalidUrl, StoreUnavailable, StoreUnusable, UsageError: as
            there.
    """
    answer = try_reserve(
        name,
        store=store,
        lease=lease,
        wait=wait,
        occurrence=occurrence,
        on_crash=on_crash,
        schedule=schedule,
        also=also,
        holder_name=holder_name,
        on_lost=on_lost,
        clock=clock,
    )
    with reserved(answer) as job:
        yield job


def reserved(answer: J | Held | Done) -> J:
    """The reservation, if the answer is one.

    Raises:
        JobHeld: somebody else has it.
        JobDone: the run of the occurrence is over.
    """
    if isinstance(answer, Held):
        raise JobHeld(
            str(answer), holder=answer.holder, epoch=answer.epoch, ends_in_s=answer.ends_in_s
        )
    if isinstance(answer, Done):
        raise JobDone(str(answer), occurrence=answer.occurrence.isoformat(), holder=answer.holder)
    return answer


T = TypeVar("T")


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
    on_crash: OnCrash = OnCrash.RERUN,
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
        InvalidUrl, StoreUnavailable, StoreUnusable: the store can not be asked.
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
    on_crash: OnCrash = OnCrash.RERUN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[AsyncReservation]:
    """Have a job reserved in a block; see ``reserve``. It is released at the end of the block.

    Raises:
        JobHeld: ``wait`` is over and somebody else has it; the message says who.
        JobDone: the run of the occurrence is over.
        InvalidName, InvalidDuration, InvalidUrl, StoreUnavailable, StoreUnusable, UsageError: as
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
