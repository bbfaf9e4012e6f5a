"""The log of a Delta table as one process knows it, commits to it, and reads of one version.

``refresh`` reads new versions; ``version_of`` is about the known version, and ``write`` commits
from the version that its caller has checked and from no other: if ``refresh`` has read on in the
meantime, or another process has written one of the same application ids, it raises ``Conflict`` and
nothing was written. Other commits do not conflict. A table that was deleted, recreated, put back
from a copy, restored or overwritten as a whole is recognised: ``SinkChanged``.

Our commits carry one line of JSON under ``leasehold`` in their commit information: what was done,
for which group, and on which version it was checked. They are read from the table's own log, which
reaches as far back as ``delta.logRetentionDuration`` (30 days unless set).

``read_delta`` reads one version with Spark alone, without the jar of Delta.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    TableNotFoundError,
)
from pyspark.sql.types import StructType

from leasehold.errors import LeaseholdError, SinkChanged, SinkUnfit, StoreUnavailable, UsageError
from leasehold.spark.reading import Range
from leasehold.spark.sinks.delta.commit_rules import all_nullable, columns_of, refuse_unfit_table
from leasehold.spark.sinks.delta.storage import storage_at
from leasehold.spark.sinks.port import Commit

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.sinks.delta.storage import Storage
    from leasehold.spark.sinks.port import Batch

# deltalake reports these when an existing version conflicts with the commit. That may be the
# commit itself: the storage layer retries on its own after a lost answer.
_REFUSALS = (
    "Commit failed: a concurrent transaction",
    "Concurrent transaction failed",
    "Metadata changed since last commit",
    "Protocol changed since last commit",
)


class Conflict(Exception):
    """Another process was first: check again. ``certain``: nothing was written, beyond doubt."""

    def __init__(self, message: str, *, certain: bool) -> None:
        super().__init__(message)
        self.certain = certain


class DeltaLog:
    """The log of one table. One thread at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._name = f"delta:{storage.name}"
        self._table: DeltaTable | None = None
        self._id = ""
        self._version = -1
        self._stamp: tuple[int, ...] | None = None
        self._unsynced: int | None = None
        self._transactions: dict[str, int | None] = {}
        self._scanned_from = 0
        self._replaced: tuple[int, str] | None = None
        self._judged_versions: dict[str, int] = {}
        self.schema = StructType()
        self.partition_by: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        """The known version of the table; -1 if there is no table."""
        return self._version

    def refresh(self) -> bool:
        """Read what is new; return False if there is no table, and never was one."""
        if self._unsynced is not None:
            self._sync(self._unsynced)
        try:
            if self._table is not None and self._same_file():
                self._table.update_incremental()
                self._read_new_versions(self._table)
            else:
                self._open()
        except LeaseholdError:
            raise
        except TableNotFoundError as error:
            if not self._id:
                return False
            raise SinkChanged(
                f"{self._name} is gone: its table was deleted while the pipeline ran. Nothing was "
                "written. Put the table back, or start the pipeline with a new group"
            ) from error
        except DeltaProtocolError as error:
            raise SinkUnfit(
                f"{self._name} needs features that deltalake does not have ({error}): write to "
                "another table"
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise StoreUnavailable(
                f"the log of {self._name} can not be read ({error}): look at the disk or the "
                "network, and at the storage options; it is tried again"
            ) from error
        return True

    def version_of(self, app_id: str) -> int | None:
        """Return the version of an application id in the known version of the table."""
        if self._table is None:
            return None
        if app_id not in self._transactions:
            self._transactions[app_id] = self._table.transaction_version(app_id)
        return self._transactions[app_id]

    def refuse_replaced(self, group: str) -> None:
        """Refuse a table whose rows were replaced since the group last wrote to it."""
        while self._scanned_from > max(self._judged_versions.get(group, -1) + 1, 0):
            found = read_version(self._storage, self._scanned_from - 1)
            if found is None:
                break  # older than the log reaches
            self._scanned_from -= 1
            self._record_version(found)
        if self._replaced is not None and self._replaced[0] > self._judged_versions.get(group, -1):
            version, how = self._replaced
            raise SinkChanged(
                f"version {version} of {self._name} has put other rows in place of all rows "
                f"({how}), but the positions of {group} stand where they were: rows would be "
                "missing or doubled. Nothing was written. Move the positions to where the rows of "
                "the table end, which also says that you know; or start with a new group"
            )

    def create(self, schema: StructType, partition_by: Sequence[str]) -> None:
        """Create the table, without rows. If another process was first, that is not an error."""
        columns = Schema.from_json(json.dumps(all_nullable(schema).jsonValue()))
        try:
            DeltaTable.create(
                self._storage.uri,
                columns,
                mode="error",
                partition_by=list(partition_by),
                storage_options=self._storage.settings,
            )
        except (DeltaError, OSError) as error:
            if not self.refresh():
                raise StoreUnavailable(
                    f"{self._name} can not be made ({error}): look at the rights and the room of "
                    "the place; it is tried again"
                ) from error
        self._sync(0)
        self._storage.finish_root()

    def write(
        self,
        actions: list[AddAction],
        transactions: Mapping[str, int],
        commit_info: dict[str, Any],
        *,
        on: int,
    ) -> None:
        """Commit from version ``on``, which was checked."""
        table = self._open_table()
        if table.version() != on:
            # Delta checks for conflicts only after the version it starts from: versions in between
            # would be passed over.
            text = f"version {on} was judged, and version {table.version()} is known"
            raise Conflict(text, certain=True)
        properties = CommitProperties(
            custom_metadata=commit_info,
            app_transactions=[Transaction(key, value) for key, value in transactions.items()],
        )
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                list(self.partition_by),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            text = str(error)
            refused = any(each in text for each in _REFUSALS)
            added = [each.path for each in actions]
            certain = refused and not self._may_name(added, after=on)
            raise Conflict(text, certain=certain) from error
        except (DeltaError, OSError) as error:
            raise StoreUnavailable(
                f"unknown whether the commit to {self._name} was done ({error}): the same commit "
                "again finds out"
            ) from error
        self._sync(self._version + 1)

    def paths(self) -> set[str]:
        """Return all data files that any version in the log names."""
        return {path for found in read_versions(self._storage) for path in found.paths}

    def _may_name(self, paths: Sequence[str], *, after: int) -> bool:
        """Return whether a later version names any of these files; True if that is unknown.

        At least one version must exist: without its file nothing is known.
        """
        wanted = set(paths)
        try:
            found = read_version(self._storage, after + 1)
            if found is None:
                return True
            while found is not None and wanted.isdisjoint(map(unquote, found.paths)):
                found = read_version(self._storage, found.version + 1)
        except (OSError, ValueError):
            return True
        return found is not None

    def unreferenced(self, hours: int) -> list[str]:
        """Return the older files that the table does not need, according to deltalake."""
        return self._open_table().vacuum(
            retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
        )

    def _open_table(self) -> DeltaTable:
        if self._table is None:
            raise RuntimeError("refresh() has not found a table")
        return self._table

    def _same_file(self) -> bool:
        """Return whether the last known version is still the same file.

        Following a version of a table that was recreated would mix two tables.
        """
        now = self._storage.stamp(version_file(self._version))
        return now is not None and now == self._stamp

    def _open(self) -> None:
        table = DeltaTable(self._storage.uri, storage_options=self._storage.settings)
        found = str(table.metadata().id)
        if self._id and (found != self._id or table.version() < self._version):
            raise SinkChanged(
                f"{self._name} is another table now: version {self._version} of {self._id} was "
                f"known, version {table.version()} of {found} is there. Nothing was written. "
                "Somebody has made it anew or put an old copy in its place: put the table back, "
                "or start the pipeline with a new group"
            )
        self._transactions = {}
        self._scanned_from = table.version() + 1
        self._adopt(table)

    def _read_new_versions(self, table: DeltaTable) -> None:
        for version in range(self._version + 1, table.version() + 1):
            found = read_version(self._storage, version)
            if found is None:
                self._transactions = {}  # cleaned up already: ask the table again
                self._scanned_from = version + 1
                continue
            self._transactions.update(found.transactions)
            self._record_version(found)
        if table.version() != self._version:
            self._adopt(table)

    def _adopt(self, table: DeltaTable) -> None:
        metadata = table.metadata()
        schema = columns_of(table)
        try:
            by = metadata.partition_columns
            refuse_unfit_table(self._name, schema, metadata.configuration, by)
        except SinkUnfit as error:
            if not self._id:
                raise
            raise SinkChanged(f"the table was changed while the pipeline ran: {error}") from error
        self._id = str(metadata.id)
        self._table = table
        self._version = table.version()
        self._stamp = self._storage.stamp(version_file(self._version))
        self.schema = schema
        self.partition_by = tuple(metadata.partition_columns)

    def _record_version(self, found: TableVersion) -> None:
        """Keep what a version contains on replaced rows, and on the version it was checked on."""
        if found.own:
            group = str(found.own["group"])
            self._judged_versions[group] = max(
                self._judged_versions.get(group, -1), int(found.own["on"])
            )
        if found.replaces and (self._replaced is None or found.version > self._replaced[0]):
            self._replaced = (found.version, found.replaces)

    def _sync(self, version: int) -> None:
        """Sync the log from ``version`` on; one of these versions is ours.

        What could not be synced is tried again before anything else is done.
        """
        self._unsynced = version
        names: list[str] = []
        try:
            while self._storage.local is not None and (
                self._storage.stamp(version_file(version + len(names))) is not None
            ):
                names.append(version_file(version + len(names)))
            self._storage.finish(names)
        except OSError as error:
            raise StoreUnavailable(
                f"the log of {self._name} can not be brought to the disk ({error}): what was "
                "written last may not outlive a power cut. Look at the disk; it is tried again"
            ) from error
        self._unsynced = None


INFO_KEY = "leasehold"
LOG_DIRECTORY = "_delta_log"
_REPLACING_OPERATIONS = ("RESTORE", "CREATE OR REPLACE TABLE", "REPLACE TABLE")
_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One version of a table.

    Attributes:
        own: the commit information that this project wrote; empty if it is another writer's.
        transactions: the application transactions it sets.
        paths: the data files that it adds or removes.
    """

    version: int
    info: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    paths: tuple[str, ...] = ()

    @property
    def replaces(self) -> str:
        """How this version replaces all rows, as text; empty if it does not."""
        if self.own:
            return ""
        operation = str(self.info.get("operation", ""))
        parameters = self.info.get("operationParameters") or {}
        if operation.startswith(_REPLACING_OPERATIONS):
            return operation
        whole = str(parameters.get("predicate") or "") in {"", "[]"}
        dynamic = "dynamic" in json.dumps(parameters).lower()
        if str(parameters.get("mode", "")) == "Overwrite" and whole and not dynamic:
            return f"{operation}, mode Overwrite"
        return ""


def version_file(version: int) -> str:
    """Return the file of a version, below the table."""
    return f"{LOG_DIRECTORY}/{version:020d}.json"


def read_version(storage: Storage, version: int) -> TableVersion | None:
    """Return the version from its file; None if the file does not exist."""
    text = storage.read(version_file(version))
    return None if text is None else parse_version(version, text.decode("utf-8"))


def parse_version(version: int, text: str) -> TableVersion:
    """Return the version from the text of its file."""
    info: dict[str, Any] = {}
    transactions: dict[str, int] = {}
    paths: list[str] = []
    for line in text.splitlines():
        action = json.loads(line) if line.strip() else {}
        info = action.get("commitInfo", info)
        if "txn" in action:
            transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
        paths.extend(action[kind]["path"] for kind in ("add", "remove") if kind in action)
    return TableVersion(
        version=version,
        info=info,
        own=_own_info(info),
        transactions=transactions,
        paths=tuple(paths),
    )


def read_versions(storage: Storage) -> Iterator[TableVersion]:
    """Yield all versions whose files are there, oldest first."""
    for name in storage.names(LOG_DIRECTORY):
        stem, _, suffix = name.partition(".")
        if suffix == "json" and stem.isdigit():
            found = read_version(storage, int(stem))
            if found is not None:
                yield found


def batch_commit_info(batch: Batch, *, on: int, rows: int) -> dict[str, str]:
    """Return the commit information of a batch. ``on``: the version on which it was checked."""
    shares = [[s.range.partition, s.range.start, s.range.end, s.epoch] for s in batch.shares]
    return commit_info(
        "commit",
        batch.group,
        on=on,
        shares=shares,
        holder=batch.holder,
        began_at=batch.began_at.astimezone(UTC).isoformat(),
        rows=rows,
    )


def commit_info(kind: str, group: str, *, on: int, **more: Any) -> dict[str, str]:
    """Return the custom metadata of one of our commits."""
    return {INFO_KEY: json.dumps({"kind": kind, "group": group, "on": on, **more})}


def commits_of_version(found: TableVersion, group: str) -> Iterator[Commit]:
    """Yield the parts that a version has committed for a group."""
    parameters = found.own
    if parameters.get("kind") != "commit" or parameters.get("group") != group:
        return
    committed_at = datetime.fromtimestamp(int(found.info.get("timestamp", 0)) / _MS, UTC)
    for partition, start, end, epoch in parameters["shares"]:
        yield Commit(
            commit=str(found.version),
            range=Range(partition=partition, start=start, end=end),
            epoch=epoch,
            holder=parameters["holder"],
            began_at=datetime.fromisoformat(parameters["began_at"]),
            committed_at=committed_at,
            rows=parameters["rows"],
        )


def _own_info(info: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parameters = json.loads(info[INFO_KEY])
    except (KeyError, TypeError, ValueError):
        return {}
    return (
        parameters
        if isinstance(parameters, dict) and "kind" in parameters and "on" in parameters
        else {}
    )


_DELETION_VECTORS = "deletionVectors"


def read_delta(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of the table as it is now, or at a version; later commits do not show.

    Raises:
        UsageError: there is no table, or it marks rows as deleted in a way that only Delta's own
            reader knows.
    """
    storage = storage_at(path, dict(storage_options or {}))
    try:
        table = DeltaTable(storage.uri, version=version, storage_options=storage.settings)
    except TableNotFoundError as error:
        raise UsageError(
            f"there is no Delta table at {storage.name}: look at the path; a pipeline makes the "
            "table with its first commit"
        ) from error
    if _DELETION_VECTORS in (table.protocol().reader_features or ()):
        raise UsageError(
            f"the Delta table at {storage.name} may have deletion vectors, which need Delta's own "
            "reader: read it with delta-spark, or with deltalake"
        )
    columns = all_nullable(columns_of(table))
    files = table.file_uris()
    if not files:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option("basePath", storage.uri)
    return reader.parquet(*files).select(*(f"`{name}`" for name in columns.fieldNames()))
