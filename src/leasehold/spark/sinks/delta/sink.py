"""A Delta table as a sink: executors write the files, one commit adds them and moves the positions.

Positions and epochs are application transactions of the table itself, so they are in the same
commit as the rows, and the table refuses a commit whose partition another process has fenced in the
meantime. Any Delta reader can read the table. See ``docs/sinks-delta.md``.

A commit starts from the very version that was checked. So one thread at a time uses what is known
of the table, from its check to its write (``_lock``); staging and sweeps read the table separately.
"""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake.transaction import AddAction

from leasehold.clock import SystemClock, new_token
from leasehold.errors import InvalidDuration, SinkChanged, SinkUnfit, StoreUnavailable
from leasehold.spark.sinks.delta import commit_rules as rules
from leasehold.spark.sinks.delta import table_log
from leasehold.spark.sinks.delta.commit_rules import (
    Fences,
    differences,
    refuse_unfit_new,
    refuse_unfit_rows,
    required,
)
from leasehold.spark.sinks.delta.files import PREFIX, RESULT, DataFile, TaskWriter, parse_results
from leasehold.spark.sinks.delta.storage import storage_at
from leasehold.spark.sinks.delta.table_log import Conflict, DeltaLog
from leasehold.spark.sinks.directory import (
    PARQUET,
    make_directory,
    refuse_incomplete,
    refuse_taken,
    sink_errors,
)
from leasehold.spark.sinks.port import SinkPosition, Staged, Written

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from leasehold.clock import Clock
    from leasehold.spark.sinks.delta.storage import Storage
    from leasehold.spark.sinks.port import Batch, Commit


def orphans(storage: Storage, log: DeltaLog, older_than: timedelta, now: datetime) -> list[str]:
    """Return own files, older than that, that no readable version names.

    ``deltalake`` lists what the table does not need; of that, files that a version of the log has
    named were part of the table once, and ``vacuum`` deletes them.
    """
    hours = math.ceil(older_than / timedelta(hours=1))
    unused = [path for path in log.unreferenced(hours) if _is_own_file(path)]
    if not unused:
        return []
    named = {unquote(path) for path in log.paths()}
    fs = storage.open_fs()
    found = []
    for path in sorted(set(unused) - named):
        made_at: datetime | None = fs.get_file_info(path).mtime
        if made_at is not None and now - made_at.astimezone(UTC) >= older_than:
            found.append(path)
    return found


def _is_own_file(path: str) -> bool:
    return path.rpartition("/")[2].startswith(PREFIX)


# Each conflict means that another commit of the same partition succeeded.
_MAX_ATTEMPTS = 20
_MIN_SWEEP_AGE = timedelta(hours=1)
_MS = 1000


