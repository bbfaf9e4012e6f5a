"""What the tests have in common: members and keys with their own names, and snapshots of them.

A ``GroupSnapshot`` is all that a group shows. Two snapshots are compared to prove that a refusal
changed nothing, or that two ways lead to the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pprint import pformat
from typing import TYPE_CHECKING

import pytest

from leasehold.clock import new_suffix
from leasehold.errors import LeaseLost
from leasehold.model import (
    CheckpointWrite,
    EndReason,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Note,
    Ownership,
    Position,
    State,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    from leasehold.model import Checkpoint, MemberRecord, Resource, Term
    from leasehold.ports import Store
    from leasehold.testing.contract.harness import Harness

# In units: a lease that outlasts every test, and a wait after which a lease of one unit is over.
LONG = 200.0
OVER = 1.05

GUESS = "a guess"
_ENDED_BY_TIME = {State.EXPIRED: EndReason.EXPIRED, State.BROKEN: EndReason.BROKEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """All that a group shows, without the times that pass on their own."""

    resources: Mapping[str, Resource]
    members: Mapping[str, MemberRecord]
    terms: Mapping[str, tuple[Term, ...]]
    checkpoints: Mapping[str, Checkpoint]
    fenced: int

    def tidied(self, keys: Iterable[str]) -> GroupSnapshot:
        """Return the snapshot after a store has recorded what time has ended at ``keys``."""
        resources, terms = dict(self.resources), dict(self.terms)
        for key in keys:
            reason = _ENDED_BY_TIME.get(resources[key].state)
            terms[key] = tuple(
                replace(term, ended_at=None, reason=term.reason or reason) for term in terms[key]
            )
            free = State.AVAILABLE if reason else resources[key].state
            holder = None if reason else resources[key].holder
            resources[key] = replace(
                resources[key], state=free, holder=holder, asked_by=None, version=0
            )
        return replace(self, resources=resources, terms=terms)

    def plain(self, suffix: str) -> list[str]:
        """Return lines of text without versions, times and ``suffix``, comparable between cases."""
        bare = (
            [replace(each, version=0) for each in self.resources.values()],
            [replace(each, version=0) for each in self.members.values()],
            [
                (term.key, term.epoch, term.holder, term.ended_at is None, term.reason, term.note)
                for terms in self.terms.values()
                for term in terms
            ],
            [(each.key, each.epoch, each.position) for each in self.checkpoints.values()],
            self.fenced,
        )
        return pformat(bare, width=200).replace(suffix, "").splitlines()


def assert_unchanged(before: GroupSnapshot, after: GroupSnapshot) -> None:
    """Check that nothing differs but what time has ended, and that only by being recorded."""
    ended = [key for key, each in before.resources.items() if each.state in _ENDED_BY_TIME]
    assert after.tidied(ended) == before.tidied(ended)


@dataclass(frozen=True, slots=True)
class StoreCase:
    """A store, and a group in it for one test."""

    store: Store
    harness: Harness
    suffix: str
    _numbers: Iterator[int] = field(default_factory=count)
    # Declared keys, including forgotten ones: their history is part of the snapshot.
    _keys: dict[str, None] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group of this case."""
        return f"partition/{self.suffix}/g"

    def key(self, name: str, *, group: str | None = None) -> str:
        """Return the key of that name; it need not exist."""
        return f"{group or self.group}/{name}"

    def units(self, units: float) -> timedelta:
        """Return this many units as a duration."""
        return timedelta(seconds=units * self.harness.unit_s)

    def lasting(self, units: float) -> timedelta:
        """Return this many units as the length of a lease: as near as the store allows."""
        seconds = units * self.harness.unit_s
        return timedelta(seconds=max(self.harness.shortest_s, min(seconds, self.harness.longest_s)))

    def capped(self, units: float) -> float:
        """Return this many units, or as many as the longest lease has."""
        return min(units, self.harness.longest_s / self.harness.unit_s)

    async def wait(self, units: float = OVER) -> None:
        """Let time pass."""
        await self.harness.pass_time(units * self.harness.unit_s)

    async def declared(self, *names: str, group: str | None = None) -> list[str]:
        """Declare keys; return their full names."""
        keys = [self.key(name, group=group) for name in names]
        await self.store.declare(keys)
        self._keys.update(dict.fromkeys(keys))
        return keys

    async def member(
        self,
        name: str = "m",
        *,
        units: float = LONG,
        group: str | None = None,
        info: MemberInfo | None = None,
    ) -> Lease:
        """Grant a lease to a new holder, by default a member of this case's group."""
        holder = f"{name}{next(self._numbers)}-{self.suffix}"
        lease = await self.store.grant(
            holder=holder,
            token=f"token of {holder}",
            group=self.group if group is None else group,
            duration=self.lasting(units),
            info=info or MemberInfo(host=name),
        )
        if units * self.harness.unit_s > self.harness.longest_s:
            self.harness.keep(lease)
        return lease

    async def resource(self, key: str) -> Resource:
        """Return the key as it is now."""
        return (await self.store.resources(key.rpartition("/")[0]))[key]

    async def wanted(self, key: str) -> KeyClaim:
        """Return a claim of the key with the epoch it has now."""
        return KeyClaim(key=key, seen_epoch=(await self.resource(key)).epoch)

    async def claim(self, lease: Lease, *keys: str, force: bool = False) -> list[Ownership]:
        """Claim the keys as they are seen now."""
        wanted = [await self.wanted(key) for key in keys]
        return list(await self.store.claim(lease, wanted, force=force))

    async def own(self, lease: Lease, key: str, *, force: bool = False) -> Ownership:
        """Claim the key, and check that it was granted."""
        taken = await self.claim(lease, key, force=force)
        assert [each.key for each in taken] == [key]
        return taken[0]

    async def owned(self, name: str = "k", *, units: float = LONG) -> tuple[Lease, Ownership]:
        """Return a new member that owns a new key."""
        (key,) = await self.declared(name)
        lease = await self.member("owner", units=units)
        return lease, await self.own(lease, key)

    async def hand_over(self, ownership: Ownership, to: Lease, *, units: float = LONG) -> list[str]:
        """Hand one key over."""
        passed = await self.store.hand_over(
            [HandOver(ownership=ownership, to=to.holder)], limit=self.units(units)
        )
        return list(passed)

    async def write_checkpoint(self, ownership: Ownership, sequence_number: int) -> str | None:
        """Write a checkpoint; return the reason if it was refused."""
        position = Position(sequence_number=sequence_number, offset=f"at {sequence_number}")
        refused = await self.store.checkpoint(
            [CheckpointWrite(ownership=ownership, position=position)]
        )
        return refused[ownership.key].value if refused else None

    async def annotate(self, ownership: Ownership, text: str) -> bool:
        """Annotate a term; return whether it was written."""
        return not await self.store.annotate([Note(ownership=ownership, text=text)])

    async def notes(self, key: str) -> list[str]:
        """Return the notes of the terms of a key, oldest first."""
        return [term.note for term in reversed(await self.store.history(key, limit=100))]

    async def reasons(self, key: str) -> list[EndReason | None]:
        """Return how the terms of a key ended, oldest first; None for the current one."""
        terms = await self.store.history(key, limit=100)
        return [term.reason for term in reversed(terms)]

    async def snapshot(self) -> GroupSnapshot:
        """Return the case's group as it is now."""
        resources = await self.store.resources(self.group)
        members = await self.store.members(self.group)
        keys = sorted({*self._keys, *resources})
        return GroupSnapshot(
            resources={key: replace(resources[key], breaking_s=None) for key in sorted(resources)},
            members={name: replace(members[name], remaining_s=0.0) for name in sorted(members)},
            terms={key: tuple(await self.store.history(key, limit=100)) for key in keys},
            checkpoints=dict(sorted((await self.store.checkpoints(self.group)).items())),
            fenced=await self.store.fenced_writes(self.group),
        )

    def twin(self) -> StoreCase:
        """Return another case in the same store, with other names."""
        return StoreCase(self.store, self.harness, new_suffix())


def forged(ownership: Ownership) -> Ownership:
    """Return the same ownership, presented by a caller that does not know the token."""
    return replace(ownership, token=GUESS)


async def lost(store_case: StoreCase, lease: Lease) -> str | None:
    """Return the reason if the lease cannot be renewed; None if it was."""
    try:
        await store_case.store.renew(lease)
    except LeaseLost as error:
        return error.reason
    return None


class ContractBase:
    """Base of all parts of the suite."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def harness(self) -> Harness:
        """The store under test: provided by the subclass."""
        raise NotImplementedError("give your subclass of StoreContract a fixture called harness")

    @pytest.fixture
    async def scene(self, harness: Harness) -> AsyncIterator[StoreCase]:
        """The store, opened, and names that no other test has."""
        async with harness.open() as store:
            yield StoreCase(store, harness, new_suffix())
