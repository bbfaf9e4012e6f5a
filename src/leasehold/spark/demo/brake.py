"""A sink that tells what happens to each commit, and can be made to wait at one exact moment.

It adds nothing to the sink and takes nothing away: the commit that comes after the wait is the very
call that would have come without it. So a driver that was stopped there shows what a real pause of
a machine shows, only not by luck.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from leasehold.errors import FencedWrite
from leasehold.spark.demo.messages import Kind, Moment, Said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.sinks.port import Batch, Commit, Sink, Staged, Sunk, Written


class Brake:
    """Lets the next batch wait at a moment. Safe to use from several threads."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._wanted: Moment | None = None
        self._least_rows = 0
        self._go = threading.Event()

    def ask(self, moment: Moment, *, least_rows: int = 0) -> None:
        """Let the next batch of so many rows that comes there wait."""
        self._go.clear()
        self._least_rows = least_rows
        self._wanted = moment

    def go(self) -> None:
        """Let it go on."""
        self._wanted = None
        self._go.set()

    def wait_at(self, moment: Moment, *, rows: int, tell: Callable[[], None]) -> None:
        """Return at once, or, if it was asked for, after ``go``; ``tell`` is called before."""
        if self._wanted is moment and rows >= self._least_rows:
            self._wanted = None
            tell()
            self._go.wait()


class WatchedSink:
    """A ``Sink`` before another one."""

    def __init__(self, inner: Sink, *, brake: Brake, tell: Callable[[Said], None]) -> None:
        """Whatever is asked goes to ``inner``."""
        self._inner = inner
        self._brake = brake
        self._tell = tell

    @property
    def name(self) -> str:
        """See ``Sink``."""
        return self._inner.name

    @property
    def atomic(self) -> bool:
        """See ``Sink``."""
        return self._inner.atomic

    def open(self, spark: SparkSession) -> None:
        """See ``Sink``."""
        self._inner.open(spark)

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, Sunk]:
        """See ``Sink``."""
        return self._inner.fence(group, epochs)

    def move(self, group: str, places: Mapping[str, Sunk]) -> None:
        """See ``Sink``."""
        self._inner.move(group, places)

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """See ``Sink``."""
        return self._inner.stage(frame, batch)

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """See ``Sink``."""
        self._say(Kind.STAGED, batch)
        self._wait_at(Moment.STAGED, batch)
        try:
            written = self._inner.commit(staged, batch)
        except FencedWrite as error:
            self._say(Kind.REFUSED, batch, words=str(error))
            raise
        self._say(Kind.COMMITTED, batch)
        self._wait_at(Moment.COMMITTED, batch)
        return written

    def discard(self, staged: Staged) -> None:
        """See ``Sink``."""
        self._inner.discard(staged)

    def commits(self, group: str) -> Iterator[Commit]:
        """See ``Sink``."""
        return self._inner.commits(group)

    def close(self) -> None:
        """See ``Sink``."""
        self._inner.close()

    def _wait_at(self, moment: Moment, batch: Batch) -> None:
        self._brake.wait_at(moment, rows=batch.rows, tell=lambda: self._say(Kind.WAITS, batch))

    def _say(self, kind: Kind, batch: Batch, *, words: str = "") -> None:
        epochs = {each.range.partition: each.epoch for each in batch.shares}
        self._tell(Said(kind=kind, rows=batch.rows, epochs=epochs, words=words))
