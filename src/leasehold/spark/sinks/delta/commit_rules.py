"""The rules of a Delta sink: positions and epochs, tables and columns that fit, early fences.

**Positions.** Two application transactions keep a partition: ``leasehold:<group>/<partition>`` has
the position as its version, and the same with ``#epoch`` the epoch. Every commit and every fence
writes the second, so of two that were checked against the same version only one succeeds.

**Columns.** The schema of a Delta table is written as Spark writes its own, so the two are compared
as Spark types. Columns are matched by name, in any order. A table that is created here takes nulls
everywhere: nullability in Spark depends on how a column was computed.

**Fences before the table.** A Delta table needs columns, known only with the first batch; a
partition is fenced before that. Until then each fence is a small file in ``_leasehold/fences``
beside the log. Of the files of a partition the one with the highest epoch counts, and of these the
newest. A writer of such a file then checks for the table, and fences in the table too if it exists;
a process that sees the table for the first time then reads the files. So a fence that has returned
is known to every process that can commit.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyspark.sql import types as t

from leasehold.errors import FencedWrite, SinkChanged, SinkUnfit, StoreUnusable
from leasehold.spark.sinks.directory import FENCES
from leasehold.spark.sinks.port import SinkPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable

    from leasehold.spark.sinks.delta.storage import Storage
    from leasehold.spark.sinks.port import Batch

_STORABLE = (
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.DateType,
    t.DecimalType,
    t.DoubleType,
    t.FloatType,
    t.IntegerType,
    t.LongType,
    t.ShortType,
    t.StringType,
    t.TimestampNTZType,
    t.TimestampType,
)
_PARTITIONABLE = (
    t.BooleanType,
    t.ByteType,
    t.DateType,
    t.IntegerType,
    t.LongType,
    t.ShortType,
    t.StringType,
)
_INVALID_NAME_CHARS = " ,;{}()\n\t="
_COLUMN_RULES = (
    "delta.generationExpression",
    "delta.identity.start",
    "delta.invariants",
    "CURRENT_DEFAULT",
)
_RETENTION = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"


def refuse_unfit_table(
    sink: str,
    schema: t.StructType,
    settings: Mapping[str, str | None],
    partition_by: Sequence[str] = (),
) -> None:
    """Refuse a table with rules that this sink does not enforce."""
    reasons = [*_table_reasons(schema, settings), *_partitioning_reasons(schema, partition_by)]
    if reasons:
        raise SinkUnfit(
            f"{sink} can not be written to: {'; '.join(reasons)}. Nothing was written. Change the "
            "table, or write to another one"
        )


def refuse_unfit_rows(sink: str, rows: t.StructType, table: t.StructType) -> None:
    """Refuse rows whose columns are not those of the table."""
    found = list(differences(rows, table))
    if found:
        raise SinkUnfit(
            f"the rows do not fit {sink}: {'; '.join(found)}. Nothing was written. Make the "
            "transformation give the columns of the table, or change the table"
        )


def differences(rows: t.StructType, table: t.StructType) -> Iterator[str]:
    """Yield each difference as text."""
    have = {each.name: each for each in rows}
    want = {each.name: each for each in table}
    for name, field in want.items():
        if name not in have:
            yield f"column {name} ({field.dataType.simpleString()}) is missing"
        elif not _fits(have[name].dataType, field.dataType):
            yield (
                f"column {name} is {_type_text(have[name].dataType)} in the rows and "
                f"{_type_text(field.dataType)} in the table"
            )
    for name, field in have.items():
        if name not in want:
            yield f"column {name} ({field.dataType.simpleString()}) is not in the table"


def refuse_unfit_new(sink: str, rows: t.StructType, partition_by: Sequence[str]) -> None:
    """Refuse columns that a new table cannot have."""
    reasons = list(_new_table_reasons(rows, partition_by))
    if reasons:
        raise SinkUnfit(
            f"no table with these columns can be made at {sink}: {'; '.join(reasons)}. Nothing "
            "was written. Name or convert the columns in the transformation"
        )


def nullable(kind: t.DataType) -> t.DataType:
    """Return the same type, with nulls allowed everywhere, and without comments."""
    if isinstance(kind, t.StructType):
        return all_nullable(kind)
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def columns_of(table: DeltaTable) -> t.StructType:
    """Return the columns of a table, as Spark types."""
    return t.StructType.fromJson(json.loads(table.schema().to_json()))


def all_nullable(columns: t.StructType) -> t.StructType:
    """Return the same columns, with nulls allowed everywhere, and without comments."""
    return t.StructType([t.StructField(each.name, nullable(each.dataType)) for each in columns])


def required(table: t.StructType) -> tuple[str, ...]:
    """Return the columns that take no null."""
    return tuple(each.name for each in table if not each.nullable)


def _table_reasons(schema: t.StructType, settings: Mapping[str, str | None]) -> Iterator[str]:
    if _RETENTION in settings:
        yield (
            f"{_RETENTION} is set, so the table forgets how far each partition was written, and "
            "rows would come twice: unset it"
        )
    if (settings.get(_MAPPING) or "none") != "none":
        yield f"its columns have other names in the files ({_MAPPING})"
    checks = sorted(key for key in settings if key.startswith("delta.constraints."))
    if checks:
        yield f"it has rules for rows that this sink does not check ({', '.join(checks)})"
    for field in schema:
        rules = [rule for rule in _COLUMN_RULES if rule in field.metadata]
        if rules:
            yield f"column {field.name} is computed or checked by the table ({', '.join(rules)})"


def _partitioning_reasons(schema: t.StructType, partition_by: Sequence[str]) -> Iterator[str]:
    """Yield partitioning columns whose values would differ from Delta's directory names."""
    for name in partition_by:
        if not isinstance(schema[name].dataType, _PARTITIONABLE):
            yield (
                f"it is partitioned by {name}, which is {schema[name].dataType.simpleString()}: "
                "this sink cuts tables by text, whole numbers, dates or true and false"
            )


