"""What handlers are given and what comes of it, held against the promises of the processor.

* Every event had its effect before an accepted checkpoint passes it, and in the term of that
  checkpoint.
* A term begins at its checkpoint; in it the numbers rise without gaps, one call at a time, and
  none comes twice but after a failure that was told.
* What was handled in a term that ended in good order never comes again.
* No handler is started on a host that does not believe in the ownership, or that stands still.
* No effect of an older epoch follows one of a newer epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.testing.sim.source import MOST_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.model import Mark, Ownership
    from leasehold.testing.sim.checks import Checks
    from leasehold.testing.sim.host import Host


@dataclass(slots=True, kw_only=True)
class _Term:
    """One ownership of one key. ``done``: the last event handled; ``effect``: that is outside."""

    key: str
    epoch: int
    done: int
    effect: int
    first: int | None = None
    last: int = -1
    asked: set[int] = field(default_factory=set)
    calls: int = 0
    failed: bool = False
    used: bool = False


class Deliveries:
    """Notes every call of every handler. What is wrong is added to ``checks.broken``."""

    def __init__(self, checks: Checks) -> None:
        """Nothing has happened yet."""
        self.begun_calls = 0
        self.repeated = 0
        self.orderly = 0
        self.tell: Callable[[str], None] | None = None
        self._checks = checks
        self._terms: dict[tuple[str, int], _Term] = {}
        self._outside: dict[str, bytearray] = {}
        self._prefix: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self._sealed: dict[str, tuple[int, int]] = {}

    def complete_until(self, key: str) -> int:
        """The last event of the unbroken row, from the first one on, that has had its effect."""
        return self._prefix.get(key, -1)

    # ----------------------------------------------------------- the store

    def term_began(self, key: str, epoch: int, stored: int) -> None:
        """A term began in the store: from now on only its owner moves the checkpoint."""
        self._terms[key, epoch] = _Term(key=key, epoch=epoch, done=stored, effect=stored)

    def accepted(self, mark: Mark) -> None:
        """The store has accepted a checkpoint."""
        key, epoch = mark.ownership.key, mark.ownership.epoch
        number = mark.position.sequence_number
        term = self._terms[key, epoch]
        if number > self.complete_until(key):
            self._broken(f"{key}: a checkpoint at {number} passes events that nobody has handled")
        elif number > term.effect:
            self._broken(
                f"{key}: a checkpoint at {number} passes events that epoch {epoch} has not handled"
            )

    # -------------------------------------------------------- the handlers

    def begun(self, host: Host, key: str, epoch: int, first: int, last: int) -> None:
        """A handler was called."""
        self.begun_calls += 1
        if self.tell is not None:
            self.tell(f"{host.name} handles {first} to {last} of {key} epoch {epoch}")
        held = host.member.holds(key) if host.member else None
        if held is None or held.epoch != epoch:
            self._broken(f"{host.name} began to handle {key}, which it does not hold ({epoch})")
        if host.stands_still:
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
        term.calls += 1
        term.first, term.last, term.failed, term.used = first, last, False, True

    def asks(self, key: str, epoch: int, number: int) -> None:
        """The handler is about to write a checkpoint of its own."""
        self._terms[key, epoch].asked.add(number)

    def has_effect(self, key: str, epoch: int, last: int) -> None:
        """The handler knows that its events up to this one are outside."""
        term = self._terms[key, epoch]
        term.effect = max(term.effect, last)

    def ended(self, key: str, epoch: int, *, well: bool) -> None:
        """The handler has returned, or raised, or was cancelled."""
        term = self._terms[key, epoch]
        term.calls -= 1
        if well:
            term.done, term.first = term.last, None
            term.asked.clear()

    def failed(self, key: str, epoch: int) -> None:
        """It was told that the handler has failed: the events may come again."""
        self._terms[key, epoch].failed = True

    def effect(self, key: str, epoch: int, first: int, last: int) -> None:
        """A sink has accepted events."""
        newest = self._newest.get(key, 0)
        if epoch < newest:
            self._broken(f"{key}: an effect of epoch {epoch} after one of epoch {newest}")
        self._newest[key] = max(epoch, newest)
        there = self._outside.setdefault(key, bytearray(MOST_EVENTS + 1))
        there[first : last + 1] = b"\x01" * (last + 1 - first)
        self._prefix[key] = there.find(0, self.complete_until(key) + 1) - 1

    def drained(self, ownership: Ownership, stored: int) -> None:
        """The work says that it has stopped in good order: all of it must be written down."""
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

    # --------------------------------------------------------------- parts

    def _in_order(self, term: _Term, first: int) -> None:
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
        elif first != term.first and first - 1 not in term.asked:
            self._broken(
                f"{term.key}: event {first} came after the failure at {term.first} in epoch "
                f"{term.epoch}"
            )

    def _broken(self, what: str) -> None:
        self._checks.broken.append(what)
