"""Reserve a job: one process at a time has it, and a background thread renews its lease.

``reserve`` waits for it, ``try_reserve`` asks once; both have ``async`` variants. Guarantees:

- At most one process in the same store has a name at a time. Several names are reserved together
  or not at all.
- A loss is reported before another process can have the job: ``lost`` is set while there is still
  time to stop. ``check`` is right even directly after a pause of the process.
- ``epoch`` rises with each reservation of a name. Pass it to every system that the job writes to:
  one that keeps the highest epoch it has seen rejects a job that was paused past its lease.
- With an ``occurrence`` the run of that time is reserved. Once it is done it cannot be reserved
  again, however short it was and whatever the clocks show.
- The log of the job has each reservation: it begins in the step that reserves the job and ends in
  the step that releases it.
- The lease is renewed in its own thread, also for asyncio. An event loop that is blocked by the
  job's own work keeps the reservation, but learns of a loss only when it runs again; ``check`` is
  right even then.
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
    import random
    import threading
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Any, Self

    from leasehold.clock import Clock
    from leasehold.jobs.claimant import Claimant
    from leasehold.ports import Store
    from leasehold.runtime.loop_thread import LoopLink

J = TypeVar("J")

_NO_WAIT = timedelta(0)


class Reservation:
    """A job that is reserved here. All methods may be called from any thread.

    It is a context manager: leaving the block releases it. After an error the outcome is failed,
    with the error's text; after ``LeaseLost`` it is lost.
    """

    def __init__(self, request: Request, claimant: Claimant) -> None:
        self._request = request
        self._claimant = claimant
        self.key: str = claimant.wish.keys[0]

    def __repr__(self) -> str:
        state = self.why_lost or "held"
        return f"<Reservation of {self.name!r}, epoch {self.epoch}, {state}>"

    @property
    def name(self) -> str:
        """The name of the job."""
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
        """The holder id of this reservation."""
        return self._claimant.ownerships[self.key].holder

    @property
    def lease_id(self) -> str:
        """The id of this reservation's lease: unique, and not a secret."""
        return self.holder

    @property
    def occurrence(self) -> datetime | None:
        """The occurrence whose run this is, in UTC; None if it is reserved without one."""
        return self._claimant.wish.occurrence

    @property
    def attempt(self) -> int:
        """1 for the first try of the occurrence, 2 after one that crashed, and so on."""
        return self._claimant.note.attempt

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
        """Return how long until the work must have stopped, if no renewal succeeds."""
        return timedelta(seconds=self._claimant.remaining_s())

    def check(self) -> None:
        """Return if the job may continue now.

        Raises:
            LeaseLost: the job must stop; ``reason`` says why.
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
        """Store the position of the job, fenced by its epoch: the checkpoint of its key.

        Not for the runs of occurrences: there the checkpoint records which of them are done.

        Raises:
            LeaseLost: the reservation has ended here, before it was sent or before the answer.
            FencedWrite: the store says that it has ended.
            CheckpointBehind: a higher number is stored; it stays.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
            UsageError: the number is less than -1, the note cannot be stored, or an occurrence is
                reserved.
        """
        self._request.call(self._marking(number, note))

    def progress(self, words: str) -> None:
        """Write the progress of the run to the log of the job; the last one stays. Fenced.

        Raises:
            LeaseLost: the reservation has ended here, before it was sent or before the answer.
            FencedWrite: the store says that it has ended.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
        """
        self._request.call(self._progressing(words))

    def give_up(self) -> None:
        """Stop renewing it, for work that does not stop: ``lost`` is set soon.

        No other process has it before ``remaining`` is over. ``release`` it when the work has
        stopped.
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
        """Release the job; others may have it when this returns. Safe to call twice.

        Call it when the work has stopped. ``to`` is the holder that it is reserved for. A store
        that does not answer is retried for as long as the lease lasts, at most 15 s; then the lease
        expires.

        ``outcome`` (by default ok, or handed over with ``to``), ``exit_code`` and ``words`` are for
        the log. An occurrence that ended as ok or failed is done; otherwise it is still open.
        """
        self._request.release(_parting(to, outcome, exit_code, words))

    def _marking(self, number: int, note: str) -> Callable[[], Coroutine[Any, Any, None]]:
        if self.occurrence is not None:
            raise UsageError(
                f"the checkpoint of {self.name!r} tells which occurrences are done, so it can have "
                "no positions of its own: keep them where the job writes, or use progress()"
            )
        position = Position(sequence_number=number, offset=note)
        self.check()
        return lambda: self._claimant.mark(position)

    def _progressing(self, words: str) -> Callable[[], Coroutine[Any, Any, None]]:
        self.check()
        return lambda: self._claimant.progress(words)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outcome, words = outcome_of(error)
        self.release(outcome=outcome, words=words)


def _parting(to: str | None, outcome: Outcome | None, exit_code: int | None, words: str) -> Parting:
    default = Outcome.OK if to is None else Outcome.HANDED_OVER
    return Parting(to=to, outcome=outcome or default, exit_code=exit_code, words=words)


