"""``leasehold log``: make streams, append to them, read and follow them, check and trim them.

``trim`` says what it would remove, and removes it only when it is told to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from leasehold.cli.common import (
    Column,
    Form,
    Output,
    StoreUrl,
    byte_progress,
    bytes_cell,
    count_cell,
    counted,
    duration,
    err,
    print_record,
    print_rows,
    seconds_cell,
    shown_bytes,
    size,
    store_url,
    time_cell,
    until_the_pipe_closes,
)
from leasehold.cli.log_follow import followed
from leasehold.cli.log_input import Fields, Format, format_of, tables
from leasehold.cli.log_output import EventForm, print_batch, print_head
from leasehold.cli.log_sent import Sent
from leasehold.errors import UsageError
from leasehold.files.volumes import DEFAULT_REPLICATION
from leasehold.log.log import Log
from leasehold.log.options import LogOptions
from leasehold.log.retention import PartitionTrim
from leasehold.log.start import Start
from leasehold.log.streams import PartitionInfo, StreamInfo

_STDIN = Path("-")

log_app = typer.Typer(
    name="log", help="An event log in streams and partitions, on files.", no_args_is_help=True
)

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The name of the stream.")]
Partition = Annotated[
    int | None, typer.Option(help="Only this one; by default all.", min=0, metavar="N")
]
StartOption = Annotated[
    str,
    typer.Option(
        "--from",
        help="earliest, latest, seq:N, offset:N, or a time: 2026-01-31T12:00:00Z.",
        metavar="PLACE",
    ),
]
EventFormOption = Annotated[
    EventForm, typer.Option("--output", "-o", help="table, jsonl or raw.", metavar="FORM")
]


@log_app.command("create", epilog="leasehold log create orders --partitions 4 --volume data")
def create(
    stream: Stream,
    *,
    partitions: Annotated[int, typer.Option(help="How many; for ever.", min=1, metavar="N")] = 4,
    volume: Annotated[
        list[Path] | None,
        typer.Option(help="A directory to keep data in; several times.", metavar="DIR"),
    ] = None,
    segment_size: Annotated[
        str, typer.Option(help="When a new segment begins.", metavar="SIZE")
    ] = "64MiB",
    keep: Annotated[
        str | None, typer.Option(help="How long `trim` keeps events: 7d.", metavar="TIME")
    ] = None,
    keep_size: Annotated[
        str | None, typer.Option(help="How much `trim` keeps of a partition: 10GB.", metavar="SIZE")
    ] = None,
    replication: Annotated[
        int, typer.Option(help="On how many volumes; 0: 3 or all.", min=0, metavar="N")
    ] = 0,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Make a stream, and the store and the volumes where they are new.

    The directories are remembered: later commands need not name them. Again with the same settings is harmless.
    """  # noqa: E501
    segment_bytes = size(segment_size, option="--segment-size")
    retain_age = duration(keep, option="--keep") if keep else None
    retain_bytes = size(keep_size, option="--keep-size") if keep_size else 0
    with _opened(store, make=True, volumes=volume or ()) as log:
        made = log.create(
            stream,
            partitions=partitions,
            segment_bytes=segment_bytes,
            replication=replication,
            retain_age=retain_age,
            retain_bytes=retain_bytes,
        )
    print_record(_settings_row(made), form)


@log_app.command("ls", epilog="leasehold log ls -o jsonl")
def ls(*, store: StoreUrl = None, form: Form = Output.TABLE) -> None:
    """List the streams and their settings."""
    with _opened(store) as log:
        print_rows((_settings_row(each) for each in log.streams()), form, _STREAM_COLUMNS)


@log_app.command("info", epilog="leasehold log info orders")
def info(stream: Stream, *, store: StoreUrl = None, form: Form = Output.TABLE) -> None:
    """Show the partitions of a stream: what they have, and who writes them."""
    with _opened(store) as log:
        found = log.info(stream)
    rows = [_part_row(each) for each in found.parts]
    if form is Output.TABLE:
        print_rows(rows, form, _PART_COLUMNS)
    else:
        print_record({**_settings_row(found), "parts": rows}, form)