@dataclass(slots=True, kw_only=True)
class StagedFiles:
    """Files that no version names. ``may_be_committed``: a commit with them may have succeeded."""

    schema: StructType
    partition_by: tuple[str, ...]
    files: tuple[DataFile, ...]
    may_be_committed: bool = False

    @property
    def written(self) -> Written:
        """What a commit of them adds."""
        return Written(
            rows=sum(each.rows for each in self.files),
            bytes=sum(each.size_bytes for each in self.files),
            files=len(self.files),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The columns of the table when it was last read, for staging."""

    schema: StructType
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, log: DeltaLog) -> _Columns:
        return cls(schema=log.schema, partition_by=log.partition_by)


class DeltaSink:
    """A Delta table at a path, or at a URI that ``deltalake`` supports; created if it is missing.

    Args:
        path: the table.
        partition_by: the partitioning columns of a new table; an existing one has its own.
        storage_options: as ``deltalake`` takes them; they are sent to the executors.
        clock: gives the modification time of files.
        token: returns unused names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        token: Callable[[], str] = new_token,
    ) -> None:
        self._storage = storage_at(path, dict(storage_options or {}))
        self._partition_by = (
            (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        )
        self._clock = SystemClock() if clock is None else clock
        self._token = token
        self._log = DeltaLog(self._storage)
        self._fences = Fences(self._storage, token)
        self._fences_read = False
        self._seen: dict[tuple[str, str], SinkPosition] = {}
        self._lock = threading.Lock()  # for all of the above
        self._columns: _Columns | None = None

    @property
    def name(self) -> str:
        """The display name: ``delta:`` and the path."""
        return f"delta:{self._storage.name}"

    @property
    def atomic(self) -> bool:
        """Always."""
        return True

    def open(self, spark: SparkSession) -> None:  # noqa: ARG002 - the contract of a sink
        """Read the table, if there is one; if not, make a directory for it.

        Raises:
            SinkUnfit: it has rules that this sink does not enforce, or other partitioning columns;
                or
                its directory cannot be made, or contains a Parquet sink.
            StoreUnavailable: it cannot be read.
        """
        local = self._storage.local
        if local is not None:
            refuse_taken(local, sink=self.name, other=PARQUET)
        with self._lock:
            exists = self._refresh()
        if local is not None and not exists:
            make_directory(local, sink=self.name)
        known = self._columns
        if known is not None and self._partition_by and self._partition_by != known.partition_by:
            raise SinkUnfit(
                f"{self.name} is partitioned by {list(known.partition_by)} and not by "
                f"{list(self._partition_by)}: leave partition_by out, or write to another table"
            )

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise the epochs, in one commit without files; return what was known before.

        Raises:
            SinkChanged: the table was changed by others.
            StoreUnavailable: unknown whether it was done: call it again.
        """
        with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                if not self._refresh():
                    known = self._fence_without_table(group, epochs)
                    if not self._refresh():
                        return known
                on = self._log.version
                now = self._checked_positions(group, epochs)
                to_fence = {
                    name: SinkPosition(epoch=epoch)
                    for name, epoch in epochs.items()
                    if now[name].epoch <= epoch and self._epoch_in_table(group, name) < epoch
                }
                if to_fence:
                    info = table_log.commit_info(
                        "fence",
                        group,
                        on=on,
                        epochs={name: each.epoch for name, each in to_fence.items()},
                    )
                    written = rules.transactions(group, to_fence, epochs_only=True)
                    try:
                        self._write(group, [], written, info, on=on)
                    except Conflict:
                        continue
                for name, epoch in epochs.items():
                    kept = SinkPosition(
                        position=now[name].position, epoch=max(now[name].epoch, epoch)
                    )
                    self._seen[group, name] = kept
                return now
        raise self._too_many_conflicts()

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Set positions to any value; None: as if nothing had ever been written.

        The caller thereby confirms that it knows of rows that were replaced as a whole.

        Raises:
            FencedWrite: an epoch is higher than the one given; nothing was moved.
            StoreUnavailable: unknown whether it was done: call it again.
        """
        epochs = {name: each.epoch for name, each in places.items()}
        with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                exists = self._refresh()
                on = self._log.version
                if not exists:
                    self._fences.read()
                now = self._positions(group, places)
                rules.refuse_older_epochs(self.name, now, epochs)
                if not exists:
                    self._keep_fences(group, places)
                    if not self._refresh():
                        return
                    continue
                at = {name: [each.position, each.epoch] for name, each in places.items()}
                info = table_log.commit_info("move", group, on=on, places=at)
                written = rules.transactions(group, places, epochs_only=False)
                try:
                    self._write(group, [], written, info, on=on)
                except Conflict:
                    continue
                self._seen.update({(group, name): each for name, each in places.items()})
                return
        raise self._too_many_conflicts()

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:  # noqa: ARG002
        """Write the rows to files beside the table's own, in one Spark job.

        Raises:
            SinkUnfit: the columns do not fit, or a null is where the table takes none.
        """
        schema = frame.schema
        by, not_null = self._check_fit(schema)
        writer = TaskWriter(
            storage=self._storage, token=self._token(), partition_by=by, required=not_null
        )
        rows = frame.mapInArrow(writer, RESULT).collect()
        files, refused = parse_results(row["written"] for row in rows)
        if refused:
            self._storage.remove([each.path for each in files])
            raise SinkUnfit(
                f"the rows do not fit {self.name}: there are nulls in {', '.join(refused)}, which "
                "the table has as NOT NULL. Nothing was written. Fill or drop them in the "
                "transformation, or change the table"
            )
        return Staged(StagedFiles(schema=schema, partition_by=by, files=files))

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Add the files and move the positions, in one version of the table.

        Raises:
            FencedWrite: an epoch is higher: another process owns the partition in ``key``.
            SinkChanged: the table was changed by others.
            BatchFailed: a staged file is missing or has another size; nothing was committed.
            StoreUnavailable: unknown whether it was done: call it again.
        """
        inside: StagedFiles = staged.inside
        epochs = {each.range.partition: each.epoch for each in batch.shares}
        with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                if not self._refresh():
                    self._log.create(inside.schema, inside.partition_by)
                    continue
                on = self._log.version
                now = self._positions(batch.group, epochs)
                rules.refuse_older_epochs(self.name, now, epochs)
                self._checked_positions(batch.group, epochs)
                if rules.is_committed(self.name, batch, now):
                    self.discard(staged)  # a commit that was offered keeps its files
                    return inside.written
                self._refuse_other_columns(inside)
                sizes = ((each.path, each.size_bytes) for each in inside.files)
                refuse_incomplete(self.name, batch, sizes, self._storage.size_bytes)
                if self._try_commit(inside, batch, on=on):
                    for each in batch.shares:
                        kept = SinkPosition(position=each.range.end, epoch=each.epoch)
                        self._seen[batch.group, each.range.partition] = kept
                    return inside.written
        raise self._too_many_conflicts()

    def discard(self, staged: Staged) -> None:
        """Delete the files, unless a commit with them may have succeeded. Never raises."""
        inside: StagedFiles = staged.inside
        if not inside.may_be_committed:
            self._storage.remove([each.path for each in inside.files])

    def commits(self, group: str) -> Iterator[Commit]:
        """Yield all commits of the group that the table's log still has, oldest first."""
        for found in table_log.read_versions(self._storage):
            yield from table_log.commits_of_version(found, group)

    def sweep(self, older_than: timedelta = timedelta(days=1)) -> list[str]:
        """Delete files that crashed tasks and drivers have left; return their paths.

        Only files are deleted that this sink has named, that are older, and that no readable
        version names. ``older_than`` must be longer than the longest batch.

        Raises:
            InvalidDuration: less than an hour.
            StoreUnavailable: the table cannot be read.
        """
        if older_than < _MIN_SWEEP_AGE:
            raise InvalidDuration(
                f"sweep(older_than={older_than}) might delete the files of a batch that is being "
                f"written: give {_MIN_SWEEP_AGE} or more"
            )
        view = DeltaLog(self._storage)
        if not view.refresh():
            return []
        found = orphans(self._storage, view, older_than, self._clock.utc_now())
        self._storage.remove(found)
        return found

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _refresh(self) -> bool:
        """Read what is new in the table; return whether it exists."""
        exists = self._log.refresh()
        if exists and not self._fences_read:
            self._fences.read()
            self._fences_read = True
        if exists:
            self._columns = _Columns.of(self._log)
        return exists

    def _fence_without_table(
        self, group: str, epochs: Mapping[str, int]
    ) -> dict[str, SinkPosition]:
        self._fences.read()
        known = {name: self._fences.of(group, name) for name in epochs}
        to_fence = {
            name: SinkPosition(position=known[name].position, epoch=epoch)
            for name, epoch in epochs.items()
            if known[name].epoch < epoch
        }
        self._keep_fences(group, to_fence)
        return known

    def _keep_fences(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Write fence files. Errors of a bucket are not translated: they say more."""
        with (
            sink_errors(self.name, "written") if self._storage.local is not None else nullcontext()
        ):
            self._fences.write(group, places)

    def _positions(self, group: str, partitions: Mapping[str, object]) -> dict[str, SinkPosition]:
        return {
            name: rules.known_position(
                group, name, self._log.version_of, self._fences.of(group, name)
            )
            for name in partitions
        }

    def _checked_positions(
        self, group: str, partitions: Mapping[str, object]
    ) -> dict[str, SinkPosition]:
        """Return the positions, in a table that was not changed by others."""
        now = self._positions(group, partitions)
        seen = {p: position for (g, p), position in self._seen.items() if g == group and p in now}
        rules.refuse_forgotten(self.name, now, seen)
        if self._log.version_of(rules.group_id(group)) is not None:
            self._log.refuse_replaced(group)
        return now

    def _epoch_in_table(self, group: str, partition: str) -> int:
        return self._log.version_of(rules.epoch_id(group, partition)) or 0

    def _check_fit(self, schema: StructType) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the partitioning columns and those without nulls, of a table that these rows fit.

        What is known of the table may be old; the commit checks again. The version of a batch that
        is being committed is not touched.
        """
        known = self._columns
        if known is None or any(differences(schema, known.schema)):
            view = DeltaLog(self._storage)
            known = _Columns.of(view) if view.refresh() else None
        if known is None:
            refuse_unfit_new(self.name, schema, self._partition_by)
            return self._partition_by, ()
        refuse_unfit_rows(self.name, schema, known.schema)
        return known.partition_by, required(known.schema)

    def _refuse_other_columns(self, inside: StagedFiles) -> None:
        found = list(differences(inside.schema, self._log.schema))
        if inside.partition_by != self._log.partition_by:
            by = list(self._log.partition_by)
            found.append(f"the table is partitioned by {by}, the rows by {inside.partition_by}")
        if found:
            raise SinkChanged(
                f"the columns of {self.name} were changed while the batch was written: "
                f"{'; '.join(found)}. Nothing was committed. Start the pipeline again with a "
                "transformation that gives these columns"
            )

    def _try_commit(self, inside: StagedFiles, batch: Batch, *, on: int) -> bool:
        """Try to commit; return False if another process was first."""
        ends = {
            each.range.partition: SinkPosition(position=each.range.end, epoch=each.epoch)
            for each in batch.shares
        }
        made_at_ms = int(self._clock.utc_now().timestamp() * _MS)
        adds = [
            AddAction(each.path, each.size_bytes, dict(each.cut), made_at_ms, True, each.stats)
            for each in inside.files
        ]
        info = table_log.batch_commit_info(batch, on=on, rows=inside.written.rows)
        was_offered = inside.may_be_committed
        inside.may_be_committed = True
        written = rules.transactions(batch.group, ends, epochs_only=False)
        try:
            self._write(batch.group, adds, written, info, on=on)
        except Conflict as conflict:
            inside.may_be_committed = was_offered or not conflict.certain
            return False
        return True

    def _write(
        self,
        group: str,
        adds: list[AddAction],
        transactions: dict[str, int],
        info: dict[str, str],
        *,
        on: int,
    ) -> None:
        known = self._log.version_of(rules.group_id(group)) is not None
        first = {} if known else {rules.group_id(group): 1}
        self._log.write(adds, transactions | first, info, on=on)

    def _too_many_conflicts(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.name} was changed by others {_MAX_ATTEMPTS} times in a row while a commit was "
            "tried; nothing was written. It is tried again; if this goes on, look for a program "
            "that changes the table's properties all the time"
        )