def _new_table_reasons(rows: t.StructType, partition_by: Sequence[str]) -> Iterator[str]:
    if not rows.fields:
        yield "there are none"
    names = [each.name.lower() for each in rows]
    for field in rows:
        if names.count(field.name.lower()) > 1:
            yield f"column {field.name} is there twice (upper and lower case are the same)"
        if not field.name or set(field.name) & set(_INVALID_NAME_CHARS):
            yield (
                f"column {field.name!r} has one of the characters {_INVALID_NAME_CHARS!r}, or "
                "no name"
            )
        if not _is_storable(field.dataType):
            yield f"column {field.name} is {field.dataType.simpleString()}, which Delta lacks"
    for name in partition_by:
        if name not in rows.fieldNames():
            yield f"partition_by names {name}, which is no column"
        elif not isinstance(rows[name].dataType, _PARTITIONABLE):
            yield (
                f"partition_by names {name}, which is {rows[name].dataType.simpleString()}: a "
                "table is cut by text, whole numbers, dates or true and false"
            )
    if rows.fields and set(rows.fieldNames()) <= set(partition_by):
        yield "partition_by names all columns, so that none is left for the files"


def _is_storable(kind: t.DataType) -> bool:
    if isinstance(kind, t.StructType):
        return all(_is_storable(each.dataType) for each in kind)
    if isinstance(kind, t.ArrayType):
        return _is_storable(kind.elementType)
    if isinstance(kind, t.MapType):
        return _is_storable(kind.keyType) and _is_storable(kind.valueType)
    return isinstance(kind, _STORABLE)


def _fits(rows: t.DataType, table: t.DataType) -> bool:
    """Return whether the values can be stored unchanged. Nested nulls cannot be checked."""
    if isinstance(rows, t.StructType) and isinstance(table, t.StructType):
        return rows.fieldNames() == table.fieldNames() and all(
            _fits(a.dataType, b.dataType) and (b.nullable or not a.nullable)
            for a, b in zip(rows, table, strict=True)
        )
    if isinstance(rows, t.ArrayType) and isinstance(table, t.ArrayType):
        return _fits(rows.elementType, table.elementType) and (
            table.containsNull or not rows.containsNull
        )
    if isinstance(rows, t.MapType) and isinstance(table, t.MapType):
        return (
            _fits(rows.keyType, table.keyType)
            and _fits(rows.valueType, table.valueType)
            and (table.valueContainsNull or not rows.valueContainsNull)
        )
    return rows == table


def _type_text(kind: t.DataType) -> str:
    """Return a type as text; nested ones with their nullability."""
    if isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        return json.dumps(kind.jsonValue())
    return kind.simpleString()


_NO_POSITION = -1  # a position that was withdrawn: a transaction cannot be deleted


def position_id(group: str, partition: str) -> str:
    """Return the application id whose version is the position."""
    return f"leasehold:{quote(group, safe='/')}/{quote(partition, safe='')}"


def epoch_id(group: str, partition: str) -> str:
    """Return the application id whose version is the epoch."""
    return f"{position_id(group, partition)}#epoch"


def group_id(group: str) -> str:
    """Return the application id that is set once a group has written to the table."""
    return f"leasehold:{quote(group, safe='/')}#group"


def known_position(
    group: str, partition: str, version_of: Callable[[str], int | None], before: SinkPosition
) -> SinkPosition:
    """Return what is known of a partition, by the table and by fences ``before`` it existed."""
    position = version_of(position_id(group, partition))
    epoch = version_of(epoch_id(group, partition))
    return SinkPosition(
        position=before.position if position is None else _position_or_none(position),
        epoch=max(epoch or 0, before.epoch),
    )


