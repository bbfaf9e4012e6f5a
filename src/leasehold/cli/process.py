"""``leasehold process``: run a handler on the events of a stream, as one host of a group.

Progress goes to stderr, one line per event, each with the time. The traceback of an error is
printed once; repetitions are only counted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

import leasehold.events
import leasehold.log
import leasehold.processor
from leasehold.cli.common import (
    StoreUrl,
    command_hints,
    counted,
    duration,
    shown_seconds,
    store_url,
)
from leasehold.cli.process_handler import load_handler
from leasehold.cli.tables import err, lines_of
from leasehold.clock import Clock, SystemClock
from leasehold.core.balance import Strategy
from leasehold.core.lease_timing import LeaseTiming
from leasehold.errors import UnknownStream, UsageError
from leasehold.events.source_urls import is_in_store
from leasehold.events.start import Start
from leasehold.lease.group_state import MAX_WEIGHT
from leasehold.processor import CheckpointPolicy, PoisonPolicy
from leasehold.processor.events import (
    CheckpointRefused,
    CycleDone,
    HandlerAbandoned,
    HandlerFailed,
    Overtaken,
    PartitionClosed,
    PartitionDraining,
    PartitionOpened,
    Poisoned,
    PositionMoved,
    PossibleRepeats,
    PumpRestarted,
    ReceiverDisplaced,
)
from leasehold.runtime.tracebacks import traceback_of

if TYPE_CHECKING:
    from leasehold.events import EventSource
    from leasehold.log import LogDeadLetters
    from leasehold.processor import EventProcessor, HookEvent, ProcessorCounts

_MAX_TRACEBACKS = 200
_ACTIONS = {
    "skip": "skipped",
    "dead_letter": "put to the dead letters",
    "stop": "the partition stops here; it stays owned",
}


class ProcessOutput(logging.Handler):
    """A hook for a processor, and a handler for what it logs as a warning."""

    def __init__(self, clock: Clock, *, name: str) -> None:
        """``name`` is the processor's holder name, not the id of a member."""
        super().__init__(logging.WARNING)
        self._clock = clock
        self._name = name
        self._holder = ""
        self._failed: BaseException | None = None
        self._shown: set[str] = set()

    def say(self, message: str) -> None:
        """Print one line with the time."""
        err.print(f"{self._clock.utc_now():%H:%M:%S}Z {message}")

    def hook(self, event: HookEvent) -> None:
        """Print what happened, if it is worth a line."""
        if isinstance(event, CycleDone):
            if event.holder not in ("", self._name, self._holder):
                again = " again" if self._holder else ""
                self._holder = event.holder
                self.say(f"joined{again} as {event.holder}")
            return
        if isinstance(event, HandlerFailed | PumpRestarted):
            self._failed = event.error
        parts = _line_parts(event)
        if parts:
            self.say(f"{parts[0]} partition {event.partition} (epoch {event.epoch}){parts[1]}")

    def emit(self, record: logging.LogRecord) -> None:
        """Print what was logged; a traceback only if it is new."""
        raised = record.exc_info[1] if record.exc_info else None
        error = raised or getattr(record, "error", None)
        if error is None or error is not self._failed:  # else it was said a moment ago
            self.say(record.getMessage())
        if raised is None:
            return
        text = traceback_of(raised).rstrip()
        if text not in self._shown:
            if len(self._shown) >= _MAX_TRACEBACKS:
                self._shown.clear()
            self._shown.add(text)
            err.print(lines_of(text))


@contextmanager
def log_to(output: ProcessOutput) -> Iterator[None]:
    """Send all that Leasehold logs to ``output`` alone."""
    logger = logging.getLogger("leasehold")
    before, logger.propagate = logger.propagate, False
    logger.addHandler(output)
    try:
        yield
    finally:
        logger.removeHandler(output)
        logger.propagate = before


