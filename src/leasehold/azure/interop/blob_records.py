"""The blobs of Azure's own ``BlobCheckpointStore``, read and written without its faults.

It is also a ``CheckpointStore`` of Azure: a stock client may use it instead of
``BlobCheckpointStore``, beside others that use that one. The differences:

* No record of any client stops it: ``record_layout`` reads them all.
* A claim is won only if the service said so. Azure's counts every unknown failure as won.
* A first claim creates the blob, and only if it does not exist. Azure's sets the metadata of a blob
  that may exist, which Azurite allows.
* Checkpoints are found under names in either spelling, and the one that is ahead counts.
* So are owners: of two records of a partition, the one counts that its owner wrote last, and a
  claim is written to that one. The other spelling is searched in the first and every sixth read; in
  each, once something was found there.
* It is not bound to an event loop: the requests are made in threads.

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
    azure_offset,
    checkpoint_metadata,
    consumer_group_of,
    ownership_metadata,
    parse_checkpoint,
    parse_ownership,
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

_PARALLEL = 16
_LOOKS_PER_SEARCH = 6
_CONNECT_S = 5
_READ_S = 5
_PAUSE_S = 1


class BlobRecords(_Contract):
    """The records of any number of groups in one container, which must exist."""

    def __init__(self, container: ContainerClient, *, lower: bool = True) -> None:
        """Connect to nothing yet; ``container`` is closed with this.

        ``lower``: names are written in lower case, as Azure's clients for Python, .NET and
        JavaScript do. Pass False to share a group with those for Java, Go, Rust and C++, which
        would not find such a record before they have written one themselves.
        """
        self._container = container
        self._lower = lower
        self._looks: Counter[ConsumerGroup] = Counter()
        self._in_both: set[ConsumerGroup] = set()  # with records in the other spelling
        # By partition: whether its record has the name in lower case.
        self._lower_case: dict[tuple[ConsumerGroup, str], bool] = {}
        self._counting = threading.Lock()
        self._calls = 0

    @classmethod
    def from_connection_string(
        cls, connection_string: str, container: str, *, lower: bool = True
    ) -> Self:
        """Return the records in a container of the storage account that the text names."""
        # The defaults wait for 15 s, three times, also after an idle connection was closed; and a
        # checkpoint that is written that late is an old one.
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
        """The number of requests so far."""
        return self._calls

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[Row]:
        """List the owner of each partition, if one is named, with one request for each 5,000.

        One more in the reads that search for the other spelling, if the names differ in it.
        """
        del kwargs
        group = _consumer_group(fully_qualified_namespace, eventhub_name, consumer_group)
        found = await self._records(group, lower=self._lower)
        spelled = dict.fromkeys(found, self._lower)
        if self._is_searched(group):
            others = await self._records(group, lower=not self._lower)
            if others:
                self._in_both.add(group)
            for partition, other in others.items():
                known = found.get(partition)
                if known is None or _counts_more(other, known):
                    found[partition], spelled[partition] = other, not self._lower
        for partition, lower in spelled.items():
            self._lower_case[group, partition] = lower
        return [
            {
                **group.ids(),
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
        limiter = CapacityLimiter(_PARALLEL)
        won: list[Row] = []
        failed: list[Exception] = []

        async def claim(wanted: Mapping[str, Any]) -> None:
            try:
                done = await _threaded(partial(self._claim, wanted), limiter)
            except Exception as error:  # noqa: BLE001 - raised below, alone and not in a group
                failed.append(error)
            else:
                won.extend([done] if done is not None else [])

        # Not ``gather``: it does not show who has cancelled a task.
        async with create_task_group() as tasks:
            for each in ownership_list:
                tasks.start_soon(claim, each)
        for error in failed:
            if not isinstance(error, AzureError) or not won:
                raise error
            log.warning("an ownership could not be written, so it is not had: %s", error)
        return won

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        """Write a checkpoint without a condition, as Azure's clients do.

        Raises:
            UsageError: it has no sequence number; -1 is the position before the first event.
            AzureError: it could not be written.
        """
        del kwargs
        group, partition = consumer_group_of(checkpoint), str(checkpoint["partition_id"])
        position = parse_checkpoint(partition, checkpoint).position
        if checkpoint.get("sequence_number") == BEGINNING.sequence_number:
            position = BEGINNING
        if position is None:
            raise UsageError(f"a checkpoint needs a sequence number: {dict(checkpoint)!r}")
        blob = group.blob_name("checkpoint", partition, lower=self._lower)
        await _threaded(partial(self._write, blob, checkpoint_metadata(position)))

    async def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[Row]:
        """List the checkpoint of each partition that says where to resume."""
        del kwargs
        group = _consumer_group(fully_qualified_namespace, eventhub_name, consumer_group)
        rows: dict[str, Row] = {}
        for lower in (True, False) if _has_two_spellings(group) else (True,):
            for blob in await self._blobs(group, "checkpoint", lower=lower):
                found = parse_checkpoint(_partition(blob), blob.metadata)
                known = rows.get(found.partition)
                if found.position is None or (
                    known and known["sequence_number"] >= found.position.sequence_number
                ):
                    continue
                rows[found.partition] = {
                    **group.ids(),
                    "partition_id": found.partition,
                    "sequence_number": found.position.sequence_number,
                    "offset": azure_offset(found.position),
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

    def _is_searched(self, group: ConsumerGroup) -> bool:
        looks = self._looks[group]
        self._looks[group] = looks + 1
        is_due = group in self._in_both or looks % _LOOKS_PER_SEARCH == 0
        return is_due and _has_two_spellings(group)

    async def _records(self, group: ConsumerGroup, *, lower: bool) -> dict[str, OwnershipRecord]:
        return {
            _partition(blob): parse_ownership(
                _partition(blob), blob.metadata, etag=blob.etag, modified=blob.last_modified
            )
            for blob in await self._blobs(group, "ownership", lower=lower)
        }

    async def _blobs(
        self, group: ConsumerGroup, kind: Kind, *, lower: bool
    ) -> list[BlobProperties]:
        prefix = group.prefix(kind, lower=lower)

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
        """Return what was won, or None."""
        group, partition = consumer_group_of(wanted), str(wanted["partition_id"])
        lower = self._lower_case.get((group, partition), self._lower)
        name = group.blob_name("ownership", partition, lower=lower)
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


async def _threaded(work: Callable[[], T], limiter: CapacityLimiter | None = None) -> T:
    # A request that hangs must not block a caller that has stopped waiting for it.
    return await to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)


def _consumer_group(namespace: str, hub: str, group: str) -> ConsumerGroup:
    return ConsumerGroup(namespace=namespace, hub=hub, group=group)


def _has_two_spellings(group: ConsumerGroup) -> bool:
    return group.prefix("ownership") != group.prefix("ownership", lower=False)


def _counts_more(one: OwnershipRecord, other: OwnershipRecord) -> bool:
    """Return which of two records of a partition counts: an owned one, then the later one."""
    return bool(one.owner) and (not other.owner or one.modified_s > other.modified_s)


def _partition(blob: BlobProperties) -> str:
    return str(blob.name).rpartition("/")[2]