@log_app.command("append", epilog="leasehold log append orders events.jsonl --key customer")
def append(
    stream: Stream,
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="The events; - or nothing is stdin.")
    ] = _STDIN,
    *,
    file_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="lines, jsonl, csv or parquet; else as the name says.",
            metavar="NAME",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The field that is the key.", metavar="FIELD")
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(
            help="The field that is the body; the others become properties. "
            "Else the body is the whole record.",
            metavar="FIELD",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="Where to; else by key, or in turn.", min=0, metavar="N")
    ] = None,
    batch: Annotated[
        int, typer.Option(help="So many events at once, at most.", min=1, metavar="N")
    ] = 1000,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Append events, and say how many went to which partition. What is counted is durable."""
    fields, sent = Fields(key=key, body=body), Sent()
    with (
        _source(source) as (data, total),
        _opened(store) as log,
        log.producer(stream) as producer,
    ):
        try:
            with byte_progress("appending", total) as tick:
                chosen = file_format or format_of(source)
                for table in tables(data, chosen, fields, batch=batch, read=tick):
                    if table.num_rows:
                        sent.add(producer.send(table, partition=partition))
                sent.wait()
        finally:
            # Also when a record was refused: those before it are stored.
            sent.settle()
            print_rows(sent.rows(), form, _SENT_COLUMNS)


@log_app.command("cat", epilog="leasehold log cat orders --from seq:100 --most 10 -o jsonl")
def cat(
    stream: Stream,
    *,
    partition: Partition = None,
    start: StartOption = "earliest",
    most: Annotated[
        int | None, typer.Option(help="So many events at most.", min=1, metavar="N")
    ] = None,
    store: StoreUrl = None,
    form: EventFormOption = EventForm.TABLE,
) -> None:
    """Print the events there are now, one partition after the other."""
    begin, left = Start.parse(start), most
    with _opened(store) as log, until_the_pipe_closes():
        for at, number in enumerate(_chosen(log, stream, partition)):
            with log.reader(stream, number, start=begin) as reader:
                if at == 0:  # not above an error
                    print_head(form)
                for batch in reader.batches():
                    shown = batch if left is None else batch.slice(0, min(left, len(batch)))
                    print_batch(shown, form)
                    if left is not None:
                        left -= len(shown)
                        if not left:
                            return


@log_app.command("tail", epilog="leasehold log tail orders -o raw")
def tail(
    stream: Stream,
    *,
    partition: Partition = None,
    start: StartOption = "latest",
    store: StoreUrl = None,
    form: EventFormOption = EventForm.TABLE,
) -> None:
    """Print events as they come, until Ctrl-C."""
    begin = Start.parse(start)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        log = stack.enter_context(_opened(store))
        stack.enter_context(until_the_pipe_closes())
        readers = [
            stack.enter_context(log.reader(stream, number, start=begin))
            for number in _chosen(log, stream, partition)
        ]
        print_head(form)
        with followed(readers) as batches:
            err.print(f"following {counted(len(readers), 'partition')} of {stream}; Ctrl-C ends it")
            for batch in batches:
                print_batch(batch, form)


@log_app.command("verify", epilog="leasehold log verify orders")
def verify(stream: Stream, *, store: StoreUrl = None, form: Form = Output.TABLE) -> None:
    """Check every segment on every volume: bytes, frames, numbers without gaps.

    Exit code 1 if something is wrong, with a line for each fault.
    """
    with _opened(store) as log:
        found = log.info(stream)
        total = sum(each.bytes for each in found.parts)
        replicas = found.settings.replication or min(DEFAULT_REPLICATION, len(log.files.volumes))
        # Every replica is read, and then the frames once more.
        with byte_progress("verifying", total * (replicas + 1)) as tick:
            faults = log.verify(stream, progress=tick)
    if form is Output.JSON:
        typer.echo(json.dumps(faults, indent=2))
    else:
        for fault in faults:
            typer.echo(fault if form is Output.TABLE else json.dumps(fault))
    events = counted(sum(each.events for each in found.parts), "event")
    parts = counted(found.partitions, "partition")
    err.print(f"{parts}, {events}, {shown_bytes(total)}: {counted(len(faults), 'fault')}")
    if faults:
        raise typer.Exit(1)


@log_app.command("trim", epilog="leasehold log trim orders --older-than 7d --execute")
def trim(
    stream: Stream,
    *,
    older_than: Annotated[
        str | None, typer.Option(help="Instead of the stream's own --keep: 7d.", metavar="TIME")
    ] = None,
    keep_size: Annotated[
        str | None,
        typer.Option(help="Instead of the stream's own --keep-size: 10GB.", metavar="SIZE"),
    ] = None,
    past_checkpoints: Annotated[
        bool,
        typer.Option("--past-checkpoints", help="Also what a group has not worked on yet."),
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Remove the oldest segments of a stream, by age and by size.

    Without --execute it only says what it would remove, and what holds the rest back.
    """
    age = duration(older_than, option="--older-than") if older_than is not None else None
    most = size(keep_size, option="--keep-size") if keep_size is not None else None
    with _opened(store) as log:
        plan = log.trim(
            stream,
            execute=execute,
            past_checkpoints=past_checkpoints,
            older_than=age,
            keep_bytes=most,
        )
    print_rows((_trim_row(part) for part in plan.partitions), form, _TRIM_COLUMNS)
    what = ", ".join(
        (counted(plan.segments, "segment"), counted(plan.events, "event"), shown_bytes(plan.bytes))
    )
    if execute:
        err.print(f"removed: {what}")
    else:
        err.print(f"nothing was removed; with --execute: {what}")


