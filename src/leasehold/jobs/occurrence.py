"""Which occurrences of a schedule were started and done: the fenced checkpoint of the job.

The checkpoint never goes back and is written under the job's epoch, so an occurrence that is done
stays done for all nodes, whatever their clocks say. Of each moment two steps are told apart: its
run was *started*, its run is *done*.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasehold.errors import UsageError
from leasehold.model import Position

if TYPE_CHECKING:
    from leasehold.model import Checkpoint

_MARK = "occurrence "
_SINCE = "nothing before "


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How far a schedule was carried out.

    Attributes:
        done: all occurrences up to this moment are done, or were passed over.
        started: the occurrence whose run was started and is not known to be done.
    """

    done: datetime
    started: datetime | None = None


def born(at: datetime) -> Position:
    """The mark of a schedule that is new: what lies before ``at`` is nobody's business."""
    return Position(sequence_number=2 * _second(at) + 1, offset=_SINCE + _shown(at))


def started(occurrence: datetime) -> Position:
    """The mark of an occurrence whose run begins."""
    return Position(sequence_number=2 * _second(occurrence), offset=_MARK + _shown(occurrence))


def done(occurrence: datetime) -> Position:
    """The mark of an occurrence whose run is over, or which is passed over."""
    return Position(sequence_number=2 * _second(occurrence) + 1, offset=_MARK + _shown(occurrence))


def ran(checkpoint: Checkpoint | None) -> Ran | None:
    """Read the mark; None if the schedule is new.

    Raises:
        UsageError: the job has positions of its own, that no schedule has written.
    """
    if checkpoint is None:
        return None
    position = checkpoint.position
    if not position.offset.startswith((_MARK, _SINCE)):
        raise UsageError(
            f"{checkpoint.key} has a position of its own ({position.sequence_number}, "
            f"{position.offset[:40]!r}), so it can have no schedule: give the schedule a job of "
            "another name"
        )
    second, is_done = divmod(position.sequence_number, 2)
    moment = datetime.fromtimestamp(second, UTC)
    if is_done:
        return Ran(done=moment)
    # All before the one that was started had been settled when it was.
    return Ran(done=datetime.fromtimestamp(second - 1, UTC), started=moment)


def _second(moment: datetime) -> int:
    return int(moment.timestamp())


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
