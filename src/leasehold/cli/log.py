"""``leasehold log``: create, show, verify, trim and remove streams.

``trim`` and ``rm`` only print what they would remove, unless ``--execute`` is given.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.common import (
    Column,
    DatabaseUrl,
    Form,
    Output,
    bytes_cell,
    cell,
    count_cell,
    counted,
    duration,
    echo,
    seconds_cell,
    shown_bytes,
    size,
    size_cell,
    store_url,
    time_cell,
)
from leasehold.cli.log_events import Stream, append, cat, opened, tail
from leasehold.cli.tables import (
    byte_progress,
    err,
    fitting_table,
    print_record,
    print_rows,
    print_table,
)
from leasehold.cli.verify_faults import print_faults, stream_fault, summary
from leasehold.clock import SystemClock
from leasehold.errors import DataDamaged, VolumeUnusable
from leasehold.files.volumes import DEFAULT_REPLICATION
from leasehold.log.streams import Catalog

if TYPE_CHECKING:
    from leasehold.log import Log, PartitionInfo, StreamInfo, StreamSettings
    from leasehold.log.retention import PartitionTrim

log_app = typer.Typer(
    name="log", help="An event log in streams and partitions, on files.", no_args_is_help=True
)

Execute = Annotated[bool, typer.Option("--execute", help="Remove them.", metavar="")]


@log_app.command("create", epilog="leasehold log create orders --partitions 4 --volume data")
def create(
    stream: Stream,
    *,
    partitions: Annotated[
        int,
        typer.Option(help="Number of partitions; later it can only grow.", min=1, metavar="N"),
    ] = 4,
    volume: Annotated[
        list[Path] | None,
        typer.Option(
            help="A directory to keep data in; give one for each disk. The directory above it must "
            "exist. It is added to the whole store: all its files and streams use it.",
            metavar="DIR",
        ),
    ] = None,
    segment_size: Annotated[
        str, typer.Option(help="When a new segment begins.", metavar="SIZE")
    ] = "64MiB",
    retention: Annotated[
        str | None,
        typer.Option(help="How long events are kept: 7d. \\[default: for ever]", metavar="TIME"),
    ] = None,
    retention_size: Annotated[
        str | None,
        typer.Option(
            help="How much of a partition is kept: 10GB. \\[default: everything]", metavar="SIZE"
        ),
    ] = None,
    replication: Annotated[
        int,
        typer.Option(
            help="On how many volumes a segment lies; 0: on all, up to 3.", min=0, metavar="N"
        ),
    ] = 0,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Make a stream, and the store and the volumes where they are new.

    The directories are remembered: later commands need not name them. Again with the same settings
    is harmless.
    """
    segment_bytes = size(segment_size, option="--segment-size")
    max_age = duration(retention, option="--retention") if retention else None
    max_bytes = size(retention_size, option="--retention-size") if retention_size else 0
    with opened(store, make=True, volumes=volume or ()) as log:
        was_there = any(each.name == stream for each in log.streams())
        created = log.create(
            stream,
            partitions=partitions,
            segment_bytes=segment_bytes,
            replication=replication,
            retention=max_age,
            retention_bytes=max_bytes,
        )
    _print_settings(created, form)
    if was_there:
        err.print(f"the stream {stream!r} is there already")


