"""What a pipeline tells its hooks, in the order in which it happens to a batch.

A hook is a function that takes one of these records. It is called in the thread in which the thing
happened, and the pipeline waits for it; if it raises, that is logged and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.processor.events import HookEvent

if TYPE_CHECKING:
    from leasehold.spark.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOpened(HookEvent):
    """A partition came to this driver; its events come from ``position`` on, as ``by`` says."""

    position: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareClosed(HookEvent):
    """A partition has left this driver."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvent(HookEvent):
    """What all records of a batch have; ``rows`` are events that go in."""

    number: int
    ranges: tuple[Range, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlanned(BatchEvent):
    """The batch is about to be transformed. ``lag_events`` of all partitions here, with these."""

    lag_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStaged(BatchEvent):
    """Its rows are written where nobody reads them; its commit comes next."""

    stage_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted(BatchEvent):
    """Its rows are visible and its positions have moved.

    ``in_per_s``: rows since the batch before began, by the time since then; ``done_per_s``: rows by
    the time this batch took alone; they are what Spark calls input and processing rate.
    """

    rows_out: int
    plan_s: float
    stage_s: float
    commit_s: float
    batch_s: float
    in_per_s: float
    done_per_s: float
    lag_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRefused(BatchEvent):
    """Its commit was refused, or not tried: a partition is not ours any more. Nothing was written.

    ``by_sink``: the sink itself has refused it; else it was seen here before. Only if a commit was
    sent before without an answer (``Waiting``), it may have been written: the next owner asks.
    """

    why: str
    by_sink: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTried(BatchEvent):
    """The transformation or the staging failed for the ``attempt``-th time."""

    attempt: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(HookEvent):
    """The sink, the store or the log does not answer; it is asked again. ``what``: for what."""

    what: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDropped(HookEvent):
    """One event can not be transformed. ``action``: skip or dead letter. The batch goes on."""

    sequence_number: int
    action: str
    error: BaseException
