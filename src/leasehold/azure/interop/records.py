"""The ownership records of Azure's clients in one consumer group: who owns what, and who is alive.

Guarantees: every write is a compare-and-set on the record that was read, and counts only if it came
back with a new etag. Azure's ``BlobCheckpointStore`` also returns what it could not write.

Whether the owner of a record is alive is not judged by any wall clock. Its record has expired if it
has not changed for the whole expiry while this process watched, or if another record was written
that much later by the storage's clock. So an expired owner may be respected for longer than by
Azure's clients, never for less.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from anyio import to_thread

from leasehold.azure.interop.record_layout import OwnershipRecord, parse_checkpoint, parse_ownership
from leasehold.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from leasehold.azure.interop.record_layout import ConsumerGroup
    from leasehold.clock import Clock
    from leasehold.model import Position

_HOST_PREFIX = "leasehold:"
_CLIENT_PREFIX = "azure:"
_OTHER_HOST_SUFFIX = "~azure"
_MAX_OWNER_CHARS = 128
_REFRESHES_PER_EXPIRY = 2
_NO_OFFSETS = ("", "-1")
_NO_CREDENTIAL = "; see that the key or the token of their storage is right, and may read and write"
_HINTS = {
    401: _NO_CREDENTIAL,
    403: _NO_CREDENTIAL,
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


def host_owner_id(holder: str) -> str:
    """Return the owner id of a Leasehold host in the records."""
    return f"{_HOST_PREFIX}{holder}"


def is_host_owner(owner: str) -> bool:
    """Return whether an owner id means a Leasehold host, and not a client."""
    return owner.startswith(_HOST_PREFIX)


def host_of_owner(owner: str) -> str:
    """Return the host that such an owner id means."""
    return owner.removeprefix(_HOST_PREFIX)


def stand_in(owner: str, life: int = 1) -> str:
    """Return the holder that stands for a client in Leasehold's store.

    ``generation`` counts how often the client had gone and come back: a holder whose lease has
    ended cannot be used again.

    Plans depend on the order of holders. So the stand-in for a host that uses another store has
    the name of that host: then all hosts make the same plan.
    """
    name = quote(owner.removeprefix(_HOST_PREFIX), safe="")
    if len(name) > _MAX_OWNER_CHARS:
        name = sha256(owner.encode(errors="replace")).hexdigest()
    name = f"{name}{_OTHER_HOST_SUFFIX}" if is_host_owner(owner) else f"{_CLIENT_PREFIX}{name}"
    return name if life == 1 else f"{name}#{life}"


def is_stand_in(holder: str) -> bool:
    """Return whether this holder stands for a client."""
    return holder.startswith(_CLIENT_PREFIX) or holder.partition("#")[0].endswith(
        _OTHER_HOST_SUFFIX
    )


def stand_in_token(holder: str) -> str:
    """Return the token of a stand-in: the same for all hosts, for each may act for it."""
    return f"stand-in {holder}"


def is_refusal(trouble: StoreUnavailable) -> bool:
    """Return whether the storage answered, and will refuse until an operator fixes it."""
    return getattr(trouble.__cause__, "status_code", None) in _HINTS


def has_offset(position: Position) -> bool:
    """Return whether the position can be a checkpoint of Azure's clients: they need an offset."""
    return position.offset not in _NO_OFFSETS