@contextmanager
def status_lines(
    processor: EventProcessor, output: ProcessOutput, *, every_s: float
) -> Iterator[None]:
    """Print a status line at regular intervals, from a separate thread."""
    ended = threading.Event()

    def tell() -> None:
        before = processor.counts()
        while not ended.wait(every_s):
            now = processor.counts()
            output.say(status(len(processor.held()), before, now, every_s=every_s))
            before = now

    thread = threading.Thread(target=tell, name="leasehold-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def status(held: int, before: ProcessorCounts, now: ProcessorCounts, *, every_s: float) -> str:
    """Return the status line."""
    rate = (now.events_handled - before.events_handled) / every_s
    failed = now.by_event.get(HandlerFailed.__name__, 0)
    lost = now.events_skipped + now.events_dead_lettered
    parts = [
        counted(held, "partition"),
        f"{counted(now.events_handled, 'event')} handled ({rate:,.0f}/s)",
        counted(now.checkpoints_written, "checkpoint"),
    ]
    parts += [counted(failed, "failed attempt")] if failed else []
    parts += [f"{counted(lost, 'event')} given up"] if lost else []
    return ", ".join(parts)


def _line_parts(event: HookEvent) -> tuple[str, str] | None:
    """Return the text before and after the partition; None if it is not worth a line."""
    match event:
        case PartitionOpened():
            return "opened", f" at {event.position}"
        case PartitionClosed():
            at = "" if event.position is None else f" at {event.position}"
            return "closed", f"{at} ({event.reason.value})"
        case PartitionDraining():
            return "draining", ""
        case HandlerFailed():
            error = f"{type(event.error).__name__}: {event.error}"
            return "failed in", f" at {event.sequence_number}, attempt {event.attempt}: {error}"
        case Poisoned():
            what = _ACTIONS.get(event.action, event.action)
            return "poison in", f" at {event.sequence_number}: {what}"
        case _:
            return _rare_line_parts(event)


def _rare_line_parts(event: HookEvent) -> tuple[str, str] | None:
    match event:
        case PossibleRepeats():
            return f"up to {counted(event.events, 'event')} of", " may come again"
        case Overtaken():
            return "overtaken in", ": taken by force while it was given up"
        case ReceiverDisplaced():
            return "displaced in", f" by {event.by or 'another receiver'}"
        case CheckpointRefused():
            return "checkpoint refused for", f" at {event.sequence_number}: {event.why}"
        case HandlerAbandoned():
            return "the handler does not end in", ": nobody waits for it any more"
        case _:
            return _reading_line_parts(event)


def _reading_line_parts(event: HookEvent) -> tuple[str, str] | None:
    match event:
        case PumpRestarted():
            pause = shown_seconds(event.pause_s)
            return "reading again in", f" after {pause}: {event.error}"
        case PositionMoved():
            return "moved on in", f" from {event.wanted} to {event.found}: retention was faster"
        case _:
            return None


EXAMPLE = "leasehold process billing:handle --source orders --group billing"
_STATUS_EVERY_S = 15.0
_RETRIES = 3
_SOURCES = "a source is log:STREAM or eventhubs://NAMESPACE/HUB"
_DEAD_LETTER = "dead_letter="

Handler = Annotated[
    str,
    typer.Argument(metavar="MODULE:HANDLER", help="`def handle(context, event)`, sync or async."),
]
Source = Annotated[
    str,
    typer.Option(
        help="The stream of the log in the store: orders. Or a hub: eventhubs://NAMESPACE/HUB.",
        metavar="STREAM",
    ),
]
Group = Annotated[
    str, typer.Option(help="Who shares the partitions; made when it is new.", metavar="GROUP")
]
Batch = Annotated[
    bool,
    typer.Option("--batch", help="The handler takes batches: (context, batch).", metavar=""),
]
HolderName = Annotated[str, typer.Option(help="Begins the id of this member.", metavar="NAME")]
LeaseTime = Annotated[
    str | None,
    typer.Option(
        "--lease",
        help="If the holder is silent for this long, others take over: 10s if it is not given, "
        "30s on Azure Blob.",
        metavar="TIME",
    ),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--start",
        help="Where to begin without a checkpoint: earliest, latest, seq:N, offset:N, or a time.",
        metavar="PLACE",
    ),
]
CheckpointWhen = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        help="When the position is noted: batch (after each), manual (only by the handler), 1000 "
        "(after so many events) or 5s.",
        metavar="WHEN",
    ),
]
Weight = Annotated[
    float,
    typer.Option(
        help="The share of this host, relative to the others.",
        min=0.001,
        max=MAX_WEIGHT,
        metavar="N",
    ),
]
MaxPartitions = Annotated[
    int | None, typer.Option(help="Take no more partitions than this.", min=0, metavar="N")
]
StrategyName = Annotated[
    Strategy,
    typer.Option(
        help="How partitions are shared out: even, by_load, balanced, greedy, one_steal or "
        "biggest_owner.",
        metavar="NAME",
    ),
]
Poison = Annotated[
    str,
    typer.Option(
        help="If an event fails again and again: retry (for ever), skip, stop (the partition), or "
        "dead_letter=STREAM.",
        metavar="WHAT",
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(help=f"Before that, so many retries. \\[default: {_RETRIES}]", min=0, metavar="N"),
]
HandlerTimeout = Annotated[
    str | None, typer.Option(help="How long one call may take: 30s.", metavar="TIME")
]
DrainTimeout = Annotated[
    str, typer.Option(help="How long a partition may take to end in order.", metavar="TIME")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(help="Serve metrics for Prometheus there.", min=1, max=65535, metavar="PORT"),
]
MetricsAddress = Annotated[
    str,
    typer.Option(
        help="Address for --metrics-port; 0.0.0.0 is all addresses of the host, for any process "
        "that reaches it.",
        metavar="ADDRESS",
    ),
]


def process(
    handler: Handler,
    *,
    source: Source,
    group: Group,
    batch: Batch = False,
    holder_name: HolderName = "host",
    lease: LeaseTime = None,
    start: StartOption = "earliest",
    checkpoint: CheckpointWhen = "1s",
    weight: Weight = 1.0,
    max_partitions: MaxPartitions = None,
    strategy: StrategyName = Strategy.EVEN,
    poison: Poison = "retry",
    retries: Retries = None,
    handler_timeout: HandlerTimeout = None,
    drain_timeout: DrainTimeout = "30s",
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = "127.0.0.1",
    store: StoreUrl = None,
) -> None:
    """Run a handler on the events of a stream; start it several times to share the work.

    Ctrl-C or SIGTERM stops it gracefully: it finishes what it has begun, stores positions, hands
    over its partitions and exits with 0. A second one, 1 s later or more, ends it immediately.
    """
    options = partial(
        leasehold.processor.ProcessorOptions,
        strategy=strategy,
        timing=_timing(lease, store),
        start=Start.parse(start),
        checkpoint=_checkpoint(checkpoint),
        weight=weight,
        max_partitions=max_partitions,
        handler_timeout=_handler_timeout(handler_timeout),
        drain_timeout=duration(drain_timeout, option="--drain-timeout", at_most="7d"),
    )
    policy, dead_stream = _poison(poison, retries)
    url = store_url(store, make=not is_in_store(source))
    if dead_stream and dead_stream == source.removeprefix("log:"):
        raise UsageError(
            f"dead letters of {dead_stream!r} can not go into {dead_stream!r} itself: they would "
            "come again; make a stream for them with `leasehold log create`"
        )
    function = load_handler(handler, batch=batch)
    output = ProcessOutput(SystemClock(), name=holder_name)
    with command_hints(), log_to(output), ExitStack() as stack:
        dead = stack.enter_context(_dead_letters(url, dead_stream))
        events = stack.enter_context(_opened(source, url, holder_name))
        processor = leasehold.processor.EventProcessor(
            events,
            url,
            group,
            on_batch=function if batch else None,
            on_event=None if batch else function,
            options=options(poison=policy, dead_letters=dead),
            hooks=[output.hook],
            name=holder_name,
        )
        stack.enter_context(_metrics(processor, metrics_address, metrics_port, output))
        what = "batches" if batch else "events"
        output.say(f"{handler} takes the {what} of {events.name} for {group}; Ctrl-C ends it")
        with status_lines(processor, output, every_s=_STATUS_EVERY_S):
            processor.run()
        if processor.abandoned:
            calls = counted(processor.abandoned, "handler")
            output.say(f"{calls} did not end in time and cannot be stopped: leaving without order")
            os._exit(1)  # else the interpreter would wait for it
        output.say(f"left in good order: {counted(processor.counts().events_handled, 'event')}")


# --------------------------------------------------------------------------- parts


def _handler_timeout(text: str | None) -> timedelta | None:
    if text is None:
        return None
    return duration(text, option="--handler-timeout", at_least="10ms", at_most="7d")


def _timing(lease: str | None, store: str | None) -> LeaseTiming:
    usual = "30s" if (store or "").lower().startswith("azure-blob:") else "10s"
    # A lease on Azure Blob lasts 15 s at least.
    return LeaseTiming.of(
        lease=duration(lease or usual, option="--lease", at_least="50ms", at_most="7d")
    )


def _checkpoint(text: str) -> CheckpointPolicy:
    """Parse ``batch``, ``manual``, ``1000`` or ``5s``."""
    word = text.strip()
    if word == "batch":
        return CheckpointPolicy.after_each_batch()
    if word == "manual":
        return CheckpointPolicy.manual()
    if word.isascii() and word.isdigit():
        if not int(word):
            raise UsageError("--checkpoint 0 is never: write 1 or more events, or manual")
        return CheckpointPolicy.every(events=int(word))
    if not word[:1].isdigit():
        raise UsageError(
            f"--checkpoint {text!r} says no time: write batch, manual, a number of events such as "
            "1000, or a duration such as 5s"
        )
    return CheckpointPolicy.every(interval=duration(word, option="--checkpoint", at_most="1d"))


def _poison(text: str, retries: int | None) -> tuple[PoisonPolicy, str]:
    """Parse the policy; also return the stream for dead letters, or an empty text."""
    if text == "retry":
        if retries is not None:
            raise UsageError(
                "--poison retry goes on for ever: leave --retries out, or say what comes after "
                "them with --poison skip, stop or dead_letter=STREAM"
            )
        return PoisonPolicy.retry(), ""
    times = _RETRIES if retries is None else retries
    if text == "skip":
        return PoisonPolicy.skip(retries=times), ""
    if text == "stop":
        return PoisonPolicy.stop(retries=times), ""
    stream = text.removeprefix(_DEAD_LETTER)
    if stream == text or not stream:
        raise UsageError(
            f"--poison {text!r} is not known: write retry, skip, stop or dead_letter=STREAM"
        )
    return PoisonPolicy.dead_letter(retries=times), stream


@contextmanager
def _opened(text: str, url: str, name: str) -> Iterator[EventSource]:
    try:
        source = leasehold.events.open_source(text, store_url=url, name=name)
    except UnknownStream as error:
        raise UnknownStream(f"{error}; {_SOURCES}") from error
    try:
        yield source
    finally:
        anyio.run(source.close)


@contextmanager
def _dead_letters(url: str, stream: str) -> Iterator[LogDeadLetters | None]:
    if not stream:
        yield None
        return
    options = leasehold.log.LogOptions(run_monitor=False)
    with leasehold.log.Log.open(url, name="dead-letters", options=options) as log:
        letters = leasehold.log.LogDeadLetters(log, stream)
        try:
            yield letters
        finally:
            anyio.run(letters.close)


@contextmanager
def _metrics(
    processor: EventProcessor, address: str, port: int | None, output: ProcessOutput
) -> Iterator[None]:
    """Serve the metrics while the processor runs, if a port is given."""
    if port is None:
        yield
        return
    # An extra: our own module reports what is missing, so it is imported first.
    metrics_of = import_module("leasehold.processor.metrics").ProcessorMetrics
    prometheus = import_module("prometheus_client")
    try:
        server, thread = prometheus.start_http_server(port, address)
    except OSError as error:
        raise UsageError(
            f"--metrics-port {port} can not be had at {address}: {error.strerror or error}; choose "
            "another port, or another --metrics-address"
        ) from error
    metrics = metrics_of(processor)
    shown = f"[{address}]" if ":" in address else address
    output.say(f"metrics at http://{shown}:{port}/metrics")
    try:
        yield
    finally:
        metrics.close()
        server.shutdown()
        server.server_close()
        thread.join()


def add_to(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(epilog=EXAMPLE)(process)
