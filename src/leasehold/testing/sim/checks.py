"""What must never happen, looked for at every step of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.model import State
from leasehold.stores.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from leasehold.model import EndReason, Lease, Mark, MarkRefusal, Ownership, Position
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
    """Watches a simulated world from outside, with a memory of its own.

    What it finds is noted, not raised: the code under test must not be able to swallow it.
    """

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.broken: list[str] = []
        self.changes: list[Change] = []
        self.term_began: Callable[[str, int], None] = lambda _key, _epoch: None
        self.term_ended: Callable[[str], None] = lambda _key: None
        self.accepted: Callable[[Mark], None] = lambda _mark: None
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

    def one_believer(self, hosts: Iterable[Host]) -> None:
        """No two members believe in one key at one moment, each by its own clock."""
        believers: dict[str, Host] = {}
        for host in hosts:
            for ownership in host.believed():
                other = believers.setdefault(ownership.key, host)
                if other is not host:
                    self.broken.append(
                        f"{ownership.key} has two owners at one moment: {other.name}, {host.name}"
                    )

    def works(self, ownership: Ownership, host: str, at_s: float, *, on: bool) -> None:
        """Note who works on a key, and for how long two do at once: what a steal costs.

        The keeper must be told in turn: opened once per ownership, then closed once.
        """
        key = ownership.key
        workers = self._workers.setdefault(key, set())
        told = (host, ownership.holder, key, ownership.epoch)
        if on and (host in workers or told in self._opened):
            self.broken.append(f"{host} was told twice to begin epoch {ownership.epoch} of {key}")
        if not on and host not in workers:
            self.broken.append(f"{host} was told to stop {key}, on which it does not work")
        if on:
            self._opened.add(told)
        (workers.add if on else workers.discard)(host)
        if len(workers) > 1:
            self._double_since.setdefault(key, at_s)
        elif key in self._double_since:
            self.double_s += at_s - self._double_since.pop(key)

    def one_worker(self, key: str, running: Iterable[str]) -> None:
        """No two hosts that run work on one key at one moment: the keepers were told in time."""
        workers = sorted(self._workers.get(key, set()) & set(running))
        if len(workers) > 1:
            self.broken.append(f"{key} is worked on by two at once: {', '.join(workers)}")

    def backed(self, host: Host, ownership: Ownership, *, by_store: bool) -> None:
        """Nobody believes in what the store does not grant: belief always ends first."""
        if not by_store:
            self.broken.append(
                f"{host.name} believes in epoch {ownership.epoch} of {ownership.key}, "
                "and the store does not"
            )

    def epoch_begins(self, key: str, epoch: int) -> None:
        """Epochs rise by one, and never fall."""
        last = self._epochs.get(key, 0)
        if epoch != last + 1:
            self.broken.append(f"{key}: epoch {epoch} follows epoch {last}")
        self._epochs[key] = epoch

    def epoch_reset(self, key: str, epoch: int) -> None:
        """A reset is an epoch of its own, and the one way back for a checkpoint."""
        self.epoch_begins(key, epoch)
        self._written.pop(key, None)

    def write_accepted(self, mark: Mark) -> None:
        """No write by an older epoch is accepted once there was a newer one, and none goes back."""
        key, epoch, position = mark.ownership.key, mark.ownership.epoch, mark.position
        now = self._epochs.get(key, 0)
        if epoch < now:
            self.broken.append(f"{key}: a write of epoch {epoch} was accepted in epoch {now}")
        if position < self._written.get(key, position):
            self.broken.append(f"{key}: the checkpoint went back to {position.sequence_number}")
        self._written[key] = position
        self.writes_accepted += 1
        self.accepted(mark)


class CheckedRegistry(Registry):
    """The real registry, with the checks looking on."""

    def __init__(self, checks: Checks, time_s: Callable[[], float]) -> None:
        """An empty registry whose clock, for the record, is ``time_s``."""
        super().__init__()
        self.checks = checks
        self._time_s = time_s

    def begin_term(self, row: ResourceRow, claimer: LeaseRow, wall: datetime) -> None:
        """Begin a term, and note it."""
        super().begin_term(row, claimer, wall)
        self.checks.epoch_begins(row.key, row.epoch)
        self.checks.term_began(row.key, row.epoch)
        self._note(row)

    def reset_term(self, row: ResourceRow, wall: datetime) -> None:
        """Reset a key, and note it."""
        super().reset_term(row, wall)
        self.checks.epoch_reset(row.key, row.epoch)

    def end_term(self, row: ResourceRow, reason: EndReason, wall: datetime) -> None:
        """End a term, and note it."""
        super().end_term(row, reason, wall)
        self._note(row)
        self.checks.term_ended(row.key)

    def lease_of(self, holder: str) -> Lease | None:
        """The lease of a holder, token and all: a simulation may act in anybody's name."""
        row = self._leases.get(holder)
        return row.lease if row else None

    def stored(self, key: str) -> int:
        """The last event that the checkpoint of a key says is done; -1: none."""
        checkpoint = self._checkpoints.get(key)
        return -1 if checkpoint is None else checkpoint.position.sequence_number

    def forget_checkpoint(self, key: str) -> None:
        """For a mutant: nobody remembers how far a key had come."""
        self._checkpoints.pop(key, None)

    def end_what_is_over(self, group: str, now: float, wall: datetime) -> None:
        """For a mutant: judge the leases of a group by another clock."""
        self._settle_group(self._group(group), now, wall)

    def backs(self, ownership: Ownership, now: float) -> bool:
        """Whether this ownership is in force."""
        row = self._resources[ownership.key]
        held = self._state(row, now) in (State.LEASED, State.BREAKING)
        return held and self._proves(row, ownership)

    def checkpoint(
        self, marks: Sequence[Mark], now: float, wall: datetime
    ) -> Mapping[str, MarkRefusal]:
        """Write, and note what was accepted."""
        refused = super().checkpoint(marks, now, wall)
        for mark in marks:
            if mark.ownership.key in refused:
                self.checks.writes_refused += 1
            else:
                self.checks.write_accepted(mark)
        return refused

    def _note(self, row: ResourceRow) -> None:
        self.checks.changes.append(Change(at_s=self._time_s(), key=row.key, holder=row.holder))
