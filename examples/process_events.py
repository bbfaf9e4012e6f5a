"""Share a stream between processes. Run it in several terminals, and append events in another one:

    seq 1000 | leasehold log append orders --batch 100 --store sqlite:///leases.db

Stop one with Ctrl-C and its partitions move to the others, without an event coming twice. Kill one
with ``kill -9`` and they move when its lease has ended.
"""

import sys
from pathlib import Path

from leasehold.errors import LeaseholdError
from leasehold.events import Event
from leasehold.log import Log, LogSource
from leasehold.processor import CloseReason, EventProcessor, PartitionContext


def handle(context: PartitionContext, event: Event) -> None:
    print(f"{context.partition}/{event.sequence_number}: {event.body.decode()}", flush=True)


def opened(context: PartitionContext) -> None:
    print(f"mine: partition {context.partition}, epoch {context.epoch}", flush=True)


def closed(context: PartitionContext, reason: CloseReason) -> None:
    print(f"gone: partition {context.partition} ({reason.value})", flush=True)


def failed(context: PartitionContext | None, error: BaseException) -> None:
    where = "store" if context is None else f"partition {context.partition}"
    print(f"trouble: {where}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def place_of(url: str) -> Path:
    """Beside the SQLite file; for any other store, here."""
    file = url.removeprefix("sqlite:///")
    return Path.cwd() if file == url else Path(file).parent


def main(url: str) -> None:
    volume = place_of(url) / "events"
    with Log.open(url, volumes=[volume]) as log:
        log.create("orders", partitions=4)  # again is harmless
        processor = EventProcessor(
            LogSource(log, "orders"),
            url,
            "billing",
            on_event=handle,
            on_error=failed,
            on_partition_open=opened,
            on_partition_close=closed,
        )
        processor.run()  # until Ctrl-C or SIGTERM


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///leases.db")
    except LeaseholdError as error:
        sys.exit(f"error: {error}")
