"""The invariants, checked at every step of a simulation.

``Checks`` watches ownership, ``Deliveries`` what handlers are given:

* Every event had its effect before an accepted checkpoint passes it, and in the term of that
  checkpoint.
* A term begins at its checkpoint; in it the numbers rise without gaps, one call at a time, and
  no event comes twice except after a failure that was reported.
* What was handled in a term that ended gracefully never comes again.
* No handler is started on a host that does not own the key locally, or that is paused.
* No effect of an older epoch follows one of a newer epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.model import State
from leasehold.stores.registry import Registry
from leasehold.testing.sim.faults import MAX_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from leasehold.model import CheckpointWrite, EndReason, Lease, Ownership, Position, Refusal
    from leasehold.stores.rows import LeaseRow, ResourceRow
    from leasehold.testing.sim.host import Host


class InvariantBroken(AssertionError):
    """A rule of safety, or the promise of balance, was broken in a simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A key got an owner, or (``holder`` None) lost it."""

    at_s: float
    key: str
    holder: str | None


class Checks:
    """Watches a simulated world from outside, with its own memory.

    What it finds is recorded, not raised: the code under test must not be able to swallow it.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.changes: list[Change] = []
        self.term_began: Callable[[str, int], None] = lambda _key, _epoch: None
        self.term_ended: Callable[[str], None] = lambda _key: None
        self.accepted: Callable[[CheckpointWrite], None] = lambda _write: None
        self.writes_accepted = 0
        self.writes_refused = 0
        self.double_s = 0.0
        self._workers: dict[str, set[str]] = {}
        self._opened: set[tuple[str, str, str, int]] = set()
        self._double_since: dict[str, float] = {}
        self._epochs: dict[str, int] = {}
        self._written: dict[str, Position] = {}

    def raise_if_broken(self) -> None:
        """Raise the first thing that was found."""
        if self.broken:
            raise InvariantBroken(self.broken[0])

    def one_local_owner(self, hosts: Iterable[Host]) -> None:
        """Check that no two members own one key locally at the same time."""
        owners: dict[str, Host] = {}
        for host in hosts:
            for ownership in host.locally_owned():
                other = owners.setdefault(ownership.key, host)
                if other is not host:
                    self.broken.append(
                        f"{ownership.key} has two owners at one moment: {other.name}, {host.name}"
                    )

    def works(self, ownership: Ownership, host: str, at_s: float, *, on: bool) -> None:
        """Record which hosts work on a key, and for how long two do: the cost of a steal.

        The key handler must be called in turn: opened once per ownership, then closed once.
        """
        key = ownership.key
        workers = self._workers.setdefault(key, set())
        opening = (host, ownership.holder, key, ownership.epoch)
        if on and (host in workers or opening in self._opened):
            self.broken.append(f"{host} was told twice to begin epoch {ownership.epoch} of {key}")
        if not on and host not in workers:
            self.broken.append(f"{host} was told to stop {key}, on which it does not work")
        if on:
            self._opened.add(opening)
        (workers.add if on else workers.discard)(host)
        if len(workers) > 1:
            self._double_since.setdefault(key, at_s)
        elif key in self._double_since:
            self.double_s += at_s - self._double_since.pop(key)

    def one_worker(self, key: str, running: Iterable[str]) -> None:
        """Check that no two running hosts work on one key: the handlers were called in time."""
        workers = sorted(self._workers.get(key, set()) & set(running))
        if len(workers) > 1:
            self.broken.append(f"{key} is worked on by two at once: {', '.join(workers)}")

    def backed(self, host: Host, ownership: Ownership, *, by_store: bool) -> None:
        """Check that the store grants what a host owns locally: local ownership ends first."""
        if not by_store:
            self.broken.append(
                f"{host.name} believes in epoch {ownership.epoch} of {ownership.key}, "
                "and the store does not"
            )

    def epoch_begins(self, key: str, epoch: int) -> None:
        """Check that epochs rise by one, and never fall."""
        last = self._epochs.get(key, 0)
        if epoch != last + 1:
            self.broken.append(f"{key}: epoch {epoch} follows epoch {last}")
        self._epochs[key] = epoch

    def epoch_reset(self, key: str, epoch: int) -> None:
        """Note a reset: an epoch without an owner, and the one way back for a checkpoint."""
        self.epoch_begins(key, epoch)
        self._written.pop(key, None)

    def write_accepted(self, write: CheckpointWrite) -> None:
        """Check that no write of an older epoch is accepted after a newer one; none goes back."""
        key, epoch, position = write.ownership.key, write.ownership.epoch, write.position
        now = self._epochs.get(key, 0)
        if epoch < now:
            self.broken.append(f"{key}: a write of epoch {epoch} was accepted in epoch {now}")
        if position < self._written.get(key, position):
            self.broken.append(f"{key}: the checkpoint went back to {position.sequence_number}")
        self._written[key] = position
        self.writes_accepted += 1
        self.accepted(write)


