"""The blobs of Azure's own ``BlobCheckpointStore``, read and written without its faults.

It is a ``CheckpointStore`` of theirs as well: a stock client may use it in the place of
``BlobCheckpointStore``, beside others that use that one. What it does otherwise:

* No record of anybody stops it: ``layout`` reads them all.
* A claim is won only if the service has said so. Theirs counts every unknown failure as won.
* A first claim creates the blob, and only if there is none. Theirs sets the metadata of a blob
  that may be there, which Azurite allows.
* Checkpoints are found under names in either spelling, and the one that is ahead counts.
* So are owners: of two records of a partition the one counts that was written last by somebody who
  owns it, and a claim is written to that one. The other spelling is looked for in the first look
  and in every sixth; in each, once something was found there.
* It belongs to no event loop: the requests are made in threads.

Needs ``pip install 'leasehold[azure]'``.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anyio import CapacityLimiter, create_task_group, to_thread
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.eventhub.aio import CheckpointStore as _Contract
from azure.storage.blob import ContainerClient, LinearRetry

from leasehold.azure.interop.record_layout import (
    BEGINNING,
    ConsumerGroup,
    checkpoint_metadata,
    ownership_metadata,
    place_of,
    record_of,
    resume_at,
    stored_of,
)
from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from azure.storage.blob import BlobProperties

    from leasehold.azure.interop.record_layout import Kind, OwnershipRecord

log = logging.getLogger("leasehold.azure")

T = TypeVar("T")
Row = dict[str, Any]

_AT_ONCE = 16
_LOOKS_PER_SEARCH = 6
_CONNECT_S = 5
_READ_S = 5
_PAUSE_S = 1


class BlobRecords(_Contract):
    """The records of any number of groups in one container, which must exist."""

    def __init__(self, container: ContainerClient, *, lower: bool = True) -> None:
        """Connects to nothing yet; ``container`` is closed with this.

        ``lower``: names are written in lower case, as Azure's clients for Python, .NET and
        JavaScript do. Say False to share a group with those for Java, Go, Rust and C++, which would
        not find a record of ours before they have written one of their own.
        """
        self._container = container
        self._lower = lower
        self._looks: Counter[ConsumerGroup] = Counter()
        self._in_both: set[ConsumerGroup] = set()  # with records in the spelling that is not ours
        self._found_in: dict[
            tuple[ConsumerGroup, str], bool
        ] = {}  # by partition: whether in lower case
        self._counting = threading.Lock()
        self._calls = 0

    @classmethod
    def from_connection_string(
        cls, connection_string: str, container: str, *, lower: bool = True
    ) -> Self:
        """The records in a container of the storage account that the text names."""
        # By themselves they wait for 15 s, three times, also after a connection that was merely
        # closed while it lay idle; and a checkpoint that is written so late is an old one.
        made = ContainerClient.from_connection_string(
            connection_string,
            container,
            connection_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retry_policy=LinearRetry(backoff=_PAUSE_S, retry_total=1, random_jitter_range=0),
        )
        return cls(made, lower=lower)

    @property
    def calls(self) -> int:
        """How many requests were made so far."""
        return self._calls

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[Row]:
        """The owner of each partition, as far as one is named. One call for each 5,000.

        One more in the looks that search for the other spelling, if the names differ in it.
        """
        del kwargs
        place = _place(fully_qualified_namespace, eventhub_name, consumer_group)
        found = await self._records(place, lower=self._lower)
        spelled = dict.fromkeys(found, self._lower)
        if self._is_searched(place):
            others = await self._records(place, lower=not self._lower)
            if others:
                self._in_both.add(place)
            for partition, other in others.items():
                known = found.get(partition)
                if known is None or _counts_more(other, known):
                    found[partition], spelled[partition] = other, not self._lower
        for partition, lower in spelled.items():
            self._found_in[place, partition] = lower
        return [
            {
                **place.ids(),
                "partition_id": each.partition,
                "owner_id": each.owner,
                "etag": each.etag,
                "last_modified_time": each.modified_s,
            }
            for each in found.values()
        ]

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: object
    ) -> Iterable[Row]:
        """Write the owner of each partition whose record has not changed; return what was written.

        Raises:
            AzureError: nothing was written, and at least one attempt failed unheard.
        """
        del kwargs
        lanes = CapacityLimiter(_AT_ONCE)
        won: list[Row] = []
        failed: list[Exception] = []

        async def claim(wanted: Mapping[str, Any]) -> None:
            try:
                done = await _threaded(partial(self._claim, wanted), lanes)
            except Exception as error:  # noqa: BLE001 - told below, alone and not in a group
                failed.append(error)
            else:
                won.extend([done] if done is not None else [])

        # Not ``gather``: of a cancelled one nobody can tell who has cancelled it.
        async with create_task_group() as tasks:
            for each in ownership_list:
                tasks.start_soon(claim, each)
        for error in failed:
            if not isinstance(error, AzureError) or not won:
                raise error
            log.warning("an ownership could not be written, so it is not had: %s", error)
        return won

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        """Write a checkpoint, as their clients do: whatever is there.

        Raises:
            UsageError: it has no sequence number; -1 is the place before the first event.
            AzureError: it could not be written.
        """
        del kwargs
        place, partition = place_of(checkpoint), str(checkpoint["partition_id"])
        position = stored_of(partition, checkpoint).position
        if checkpoint.get("sequence_number") == BEGINNING.sequence_number:
            position = BEGINNING
        if position is None:
            raise UsageError(f"a checkpoint needs a sequence number: {dict(checkpoint)!r}")
        blob = place.blob_name("checkpoint", partition, lower=self._lower)
        await _threaded(partial(self._write, blob, checkpoint_metadata(position)))

    async def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[Row]:
        """The checkpoint of each partition that says where to go on."""
        del kwargs
        place = _place(fully_qualified_namespace, eventhub_name, consumer_group)
        rows: dict[str, Row] = {}
        for lower in (True, False) if _has_two_spellings(place) else (True,):
            for blob in await self._blobs(place, "checkpoint", lower=lower):
                found = stored_of(_partition(blob), blob.metadata)
                known = rows.get(found.partition)
                if found.position is None or (
                    known and known["sequence_number"] >= found.position.sequence_number
                ):
                    continue
                rows[found.partition] = {
                    **place.ids(),
                    "partition_id": found.partition,
                    "sequence_number": found.position.sequence_number,
                    "offset": resume_at(found.position),
                }
        return list(rows.values())

    async def close(self) -> None:
        """Close the connections."""
        self._container.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _is_searched(self, place: ConsumerGroup) -> bool:
        looks = self._looks[place]
        self._looks[place] = looks + 1
        is_due = place in self._in_both or looks % _LOOKS_PER_SEARCH == 0
        return is_due and _has_two_spellings(place)

    async def _records(self, place: ConsumerGroup, *, lower: bool) -> dict[str, OwnershipRecord]:
        return {
            _partition(blob): record_of(
                _partition(blob), blob.metadata, etag=blob.etag, modified=blob.last_modified
            )
            for blob in await self._blobs(place, "ownership", lower=lower)
        }

    async def _blobs(
        self, place: ConsumerGroup, kind: Kind, *, lower: bool
    ) -> list[BlobProperties]:
        prefix = place.prefix(kind, lower=lower)

        def pages() -> list[BlobProperties]:
            listed = self._container.list_blobs(name_starts_with=prefix, include=["metadata"])
            found: list[BlobProperties] = []
            for page in listed.by_page():
                self._count()
                found += page
            return found

        return await _threaded(pages)

    def _count(self) -> None:
        with self._counting:
            self._calls += 1

    def _claim(self, wanted: Mapping[str, Any]) -> Row | None:
        """What was won, or None; nothing else is ever won."""
        place, partition = place_of(wanted), str(wanted["partition_id"])
        lower = self._found_in.get((place, partition), self._lower)
        name = place.blob_name("ownership", partition, lower=lower)
        metadata = ownership_metadata(str(wanted.get("owner_id") or ""))
        try:
            if wanted.get("etag"):
                written = self._set(name, metadata, etag=str(wanted["etag"]))
            else:
                written = self._create(name, metadata)
        except (ResourceModifiedError, ResourceExistsError, ResourceNotFoundError):
            return None
        modified = written["last_modified"].timestamp()
        return {**wanted, "etag": written["etag"], "last_modified_time": modified}

    def _write(self, name: str, metadata: dict[str, str]) -> None:
        try:
            self._set(name, metadata)
        except ResourceNotFoundError:
            try:
                self._create(name, metadata)
            except (ResourceExistsError, ResourceModifiedError):
                self._set(name, metadata)

    def _set(
        self, name: str, metadata: dict[str, str], *, etag: str | None = None
    ) -> dict[str, Any]:
        self._count()
        blob = self._container.get_blob_client(name)
        if etag is None:
            return blob.set_blob_metadata(metadata)
        unchanged = MatchConditions.IfNotModified
        return blob.set_blob_metadata(metadata, etag=etag, match_condition=unchanged)

    def _create(self, name: str, metadata: dict[str, str]) -> dict[str, Any]:
        self._count()
        blob = self._container.get_blob_client(name)
        return blob.upload_blob(b"", overwrite=False, metadata=metadata)


async def _threaded(work: Callable[[], T], lanes: CapacityLimiter | None = None) -> T:
    # A request that hangs must not hold up who has stopped waiting for it.
    return await to_thread.run_sync(work, limiter=lanes, abandon_on_cancel=True)


def _place(namespace: str, hub: str, group: str) -> ConsumerGroup:
    return ConsumerGroup(namespace=namespace, hub=hub, group=group)


def _has_two_spellings(place: ConsumerGroup) -> bool:
    return place.prefix("ownership") != place.prefix("ownership", lower=False)


def _counts_more(one: OwnershipRecord, other: OwnershipRecord) -> bool:
    """Of two records of a partition: whoever owns it has written the later one."""
    return bool(one.owner) and (not other.owner or one.modified_s > other.modified_s)


def _partition(blob: BlobProperties) -> str:
    return str(blob.name).rpartition("/")[2]
