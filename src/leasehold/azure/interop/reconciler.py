"""Where two worlds meet: one host of ours among Azure's clients, after each of its renewals.

The truth of who may read lies in *their* records, for nobody there looks anywhere else. So that our
hosts see it too, each living client of theirs is a member of our group, under a lease of its own
that our hosts keep for it, and holds in our store what it owns in their records. Whatever it takes
from a host of ours ends there as stolen, with a new epoch, which fences the one that lost it.

In each cycle a host

1. *mirrors*: gives our store the owners that their records name;
2. *keeps*: refreshes the records of what it holds, long before they look dead;
3. *shares*: takes from clients that own more than the even share what is missing in its own, or
   in that of another client. They never give anything away by themselves;
4. *clears up*: frees the records that hosts of ours have left behind, with their checkpoints.

To give a partition to a client is to write its name into the record: it finds it there in its next
cycle, and begins, whatever its strategy. If it has gone, the record is freed again.

All of it may be done by several hosts at once, or again: each step is a compare-and-set.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.azure.interop.records import (
    can_be_told,
    host_of,
    is_of_ours,
    is_stand_in,
    owner_of_ours,
    stand_in,
    token_of,
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

# Each is a request of its own to their storage, and all of them share the time of one call.
MAX_AT_ONCE = 64
_MAX_LIVES = 100
_EXTENSIONS_PER_LEASE = 3
_IN_FORCE = frozenset((State.LEASED, State.BREAKING))


class Reconciler:
    """One lease of a host of ours, and the records of its group."""

    def __init__(
        self,
        store: Store,
        records: OwnershipRecords,
        *,
        lease: Lease,
        owes: Callable[[str], bool],
        alone: bool,
        expiry_s: float,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """Nothing is known yet.

        ``owes``: whether theirs lack our last checkpoint of a key. ``alone``: no other host shares
        our store, and those of ours that are elsewhere count as clients, but for one thing: they
        give away what they have too much of.
        """
        self.records = records
        self.me = owner_of_ours(lease.holder)
        self.lease_s = lease.duration_s
        self._store = store
        self._lease = lease
        self._owes = owes
        self._alone = alone
        self._expiry_s = expiry_s
        self._clock = clock
        self._rng = rng
        self._view = GroupState()
        self._won: dict[str, Ownership] = {}  # what no renewal may have told yet
        self._lives: dict[str, int] = {}
        self._stand_in_s = expiry_s  # or less, where the store does not give so long a lease
        self._due_s: dict[str, float] = {}  # by owner: when its lease is to be extended from here
        self._free_s: dict[str, float] = {}  # by partition: since when nobody has it
        self._orphans: set[str] = set()
        self._unclaimed: set[str] = set()  # in our name, and not held
        self._capped_s: dict[str, float] = {}  # by owner: when it was last seen to want no more
        self._shy: set[str] = set()  # clients that did not take what they were given

    def learn(self, changes: Changes) -> None:
        """Take in what a renewal of this lease has told."""
        self._view.apply(changes)

    def is_still(self, ownership: Ownership) -> bool:
        """Whether nobody else has had the key since then, as far as was seen here."""
        known = self._view.resources.get(ownership.key)
        named = self.records.named(last_part(ownership.key))
        return known is not None and known.epoch <= ownership.epoch and named in {"", self.me}

    def won(self, ownerships: Iterable[Ownership]) -> None:
        """Take in what was claimed under this lease."""
        self._won |= {each.key: each for each in ownerships}

    def owned(self, key: str) -> Ownership | None:
        """The ownership of a key, as far as was seen here."""
        known, won = self._view.resources.get(key), self._won.get(key)
        if won is not None and (known is None or known.epoch <= won.epoch):
            return won
        if known is None or not _holds(known, self._lease.holder):
            return None
        holder, token = self._lease.holder, self._lease.token
        return Ownership(key=key, epoch=known.epoch, holder=holder, token=token)

    def looks_dead_soon(self) -> bool:
        """Whether a record of what we hold may look dead to them within a lease from now."""
        held = (last_part(k) for k, each in self._view.resources.items() if self._is_mine(each))
        ours = (each for each in held if self.records.named(each) == self.me)
        return any(self.records.age_s(each) > self._expiry_s - self.lease_s for each in ours)

    def _is_mine(self, resource: Resource) -> bool:
        return _holds(resource, self._lease.holder)

    def to_extend(self) -> list[str]:
        """The clients that live by what was last read, and whose stand-ins need to be extended."""
        living = {self.records.client(each) for each in self.records.by_partition}
        return sorted(each for each in living if each in self._due_s and self._is_due(each))

    async def extend(self, owners: Iterable[str]) -> None:
        """Extend their stand-ins, which so outlive a pause in which no record can be read."""
        for owner in owners:
            try:
                await self._granted(owner)
            except LeaseLost as lost:
                self._without_stand_in(owner, lost)

    async def confirm(self, partitions: Iterable[str]) -> None:
        """See that their records name us still; what a client has claimed is stolen from now on.

        A record that is written again takes the ground from under every claim that was begun
        before it.
        """
        asked = [*partitions]
        mine = [each for each in asked if self.records.named(each) == self.me]
        if len(await self.records.write(dict.fromkeys(mine, self.me))) < len(mine):
            await self.records.look()
        # A look before this may have seen it already, and nobody has told our store.
        if any(map(self.records.client, asked)):
            await self._mirror()

    async def settle(self) -> bool:
        """Mirror, keep, share, clear up; say whether our store has changed."""
        changed = await self._mirror()
        if changed:
            await self._refresh()
        left_behind = await self._keep()
        changed |= await self._share()
        # At last: what others have left must not keep us from what is ours.
        await self._clear_up(left_behind)
        return changed

    async def _refresh(self) -> None:
        self.learn(await self._store.renew(self._lease, since=self._view.version))

    # -------------------------------------------------------------- mirror

    async def _mirror(self) -> bool:
        keys: dict[str, list[Resource]] = {}
        for resource in self._view.resources.values():
            owner = self.records.client(last_part(resource.key))
            if owner:
                keys.setdefault(owner, []).append(resource)
        counts = Counter({owner: len(owned) for owner, owned in keys.items()})
        self._watch_free_ones()
        changed = await self._let_go()
        for owner in sorted(keys):
            try:
                lease = await self._life_of(owner, count=counts[owner])
                taken = [each for each in keys[owner] if not _holds(each, lease.holder)]
                wanted = [KeyClaim(key=each.key, seen_epoch=each.epoch) for each in taken]
                if wanted:
                    changed |= bool(await self._store.claim(lease, wanted, force=True))
            except LeaseLost as lost:  # not ours, but that of the stand-in: there will be another
                self._without_stand_in(owner, lost)
        self._forget_gone()
        return await self._tell_of_idle_ones(set(keys)) or changed

    def _forget_gone(self) -> None:
        """Clients have a new name after each start: nothing is kept of those that are not here."""
        living = {self.records.named(each) for each in self.records.by_partition}
        members = {holder.partition("#")[0] for holder in self._view.members}
        for known in (self._due_s, self._lives, self._capped_s):
            for owner in [each for each in known if each not in living]:
                if stand_in(owner) not in members:
                    del known[owner]
        self._shy &= living

    async def _let_go(self) -> bool:
        """Free in our store what a client of theirs has no more."""
        over = [
            Ownership(key=each.key, epoch=each.epoch, holder=holder, token=token_of(holder))
            for each in self._view.resources.values()
            if (holder := each.holder) is not None
            and is_stand_in(holder)
            and each.state in _IN_FORCE
            and holder.partition("#")[0] != stand_in(self.records.client(last_part(each.key)))
        ]
        given: list[Ownership] = []
        if self._alone:
            given = [each for each in over if self.records.named(last_part(each.key)) == self.me]
        free = [each for each in over if each not in given]
        done = [*await self._store.release(free)] if free else []
        if given:
            # Somebody elsewhere has given it to us. At home it would be kept for us until we come.
            kept = [HandOver(ownership=each, to=self._lease.holder) for each in given]
            limit = timedelta(seconds=self._expiry_s / 2)
            done += await self._store.hand_over(kept, limit=limit)
        return bool(done)

    async def _life_of(self, owner: str, *, count: int) -> Lease:
        """The lease of the stand-in for a client that lives, extended from time to time."""
        holder = stand_in(owner, self._lives.get(owner, 1))
        lease = self._lease_of(holder)
        peer = self._view.members.get(holder)
        if peer is None or self._is_due(owner):
            lease = await self._granted(owner)
        most = self._max_of(owner, count, peer.info.most if peer is not None else None)
        wanted = MemberInfo(host="azure", most=most)
        if peer is not None and peer.info != wanted:
            await self._tell(lease, wanted)
        return lease

    def _max_of(self, owner: str, count: int, most: int | None) -> int | None:
        """What it may be given, if it did not take what it could have: the others shall."""
        if most is not None and count > most:
            self._shy.discard(owner)
            return None
        now_s = self._clock.boottime_s()
        if self._stuck() or owner in self._shy:
            self._capped_s[owner] = now_s
            if is_of_ours(owner):
                self._shy.discard(owner)  # it had its reasons, which may have ended
            return count
        if most is not None and now_s - self._capped_s.setdefault(owner, now_s) > self._expiry_s:
            return None
        return most

    async def _granted(self, owner: str) -> Lease:
        """A lease for the stand-in, under the first of its lives that has not ended.

        Raises:
            LeaseLost: it has come back too often for one look.
        """
        first = self._lives.get(owner, 1)
        for life in range(first, first + _MAX_LIVES):
            sent_s = self._clock.boottime_s()
            try:
                granted = await self._grant(stand_in(owner, life))
            except LeaseLost:
                continue
            self._lives[owner] = life
            # Another host of ours may have begun it with a lease of another length.
            self._due_s[owner] = sent_s + granted.duration_s / _EXTENSIONS_PER_LEASE
            return granted
        self._lives[owner] = first + _MAX_LIVES
        raise LeaseLost(f"{owner} has come back {_MAX_LIVES} times", key=owner)

    async def _grant(self, holder: str) -> Lease:
        """A lease of the whole expiry, or one like ours where the store gives none so long.

        Raises:
            LeaseLost: this holder's lease has ended.
        """
        try:
            return await self._grant_for(holder, self._stand_in_s)
        except InvalidDuration:
            self._stand_in_s = self._lease.duration_s
            return await self._grant_for(holder, self._stand_in_s)

    async def _grant_for(self, holder: str, seconds: float) -> Lease:
        return await self._store.grant(
            holder=holder,
            token=token_of(holder),
            group=self._lease.group,
            duration=timedelta(seconds=seconds),
            info=MemberInfo(host="azure"),
        )

    def _is_due(self, owner: str) -> bool:
        return self._clock.boottime_s() >= self._due_s.get(owner, 0.0)

    def _without_stand_in(self, owner: str, lost: LeaseLost) -> None:
        log.warning("%s could not be stood for: %s", owner, lost)
        self._due_s.pop(owner, None)

    async def _tell_of_idle_ones(self, owners: set[str]) -> bool:
        """Clients that own nothing get nothing, until they own something or are forgotten."""
        names = {stand_in(owner) for owner in owners}
        told = False
        for holder, peer in list(self._view.members.items()):
            idle = is_stand_in(holder) and holder.partition("#")[0] not in names
            if idle and not peer.info.draining:
                told |= await self._tell(
                    self._lease_of(holder), MemberInfo(host="azure", draining=True)
                )
        return told

    async def _tell(self, lease: Lease, info: MemberInfo) -> bool:
        try:
            await self._store.renew(lease, since=self._view.version, info=info)
        except LeaseLost:
            return False  # it is gone already
        return True

    def _lease_of(self, holder: str) -> Lease:
        return Lease(
            holder=holder,
            token=token_of(holder),
            group=self._lease.group,
            duration_s=self._stand_in_s,
        )

    def _watch_free_ones(self) -> None:
        now_s, free = self._clock.boottime_s(), {}
        for key, resource in self._view.resources.items():
            partition = last_part(key)
            owned = resource.holder is not None or resource.handed_to is not None
            if not owned and not self.records.owner(partition):
                free[partition] = self._free_s.get(partition, now_s)
        self._free_s = free

    def _stuck(self) -> bool:
        """Whether something was free for so long that none of their clients will take it."""
        oldest_s = min(self._free_s.values(), default=self._clock.boottime_s())
        return self._clock.boottime_s() - oldest_s > self._expiry_s / 2

    # ---------------------------------------------------------------- keep

    async def _keep(self) -> set[str]:
        """Refresh what is ours; what hosts that have gone have left behind is returned."""
        owners: dict[str, str] = {}
        orphans: set[str] = set()
        unclaimed: set[str] = set()
        for key, resource in self._view.resources.items():
            partition = last_part(key)
            named = self.records.named(partition)
            if self._is_mine(resource):
                is_mine = named == self.me
                if not self.records.client(partition) and (
                    not is_mine or self.records.due(partition)
                ):
                    owners[partition] = self.me
            elif named == self.me:
                if resource.handed_to is None and not self._owes(key):
                    unclaimed.add(partition)
            elif resource.holder is None and resource.handed_to is None and self._is_gone(named):
                # For us it is free already. For them it is not; but most likely one of us will
                # take it at once.
                orphans.add(partition)
        untaken = self.records.untaken()
        self._shy |= {self.records.named(each) for each in untaken}
        left_behind = orphans & self._orphans
        # A host that is alone may just have been given it, and is about to claim it.
        left = unclaimed & self._unclaimed if self._alone else unclaimed
        owners |= dict.fromkeys([*left, *untaken], "")
        self._orphans, self._unclaimed = orphans, unclaimed
        await self.records.write(dict(list(owners.items())[:MAX_AT_ONCE]))
        return left_behind

    async def _clear_up(self, left_behind: set[str]) -> None:
        some = sorted(left_behind)[:MAX_AT_ONCE]
        if some:
            await self._bring_up(some)
            await self.records.write(dict.fromkeys(some, ""))

    async def _bring_up(self, partitions: Iterable[str]) -> None:
        """Give theirs the checkpoints that a host which has gone could not write there."""
        ours = await self._store.checkpoints(self._lease.group)
        theirs = await self.records.positions()
        for partition in partitions:
            known = ours.get(f"{self._lease.group}/{partition}")
            if known is not None and can_be_told(known.position):
                there = theirs.get(partition)
                if there is None or there < known.position:
                    await self.records.put(partition, known.position)

    def _is_gone(self, owner: str) -> bool:
        return self.records.is_ours(owner) and host_of(owner) not in self._view.members

    # --------------------------------------------------------------- share

    async def _share(self) -> bool:
        members = {holder: peer.info for holder, peer in self._view.members.items()}
        me = members.get(self._lease.holder)
        if me is None or me.draining:
            return False
        snapshot = Snapshot(members=members, resources=self._view.resources)
        mine: list[str] = []
        theirs: dict[str, str] = {}
        for holder in filter(is_stand_in, sorted(members)):
            for key, to in plan(Strategy.EVEN, snapshot, holder, self._rng).hand_over.items():
                if to == self._lease.holder:
                    mine.append(key)
                elif is_stand_in(to) and self._arranges(members):
                    theirs[last_part(key)] = self.records.client_named(to)
        await self.records.write(dict(list(theirs.items())[:MAX_AT_ONCE]))
        return await self._take(self._takeable(mine)[:MAX_AT_ONCE])

    def _arranges(self, members: Iterable[str]) -> bool:
        """Whether it is this host that moves partitions between clients of theirs."""
        first = min(holder for holder in members if not is_stand_in(holder))
        return first == self._lease.holder and not self._alone

    def _takeable(self, keys: list[str]) -> list[str]:
        """Those that nobody will give us by himself.

        One of ours that shares no store with us gives as soon as it sees us, in good order; and it
        sees us as soon as we own one.
        """
        if not self._alone:
            return keys
        taken = [each for each in keys if not is_of_ours(self.records.client(last_part(each)))]
        is_seen = any(self.records.named(each) == self.me for each in self.records.by_partition)
        return taken if taken or is_seen else keys[:1]

    async def _take(self, keys: list[str]) -> bool:
        """Take from clients of theirs: first in their records, then in our store."""
        won = await self.records.write(dict.fromkeys(map(last_part, keys), self.me))
        taken = [key for key in keys if last_part(key) in won]
        if not taken:
            return False
        wanted = [KeyClaim(key=key, seen_epoch=self._view.resources[key].epoch) for key in taken]
        await self._store.claim(self._lease, wanted, force=True)
        # What our store has refused is freed in their records by the next ``_keep``.
        return True


def _holds(resource: Resource, holder: str) -> bool:
    return resource.holder == holder and resource.state in _IN_FORCE