# --------------------------------------------------------------------------- parts

_STREAM_COLUMNS = (
    Column(name="stream", fold=True),
    Column(name="partitions", title="parts", justify="right"),
    Column(name="segment_bytes", title="segment", justify="right", shown=bytes_cell),
    Column(name="keep_age_s", title="keep", justify="right", shown=seconds_cell),
    Column(name="keep_size_bytes", title="keep size", justify="right", shown=bytes_cell),
    Column(name="replication", title="replicas", justify="right"),
    Column(name="created_at", title="created", shown=time_cell),
)
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
_SENT_COLUMNS = (
    Column(name="partition", justify="right"),
    Column(name="events", justify="right", shown=count_cell),
    Column(name="first_sequence", title="first", justify="right"),
    Column(name="last_sequence", title="last", justify="right"),
)


_TRIM_COLUMNS = (
    Column(name="partition", title="part", justify="right"),
    Column(name="segments", justify="right"),
    Column(name="events", justify="right", shown=count_cell),
    Column(name="bytes", justify="right", shown=bytes_cell),
    Column(name="first_kept", title="first kept", justify="right"),
    Column(name="held_back", title="held back by", fold=True),
)


@contextmanager
def _opened(
    store: str | None, *, make: bool = False, volumes: Sequence[Path] = ()
) -> Iterator[Log]:
    """The log, without a monitor: a command that looks at things recovers nothing unasked."""
    url, options = store_url(store, make=make), LogOptions(run_monitor=False)
    with Log.open(url, volumes=volumes, name="cli", options=options) as log:
        yield log


@contextmanager
def _source(path: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """The bytes to read, and how many there are, if that is known."""
    if path == _STDIN:
        yield sys.stdin.buffer, None
        return
    try:
        data = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} can not be read: {error.strerror or error}") from error
    with data:
        yield data, path.stat().st_size or None


def _chosen(log: Log, stream: str, partition: int | None) -> Sequence[int]:
    """The partitions that are asked for. One that is not there is refused by its reader."""
    if partition is not None:
        return (partition,)
    known = {each.name: each.partitions for each in log.streams()}
    return range(known[stream] if stream in known else log.info(stream).partitions)


def _settings_row(stream: StreamInfo) -> dict[str, object]:
    settings = stream.settings
    return {
        "stream": stream.name,
        "partitions": settings.partitions,
        "segment_bytes": settings.segment_bytes,
        "keep_age_s": settings.retain_age_s or None,
        "keep_size_bytes": settings.retain_bytes or None,
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


def _trim_row(part: PartitionTrim) -> dict[str, object]:
    return {
        "partition": part.partition,
        "segments": len(part.segments),
        "events": part.events,
        "bytes": part.bytes,
        "first_kept": part.first_kept,
        "held_back": part.held_back or None,
    }