class OwnershipRecords:
    """The records of one consumer group. ``by_partition`` is what the last read found."""

    def __init__(
        self,
        azure_store: AzureCheckpointStore,
        consumer_group: ConsumerGroup,
        *,
        expiry_s: float,
        clock: Clock,
        is_host: Callable[[str], bool] = is_host_owner,
    ) -> None:
        """``is_host``: whether an owner id is of a host that shares this store."""
        self.is_host = is_host
        self.by_partition: dict[str, OwnershipRecord] = {}
        self.read_s: float | None = None
        self._azure_store = azure_store
        self._consumer_group = consumer_group
        self._expiry_s = expiry_s
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # the etag, and since when it is unchanged
        self._newest_s = 0.0
        self._offered: dict[str, str] = {}  # to clients, by this host: the etag

    async def refresh(self) -> None:
        """Read all records, with one request."""
        names = self._consumer_group.namespace, self._consumer_group.hub, self._consumer_group.group
        rows = await self._call(self._azure_store.list_ownership, *names)
        found = (_record(row) for row in rows)
        self.by_partition = {each.partition: each for each in found if each.partition}
        now_s = self.read_s = self._clock.boottime_s()
        self._newest_s = max((each.modified_s for each in self.by_partition.values()), default=0.0)
        self._seen = {
            partition: known
            if (known := self._seen.get(partition)) and known[0] == _unquoted(record.etag)
            else (_unquoted(record.etag), now_s)
            for partition, record in self.by_partition.items()
        }
        # Once its client has written it again, it is the client's own.
        self._offered = {
            partition: etag
            for partition, etag in self._offered.items()
            if partition in self._seen and self._seen[partition][0] == etag
        }

    def live_owner(self, partition: str) -> str:
        """Return the owner if its record has not expired; empty if there is none."""
        record = self.by_partition.get(partition)
        if record is None or not record.owner:
            return ""
        unchanged_s = self._clock.boottime_s() - self._seen[partition][1]
        older_s = self._newest_s - record.modified_s if record.modified_s else 0.0
        return "" if max(unchanged_s, older_s) > self._expiry_s else record.owner

    def live_client(self, partition: str) -> str:
        """Return the live owner if it is a client; empty for a host."""
        owner = self.live_owner(partition)
        return "" if self.is_host(owner) else owner

    def named_owner(self, partition: str) -> str:
        """Return the owner that the record names, live or expired."""
        record = self.by_partition.get(partition)
        return record.owner if record is not None else ""

    def needs_refresh(self, partition: str) -> bool:
        """Return whether a host's record must be written again, long before it expires."""
        return self.age_s(partition) > self._expiry_s / _REFRESHES_PER_EXPIRY

    def age_s(self, partition: str) -> float:
        """Return for how long the record has not changed, as seen here."""
        _, since_s = self._seen.get(partition, ("", 0.0))
        return self._clock.boottime_s() - since_s

    def client_of_stand_in(self, holder: str) -> str:
        """Return the live client that a stand-in stands for; empty if there is none."""
        name = holder.partition("#")[0]
        found = (self.live_client(each) for each in self.by_partition if each not in self._offered)
        return next((each for each in found if each and stand_in(each) == name), "")

    def unaccepted(self) -> list[str]:
        """Return partitions given to a client that has gone since, or did not take them."""
        return [
            each
            for each in self._offered
            if self.needs_refresh(each)
            or not self.client_of_stand_in(stand_in(self.named_owner(each)))
        ]

    async def write(self, owners: Mapping[str, str]) -> set[str]:
        """Write these owners, an empty one to free; return the partitions that were written."""
        if not owners:
            return set()
        sent = {partition: self._row(partition, owner) for partition, owner in owners.items()}
        # Copies: some of Azure's stores write the new etag into what they are given.
        sent_s = self._clock.boottime_s()
        rows = await self._call(
            self._azure_store.claim_ownership, [dict(each) for each in sent.values()]
        )
        won: set[str] = set()
        for row in rows:
            done = _record(row)
            etag = sent.get(done.partition, {}).get("etag", "")
            if done.partition in sent and done.etag and _unquoted(done.etag) != _unquoted(etag):
                won.add(done.partition)
                owner = owners[done.partition]
                self.by_partition[done.partition] = replace(done, owner=owner)
                # A host's record must not look younger here than to clients, nor a client's older.
                since_s = sent_s if self.is_host(owner) else self._clock.boottime_s()
                self._seen[done.partition] = (_unquoted(done.etag), since_s)
                self._newest_s = max(self._newest_s, done.modified_s)
                self._offered.pop(done.partition, None)
                if owner and not self.is_host(owner):
                    self._offered[done.partition] = _unquoted(done.etag)
        return won

    async def replace_owner(self, partitions: AbstractSet[str], old: str, new: str) -> None:
        """Write the new owner where the old one is named, even if a record was refreshed."""
        left = partitions - await self.write(dict.fromkeys(partitions, new))
        if left:
            await self.refresh()
            await self.write({each: new for each in left if self.named_owner(each) == old})

    async def positions(self) -> dict[str, Position]:
        """Return Azure's checkpoints by partition, if they have a sequence number."""
        names = self._consumer_group.namespace, self._consumer_group.hub, self._consumer_group.group
        rows = await self._call(self._azure_store.list_checkpoints, *names)
        found = (parse_checkpoint(str(row.get("partition_id") or ""), row) for row in rows)
        return {each.partition: each.position for each in found if each.position is not None}

    async def write_checkpoint(self, partition: str, position: Position) -> None:
        """Write a checkpoint for Azure's clients, without a condition."""
        where = {"offset": position.offset, "sequence_number": position.sequence_number}
        row = {**self._consumer_group.ids(), "partition_id": partition, **where}
        await self._call(self._azure_store.update_checkpoint, row)

    def _row(self, partition: str, owner: str) -> dict[str, Any]:
        row: dict[str, Any] = {
            **self._consumer_group.ids(),
            "partition_id": partition,
            "owner_id": owner,
        }
        record = self.by_partition.get(partition)
        if record is not None:
            row |= {"etag": record.etag, "last_modified_time": record.modified_s}
        return row

    async def _call(self, call: Callable[..., Any], *args: object) -> Any:
        """Call Azure's store; a blocking call runs in a thread."""
        try:
            if inspect.iscoroutinefunction(call):
                answer: Awaitable[Any] = call(*args)
                return await answer
            return await to_thread.run_sync(lambda: call(*args), abandon_on_cancel=True)
        except Exception as error:
            # The storage's message continues with the whole answer, in XML.
            message = str(error).partition("\n")[0].rstrip(". ")
            hint = _HINTS.get(getattr(error, "status_code", None) or 0, "")
            raise StoreUnavailable(
                f"the records of Azure's clients: {type(error).__name__}: {message}{hint}"
            ) from error


def _record(row: Mapping[str, Any]) -> OwnershipRecord:
    return parse_ownership(
        str(row.get("partition_id") or ""),
        row,
        etag=row.get("etag"),
        modified=row.get("last_modified_time"),
    )


def _unquoted(etag: str) -> str:
    # The service quotes it in the answer to a write, and not in a list.
    return etag.strip('"')
