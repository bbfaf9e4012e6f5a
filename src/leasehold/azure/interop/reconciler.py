"""One Leasehold host among Azure's clients: what it does after each of its renewals.

Azure's records decide who may read, for clients look nowhere else. So that hosts see it too, each
live client is a member of the group in Leasehold's store: a *stand-in*, under its own lease, which
the hosts extend. It holds in the store what the client owns in the records. What a client takes
from a host ends in the store as stolen, with a new epoch, which fences the host.

In each cycle a host

1. *mirrors*: brings the owners that the records name into the store;
2. *refreshes* the records of what it holds, long before they expire;
3. *rebalances*: takes partitions from clients that own more than the even share, for itself or for
   another client. Clients never give anything away;
4. *frees* the records that hosts have left behind, after writing their checkpoints.

To give a partition to a client is to write its name into the record: it finds it in its next cycle,
and begins, whatever its strategy. If it has gone, the record is freed again.

Several hosts may do all of this at the same time, or twice: each step is a compare-and-set.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.azure.interop.records import (
    has_offset,
    host_of_owner,
    host_owner_id,
    is_host_owner,
    is_stand_in,
    stand_in,
    stand_in_token,
)
from leasehold.core.balance import Snapshot, Strategy, plan
from leasehold.errors import InvalidDuration, LeaseLost
from leasehold.lease.group_state import GroupState
from leasehold.model import HandOver, KeyClaim, Lease, MemberInfo, Ownership, State
from leasehold.names import last_part

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from leasehold.azure.interop.records import OwnershipRecords
    from leasehold.clock import Clock
    from leasehold.model import Changes, Resource
    from leasehold.ports import Store

log = logging.getLogger("leasehold.azure")

# Each is a separate request to Azure's storage, and all of them share the time of one call.
MAX_WRITES_PER_CALL = 64
_MAX_GENERATIONS = 100
_EXTENSIONS_PER_LEASE = 3
_IN_FORCE = frozenset((State.LEASED, State.BREAKING))


class Reconciler:
    """One lease of a host, and the records of its group."""

    def __init__(
        self,
        store: Store,
        records: OwnershipRecords,
        *,
        lease: Lease,
        is_pending: Callable[[str], bool],
        private_store: bool,
        expiry_s: float,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """``is_pending``: whether Azure's records lack the last checkpoint of a key.

        ``private_store``: no other host shares the store. Hosts with other stores then count as
        clients, except that they give away what they have too much of.
        """
        self.records = records
        self.owner_id = host_owner_id(lease.holder)
        self.lease_s = lease.duration_s
        self._store = store
        self._lease = lease
        self._is_pending = is_pending
        self._private_store = private_store
        self._expiry_s = expiry_s
        self._clock = clock
        self._rng = rng
        self._group_state = GroupState()
        self._claimed: dict[str, Ownership] = {}  # perhaps not in a renewal yet
        self._generations: dict[str, int] = {}
        self._stand_in_s = expiry_s  # or less, if the store limits leases
        self._due_s: dict[str, float] = {}  # by owner: when its lease is to be extended from here
        self._free_s: dict[str, float] = {}  # by partition: since when it has no owner
        self._orphans: set[str] = set()
        self._unclaimed: set[str] = set()  # named for this host, and not held
        self._capped_s: dict[str, float] = {}  # by owner: when its limit was last confirmed
        self._unresponsive: set[str] = set()  # clients that did not take what they were given

    def apply(self, changes: Changes) -> None:
        """Apply the changes that a renewal of this lease returned."""
        self._group_state.apply(changes)

    def is_latest(self, ownership: Ownership) -> bool:
        """Return whether no other owner has had the key since then, as seen here."""
        known = self._group_state.resources.get(ownership.key)
        named = self.records.named_owner(last_part(ownership.key))
        return known is not None and known.epoch <= ownership.epoch and named in {"", self.owner_id}

    def add_claimed(self, ownerships: Iterable[Ownership]) -> None:
        """Add what was claimed under this lease."""
        self._claimed |= {each.key: each for each in ownerships}

    def ownership_of(self, key: str) -> Ownership | None:
        """Return the ownership of a key, as seen here."""
        known, won = self._group_state.resources.get(key), self._claimed.get(key)
        if won is not None and (known is None or known.epoch <= won.epoch):
            return won
        if known is None or not _holds(known, self._lease.holder):
            return None
        holder, token = self._lease.holder, self._lease.token
        return Ownership(key=key, epoch=known.epoch, holder=holder, token=token)

    def expires_soon(self) -> bool:
        """Return whether a record of what this host holds may expire within a lease."""
        held = (
            last_part(k) for k, each in self._group_state.resources.items() if self._is_mine(each)
        )
        named = (each for each in held if self.records.named_owner(each) == self.owner_id)
        return any(self.records.age_s(each) > self._expiry_s - self.lease_s for each in named)

    def _is_mine(self, resource: Resource) -> bool:
        return _holds(resource, self._lease.holder)

    def to_extend(self) -> list[str]:
        """Return the clients that are live and whose stand-ins need to be extended."""
        living = {self.records.live_client(each) for each in self.records.by_partition}
        return sorted(each for each in living if each in self._due_s and self._is_due(each))

    async def extend(self, owners: Iterable[str]) -> None:
        """Extend stand-ins, so that they outlive a time in which no record can be read."""
        for owner in owners:
            try:
                await self._extended_lease(owner)
            except LeaseLost as lost:
                self._log_missing_stand_in(owner, lost)

    async def confirm(self, partitions: Iterable[str]) -> None:
        """Check that the records still name this host; what a client has claimed becomes stolen.

        Writing a record again defeats every claim that was begun before it.
        """
        asked = [*partitions]
        mine = [each for each in asked if self.records.named_owner(each) == self.owner_id]
        if len(await self.records.write(dict.fromkeys(mine, self.owner_id))) < len(mine):
            await self.records.refresh()
        # An earlier read may have seen it already, without a change in the store.
        if any(map(self.records.live_client, asked)):
            await self._mirror()

    async def reconcile(self) -> bool:
        """Mirror, refresh, rebalance and free; return whether the store has changed."""
        changed = await self._mirror()
        if changed:
            await self._renew_lease()
        left_behind = await self._refresh_records()
        changed |= await self._rebalance()
        # Last: what others have left must not keep this host from its own records.
        await self._free_orphans(left_behind)
        return changed

    async def _renew_lease(self) -> None:
        self.apply(await self._store.renew(self._lease, since=self._group_state.version))

    # -------------------------------------------------------------- mirror

    async def _mirror(self) -> bool:
        keys: dict[str, list[Resource]] = {}
        for resource in self._group_state.resources.values():
            owner = self.records.live_client(last_part(resource.key))
            if owner:
                keys.setdefault(owner, []).append(resource)
        counts = Counter({owner: len(owned) for owner, owned in keys.items()})
        self._track_free_partitions()
        changed = await self._release_gone()
        for owner in sorted(keys):
            try:
                lease = await self._stand_in_lease(owner, count=counts[owner])
                taken = [each for each in keys[owner] if not _holds(each, lease.holder)]
                wanted = [KeyClaim(key=each.key, seen_epoch=each.epoch) for each in taken]
                if wanted:
                    changed |= bool(await self._store.claim(lease, wanted, force=True))
            except LeaseLost as lost:  # that of the stand-in: there will be another
                self._log_missing_stand_in(owner, lost)
        self._forget_gone_clients()
        return await self._drain_idle_clients(set(keys)) or changed

    def _forget_gone_clients(self) -> None:
        """Forget clients that have gone: each start of a client has a new name."""
        living = {self.records.named_owner(each) for each in self.records.by_partition}
        members = {holder.partition("#")[0] for holder in self._group_state.members}
        for known in (self._due_s, self._generations, self._capped_s):
            for owner in [each for each in known if each not in living]:
                if stand_in(owner) not in members:
                    del known[owner]
        self._unresponsive &= living

    async def _release_gone(self) -> bool:
        """Release in the store what a client no longer has."""
        over = [
            Ownership(key=each.key, epoch=each.epoch, holder=holder, token=stand_in_token(holder))
            for each in self._group_state.resources.values()
            if (holder := each.holder) is not None
            and is_stand_in(holder)
            and each.state in _IN_FORCE
            and holder.partition("#")[0] != stand_in(self.records.live_client(last_part(each.key)))
        ]
        given: list[Ownership] = []
        if self._private_store:
            given = [
                each
                for each in over
                if self.records.named_owner(last_part(each.key)) == self.owner_id
            ]
        free = [each for each in over if each not in given]
        done = [*await self._store.release(free)] if free else []
        if given:
            # A host with another store has given it to this one. A shared store would reserve it.
            kept = [HandOver(ownership=each, to=self._lease.holder) for each in given]
            limit = timedelta(seconds=self._expiry_s / 2)
            done += await self._store.hand_over(kept, limit=limit)
        return bool(done)

    async def _stand_in_lease(self, owner: str, *, count: int) -> Lease:
        """Return the lease of the stand-in for a live client, extended from time to time."""
        holder = stand_in(owner, self._generations.get(owner, 1))
        lease = self._lease_of(holder)
        member = self._group_state.members.get(holder)
        if member is None or self._is_due(owner):
            lease = await self._extended_lease(owner)
        most = self._max_of(owner, count, member.info.most if member is not None else None)
        wanted = MemberInfo(host="azure", most=most)
        if member is not None and member.info != wanted:
            await self._set_info(lease, wanted)
        return lease

    def _max_of(self, owner: str, count: int, most: int | None) -> int | None:
        """Return the limit for a client that did not take what it could have."""
        if most is not None and count > most:
            self._unresponsive.discard(owner)
            return None
        now_s = self._clock.boottime_s()
        if self._is_partition_stuck() or owner in self._unresponsive:
            self._capped_s[owner] = now_s
            if is_host_owner(owner):
                self._unresponsive.discard(owner)  # it had its reasons, which may have ended
            return count
        if most is not None and now_s - self._capped_s.setdefault(owner, now_s) > self._expiry_s:
            return None
        return most

    async def _extended_lease(self, owner: str) -> Lease:
        """Return a lease for the stand-in, in the first generation that has not ended."""
        first = self._generations.get(owner, 1)
        for generation in range(first, first + _MAX_GENERATIONS):
            sent_s = self._clock.boottime_s()
            try:
                granted = await self._grant(stand_in(owner, generation))
            except LeaseLost:
                continue
            self._generations[owner] = generation
            # Another host may have begun it with a lease of another length.
            self._due_s[owner] = sent_s + granted.duration_s / _EXTENSIONS_PER_LEASE
            return granted
        self._generations[owner] = first + _MAX_GENERATIONS
        raise LeaseLost(f"{owner} has come back {_MAX_GENERATIONS} times", key=owner)

    async def _grant(self, holder: str) -> Lease:
        """Grant the whole expiry, or as long as this host's lease if the store refuses that."""
        try:
            return await self._grant_for(holder, self._stand_in_s)
        except InvalidDuration:
            self._stand_in_s = self._lease.duration_s
            return await self._grant_for(holder, self._stand_in_s)

    async def _grant_for(self, holder: str, seconds: float) -> Lease:
        return await self._store.grant(
            holder=holder,
            token=stand_in_token(holder),
            group=self._lease.group,
            duration=timedelta(seconds=seconds),
            info=MemberInfo(host="azure"),
        )

    def _is_due(self, owner: str) -> bool:
        return self._clock.boottime_s() >= self._due_s.get(owner, 0.0)

    def _log_missing_stand_in(self, owner: str, lost: LeaseLost) -> None:
        log.warning("%s could not be stood for: %s", owner, lost)
        self._due_s.pop(owner, None)

    async def _drain_idle_clients(self, owners: set[str]) -> bool:
        """Give nothing to clients that own nothing, until they own something or are forgotten."""
        names = {stand_in(owner) for owner in owners}
        told = False
        for holder, member in list(self._group_state.members.items()):
            idle = is_stand_in(holder) and holder.partition("#")[0] not in names
            if idle and not member.info.draining:
                told |= await self._set_info(
                    self._lease_of(holder), MemberInfo(host="azure", draining=True)
                )
        return told

    async def _set_info(self, lease: Lease, info: MemberInfo) -> bool:
        try:
            await self._store.renew(lease, since=self._group_state.version, info=info)
        except LeaseLost:
            return False  # it is gone already
        return True

    def _lease_of(self, holder: str) -> Lease:
        return Lease(
            holder=holder,
            token=stand_in_token(holder),
            group=self._lease.group,
            duration_s=self._stand_in_s,
        )

    def _track_free_partitions(self) -> None:
        now_s, free = self._clock.boottime_s(), {}
        for key, resource in self._group_state.resources.items():
            partition = last_part(key)
            owned = resource.holder is not None or resource.handed_to is not None
            if not owned and not self.records.live_owner(partition):
                free[partition] = self._free_s.get(partition, now_s)
        self._free_s = free

    def _is_partition_stuck(self) -> bool:
        """Return whether a partition was free for so long that no client will take it."""
        oldest_s = min(self._free_s.values(), default=self._clock.boottime_s())
        return self._clock.boottime_s() - oldest_s > self._expiry_s / 2

    # ---------------------------------------------------------------- keep

    async def _refresh_records(self) -> set[str]:
        """Refresh this host's records; return partitions that gone hosts have left behind."""
        owners: dict[str, str] = {}
        orphans: set[str] = set()
        unclaimed: set[str] = set()
        for key, resource in self._group_state.resources.items():
            partition = last_part(key)
            named = self.records.named_owner(partition)
            if self._is_mine(resource):
                is_mine = named == self.owner_id
                if not self.records.live_client(partition) and (
                    not is_mine or self.records.needs_refresh(partition)
                ):
                    owners[partition] = self.owner_id
            elif named == self.owner_id:
                if resource.handed_to is None and not self._is_pending(key):
                    unclaimed.add(partition)
            elif resource.holder is None and resource.handed_to is None and self._is_gone(named):
                # To hosts it is free already, to clients it is not; but most likely a host will
                # take it immediately.
                orphans.add(partition)
        unaccepted = self.records.unaccepted()
        self._unresponsive |= {self.records.named_owner(each) for each in unaccepted}
        left_behind = orphans & self._orphans
        # A host with a private store may just have been given it, and is about to claim it.
        left = unclaimed & self._unclaimed if self._private_store else unclaimed
        owners |= dict.fromkeys([*left, *unaccepted], "")
        self._orphans, self._unclaimed = orphans, unclaimed
        await self.records.write(dict(list(owners.items())[:MAX_WRITES_PER_CALL]))
        return left_behind

    async def _free_orphans(self, left_behind: set[str]) -> None:
        some = sorted(left_behind)[:MAX_WRITES_PER_CALL]
        if some:
            await self._copy_checkpoints(some)
            await self.records.write(dict.fromkeys(some, ""))

    async def _copy_checkpoints(self, partitions: Iterable[str]) -> None:
        """Write checkpoints to Azure's records that a gone host could not write there."""
        stored = await self._store.checkpoints(self._lease.group)
        azure_positions = await self.records.positions()
        for partition in partitions:
            known = stored.get(f"{self._lease.group}/{partition}")
            if known is not None and has_offset(known.position):
                there = azure_positions.get(partition)
                if there is None or there < known.position:
                    await self.records.write_checkpoint(partition, known.position)

    def _is_gone(self, owner: str) -> bool:
        return self.records.is_host(owner) and host_of_owner(owner) not in self._group_state.members

    # --------------------------------------------------------------- share

    async def _rebalance(self) -> bool:
        members = {holder: member.info for holder, member in self._group_state.members.items()}
        own_info = members.get(self._lease.holder)
        if own_info is None or own_info.draining:
            return False
        snapshot = Snapshot(members=members, resources=self._group_state.resources)
        mine: list[str] = []
        between_clients: dict[str, str] = {}
        for holder in filter(is_stand_in, sorted(members)):
            for key, to in plan(Strategy.EVEN, snapshot, holder, self._rng).hand_over.items():
                if to == self._lease.holder:
                    mine.append(key)
                elif is_stand_in(to) and self._moves_between_clients(members):
                    between_clients[last_part(key)] = self.records.client_of_stand_in(to)
        await self.records.write(dict(list(between_clients.items())[:MAX_WRITES_PER_CALL]))
        return await self._take(self._takeable(mine)[:MAX_WRITES_PER_CALL])

    def _moves_between_clients(self, members: Iterable[str]) -> bool:
        """Return whether this host is the one that moves partitions between clients."""
        first = min(holder for holder in members if not is_stand_in(holder))
        return first == self._lease.holder and not self._private_store

    def _takeable(self, keys: list[str]) -> list[str]:
        """Return those keys that no owner will give to this host.

        A host with another store gives gracefully as soon as it sees this one; and it sees this one
        as soon as it owns something.
        """
        if not self._private_store:
            return keys
        taken = [
            each for each in keys if not is_host_owner(self.records.live_client(last_part(each)))
        ]
        is_seen = any(
            self.records.named_owner(each) == self.owner_id for each in self.records.by_partition
        )
        return taken if taken or is_seen else keys[:1]

    async def _take(self, keys: list[str]) -> bool:
        """Take from clients: first in Azure's records, then in the store."""
        won = await self.records.write(dict.fromkeys(map(last_part, keys), self.owner_id))
        taken = [key for key in keys if last_part(key) in won]
        if not taken:
            return False
        wanted = [
            KeyClaim(key=key, seen_epoch=self._group_state.resources[key].epoch) for key in taken
        ]
        await self._store.claim(self._lease, wanted, force=True)
        # What the store has refused is freed in the records by the next ``_refresh_records``.
        return True


def _holds(resource: Resource, holder: str) -> bool:
    return resource.holder == holder and resource.state in _IN_FORCE