@log_app.command("grow", epilog="leasehold log grow orders --partitions 8")
def grow(
    stream: Stream,
    *,
    partitions: Annotated[
        int, typer.Option(help="How many it is to have; never fewer.", min=1, metavar="N")
    ],
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Give a stream more partitions, while it is in use.

    Producers and readers find out by themselves. Most keys go to other partitions from then on.
    Again with the same number is harmless.
    """
    with opened(store) as log:
        had = log.stream(stream).partitions
        grown = log.grow(stream, partitions=partitions)
    _print_settings(grown, form)
    if grown.partitions == had:
        err.print(f"it had {counted(had, 'partition')} already: nothing was changed")
    else:
        err.print(f"{had} -> {grown.partitions} partitions: most keys go to others than before")


@log_app.command("ls", epilog="leasehold log ls -o jsonl")
def ls(*, store: DatabaseUrl = None, form: Form = Output.TABLE) -> None:
    """List the streams and their settings."""
    with opened(store) as log:
        rows = [_settings_row(each) for each in log.streams()]
    if form is Output.TABLE:
        print_table(fitting_table(rows, _STREAM_LAYOUTS))
    else:
        print_rows(rows, form, _STREAM_COLUMNS)


@log_app.command("show", epilog="leasehold log show orders")
def show(stream: Stream, *, store: DatabaseUrl = None, form: Form = Output.TABLE) -> None:
    """Show a stream: its settings, what its partitions have, and who writes them."""
    with opened(store) as log:
        found = log.info(stream)
    rows = [_part_row(each) for each in found.parts]
    if form is Output.TABLE:
        _print_settings(found, form)
        echo("")
        print_rows(rows, form, _PART_COLUMNS)
    else:
        print_record({**_settings_row(found), "partitions": rows}, form)


log_app.command("append", epilog="leasehold log append orders events.jsonl --key customer")(append)
log_app.command("cat", epilog="leasehold log cat orders --start seq:100 --max-events 10 -o jsonl")(
    cat
)
log_app.command("tail", epilog="leasehold log tail orders -o raw")(tail)


@log_app.command("verify", epilog="leasehold log verify orders")
def verify(stream: Stream, *, store: DatabaseUrl = None, form: Form = Output.TABLE) -> None:
    """Check every segment on every volume: bytes, frames, numbers without gaps.

    Exit code 1 if something is wrong, with a line for each fault.
    """
    with opened(store) as log:
        found = log.info(stream)
        total = sum(each.bytes for each in found.parts)
        replicas = found.settings.replication or min(DEFAULT_REPLICATION, len(log.files.volumes))
        # Every replica is read, and then the frames once more.
        with byte_progress("verifying", total * (replicas + 1)) as tick:
            found_faults = log.verify(stream, progress=tick)
        faults = [stream_fault(stream, each) for each in found_faults]
        result = summary(faults, log.files)
    print_faults(faults, form, partitions=True)
    events = counted(sum(each.events for each in found.parts), "event")
    parts = counted(found.partitions, "partition")
    err.print(f"{parts}, {events}, {shown_bytes(total)}: {result}")
    if faults:
        raise typer.Exit(1)


@log_app.command("trim", epilog="leasehold log trim orders --older-than 7d --execute")
def trim(
    stream: Stream,
    *,
    older_than: Annotated[
        str | None,
        typer.Option(help="Instead of the stream's own --retention: 7d.", metavar="TIME"),
    ] = None,
    retention_size: Annotated[
        str | None,
        typer.Option(help="Instead of the stream's own --retention-size: 10GB.", metavar="SIZE"),
    ] = None,
    ignore_checkpoints: Annotated[
        bool,
        typer.Option(
            "--ignore-checkpoints", help="Also what a group has not worked on yet.", metavar=""
        ),
    ] = False,
    execute: Execute = False,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Remove the oldest segments of a stream, by age and by size.

    Without --execute it only says what it would remove, and what holds the rest back.
    """
    age = duration(older_than, option="--older-than") if older_than is not None else None
    max_bytes = None
    if retention_size is not None:
        max_bytes = size(retention_size, option="--retention-size")
    with opened(store) as log:
        found = _info_if_readable(log, stream)
        plan = log.trim(
            stream,
            execute=execute,
            past_checkpoints=ignore_checkpoints,
            older_than=age,
            keep_bytes=max_bytes,
        )
    limits = _limits(found.settings, age, max_bytes)
    known = {part.number: part for part in found.parts}
    rows = [_trim_row(part, known.get(part.partition), limits) for part in plan.partitions]
    print_rows(rows, form, _TRIM_COLUMNS)
    _say_removed(plan.segments, plan.events, plan.bytes, execute=execute)


@log_app.command("rm", epilog="leasehold log rm orders --execute")
def rm(
    stream: Stream,
    *,
    execute: Execute = False,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Delete a stream with all its events.

    Without --execute it only says what it would delete. Producers and readers of the stream are
    refused from then on. Checkpoints of groups stay: it names them.
    """
    with opened(store) as log:
        found = _info_if_readable(log, stream)
        groups = _groups_with_checkpoints(stream, store)
        if execute:
            log.delete(stream)
    parts = found.parts
    print_rows((_part_row(each) for each in parts), form, _PART_COLUMNS)
    _say_removed(
        sum(each.segments for each in parts),
        sum(each.events for each in parts),
        sum(each.bytes for each in parts),
        execute=execute,
    )
    _say_checkpoints(stream, groups)


# --------------------------------------------------------------------------- parts

_ALL = f"all, up to {DEFAULT_REPLICATION}"
_STREAM_COLUMNS = (
    Column(name="stream", fold=True),
    Column(name="partition_count", title="parts", justify="right"),
    Column(name="segment_bytes", title="segment", justify="right", shown=size_cell),
    Column(
        name="retention_s", title="retention", justify="right", shown=seconds_cell, none="for ever"
    ),
    Column(
        name="retention_bytes",
        title="retention size",
        justify="right",
        shown=size_cell,
        none="everything",
    ),
    Column(name="replication", title="replicas", justify="right", none=_ALL),
    Column(name="created_at", title="created", shown=time_cell),
)
# On a narrow terminal without what `log show` tells as well.
_STREAM_LAYOUTS = (_STREAM_COLUMNS, _STREAM_COLUMNS[:-1], _STREAM_COLUMNS[:-2])
_PART_COLUMNS = (
    Column(name="partition", title="part", justify="right"),
    Column(name="first_sequence", title="first", justify="right"),
    Column(name="next_sequence", title="next", justify="right"),
    Column(name="events", justify="right", shown=count_cell),
    Column(name="bytes", justify="right", shown=bytes_cell),
    Column(name="segments", title="segs", justify="right"),
    Column(name="writer", fold=True),
    Column(name="last_enqueued_at", title="last enqueued", shown=time_cell),
)
_TRIM_COLUMNS = (
    Column(name="partition", title="part", justify="right"),
    Column(name="segments", justify="right"),
    Column(name="events", justify="right", shown=count_cell),
    Column(name="bytes", justify="right", shown=bytes_cell),
    Column(name="first_kept", title="first kept", justify="right"),
    Column(name="held_back", title="held back by", fold=True),
)


def _print_settings(stream: StreamInfo, form: Output) -> None:
    """Print the settings of a stream as they were given."""
    row = _settings_row(stream)
    if form is Output.TABLE:
        shown = {column.name: column for column in _STREAM_COLUMNS}
        titles = {
            "partition_count": "partitions",
            "retention_s": "retention",
            "retention_bytes": "retention size",
        }
        row = {titles.get(name, name): cell(value, shown[name]) for name, value in row.items()}
    print_record(row, form)


def _info_if_readable(log: Log, stream: str) -> StreamInfo:
    """Return the stream with its partitions; without them if they cannot be read."""
    try:
        return log.info(stream)
    except (DataDamaged, VolumeUnusable) as error:
        err.print(f"how much there is can not be told: {error}")
        return next(each for each in log.streams() if each.name == stream)


def _say_removed(segments: int, events: int, size_bytes: int, *, execute: bool) -> None:
    what = f"{counted(segments, 'segment')}, {counted(events, 'event')}, {shown_bytes(size_bytes)}"
    err.print(f"removed: {what}" if execute else f"nothing was removed; with --execute: {what}")


def _groups_with_checkpoints(stream: str, store: str | None) -> dict[str, int]:
    """Return how many checkpoints each group has in the stream."""
    with closing(Catalog.open(store_url(store), clock=SystemClock(), create=False)) as catalog:
        counts = Counter(group for _, group, _ in catalog.positions(stream))
    return dict(sorted(counts.items()))


def _say_checkpoints(stream: str, groups: dict[str, int]) -> None:
    """Warn of checkpoints that stay: in a recreated stream their groups stop."""
    if not groups:
        return
    err.print(
        "these groups have checkpoints in it, and they stay. In a recreated stream of this name "
        "they stop with PositionLost until their checkpoints are removed"
    )
    for group, count in groups.items():
        command = f"leasehold checkpoints reset {quote(stream)} {quote(group)} --remove --execute"
        err.print(f"{group} ({counted(count, 'checkpoint')}): {command}")


def _limits(
    settings: StreamSettings, age: timedelta | None, max_bytes: int | None
) -> tuple[float, int]:
    """Return the limits of age and size: as typed, or the stream's own; 0 is no limit."""
    return (
        settings.retain_age_s if age is None else age.total_seconds(),
        settings.retention_bytes if max_bytes is None else max_bytes,
    )


def _settings_row(stream: StreamInfo) -> dict[str, object]:
    settings = stream.settings
    return {
        "stream": stream.name,
        "partition_count": settings.partitions,
        "segment_bytes": settings.segment_bytes,
        "retention_s": settings.retain_age_s or None,
        "retention_bytes": settings.retention_bytes or None,
        "replication": settings.replication or None,
        "created_at": stream.created_at,
    }


def _part_row(part: PartitionInfo) -> dict[str, object]:
    at = part.last_enqueued_at
    return {
        "partition": part.number,
        "first_sequence": part.first_sequence,
        "next_sequence": part.next_sequence,
        "events": part.events,
        "bytes": part.bytes,
        "segments": part.segments,
        "writer": part.writer or None,
        "last_enqueued_at": at.isoformat() if at else None,
    }


def _trim_row(
    part: PartitionTrim, was: PartitionInfo | None, limits: tuple[float, int]
) -> dict[str, object]:
    held_back = part.held_back
    if not held_back and was is not None and was.segments - len(part.segments) == 1:
        age_s, max_bytes = limits
        last = was.last_enqueued_at
        old = age_s and last and (SystemClock().utc_now() - last).total_seconds() > age_s
        if old or 0 < max_bytes < was.bytes - part.bytes:
            held_back = "newest segment"
    return {
        "partition": part.partition,
        "segments": len(part.segments),
        "events": part.events,
        "bytes": part.bytes,
        "first_kept": part.first_kept,
        "held_back": held_back or None,
    }


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(log_app)
