"""What can be said to the data source when it writes, checked before anything is opened.

Every option is known or refused with the nearest name. Spark does not tell upper from lower case in
names of options; nor do we.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.errors import InvalidOptions, StoreUnavailable, UsageError
from leasehold.names import check_name
from leasehold.sources.opening import stream_of
from leasehold.spark.queries.location import canonical
from leasehold.spark.source.options import known

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMON = ("store", "stream", "path", "staging")
_OF_STREAMS = ("name", "fence.key", "fence.epoch", "checkpointLocation", "queryName")
_LOCAL = "file:"
_METADATA = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write, and for a stream who writes.

    Attributes:
        stream: the name of the stream.
        store: the URL of the store; it may hold a password and is never shown.
        staging: the directory that executors and drivers share; empty: beside the log's volumes.
        name: of the query, the same whenever it is started again; empty: that of its checkpoint.
        checkpoint: where the query keeps its progress, as it was said.
        fence_key, fence_epoch: the key of the store that the driver holds, and its epoch.
    """

    stream: str
    store: str = field(repr=False)
    staging: str = ""
    name: str = ""
    checkpoint: str = ""
    fence_key: str = ""
    fence_epoch: int = 0


def parse(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Read the options of a write.

    Raises:
        UsageError: one is missing, unknown or makes no sense; the message says what to write.
        InvalidOptions: two of them contradict each other.
    """
    allowed = (*_COMMON, *_OF_STREAMS) if streaming else _COMMON
    said = known(given, allowed, what="this write")
    if not said.get("store"):
        raise UsageError('no store is named: add .option("store", "sqlite:///leases.db")')
    key, epoch = said.get("fence.key", ""), said.get("fence.epoch", "0")
    if bool(key) != ("fence.epoch" in said):
        raise InvalidOptions(
            "fence.key and fence.epoch belong together: give both, as fence.options() does"
        )
    if not (epoch.isascii() and epoch.isdigit()):
        raise UsageError(f"fence.epoch is a whole number, not {epoch!r}")
    name = said.get("name", "")
    return WriteOptions(
        stream=_stream(said),
        store=said["store"],
        staging=said.get("staging", ""),
        name=check_name(name, what="the option name") if name else "",
        checkpoint=said.get("checkpointLocation", ""),
        fence_key=key,
        fence_epoch=int(epoch),
    )


def checkpoint_id(options: WriteOptions) -> str:
    """The id that Spark gave the query's checkpoint; empty if it is not one of this machine.

    Of a query that was never started it is empty too.

    Raises:
        StoreUnavailable: it is of this machine, and can not be read.
    """
    if not canonical_is_local(options.checkpoint):
        return ""
    try:
        text = (_directory(options) / _METADATA).read_text(encoding="utf-8")
        return str(json.loads(text)["id"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(options, repr(error)) from error


def running_id(options: WriteOptions) -> str:
    """The same of a query that runs. A checkpoint of this machine has an id by then.

    A query that is known by another id for one batch would store that batch again.

    Raises:
        StoreUnavailable: the checkpoint is of this machine, and its id can not be read.
    """
    found = checkpoint_id(options)
    if not found and canonical_is_local(options.checkpoint) and _is_here(options):
        raise _unreadable(options, "there is no such file")
    return found


def check_identity(options: WriteOptions) -> None:
    """Return if the query will be known again when it is started again.

    Raises:
        UsageError: it has no name, and its checkpoint can not be read from here.
    """
    if options.name or canonical_is_local(options.checkpoint):
        return
    raise UsageError(
        "a query that writes to the log must be known again after a restart, and "
        f"{options.checkpoint or 'a checkpointLocation'} can not be read by the driver's Python: "
        'add .option("name", …), another one for each query and each checkpoint'
    )


def canonical_is_local(location: str) -> bool:
    """Whether a checkpoint location is a directory of this machine."""
    return bool(location) and canonical(location).startswith(_LOCAL)


def _stream(said: Mapping[str, str]) -> str:
    stream, path = said.get("stream", ""), said.get("path", "")
    if stream and path and stream_of(stream) != stream_of(path):
        raise InvalidOptions(f"the stream is {stream!r} by its option and {path!r} by its path")
    if not (stream or path):
        raise UsageError('no stream is named: write .save("orders") or .option("stream", "orders")')
    return stream_of(stream or path)


def _directory(options: WriteOptions) -> Path:
    return Path(canonical(options.checkpoint).removeprefix(_LOCAL))


def _is_here(options: WriteOptions) -> bool:
    """Whether the checkpoint is on this machine beyond doubt: Spark may have another default."""
    return options.checkpoint.startswith(_LOCAL) or _directory(options).is_dir()


def _unreadable(options: WriteOptions, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{_directory(options) / _METADATA}, which has the id of the query, can not be read "
        f"({why}): nothing was written. Look at the disk, and start the query again"
    )
