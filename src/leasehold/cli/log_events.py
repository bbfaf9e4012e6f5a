"""``leasehold log append``, ``cat`` and ``tail``: events into a stream and out of it.

``tail`` follows several partitions at the same time: each keeps its order, and an error in one of
them ends the command. ``append`` counts an event only when it is stored. Errors name the partition
that they are about.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

import leasehold.log
from leasehold.cli.common import (
    Column,
    DatabaseUrl,
    Form,
    Output,
    command_hints,
    count_cell,
    counted,
    store_url,
    until_the_pipe_closes,
)
from leasehold.cli.log_formats import EventForm, Fields, Format, format_of, print_batch, print_head
from leasehold.cli.tables import (
    byte_progress,
    err,
    print_rows,
)
from leasehold.errors import LeaseholdError, Trimmed, UsageError
from leasehold.events.start import Start

if TYPE_CHECKING:
    from leasehold.events import EventBatch
    from leasehold.log import Log, PartitionReader, Receipt

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The name of the stream.")]


@contextmanager
def opened(store: str | None, *, make: bool = False, volumes: Sequence[Path] = ()) -> Iterator[Log]:
    """Open the log without a monitor, which would recover files unasked."""
    url, options = store_url(store, make=make), leasehold.log.LogOptions(run_monitor=False)
    opening = leasehold.log.Log.open
    with (
        command_hints(),
        opening(url, volumes=volumes, name="cli", options=options, create=make) as log,
    ):
        yield log


@contextmanager
def naming_partition(partition: int) -> Iterator[None]:
    """Name the partition in errors that do not."""
    try:
        yield
    except Trimmed as error:
        message = f"partition {partition}: {error}. Add --start earliest, or a later place."
        raise Trimmed(message, earliest=error.earliest) from error
    except UsageError as error:
        if "partition" in str(error):
            raise
        raise UsageError(f"partition {partition}: {error}") from error


if TYPE_CHECKING:
    _Found = queue.Queue[EventBatch | LeaseholdError]

_POLL_INTERVAL_S = 0.25  # how long a follower that is ahead takes to notice that nobody wants more


@contextmanager
def followed(readers: Sequence[PartitionReader]) -> Iterator[Iterator[EventBatch]]:
    """Yield the batches of all readers, without end.

    At the end of the block the readers are closed and every thread has ended.
    """
    found: _Found = queue.Queue(maxsize=2 * len(readers))
    stop = threading.Event()
    threads = [
        threading.Thread(target=_follow, args=(each, found, stop), name="leasehold-tail")
        for each in readers
    ]
    for thread in threads:
        thread.start()
    try:
        yield _batches(found)
    finally:
        stop.set()
        for reader in readers:
            reader.close()
        for thread in threads:
            thread.join()


def _batches(found: _Found) -> Iterator[EventBatch]:
    while True:
        batch = found.get()
        if isinstance(batch, LeaseholdError):
            raise batch
        yield batch


def _follow(reader: PartitionReader, found: _Found, stop: threading.Event) -> None:
    try:
        with naming_partition(reader.partition):
            for batch in reader.batches(follow=True):
                _put(batch, found, stop)
    except LeaseholdError as error:
        _put(error, found, stop)


def _put(what: EventBatch | LeaseholdError, found: _Found, stop: threading.Event) -> None:
    """Wait for room in the queue, until ``stop`` is set."""
    while not stop.is_set():
        try:
            found.put(what, timeout=_POLL_INTERVAL_S)
        except queue.Full:
            continue
        return


@dataclass(slots=True, kw_only=True)
class _Part:
    events: int = 0
    first: int = -1
    last: int = -1


class Sent:
    """Counts receipts. It keeps only the futures that are not done, so it does not grow."""

    def __init__(self) -> None:
        self._waiting: deque[Future[tuple[Receipt, ...]]] = deque()
        self._parts: dict[int, _Part] = {}

    def add(self, future: Future[tuple[Receipt, ...]]) -> None:
        """Count this one when it is stored; raise if an earlier one failed."""
        self._waiting.append(future)
        while self._waiting and self._waiting[0].done():
            self._count(self._waiting.popleft())

    def wait(self) -> None:
        """Return when all that was sent is stored; raise if something was not."""
        while self._waiting:
            self._count(self._waiting.popleft())

    def settle(self) -> None:
        """Count what was stored, after a failure that is reported already."""
        while self._waiting:
            with suppress(LeaseholdError):
                self._count(self._waiting.popleft())

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield a row for each partition that got events, in order."""
        for number, part in sorted(self._parts.items()):
            yield {
                "partition": number,
                "events": part.events,
                "first_sequence": part.first if part.first >= 0 else None,
                "last_sequence": part.last if part.last >= 0 else None,
            }

    def _count(self, future: Future[tuple[Receipt, ...]]) -> None:
        for receipt in future.result():
            part = self._parts.setdefault(receipt.partition, _Part())
            part.events += receipt.count
            if receipt.first_sequence >= 0:
                part.first = receipt.first_sequence if part.first < 0 else part.first
                part.last = receipt.first_sequence + receipt.count - 1


_STDIN = Path("-")

Partition = Annotated[
    int | None, typer.Option(help="Only this one; by default all.", min=0, metavar="N")
]
StartOption = Annotated[
    str,
    typer.Option(
        "--start",
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
    strings: Annotated[
        bool,
        typer.Option("--strings", help="Keep numbers and booleans of a CSV as text.", metavar=""),
    ] = False,
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

    fields, sent = Fields(key=key, body=body, strings=strings), Sent()
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
    max_events: Annotated[
        int | None, typer.Option(help="Stop after N events in all.", min=1, metavar="N")
    ] = None,
    store: DatabaseUrl = None,
    form: EventFormOption = EventForm.TABLE,
) -> None:
    """Print the events there are now, one partition after the other."""
    begin, left = Start.parse(start), max_events
    with opened(store) as log, until_the_pipe_closes():
        for at, number in enumerate(_chosen(log, stream, partition)):
            with naming_partition(number), log.reader(stream, number, start=begin) as reader:
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
            with naming_partition(number):
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
    """Open the input; also return its size in bytes, if that is known."""
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
    """Return the partitions to read; the reader refuses one that does not exist."""
    if partition is not None:
        return (partition,)
    known = {each.name: each.partitions for each in log.streams()}
    return range(known[stream] if stream in known else log.info(stream).partitions)
