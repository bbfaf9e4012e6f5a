"""What an audit looks at, as plain records: nothing here asks anybody.

``commits`` is None if no sink was named, ``ends`` if the stream is none of the store's log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.names import in_order, last_part

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from leasehold.model import Checkpoint, Term
    from leasehold.sources.port import PartitionEnds
    from leasehold.spark.sinks.port import Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What was written down of a group.

    Attributes:
        store, sink: for people, without secrets.
        at: when it was gathered, by the clock of whoever gathered it; to be shown.
        epochs: the epoch of each partition as the store says it, read before the terms.
        commits: of the sink, oldest first.
        settled: whether the sink stood still while it was read.
        rows_replaced: why rows may rightly be fewer than were written; else empty.
        rows_trouble, log_trouble: why rows or events could not be looked at; else empty.
    """

    stream: str
    group: str
    store: str
    at: datetime
    terms: tuple[Term, ...]
    checkpoints: tuple[Checkpoint, ...]
    epochs: Mapping[str, int]
    sink: str | None = None
    commits: tuple[Commit, ...] | None = None
    ends: Mapping[str, PartitionEnds] | None = None
    settled: bool = True
    rows_replaced: str = ""
    rows_trouble: str = ""
    log_trouble: str = ""

    @property
    def partitions(self) -> tuple[str, ...]:
        """All that anything speaks of, in order."""
        named = {last_part(each.key) for each in self.terms}
        named |= {last_part(each.key) for each in self.checkpoints}
        named |= {each.range.partition for each in self.commits or ()}
        return tuple(sorted({*named, *self.epochs, *(self.ends or {})}, key=in_order))

    @property
    def positions(self) -> Mapping[str, int]:
        """Where the sink is in each partition: the end of its last commit."""
        return {each.range.partition: each.range.end for each in self.commits or ()}
