"""The ownership records of Azure's clients in one group: what they say, who lives, what is ours.

Guarantees: every write is a compare-and-set on the record that was seen, and is believed only if
it came back with a new etag. Their ``BlobCheckpointStore`` also returns what it could not write.

Whether an owner of theirs lives is not judged by anybody's wall clock. Its record is dead if it
has not changed for the whole expiry while we looked, or if another record was written so much
later, by the storage's clock. So a dead owner may be believed for longer than theirs do, never for
less.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from anyio import to_thread

from leasehold.azure.interop.record_layout import OwnershipRecord, record_of, stored_of
from leasehold.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from leasehold.azure.interop.record_layout import ConsumerGroup
    from leasehold.clock import Clock
    from leasehold.model import Position

_OURS = "leasehold:"
_THEIRS = "azure:"
_ELSEWHERE = "~azure"
_LONGEST_OWNER = 128
_REFRESHES_PER_EXPIRY = 2
_NO_OFFSETS = ("", "-1")
_NO_RIGHT = "; see that the key or the token of their storage is right, and may read and write"
_HINTS = {
    401: _NO_RIGHT,
    403: _NO_RIGHT,
    404: "; create the container, which is not made by itself, or name the right one",
}


class AzureCheckpointStore(Protocol):
    """A ``CheckpointStore`` of ``azure.eventhub`` or of ``azure.eventhub.aio``."""

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, /
    ) -> Any:
        """See the documentation of Azure."""
        ...

    def claim_ownership(self, ownership_list: Iterable[dict[str, Any]], /) -> Any:
        """See the documentation of Azure."""
        ...

    def update_checkpoint(self, checkpoint: dict[str, Any], /) -> Any:
        """See the documentation of Azure."""
        ...

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, /
    ) -> Any:
        """See the documentation of Azure."""
        ...


def owner_of_ours(holder: str) -> str:
    """The owner id under which a host of ours stands in their records."""
    return f"{_OURS}{holder}"


def is_of_ours(owner: str) -> bool:
    """Whether an owner id of theirs means a host of ours, and not a client of theirs."""
    return owner.startswith(_OURS)


def host_of(owner: str) -> str:
    """The host of ours that such an owner id means."""
    return owner.removeprefix(_OURS)


def stand_in(owner: str, life: int = 1) -> str:
    """The holder that stands for a client of theirs in our store.

    ``life`` counts how often it had gone and come back: a holder whose lease has ended is gone.

    Plans go by the order of holders. So one that stands for a host of ours that is elsewhere is
    called as that host is called at home: then all of them make the same plan.
    """
    name = quote(owner.removeprefix(_OURS), safe="")
    if len(name) > _LONGEST_OWNER:
        name = sha256(owner.encode(errors="replace")).hexdigest()
    name = f"{name}{_ELSEWHERE}" if is_of_ours(owner) else f"{_THEIRS}{name}"
    return name if life == 1 else f"{name}#{life}"


def is_stand_in(holder: str) -> bool:
    """Whether this holder of ours stands for a client of theirs."""
    return holder.startswith(_THEIRS) or holder.partition("#")[0].endswith(_ELSEWHERE)


def token_of(holder: str) -> str:
    """The token of a stand-in: the same for all hosts, for each of them may act for it."""
    return f"stand-in {holder}"


def is_refusal(trouble: StoreUnavailable) -> bool:
    """Whether the storage did answer, and will say no again until somebody has mended it."""
    return getattr(trouble.__cause__, "status_code", None) in _HINTS


def can_be_told(position: Position) -> bool:
    """Whether the position can be a checkpoint of theirs: they go by the offset."""
    return position.offset not in _NO_OFFSETS


class OwnershipRecords:
    """The records of one group. ``by_partition`` is what the last look has found."""

    def __init__(
        self,
        theirs: AzureCheckpointStore,
        place: ConsumerGroup,
        *,
        expiry_s: float,
        clock: Clock,
        is_ours: Callable[[str], bool] = is_of_ours,
    ) -> None:
        """Not looked yet. ``is_ours``: whether an owner id is of a host that shares our store."""
        self.is_ours = is_ours
        self.by_partition: dict[str, OwnershipRecord] = {}
        self.looked_s: float | None = None
        self._theirs = theirs
        self._place = place
        self._expiry_s = expiry_s
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # the etag, and since when it stands
        self._newest_s = 0.0
        self._given: dict[str, str] = {}  # to clients of theirs, by this host: the etag

    async def look(self) -> None:
        """Read all records, with one call.

        Raises:
            StoreUnavailable: they can not be read.
        """
        names = self._place.namespace, self._place.hub, self._place.group
        rows = await self._ask(self._theirs.list_ownership, *names)
        found = (_record(row) for row in rows)
        self.by_partition = {each.partition: each for each in found if each.partition}
        now_s = self.looked_s = self._clock.boottime_s()
        self._newest_s = max((each.modified_s for each in self.by_partition.values()), default=0.0)
        self._seen = {
            partition: known
            if (known := self._seen.get(partition)) and known[0] == _plain(record.etag)
            else (_plain(record.etag), now_s)
            for partition, record in self.by_partition.items()
        }
        # Once its client has written it again, it is the client's own.
        self._given = {
            partition: etag
            for partition, etag in self._given.items()
            if partition in self._seen and self._seen[partition][0] == etag
        }

    def owner(self, partition: str) -> str:
        """Who owns it and lives; empty if nobody does."""
        record = self.by_partition.get(partition)
        if record is None or not record.owner:
            return ""
        unchanged_s = self._clock.boottime_s() - self._seen[partition][1]
        older_s = self._newest_s - record.modified_s if record.modified_s else 0.0
        return "" if max(unchanged_s, older_s) > self._expiry_s else record.owner

    def client(self, partition: str) -> str:
        """The same, if it is a client of theirs; empty for a host of ours."""
        owner = self.owner(partition)
        return "" if self.is_ours(owner) else owner

    def named(self, partition: str) -> str:
        """The owner that the record names, living or not."""
        record = self.by_partition.get(partition)
        return record.owner if record is not None else ""

    def due(self, partition: str) -> bool:
        """Whether a record of ours should be written again, long before they take it for dead."""
        return self.age_s(partition) > self._expiry_s / _REFRESHES_PER_EXPIRY

    def age_s(self, partition: str) -> float:
        """For how long the record has not changed, as far as was seen here."""
        _, since_s = self._seen.get(partition, ("", 0.0))
        return self._clock.boottime_s() - since_s

    def client_named(self, holder: str) -> str:
        """The living client that a stand-in stands for; empty if there is none."""
        name = holder.partition("#")[0]
        found = (self.client(each) for each in self.by_partition if each not in self._given)
        return next((each for each in found if each and stand_in(each) == name), "")

    def untaken(self) -> list[str]:
        """What was given to a client of theirs that has gone since, or did not look for long."""
        return [
            each
            for each in self._given
            if self.due(each) or not self.client_named(stand_in(self.named(each)))
        ]

    async def write(self, owners: Mapping[str, str]) -> set[str]:
        """Write these owners, an empty one to free; return the partitions for which it was done.

        Raises:
            StoreUnavailable: no answer; some of it may have been written.
        """
        if not owners:
            return set()
        sent = {partition: self._row(partition, owner) for partition, owner in owners.items()}
        # Copies: some stores of theirs write the new etag into what they are given.
        sent_s = self._clock.boottime_s()
        rows = await self._ask(self._theirs.claim_ownership, [dict(each) for each in sent.values()])
        won: set[str] = set()
        for row in rows:
            done = _record(row)
            etag = sent.get(done.partition, {}).get("etag", "")
            if done.partition in sent and done.etag and _plain(done.etag) != _plain(etag):
                won.add(done.partition)
                owner = owners[done.partition]
                self.by_partition[done.partition] = replace(done, owner=owner)
                # Ours must not look younger to us than to them, nor theirs older.
                since_s = sent_s if self.is_ours(owner) else self._clock.boottime_s()
                self._seen[done.partition] = (_plain(done.etag), since_s)
                self._newest_s = max(self._newest_s, done.modified_s)
                self._given.pop(done.partition, None)
                if owner and not self.is_ours(owner):
                    self._given[done.partition] = _plain(done.etag)
        return won

    async def exchange(self, partitions: AbstractSet[str], old: str, new: str) -> None:
        """Write the new owner where the old one stands, though a record may have been renewed.

        Raises:
            StoreUnavailable: no answer; some of it may have been written.
        """
        left = partitions - await self.write(dict.fromkeys(partitions, new))
        if left:
            await self.look()
            await self.write({each: new for each in left if self.named(each) == old})

    async def positions(self) -> dict[str, Position]:
        """Their checkpoints, by partition, as far as they name a sequence number.

        Raises:
            StoreUnavailable: they can not be read.
        """
        names = self._place.namespace, self._place.hub, self._place.group
        rows = await self._ask(self._theirs.list_checkpoints, *names)
        found = (stored_of(str(row.get("partition_id") or ""), row) for row in rows)
        return {each.partition: each.position for each in found if each.position is not None}

    async def put(self, partition: str, position: Position) -> None:
        """Write a checkpoint of theirs, whatever is there.

        Raises:
            StoreUnavailable: no answer.
        """
        where = {"offset": position.offset, "sequence_number": position.sequence_number}
        row = {**self._place.ids(), "partition_id": partition, **where}
        await self._ask(self._theirs.update_checkpoint, row)

    def _row(self, partition: str, owner: str) -> dict[str, Any]:
        row: dict[str, Any] = {**self._place.ids(), "partition_id": partition, "owner_id": owner}
        record = self.by_partition.get(partition)
        if record is not None:
            row |= {"etag": record.etag, "last_modified_time": record.modified_s}
        return row

    async def _ask(self, call: Callable[..., Any], *args: object) -> Any:
        """One call of theirs; a blocking one runs in a thread."""
        try:
            if inspect.iscoroutinefunction(call):
                answer: Awaitable[Any] = call(*args)
                return await answer
            return await to_thread.run_sync(lambda: call(*args), abandon_on_cancel=True)
        except Exception as error:
            # The storage's words go on with the whole answer, in XML.
            words = str(error).partition("\n")[0].rstrip(". ")
            hint = _HINTS.get(getattr(error, "status_code", None) or 0, "")
            raise StoreUnavailable(
                f"the records of Azure's clients: {type(error).__name__}: {words}{hint}"
            ) from error


def _record(row: Mapping[str, Any]) -> OwnershipRecord:
    return record_of(
        str(row.get("partition_id") or ""),
        row,
        etag=row.get("etag"),
        modified=row.get("last_modified_time"),
    )


def _plain(etag: str) -> str:
    # The service quotes it in the answer to a write, and not in a list.
    return etag.strip('"')
