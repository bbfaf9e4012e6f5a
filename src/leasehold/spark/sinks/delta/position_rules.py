"""Where the partitions of a group stand in a Delta table, and what may be committed. Pure.

Two application transactions keep a partition: ``leasehold:<group>/<partition>`` has the position as
its version, and the same with ``#epoch`` the epoch. Every commit and every fence writes the second,
so of two that were judged on the same version of the table only one gets through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from leasehold.errors import FencedWrite, SinkChanged
from leasehold.spark.sinks.port import Sunk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.spark.sinks.port import Batch

_NOWHERE = -1  # a position that was taken back: a transaction can not be deleted


def position_id(group: str, partition: str) -> str:
    """The application id whose version is the position."""
    return f"leasehold:{quote(group, safe='/')}/{quote(partition, safe='')}"


def epoch_id(group: str, partition: str) -> str:
    """The application id whose version is the epoch."""
    return f"{position_id(group, partition)}#epoch"


def group_id(group: str) -> str:
    """The application id that is set once a group has written to the table."""
    return f"leasehold:{quote(group, safe='/')}#group"


def combined(
    group: str, partition: str, version_of: Callable[[str], int | None], before: Sunk
) -> Sunk:
    """What is known of a partition: by the table, and by what was fenced ``before`` it was made."""
    position = version_of(position_id(group, partition))
    epoch = version_of(epoch_id(group, partition))
    return Sunk(
        position=before.position if position is None else _known(position),
        epoch=max(epoch or 0, before.epoch),
    )


def transactions(group: str, places: Mapping[str, Sunk], *, epochs_only: bool) -> dict[str, int]:
    """What to write so that the partitions stand there."""
    written = {epoch_id(group, name): place.epoch for name, place in places.items()}
    if not epochs_only:
        for name, place in places.items():
            at = _NOWHERE if place.position is None else place.position
            written[position_id(group, name)] = at
    return written


def refuse_older_epochs(sink: str, now: Mapping[str, Sunk], epochs: Mapping[str, int]) -> None:
    """Let pass only those whose epochs are not below what the table knows.

    Raises:
        FencedWrite: one of them is; it names the partition.
    """
    for partition, epoch in epochs.items():
        if now[partition].epoch > epoch:
            raise FencedWrite(
                f"partition {partition} was fenced in {sink} under epoch "
                f"{now[partition].epoch}, and this write came under epoch {epoch}: it was "
                "refused and nothing was written. Somebody else owns the partition; its new owner "
                "goes on from the last commit, so there is nothing to do",
                key=partition,
                epoch=epoch,
                reason="fenced",
            )


def refuse_lost(sink: str, now: Mapping[str, Sunk], seen: Mapping[str, Sunk]) -> None:
    """Let pass only a table that knows at least what it has told before.

    Raises:
        SinkChanged: it has forgotten an epoch or a position.
    """
    for partition, before in seen.items():
        lost = before.position is not None and now[partition].position is None
        if lost or now[partition].epoch < before.epoch:
            raise SinkChanged(
                f"{sink} knew partition {partition} at position {before.position} under epoch "
                f"{before.epoch}, and now says {now[partition].position} and "
                f"{now[partition].epoch}: the table was made anew or put back from a copy. Nothing "
                "was written. Stop the pipeline, make sure which rows the table holds, and start "
                "it with a new group or move its positions there"
            )


def done_before(sink: str, batch: Batch, now: Mapping[str, Sunk]) -> bool:
    """Whether the batch is in the table already; False if it may be committed.

    Raises:
        SinkChanged: it is neither in the table nor the next in line.
    """
    shares = [(each, now[each.range.partition]) for each in batch.shares]
    if shares and all(
        at.position == each.range.end and at.epoch == each.epoch for each, at in shares
    ):
        return True
    for each, at in shares:
        if at.position is not None and at.position != each.range.start:
            raise SinkChanged(
                f"the batch {batch.label} starts at {each.range.start} in partition "
                f"{each.range.partition}, but {sink} holds its events up to {at.position} under "
                f"epoch {at.epoch}, and nobody else owns it: the position was moved by an operator "
                "or by a stranger. Nothing was written. Start the pipeline again: it goes on where "
                "the table says"
            )
    return False


def _known(position: int) -> int | None:
    return None if position == _NOWHERE else position
