"""How the copies of a block agree on its end: a pure function, the same answer for every asker.

Everything that was acknowledged is kept, as long as one volume that has it answers. A block is
written to all its volumes before anything is acknowledged, so any one usable copy is long enough,
and the shortest of the best ones is the safe choice. A tail is dropped only if every volume of
the block said that it has nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.errors import TailUncertain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class ReplicaCondition(Enum):
    """What one volume has of a block, best first."""

    SEALED = "sealed"  # the writer had finished: records, bytes and a seal
    WHOLE = "whole"  # every record has its bytes
    CUT = "cut"  # the last pieces are missing or damaged, as after a power cut
    DAMAGED = "damaged"  # something is missing that was durable
    EMPTY = "empty"  # the replica is there and has no record
    ABSENT = "absent"  # the volume answers and has no such replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAnswer:
    """What one volume said; ``checksum`` is over its records up to ``length``."""

    volume: str
    condition: ReplicaCondition
    length: int
    checksum: int
    bytes_read: int = field(default=0, compare=False)  # what the answer cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Where the block ends, and the volumes that have all of it. Length 0: the tail is dropped."""

    length: int
    volumes: tuple[str, ...]


def agree(
    members: Sequence[str], answers: Mapping[str, ReplicaAnswer], *, accept_loss: bool = False
) -> Agreement:
    """Decide where a block ends; members that are not in ``answers`` did not answer.

    With ``accept_loss`` those that are silent are taken for gone for good: what the others have
    is all there is.

    Raises:
        TailUncertain: no usable copy answered, or sound copies contradict each other.
    """
    given = [answers[member] for member in members if member in answers]
    sealed = [answer for answer in given if answer.condition is ReplicaCondition.SEALED]
    # Apart from a seal, a copy without a byte does not vote: to keep what another has is safe.
    usable = [
        answer
        for answer in given
        if answer.length > 0 and answer.condition is not ReplicaCondition.DAMAGED
    ]
    if sealed:
        _same(sealed, "sealed copies")
        return _decided(sealed[0].length, usable)
    for best in (ReplicaCondition.WHOLE, ReplicaCondition.CUT):
        lengths = [answer.length for answer in usable if answer.condition is best]
        if (
            lengths
            and best is ReplicaCondition.CUT
            and len(given) < len(members)
            and not accept_loss
        ):
            break  # it says itself that there was more: who is silent may have it
        if lengths:
            return _decided(min(lengths), usable)
    damaged = any(answer.condition is ReplicaCondition.DAMAGED for answer in given)
    if members and ((len(given) == len(members) and not damaged) or accept_loss):
        return Agreement(length=0, volumes=())
    raise TailUncertain(_why(members, answers))


def _decided(length: int, usable: Iterable[ReplicaAnswer]) -> Agreement:
    """Every sound copy that is long enough takes part, whatever else is wrong with its end."""
    if length == 0:
        return Agreement(length=0, volumes=())
    long_enough = [answer for answer in usable if answer.length >= length]
    _same([answer for answer in long_enough if answer.length == length], "copies of one length")
    return Agreement(length=length, volumes=tuple(answer.volume for answer in long_enough))


def _same(answers: Iterable[ReplicaAnswer], what: str) -> None:
    found = {(answer.length, answer.checksum): answer.volume for answer in answers}
    if len(found) > 1:
        listed = ", ".join(
            f"{volume} has {length} bytes (checksum {checksum:08x})"
            for (length, checksum), volume in sorted(found.items())
        )
        raise TailUncertain(
            f"the {what} of the block are inconsistent: {listed}. Nothing was changed. Verify the "
            "volumes, take the wrong one out of service, and recover the file again."
        )


def _why(members: Sequence[str], answers: Mapping[str, ReplicaAnswer]) -> str:
    silent = [member for member in members if member not in answers]
    damaged = [
        member
        for member in members
        if member in answers and answers[member].condition is ReplicaCondition.DAMAGED
    ]
    cut = [each.volume for each in answers.values() if each.condition is ReplicaCondition.CUT]
    parts = ["no usable copy of the block's tail was found"]
    if cut:
        parts.append(f"cut short on {', '.join(cut)}")
    if silent:
        parts.append(f"no answer from {', '.join(silent)}")
    if damaged:
        parts.append(f"damaged on {', '.join(damaged)}")
    if not members:
        parts.append("the journal names no volume for it")
    advice = "bring back the volumes named" if members else "verify the journal"
    last = " If they are gone for good, accept the loss (accept_loss)." if members else ""
    return f"{'; '.join(parts)}. Nothing was dropped: {advice} and recover the file again.{last}"
