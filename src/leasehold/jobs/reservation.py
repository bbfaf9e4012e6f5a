"""Reserving a job: one process at a time has it, kept alive in the background.

``reserve`` waits for it, ``try_reserve`` asks once. Guarantees:

- Of all that reserve the same name in the same store one at most has it. Several names are had
  together or not at all.
- Whoever has lost it hears so at once, and before anybody else can have it: ``lost`` is set while
  there is still time to stop. ``check`` is right even directly after a pause of the process.
- ``epoch`` rises with each reservation of a name. Show it to whatever the job writes to: a place
  that keeps the highest epoch it has seen refuses a job that slept through its lease.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.errors import LeaseLost
from leasehold.jobs.claimant import TRUST_OVER
from leasehold.jobs.request import Request
from leasehold.jobs.wish import DEFAULT_LEASE, Held, Wish
from leasehold.model import Position
from leasehold.names import last_part

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from leasehold.clock import Clock
    from leasehold.jobs.claimant import Claimant
    from leasehold.ports import Store

_AT_ONCE = timedelta(0)


class Reservation:
    """A job that is reserved here. All methods may be called from any thread.

    It is a context manager: leaving the block releases it.
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

        Raises:
            LeaseLost: the reservation has ended here, before it was sent or before the answer.
            FencedWrite: the store says that it has ended.
            CheckpointBehind: a higher number is stored; it stays.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
            UsageError: it is no number from -1 up, or the note can not be kept.
        """
        position = Position(sequence_number=number, offset=note)
        self.check()
        self._request.call(lambda: self._claimant.mark(position))

    def give_up(self) -> None:
        """Renew it no more, for work that does not stop: it is ``lost`` in a moment.

        Nobody else has it before ``remaining`` is over. ``release`` it when the work has stopped.
        """
        self._request.give_up(self._claimant)

    def release(self, *, to: str | None = None) -> None:
        """Let go at once; others may have it when this returns. Again is harmless.

        Call it when the work has stopped. ``to``: the holder that it is kept for. A store that does
        not answer is told for as long as the lease lasts, 15 s at most; then time ends it.
        """
        self._request.release(to=to)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def try_reserve(
    name: str,
    *,
    store: str | Store,
    lease: timedelta = DEFAULT_LEASE,
    wait: timedelta | None = _AT_ONCE,
    also: Sequence[str] = (),
    holder_name: str | None = None,
    on_lost: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Reservation | Held:
    """Reserve a job, or say who has it. Blocks for ``wait`` at most; None waits for ever.

    ``also`` are further names, had together with the first or not at all. ``on_lost`` is called
    with the reason, in another thread, and must return at once.

    Raises:
        InvalidName, InvalidDuration: with what is wrong and what to write.
        UnknownStore, StoreUnavailable, StoreUnusable: the store can not be asked.
    """
    wish = Wish.of((name, *also), lease=lease, holder_name=holder_name)
    request = Request(wish, store=store, clock=clock, on_lost=on_lost)
    answer = request.ask(wait=wait)
    if isinstance(answer, Held):
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
    also: Sequence[str] = (),
    holder_name: str | None = None,
    on_lost: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Iterator[Reservation]:
    """Have a job reserved in a block; see ``try_reserve``. It is released at the end of the block.

    Raises:
        TimeoutError: ``wait`` is over and somebody else has it; the message says who.
        InvalidName, InvalidDuration, UnknownStore, StoreUnavailable, StoreUnusable: as there.
    """
    answer = try_reserve(
        name,
        store=store,
        lease=lease,
        wait=wait,
        also=also,
        holder_name=holder_name,
        on_lost=on_lost,
        clock=clock,
    )
    if isinstance(answer, Held):
        raise TimeoutError(str(answer))
    with answer:
        yield answer
