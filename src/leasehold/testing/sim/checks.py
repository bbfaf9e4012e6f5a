"""The invariants of ownership, checked at every step of a simulation.

Those of the work are in ``deliveries``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.model import State
from leasehold.stores.registry import Registry

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
