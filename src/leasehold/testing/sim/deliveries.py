"""The invariants of the work: what handlers are given, and what becomes of it.

* Every event was dealt with before an accepted checkpoint passes it, and in the term of that
  checkpoint: it had its effect, or its skip was reported, or its dead letter is stored.
* A term begins at its checkpoint; in it the numbers rise without gaps, one call at a time, and
  no event comes twice except after a failure that was reported.
* Only an event whose last attempt has failed is given up, and each one is reported.
* What was handled in a term that ended gracefully never comes again.
* No handler is started on a host that does not own the key locally, or that is paused.
* No effect of an older epoch follows one of a newer epoch.
* After a reset the next term begins at the new position.
* What comes again in a later term was reported to the hooks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.core.poison_policy import PoisonAction
from leasehold.testing.sim.faults import MAX_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.model import CheckpointWrite, Ownership
    from leasehold.processor.events import HandlerFailed, Poisoned
    from leasehold.testing.sim.checks import Checks
    from leasehold.testing.sim.host import Host


@dataclass(slots=True, kw_only=True)
class _KeyTerm:
    """One ownership of one key. ``done``: last event handled; ``effect``: last dealt with.

    ``stored``: the last event that a handler knows to be stored; ``failure``: the event and the
    number of the last attempt that was reported as failed.
    """

    key: str
    epoch: int
    done: int
    effect: int
    first: int | None = None
    last: int = -1
    requested: set[int] = field(default_factory=set)
    stored: int = -1
    calls: int = 0
    failed: bool = False
    failure: tuple[int, int] = (-1, 0)
    used: bool = False


class Deliveries:
    """Records every call of every handler. What is wrong is added to ``checks.broken``."""

    def __init__(self, checks: Checks, *, retries: int | None = None) -> None:
        """``retries``: those of the poison policy; None: no event is ever given up."""
        self.calls_begun = 0
        self.repeated = 0
        self.orderly = 0
        self.skipped = 0
        self.letters = 0
        self.resets = 0
        self.trace: Callable[[str], None] | None = None
        self._checks = checks
        self._retries = retries
        self._terms: dict[tuple[str, int], _KeyTerm] = {}
        self._effects: dict[str, bytearray] = {}
        self._prefix: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self._sealed: dict[str, tuple[int, int]] = {}
        self._letters: set[tuple[str, int]] = set()
        self._reset_to: dict[str, int] = {}
        self._reset_after: dict[str, int] = {}
        self._handled: dict[str, tuple[int, int]] = {}
        self._repeats: dict[tuple[str, int], int] = {}
        self._reported: dict[str, set[int]] = {}

    def complete_until(self, key: str) -> int:
        """Return the last event of the unbroken series, from the first, that were dealt with."""
        return self._prefix.get(key, -1)

    # ----------------------------------------------------------- the store

    def term_began(self, key: str, epoch: int, stored: int) -> None:
        """Record a term: from now on only its owner moves the checkpoint."""
        reset_to = self._reset_to.pop(key, stored)
        if stored != reset_to:
            self._broken(
                f"{key}: epoch {epoch} began with the checkpoint at {stored}, and it was reset to "
                f"{reset_to}"
            )
        self._terms[key, epoch] = _KeyTerm(key=key, epoch=epoch, done=stored, effect=stored)

    def accepted(self, write: CheckpointWrite) -> None:
        """Check a checkpoint that the store has accepted."""
        key, epoch = write.ownership.key, write.ownership.epoch
        number = write.position.sequence_number
        term = self._terms[key, epoch]
        if number > self.complete_until(key):
            self._broken(f"{key}: a checkpoint at {number} passes events that nobody has handled")
        elif number > term.effect:
            self._broken(
                f"{key}: a checkpoint at {number} passes events that epoch {epoch} has not handled"
            )

    def reset(self, key: str, position: int) -> None:
        """Record that an operator moved the checkpoint: the events after it come, none other."""
        self.resets += 1
        self._reset_to[key] = position
        self._dealt_with(key, 0, position)
        sealed, by = self._sealed.get(key, (-1, 0))
        self._sealed[key] = (min(sealed, position), by)
        self._reset_after[key] = max((each for of, each in self._terms if of == key), default=0)
        self._handled.pop(key, None)

    # -------------------------------------------------------- the handlers

    def begun(self, host: Host, key: str, epoch: int, first: int, last: int) -> None:
        """Check a call of a handler."""
        self.calls_begun += 1
        if self.trace is not None:
            self.trace(f"{host.name} handles {first} to {last} of {key} epoch {epoch}")
        held = host.member.holds(key) if host.member else None
        if held is None or held.epoch != epoch:
            self._broken(f"{host.name} began to handle {key}, which it does not hold ({epoch})")
        if host.is_stopped:
            self._broken(f"{host.name} began to handle {key} while it stood still")
        term = self._terms[key, epoch]
        if term.calls:
            self._broken(f"{key}: two calls of the handler at once in epoch {epoch}")
        self._in_order(term, first)
        sealed, by = self._sealed.get(key, (-1, 0))
        if first <= sealed and epoch > by:
            self._broken(
                f"{key}: event {first} came again in epoch {epoch}, though epoch {by} had ended "
                "in good order"
            )
        self.repeated += first <= self.complete_until(key)
        handled, by = self._handled.get(key, (-1, 0))
        if not term.used and first <= handled:
            self._repeats[key, epoch] = by
        term.calls += 1
        term.first, term.last, term.failed, term.used = first, last, False, True

    def caller_failed(self, host: Host, error: BaseException | None) -> None:
        """Record what the pull style has raised, which its caller did not expect."""
        self._broken(f"{host.name}: a caller of the pull style got {error!r}")

    def checkpoint_requested(self, key: str, epoch: int, number: int) -> None:
        """Record that the handler is about to write its own checkpoint."""
        self._terms[key, epoch].requested.add(number)

    def checkpoint_stored(self, key: str, epoch: int, number: int) -> None:
        """Record that the handler has an answer: nothing up to this event comes again."""
        term = self._terms[key, epoch]
        term.stored = max(term.stored, number)

    def has_effect(self, key: str, epoch: int, last: int) -> None:
        """Record that the handler knows that its events up to this one are in the sink."""
        term = self._terms[key, epoch]
        term.effect = max(term.effect, last)

    def ended(self, key: str, epoch: int, *, succeeded: bool) -> None:
        """Record that the handler has returned, raised, or was cancelled."""
        term = self._terms[key, epoch]
        term.calls -= 1
        if succeeded and not term.failed:  # a call may be reported as failed before it ends
            self._note_handled(key, epoch, term.last)
            term.done, term.first = term.last, None
            term.requested.clear()

    def offer_ended(self, key: str, epoch: int) -> None:
        """Record that the time for a batch is over: its caller is too late to acknowledge it."""
        self._terms[key, epoch].failed = True

    def failed(self, key: str, event: HandlerFailed) -> None:
        """Record a reported failure of the handler: the events may come again."""
        term = self._terms[key, event.epoch]
        term.failed, term.failure = True, (event.sequence_number, event.attempt)

    def letter_stored(self, key: str, number: int) -> None:
        """Record that a dead letter is durable: this deals with its event."""
        if (key, number) not in self._letters:
            self.letters += 1
        self._letters.add((key, number))
        self._dealt_with(key, number, number)

    def given_up(self, key: str, event: Poisoned) -> None:
        """Check an event that is reported as given up."""
        number, epoch = event.sequence_number, event.epoch
        term = self._terms[key, epoch]
        failed, attempts = term.failure
        if failed != number:
            self._broken(f"{key}: event {number} was given up in epoch {epoch}, and never failed")
        elif self._retries is None or attempts <= self._retries:
            self._broken(f"{key}: event {number} was given up after {attempts} attempts")
        if event.action == PoisonAction.SKIP.value:
            self.skipped += 1
            self._dealt_with(key, number, number)
        elif (key, number) not in self._letters:
            self._broken(f"{key}: event {number} was reported as a dead letter, and none is stored")
        self._note_handled(key, epoch, number)
        term.done, term.first = max(term.done, number), None
        term.effect = max(term.effect, number)
        term.requested.clear()

    def effect(self, key: str, epoch: int, first: int, last: int) -> None:
        """Check events that a sink has accepted."""
        newest = self._newest.get(key, 0)
        if epoch < newest:
            self._broken(f"{key}: an effect of epoch {epoch} after one of epoch {newest}")
        self._newest[key] = max(epoch, newest)
        self._dealt_with(key, first, last)

    def drained(self, ownership: Ownership, stored: int) -> None:
        """Check that all work of a gracefully ended term is stored."""
        key, epoch = ownership.key, ownership.epoch
        term = self._terms[key, epoch]
        self.orderly += 1
        if stored < term.done:
            self._broken(
                f"{key}: epoch {epoch} ended in good order with event {term.done} handled, and "
                f"the checkpoint at {stored}"
            )
        if term.done > self._sealed.get(key, (-1, 0))[0]:
            self._sealed[key] = (term.done, epoch)

    def repeats_reported(self, key: str, epoch: int) -> None:
        """Record a report that events of the key may come again."""
        self._reported.setdefault(key, set()).add(epoch)

    def check_repeats(self, could_report: Callable[[str, int], bool]) -> None:
        """Check that what came again was reported, by its next owner or the one before (C5).

        ``could_report``: whether the owner of this term was there for long enough.
        """
        for (key, epoch), before in self._repeats.items():
            reported = self._reported.get(key, set())
            if any(before <= each <= epoch for each in reported):
                continue
            if could_report(key, epoch):
                self._broken(
                    f"{key}: events came again in epoch {epoch}, after epoch {before}, and nobody "
                    "reported it"
                )

    # --------------------------------------------------------------- parts

    def _note_handled(self, key: str, epoch: int, last: int) -> None:
        """Note the last event that is done, and in which epoch; a reset begins again."""
        if epoch > self._reset_after.get(key, 0):
            self._handled[key] = max(self._handled.get(key, (-1, 0)), (last, epoch))

    def _dealt_with(self, key: str, first: int, last: int) -> None:
        done = self._effects.setdefault(key, bytearray(MAX_EVENTS + 1))
        done[first : last + 1] = b"\x01" * (last + 1 - first)
        self._prefix[key] = done.find(0, self.complete_until(key) + 1) - 1

    def _in_order(self, term: _KeyTerm, first: int) -> None:
        if first <= term.stored:
            self._broken(
                f"{term.key}: event {first} came again in epoch {term.epoch}, and its handler had "
                f"stored {term.stored}"
            )
        if not term.used:
            if first != term.done + 1:
                self._broken(
                    f"{term.key}: epoch {term.epoch} began at event {first}, and its checkpoint "
                    f"is at {term.done}"
                )
        elif term.first is None:
            if first > term.done + 1:
                self._broken(
                    f"{term.key}: a gap in epoch {term.epoch}, event {first} after {term.done}"
                )
            elif first <= term.done:
                self._broken(
                    f"{term.key}: event {first} came twice in epoch {term.epoch}, after {term.done}"
                )
        elif not term.failed:
            self._broken(f"{term.key}: event {first} came twice, and nothing had failed")
        elif first != term.first and first - 1 not in term.requested:
            self._broken(
                f"{term.key}: event {first} came after the failure at {term.first} in epoch "
                f"{term.epoch}"
            )

    def _broken(self, what: str) -> None:
        self._checks.broken.append(what)