def transactions(
    group: str, positions: Mapping[str, SinkPosition], *, epochs_only: bool
) -> dict[str, int]:
    """Return the transactions that set these positions."""
    written = {epoch_id(group, name): each.epoch for name, each in positions.items()}
    if not epochs_only:
        for name, each in positions.items():
            at = _NO_POSITION if each.position is None else each.position
            written[position_id(group, name)] = at
    return written


def refuse_older_epochs(
    sink: str, now: Mapping[str, SinkPosition], epochs: Mapping[str, int]
) -> None:
    """Refuse epochs below those that the table knows."""
    for partition, epoch in epochs.items():
        if now[partition].epoch > epoch:
            raise FencedWrite(
                f"partition {partition} was fenced in {sink} under epoch "
                f"{now[partition].epoch}, and this write came under epoch {epoch}: it was "
                "refused and nothing was written. Somebody else owns the partition; its new owner "
                "goes on from the last commit, so there is nothing to do",
                key=partition,
                epoch=epoch,
                reason="fenced",
            )


def refuse_forgotten(
    sink: str, now: Mapping[str, SinkPosition], seen: Mapping[str, SinkPosition]
) -> None:
    """Refuse a table that has forgotten an epoch or a position."""
    for partition, before in seen.items():
        lost = before.position is not None and now[partition].position is None
        if lost or now[partition].epoch < before.epoch:
            raise SinkChanged(
                f"{sink} knew partition {partition} at position {before.position} under epoch "
                f"{before.epoch}, and now says {now[partition].position} and "
                f"{now[partition].epoch}: the table was made anew or put back from a copy. Nothing "
                "was written. Stop the pipeline, make sure which rows the table holds, and start "
                "it with a new group or move its positions there"
            )


def is_committed(sink: str, batch: Batch, now: Mapping[str, SinkPosition]) -> bool:
    """Return whether the batch is in the table already; False if it may be committed."""
    parts = [(each, now[each.range.partition]) for each in batch.shares]
    if parts and all(
        at.position == each.range.end and at.epoch == each.epoch for each, at in parts
    ):
        return True
    for each, at in parts:
        if at.position is not None and at.position != each.range.start:
            raise SinkChanged(
                f"the batch {batch.label} starts at {each.range.start} in partition "
                f"{each.range.partition}, but {sink} holds its events up to {at.position} under "
                f"epoch {at.epoch}, and nobody else owns it: the position was moved by an operator "
                "or by a stranger. Nothing was written. Start the pipeline again: it goes on where "
                "the table says"
            )
    return False


def _position_or_none(position: int) -> int | None:
    return None if position == _NO_POSITION else position


_SUFFIX = ".json"


class Fences:
    """The fence files of one table. ``token`` returns unused names."""

    def __init__(self, storage: Storage, token: Callable[[], str]) -> None:
        self._storage = storage
        self._token = token
        self._known: dict[tuple[str, str], SinkPosition] = {}
        self._count: dict[tuple[str, str], int] = {}

    def of(self, group: str, partition: str) -> SinkPosition:
        """Return what the last ``read`` found of a partition."""
        return self._known.get((group, partition), SinkPosition())

    def read(self) -> None:
        """Read all files."""
        best: dict[tuple[str, str], tuple[int, int]] = {}
        known: dict[tuple[str, str], SinkPosition] = {}
        for name in self._storage.names(FENCES):
            if not name.endswith(_SUFFIX):
                continue  # not finished: its writer was killed, or writes on
            key, order, position = self._one(name)
            if order >= best.get(key, (0, 0)):
                best[key] = order
                known[key] = SinkPosition(position=position, epoch=order[0])
        self._known = known
        self._count = {key: count for key, (_, count) in best.items()}

    def write(self, group: str, positions: Mapping[str, SinkPosition]) -> None:
        """Store these; a file of a lower epoch changes nothing."""
        for partition, each in positions.items():
            key = (group, partition)
            count = self._count.get(key, 0) + 1
            self._count[key] = count
            name = sha256(json.dumps(key).encode()).hexdigest()[:32]
            text = json.dumps(
                {
                    "group": group,
                    "partition": partition,
                    "epoch": each.epoch,
                    "position": each.position,
                    "count": count,
                }
            )
            self._storage.write_new(
                f"{FENCES}/{name}-{each.epoch:020d}-{count:06d}{_SUFFIX}",
                text.encode(),
                temporary=f"{FENCES}/{self._token()}.tmp",
            )

    def _one(self, name: str) -> tuple[tuple[str, str], tuple[int, int], int | None]:
        try:
            fields = json.loads(self._storage.read(f"{FENCES}/{name}") or b"")
            position = fields["position"]
            return (
                (str(fields["group"]), str(fields["partition"])),
                (int(fields["epoch"]), int(fields["count"])),
                None if position is None else int(position),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StoreUnusable(
                f"{self._storage.name}/{FENCES}/{name} is damaged ({error!r}): it says who may "
                "write to the table. Restore it, or stop all drivers and delete it"
            ) from error
