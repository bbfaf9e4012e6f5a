"""Follow several partitions at once: their batches come as they are stored.

Each partition keeps its order; between partitions there is none. A follower that can not go on
ends all of them with its error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.cli.log_opened import about
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from leasehold.log import EventBatch, PartitionReader

    _Found = queue.Queue[EventBatch | LeaseholdError]

_LOOK_EVERY_S = 0.25  # how long a follower that is ahead takes to notice that nobody wants more


@contextmanager
def followed(readers: Sequence[PartitionReader]) -> Iterator[Iterator[EventBatch]]:
    """The batches of all readers, for ever.

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
        with about(reader.partition):
            for batch in reader.batches(follow=True):
                _put(batch, found, stop)
    except LeaseholdError as error:
        _put(error, found, stop)


def _put(what: EventBatch | LeaseholdError, found: _Found, stop: threading.Event) -> None:
    """Wait for room, but not for somebody who has left."""
    while not stop.is_set():
        try:
            found.put(what, timeout=_LOOK_EVERY_S)
        except queue.Full:
            continue
        return
