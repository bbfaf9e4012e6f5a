"""Taking over partitions: the sink is fenced first, then asked how far it has come.

In this order nothing can slip between: when the sink has answered, no former owner can commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.resume_position import PositionOrigin, resumed, resumed_by_checkpoint
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

_SETTLED_HERE = frozenset((PositionOrigin.START, PositionOrigin.OPERATOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlace:
    """Where a partition goes on, and who said so."""

    position: int
    by: str


class Takeover:
    """Finds the places for one pipeline."""

    def __init__(
        self, *, sink: Sink, shares: OwnedPartitions, source: RangeSource, options: PipelineOptions
    ) -> None:
        """Nothing is asked yet."""
        self._sink = sink
        self._shares = shares
        self._source = source
        self._options = options

    def places(self, fresh: Mapping[str, Handle]) -> dict[str, ResumePlace]:
        """The place of each partition; those that turn out to be lost are left out.

        When it returns, sink and checkpoint both stand there: a start by the options is settled
        once for the group, and an operator's reset is done with once it is carried out.

        Raises:
            SinkChanged: sink and checkpoint contradict each other.
            PositionLost: the place is not in the log (any more).
            LeaseLost: one of them was lost meanwhile: ask again for those that are left.
            StoreUnavailable: ask again.
        """
        known = self.fenced(fresh)
        checkpoints = self._shares.checkpoints()
        ends = self._source.ends(list(known))
        places: dict[str, ResumePlace] = {}
        moves: dict[str, SinkPosition] = {}
        marks: dict[str, tuple[Handle, int]] = {}
        for partition, sunk in known.items():
            tenure = fresh[partition]
            checkpoint = checkpoints.get(tenure.ownership.key)
            done = None if checkpoint is None else checkpoint.resumes_at
            found = self._resumed(tenure, checkpoint, sunk)
            if found.by is PositionOrigin.NOBODY:
                raise self._contradiction(partition, done, sunk)
            position = self._in_log(partition, found, ends[partition])
            places[partition] = ResumePlace(position=position, by=found.by.value)
            if found.by in _SETTLED_HERE or found.position != position:
                moves[partition] = SinkPosition(position=position, epoch=tenure.ownership.epoch)
            if found.by in _SETTLED_HERE or done != position:
                marks[partition] = (tenure, position)
        if moves and self._sink.atomic:
            self._sink.move(self._shares.group, moves)
        if marks:  # after the sink: a reset counts until a checkpoint was written after it
            self._shares.mark(marks)
        return places

    def fenced(self, tenures: Mapping[str, Handle]) -> dict[str, SinkPosition]:
        """Fence the sink for these, and tell what it knows. What is lost already is left out."""
        epochs = {each: tenure.ownership.epoch for each, tenure in tenures.items()}
        known = self._sink.fence(self._shares.group, epochs) if self._sink.atomic else {}
        found = {}
        for partition, epoch in epochs.items():
            sunk = known.get(partition, SinkPosition())
            if sunk.epoch > epoch:
                self._given_up(tenures[partition], sunk.epoch)
            else:
                found[partition] = sunk
        return found

    def _given_up(self, tenure: Handle, sunk_epoch: int) -> None:
        """The sink has heard of a later owner. If the store has not, it is not ours to write."""
        owned = tenure.ownership
        if self._shares.epoch(owned.key) == owned.epoch:
            raise SinkChanged(
                f"{self._sink.name} has heard of epoch {sunk_epoch} of partition "
                f"{tenure.partition} for {self._shares.group!r}, and the store is at "
                f"{owned.epoch}: a group of this name in another store writes to it, or the store "
                "was made anew. Use another name for the group"
            )
        self._shares.fenced(tenure)

    def _resumed(
        self, tenure: Handle, checkpoint: Checkpoint | None, sunk: SinkPosition
    ) -> ResumePosition:
        done = None if checkpoint is None else checkpoint.resumes_at
        if not self._sink.atomic:
            return resumed_by_checkpoint(done)
        reset_epoch = self._shares.reset_epoch(tenure.ownership.key)
        is_reset = reset_epoch > (0 if checkpoint is None else checkpoint.epoch - 1)
        return resumed(checkpoint=done, sink_position=sunk.position, is_reset=is_reset)

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
        self, partition: str, checkpoint: int | None, sunk: SinkPosition
    ) -> SinkChanged:
        knows = "nothing" if sunk.position is None else f"events up to {sunk.position - 1}"
        return SinkChanged(
            f"{self._sink.name} holds {knows} of partition {partition} of {self._source.name!r}, "
            f"and the checkpoint says that events up to {(checkpoint or 0) - 1} were committed: it "
            "was made anew, restored, or is another one. Nothing was written. Use a new group for "
            "a new sink, or say where it is to go on: leasehold checkpoints reset"
        )