def outcome_of(error: BaseException | None) -> tuple[Outcome, str]:
    """Return the outcome and the text for a block that was left by this error, or by none."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return Outcome.OK, ""
    text = str(error)
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, LeaseLost):
        return Outcome.LOST, words
    # An interrupted or cancelled block has not finished: the occurrence is still open.
    ended = isinstance(error, Exception | SystemExit)
    return (Outcome.FAILED if ended else Outcome.KILLED), words


def try_reserve(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = _NO_WAIT,
    occurrence: datetime | None = None,
    on_crash: OnCrash | str = OnCrash.RERUN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    on_lost: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Reservation | Held | Done:
    """Reserve a job, or return who has it. Blocks for ``wait`` at most; None waits forever.

    ``occurrence``: reserve the run of this time, to the second; ``Done`` means that it is over.
    If it was started and its holder crashed it is run again, unless ``OnCrash.ABANDON`` is given.
    ``schedule`` is the schedule's text, for the log. ``also`` are further names, reserved together
    with the first or not at all. ``on_lost`` is called with the reason, in another thread, and must
    not block.

    Raises:
        InvalidName, InvalidDuration, InvalidOptions: with what is wrong and what to write.
        InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be used.
        OccurrenceNotDue: the occurrence is in the future by the store's clock.
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
    on_crash: OnCrash | str = OnCrash.RERUN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    on_lost: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Iterator[Reservation]:
    """Reserve a job for a block; see ``try_reserve``. It is released at the end of the block.

    Raises:
        JobHeld: ``wait`` is over and another process has it; the message says which.
        JobDone: the run of the occurrence is over.
        InvalidName, InvalidDuration, InvalidOptions, InvalidUrl, StoreUnavailable, StoreUnusable,
            UsageError: as there.
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
    with require_reservation(answer) as job:
        yield job


def require_reservation(answer: J | Held | Done) -> J:
    """Return the reservation; raise ``JobHeld`` or ``JobDone`` if the answer is not one."""
    if isinstance(answer, Held):
        raise JobHeld(
            str(answer), holder=answer.holder, epoch=answer.epoch, ends_in_s=answer.ends_in_s
        )
    if isinstance(answer, Done):
        raise JobDone(str(answer), occurrence=answer.occurrence.isoformat(), holder=answer.holder)
    return answer


T = TypeVar("T")


class AsyncReservation:
    """A job that is reserved here; see ``Reservation``. Use it in the loop it was made in.

    It is an asynchronous context manager: leaving the block releases it.
    """

    def __init__(self, job: Reservation, request: Request, lost: asyncio.Event) -> None:
        self._job = job
        self._request = request
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
        """Return how long until the work must have stopped, if no renewal succeeds."""
        return self._job.remaining()

    def check(self) -> None:
        """Return if the job may continue now.

        Raises:
            LeaseLost: the job must stop; ``reason`` says why.
        """
        self._job.check()

    async def mark(self, number: int, *, note: str = "") -> None:
        """Store the position of the job; see ``Reservation.mark``."""
        await self._request.call_awaited(self._job._marking(number, note))  # noqa: SLF001

    async def progress(self, words: str) -> None:
        """Write the progress of the run; see ``Reservation.progress``."""
        await self._request.call_awaited(self._job._progressing(words))  # noqa: SLF001

    def give_up(self) -> None:
        """Stop renewing it; see ``Reservation.give_up``."""
        self._job.give_up()

    async def release(
        self,
        *,
        to: str | None = None,
        outcome: Outcome | None = None,
        exit_code: int | None = None,
        words: str = "",
    ) -> None:
        """Release the job; see ``Reservation.release``. A cancelled task waits for it too."""
        await self._request.release_awaited(_parting(to, outcome, exit_code, words))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outcome, words = outcome_of(error)
        await self.release(outcome=outcome, words=words)


async def try_reserve_async(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = _NO_WAIT,
    occurrence: datetime | None = None,
    on_crash: OnCrash | str = OnCrash.RERUN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    sides: Callable[[], LoopLink] | None = None,
    identity: Callable[[], tuple[str, str]] | None = None,
) -> AsyncReservation | Held | Done:
    """Reserve a job, or say who has it; see ``try_reserve``. Calling it off ends the waiting.

    A store that is given as such, not by its URL, is used in another thread and event loop: it
    must be one that serves any. ``sides`` makes the lease side; by default it gets a thread.

    Raises:
        InvalidName, InvalidDuration, InvalidOptions: with what is wrong and what to write.
        InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be used.
        OccurrenceNotDue: the occurrence is in the future by the store's clock.
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

    link = None if sides is None else sides()
    request = Request(
        wish, store=store, clock=clock, rng=rng, identity=identity, link=link, on_lost=tell
    )
    answer = await request.ask_awaited(wait=wait)
    if isinstance(answer, Held | Done):
        return answer
    if answer is None:
        raise LeaseLost(f"nobody waits for {name!r} any more", key=wish.keys[0], reason="cancelled")
    return AsyncReservation(Reservation(request, answer), request, lost)


@asynccontextmanager
async def reserve_async(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = None,
    occurrence: datetime | None = None,
    on_crash: OnCrash | str = OnCrash.RERUN,
    schedule: str = "",
    also: Sequence[str] = (),
    holder_name: str | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[AsyncReservation]:
    """Have a job reserved in a block; see ``reserve``. It is released at the end of the block.

    Raises:
        JobHeld: ``wait`` is over and another process has it; the message says which.
        JobDone: the run of the occurrence is over.
        InvalidName, InvalidDuration, InvalidOptions, InvalidUrl, StoreUnavailable, StoreUnusable,
            UsageError: as there.
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
    async with require_reservation(answer) as job:
        yield job
