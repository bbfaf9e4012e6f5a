"""Opening a receiver where a partition is to go on, and what to do when that place is gone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold.errors import BeyondEnd, PositionLost, Trimmed
from leasehold.log.start import Start
from leasehold.processor.settings import OnTrimmed

if TYPE_CHECKING:
    from leasehold.processor.tenure import Tenure
    from leasehold.sources.port import EventSource, Receiver

log = logging.getLogger("leasehold.processor")

_ELSEWHERE = {OnTrimmed.EARLIEST: Start.earliest(), OnTrimmed.LATEST: Start.latest()}


async def open_receiver(
    source: EventSource, tenure: Tenure, *, group: str, start: Start, on_trimmed: OnTrimmed
) -> Receiver:
    """A receiver at ``start``, or further ahead if that was removed and the options allow it.

    Raises:
        PositionLost: there is no such place, and nobody said where to go on. Nothing else is taken
            for that: its advice is to move a checkpoint.
        Stolen: the group has a receiver with a higher epoch.
    """
    partition, epoch, name = tenure.partition, tenure.ownership.epoch, tenure.ownership.holder
    try:
        return await source.receiver(partition, group=group, epoch=epoch, start=start, name=name)
    except Trimmed as trimmed:
        if on_trimmed is OnTrimmed.FAIL:
            raise PositionLost(
                f"the next event of partition {partition} ({start}) was removed by retention: the "
                f"first that is kept is {trimmed.earliest}. Move the checkpoint with `leasehold "
                "checkpoints reset`, or set on_trimmed to earliest or latest"
            ) from trimmed
    except BeyondEnd as error:
        raise PositionLost(
            f"partition {partition} can not be read from {start}: {error}. Was the stream made "
            "anew, or does another source of this name use the group? Move the checkpoint with "
            "`leasehold checkpoints reset`, or take another group"
        ) from error
    start = _ELSEWHERE[on_trimmed]
    receiver = await source.receiver(partition, group=group, epoch=epoch, start=start, name=name)
    log.warning(
        "partition %s: events up to %d were removed by retention before they were handled",
        partition,
        receiver.position - 1,
    )
    return receiver
