"""Takeover of partitions: the sink is fenced first, then asked for its position.

In this order no commit can slip between: when the sink has answered, no former owner can commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.resume_position import (
    PositionOrigin,
    check_same_stream,
    resumed,
    resumed_by_checkpoint,
)
from leasehold.errors import PositionLost, SinkChanged
from leasehold.events.start import Start
from leasehold.processor.options import OnTrimmed
from leasehold.spark.sinks.port import SinkPosition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.core.resume_position import ResumePosition
    from leasehold.events.source import PartitionEnds, RangeSource
    from leasehold.lease.handle import Handle
    from leasehold.model import Checkpoint
    from leasehold.spark.pipeline.options import PipelineOptions
    from leasehold.spark.pipeline.owned_partitions import OwnedPartitions
    from leasehold.spark.sinks.port import Sink

_SET_AT_TAKEOVER = frozenset((PositionOrigin.START, PositionOrigin.OPERATOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a partition resumes, and what determined that."""

    position: int
    by: str


class Takeover:
    """Finds the positions to resume at, for one pipeline."""

    def __init__(
        self, *, sink: Sink, owned: OwnedPartitions, source: RangeSource, options: PipelineOptions
    ) -> None:
        self._sink = sink
        self._owned = owned
        self._source = source
        self._options = options

    def resume_points(self, handles: Mapping[str, Handle]) -> dict[str, ResumePoint]:
        """Return the position of each partition; those that turn out to be lost are omitted.

        When it returns, sink and checkpoint both have that position: a start by the options is
        fixed once for the group, and an operator's reset is done once it is carried out.
        """
        known = self.fence_sink(handles)
        checkpoints = self._owned.checkpoints()
        ends = self._source.ends(list(known))
        resume_points: dict[str, ResumePoint] = {}
        moves: dict[str, SinkPosition] = {}
        checkpoints_to_write: dict[str, tuple[Handle, int]] = {}
        for partition, sink_position in known.items():
            handle = handles[partition]
            checkpoint = checkpoints.get(handle.ownership.key)
            done = None if checkpoint is None else checkpoint.resumes_at
            if checkpoint is not None:  # a sink that has a position has a checkpoint beside it
                check_same_stream(
                    checkpoint.position.stream,
                    self._source.identity,
                    stream=self._source.name,
                    partition=partition,
                    resumes_at=done,
                )
            found = self._resumed(handle, checkpoint, sink_position)
            if found.by is PositionOrigin.NOBODY:
                raise self._contradiction(partition, done, sink_position)
            position = self._in_log(partition, found, ends[partition])
            resume_points[partition] = ResumePoint(position=position, by=found.by.value)
            if found.by in _SET_AT_TAKEOVER or found.position != position:
                moves[partition] = SinkPosition(position=position, epoch=handle.ownership.epoch)
            if found.by in _SET_AT_TAKEOVER or done != position:
                checkpoints_to_write[partition] = (handle, position)
        if moves and self._sink.atomic:
            self._sink.move(self._owned.group, moves)
        if (
            checkpoints_to_write
        ):  # after the sink: a reset counts until a checkpoint was written after it
            self._owned.write_checkpoints(checkpoints_to_write)
        return resume_points

    def fence_sink(self, handles: Mapping[str, Handle]) -> dict[str, SinkPosition]:
        """Fence the sink for these, and return what it knows. What is lost already is omitted."""
        epochs = {each: handle.ownership.epoch for each, handle in handles.items()}
        known = self._sink.fence(self._owned.group, epochs) if self._sink.atomic else {}
        found = {}
        for partition, epoch in epochs.items():
            sink_position = known.get(partition, SinkPosition())
            if sink_position.epoch > epoch:
                self._give_up(handles[partition], sink_position.epoch)
            else:
                found[partition] = sink_position
        return found

    def _give_up(self, handle: Handle, sink_epoch: int) -> None:
        """End an ownership that the sink knows to be over; raise if the store does not."""
        owned = handle.ownership
        if self._owned.epoch(owned.key) == owned.epoch:
            raise SinkChanged(
                f"{self._sink.name} has heard of epoch {sink_epoch} of partition "
                f"{handle.partition} for {self._owned.group!r}, and the store is at "
                f"{owned.epoch}: a group of this name in another store writes to it, or the store "
                "was made anew. Use another name for the group"
            )
        self._owned.fenced(handle)

    def _resumed(
        self, handle: Handle, checkpoint: Checkpoint | None, sink_position: SinkPosition
    ) -> ResumePosition:
        done = None if checkpoint is None else checkpoint.resumes_at
        if not self._sink.atomic:
            return resumed_by_checkpoint(done)
        reset_epoch = self._owned.reset_epoch(handle.ownership.key)
        is_reset = reset_epoch > (0 if checkpoint is None else checkpoint.epoch - 1)
        return resumed(checkpoint=done, sink_position=sink_position.position, is_reset=is_reset)

    def _in_log(self, partition: str, found: ResumePosition, ends: PartitionEnds) -> int:
        if found.position is None:
            return self._source.find(partition, self._options.start)
        if found.position > ends.next:
            raise PositionLost(
                f"partition {partition} of {self._source.name!r} is to go on at event "
                f"{found.position}, as the {found.by.value} says, and ends before event "
                f"{ends.next}: the stream was made anew, or is another one; use another group, or "
                "reset the checkpoint (leasehold checkpoints reset)"
            )
        if found.position >= ends.first:
            return found.position
        match self._options.on_trimmed:
            case OnTrimmed.EARLIEST:
                return ends.first
            case OnTrimmed.LATEST:
                return self._source.find(partition, Start.latest())
            case _:
                raise PositionLost(
                    f"events {found.position} to {ends.first - 1} of partition {partition} of "
                    f"{self._source.name!r} were removed by retention before they were processed: "
                    "go on without them with on_trimmed=OnTrimmed.EARLIEST"
                )

    def _contradiction(
        self, partition: str, checkpoint: int | None, sink_position: SinkPosition
    ) -> SinkChanged:
        knows = (
            "nothing"
            if sink_position.position is None
            else f"events up to {sink_position.position - 1}"
        )
        return SinkChanged(
            f"{self._sink.name} holds {knows} of partition {partition} of {self._source.name!r}, "
            f"and the checkpoint says that events up to {(checkpoint or 0) - 1} were committed: it "
            "was made anew, restored, or is another one. Nothing was written. Use a new group for "
            "a new sink, or say where it is to go on: leasehold checkpoints reset"
        )