class CheckedRegistry(Registry):
    """The real registry, with the checks watching. ``time_s`` is its clock, for the record."""

    def __init__(self, checks: Checks, time_s: Callable[[], float]) -> None:
        super().__init__()
        self.checks = checks
        self._time_s = time_s

    def begin_term(self, row: ResourceRow, claimer: LeaseRow, wall: datetime) -> None:
        """Begin a term, and record it."""
        super().begin_term(row, claimer, wall)
        self.checks.epoch_begins(row.key, row.epoch)
        self.checks.term_began(row.key, row.epoch)
        self._note(row)

    def reset_term(self, row: ResourceRow, wall: datetime) -> None:
        """Reset a key, and record it."""
        super().reset_term(row, wall)
        self.checks.epoch_reset(row.key, row.epoch)

    def end_term(self, row: ResourceRow, reason: EndReason, wall: datetime) -> None:
        """End a term, and record it."""
        super().end_term(row, reason, wall)
        self._note(row)
        self.checks.term_ended(row.key)

    def lease_of(self, holder: str) -> Lease | None:
        """Return the lease of a holder with its token: a simulation may act for any holder."""
        row = self._leases.get(holder)
        return row.lease if row else None

    def stored(self, key: str) -> int:
        """Return the last event that the checkpoint of a key covers; -1: none."""
        checkpoint = self._checkpoints.get(key)
        return -1 if checkpoint is None else checkpoint.position.sequence_number

    def forget_checkpoint(self, key: str) -> None:
        """Remove the checkpoint of a key, for a mutant."""
        self._checkpoints.pop(key, None)

    def end_what_is_over(self, group: str, now: float, wall: datetime) -> None:
        """Judge the leases of a group by another clock, for a mutant."""
        self._settle_group(self._group(group), now, wall)

    def backs(self, ownership: Ownership, now: float) -> bool:
        """Return whether this ownership is in force."""
        row = self._resources[ownership.key]
        held = self._state(row, now) in (State.LEASED, State.BREAKING)
        return held and self._proves(row, ownership)

    def checkpoint(
        self, marks: Sequence[CheckpointWrite], now: float, wall: datetime
    ) -> Mapping[str, Refusal]:
        """Write, and record what was accepted."""
        refused = super().checkpoint(marks, now, wall)
        for write in marks:
            if write.ownership.key in refused:
                self.checks.writes_refused += 1
            else:
                self.checks.write_accepted(write)
        return refused

    def _note(self, row: ResourceRow) -> None:
        self.checks.changes.append(Change(at_s=self._time_s(), key=row.key, holder=row.holder))


@dataclass(slots=True, kw_only=True)
class _KeyTerm:
    """One ownership of one key. ``done``: last event handled; ``effect``: last in the sink."""

    key: str
    epoch: int
    done: int
    effect: int
    first: int | None = None
    last: int = -1
    requested: set[int] = field(default_factory=set)
    calls: int = 0
    failed: bool = False
    used: bool = False


class Deliveries:
    """Records every call of every handler. What is wrong is added to ``checks.broken``."""

    def __init__(self, checks: Checks) -> None:
        self.calls_begun = 0
        self.repeated = 0
        self.orderly = 0
        self.trace: Callable[[str], None] | None = None
        self._checks = checks
        self._terms: dict[tuple[str, int], _KeyTerm] = {}
        self._effects: dict[str, bytearray] = {}
        self._prefix: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self._sealed: dict[str, tuple[int, int]] = {}

    def complete_until(self, key: str) -> int:
        """Return the last event of the unbroken series, from the first on, with its effect."""
        return self._prefix.get(key, -1)

    # ----------------------------------------------------------- the store

    def term_began(self, key: str, epoch: int, stored: int) -> None:
        """Record a term: from now on only its owner moves the checkpoint."""
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
        term.calls += 1
        term.first, term.last, term.failed, term.used = first, last, False, True

    def checkpoint_requested(self, key: str, epoch: int, number: int) -> None:
        """Record that the handler is about to write its own checkpoint."""
        self._terms[key, epoch].requested.add(number)

    def has_effect(self, key: str, epoch: int, last: int) -> None:
        """Record that the handler knows that its events up to this one are in the sink."""
        term = self._terms[key, epoch]
        term.effect = max(term.effect, last)

    def ended(self, key: str, epoch: int, *, succeeded: bool) -> None:
        """Record that the handler has returned, raised, or was cancelled."""
        term = self._terms[key, epoch]
        term.calls -= 1
        if succeeded:
            term.done, term.first = term.last, None
            term.requested.clear()

    def failed(self, key: str, epoch: int) -> None:
        """Record a reported failure of the handler: the events may come again."""
        self._terms[key, epoch].failed = True

    def effect(self, key: str, epoch: int, first: int, last: int) -> None:
        """Check events that a sink has accepted."""
        newest = self._newest.get(key, 0)
        if epoch < newest:
            self._broken(f"{key}: an effect of epoch {epoch} after one of epoch {newest}")
        self._newest[key] = max(epoch, newest)
        done = self._effects.setdefault(key, bytearray(MAX_EVENTS + 1))
        done[first : last + 1] = b"\x01" * (last + 1 - first)
        self._prefix[key] = done.find(0, self.complete_until(key) + 1) - 1

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

    # --------------------------------------------------------------- parts

    def _in_order(self, term: _KeyTerm, first: int) -> None:
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
