"""A producer in a process of its own, for tests that send it signals.

Reads one JSON object per line from stdin: ``{"send": how many events, "batch": how many at once,
"partition": which one, or null}``. Every event's body is ``<name>:<number>``. Writes one JSON
object per line to stdout: ``ready``, ``stored`` for each batch, ``failed``, ``done``. The end of
stdin closes it in good order.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from datetime import timedelta

from leasehold.cli.fast_start import leave_pandas_out
from leasehold.errors import LeaseholdError
from leasehold.events import Event
from leasehold.log import Log, Producer, ProducerOptions

WINDOW = 8


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def send(producer: Producer, name: str, numbers: range, batch: int, partition: int | None) -> None:
    """Send the numbers in batches, a few of them under way at once; say what became of each."""
    waiting: deque[tuple[range, object]] = deque()
    for start in range(numbers.start, numbers.stop, batch):
        part = range(start, min(start + batch, numbers.stop))
        events = [Event(body=f"{name}:{number}".encode(), key=name) for number in part]
        waiting.append((part, producer.send(events, partition=partition)))
        if len(waiting) >= WINDOW:
            tell(*waiting.popleft())
    while waiting:
        tell(*waiting.popleft())


def tell(part: range, future: object) -> None:
    try:
        receipts = future.result()  # type: ignore[attr-defined]
    except LeaseholdError as error:
        say(event="failed", first=part.start, count=len(part), why=f"{error!r}")
    else:
        duplicate = any(receipt.duplicate for receipt in receipts)
        say(event="stored", first=part.start, count=len(part), duplicate=duplicate)


def main(url: str, stream: str, name: str, owner_timeout_s: float) -> None:
    options = ProducerOptions(owner_timeout=timedelta(seconds=owner_timeout_s))
    with Log.open(url, name=name) as log, log.producer(stream, options) as producer:
        say(event="ready")
        sent = 0
        for line in sys.stdin:
            order = json.loads(line)
            numbers = range(sent, sent + order["send"])
            sent = numbers.stop
            send(producer, name, numbers, order["batch"], order["partition"])
            counts = log.counts()
            say(event="done", fenced=counts.fenced, taken=counts.taken, stored=counts.events)
    say(event="closed")


if __name__ == "__main__":
    leave_pandas_out()  # no handler here needs it, and it takes its time
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
