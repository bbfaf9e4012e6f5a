"""``leasehold log append``, ``cat`` and ``tail``: events into a stream and out of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from leasehold.cli.common import (
    Column,
    DatabaseUrl,
    Form,
    Output,
    count_cell,
    counted,
    until_the_pipe_closes,
)
from leasehold.cli.log_follow import followed
from leasehold.cli.log_format import Fields, Format, format_of
from leasehold.cli.log_opened import Stream, about, opened
from leasehold.cli.log_output import EventForm, print_batch, print_head
from leasehold.cli.log_sent import Sent
from leasehold.cli.tables import (
    byte_progress,
    err,
    print_rows,
)
from leasehold.errors import UsageError
from leasehold.log.start import Start

if TYPE_CHECKING:
    from leasehold.log import Log

_STDIN = Path("-")

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
        int | None,
        typer.Option(help="Where to; else by key, or batch by batch in turn.", min=0, metavar="N"),
    ] = None,
    batch: Annotated[
        int, typer.Option(help="So many events at once, at most.", min=1, metavar="N")
    ] = 1000,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Append events, and say how many went to which partition. What is counted is durable."""
    from leasehold.cli.log_input import tables  # noqa: PLC0415 - Arrow takes its time

    fields, sent = Fields(key=key, body=body), Sent()
    with (
        _source(source) as (data, total),
        opened(store) as log,
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
            rows = list(sent.rows())
            if rows or form is Output.JSON:
                print_rows(rows, form, _SENT_COLUMNS)


def cat(
    stream: Stream,
    *,
    partition: Partition = None,
    start: StartOption = "earliest",
    key: Annotated[
        str | None, typer.Option(help="Only events with this key.", metavar="KEY")
    ] = None,
    most: Annotated[
        int | None, typer.Option(help="Stop after N events in all.", min=1, metavar="N")
    ] = None,
    store: DatabaseUrl = None,
    form: EventFormOption = EventForm.TABLE,
) -> None:
    """Print the events there are now, one partition after the other."""
    begin, left = Start.parse(start), most
    with opened(store) as log, until_the_pipe_closes():
        for at, number in enumerate(_chosen(log, stream, partition)):
            with about(number), log.reader(stream, number, start=begin) as reader:
                if at == 0:  # not above an error
                    print_head(form)
                for batch in reader.batches() if key is None else reader.find(key):
                    shown = batch if left is None else batch.slice(0, min(left, len(batch)))
                    print_batch(shown, form)
                    if left is not None:
                        left -= len(shown)
                        if not left:
                            return


def tail(
    stream: Stream,
    *,
    partition: Partition = None,
    start: StartOption = "latest",
    store: DatabaseUrl = None,
    form: EventFormOption = EventForm.TABLE,
) -> None:
    """Print events as they come, until Ctrl-C."""
    begin = Start.parse(start)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        log = stack.enter_context(opened(store))
        stack.enter_context(until_the_pipe_closes())
        readers = []
        for number in _chosen(log, stream, partition):
            with about(number):
                readers.append(stack.enter_context(log.reader(stream, number, start=begin)))
        print_head(form)
        with followed(readers) as batches:
            err.print(f"following {counted(len(readers), 'partition')} of {stream}; Ctrl-C ends it")
            for batch in batches:
                print_batch(batch, form)


# --------------------------------------------------------------------------- parts

_SENT_COLUMNS = (
    Column(name="partition", justify="right"),
    Column(name="events", justify="right", shown=count_cell),
    Column(name="first_sequence", title="first", justify="right"),
    Column(name="last_sequence", title="last", justify="right"),
)


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
