"""How the copies of a block agree on its end: a pure function, the same answer for every asker.

Everything that was acknowledged is kept, as long as one volume that has it answers. The highest
length that any copy knows to be acknowledged or durable is a lower bound: a shorter copy is stale
or has lost something, and does not vote. Of the copies that reach it, the shortest of the best
ones decides. If none does, the pieces of all copies together may reach it. A tail is dropped only
if every volume of the block said that it has nothing.

What ends below the lower bound is a loss, and the agreement says how much. Below what was durable
only an operator may accept it.
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
    """What one volume said; ``checksum`` is over its records up to ``length``.

    ``acknowledged`` is a length that was acknowledged, as far as this copy knows, and ``durable``
    one that was durable on all volumes; the copy itself may be shorter. ``pieces`` are the
    positions of the pieces that it has, those after a bad one too.
    """

    volume: str
    condition: ReplicaCondition
    length: int
    checksum: int
    acknowledged: int = 0
    durable: int = 0
    pieces: frozenset[int] = field(default=frozenset(), compare=False)
    bytes_read: int = field(default=0, compare=False)  # what the answer cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Where the block ends, and the volumes that have all of it. Length 0: the tail is dropped.

    ``lost``: how many bytes after the end had been acknowledged, as far as the copies know.
    """

    length: int
    volumes: tuple[str, ...]
    lost: int = 0


def agree(
    members: Sequence[str],
    answers: Mapping[str, ReplicaAnswer],
    *,
    together: int = 0,
    accept_loss: bool = False,
) -> Agreement:
    """Decide where a block ends; members that are not in ``answers`` did not answer.

    ``together`` is the length up to which each piece is sound on one copy or another. With
    ``accept_loss`` those that are silent are taken for gone for good: what the others have is all
    there is.

    Raises:
        TailUncertain: no usable copy answered, something durable is missing, or sound copies
            contradict each other.
    """
    given = [answers[member] for member in members if member in answers]
    least = max((answer.acknowledged for answer in given), default=0)
    # Apart from a seal, a copy without a byte does not vote: to keep what another has is safe.
    usable = [
        answer
        for answer in given
        if answer.length > 0 and answer.condition is not ReplicaCondition.DAMAGED
    ]
    sealed = [answer for answer in given if answer.condition is ReplicaCondition.SEALED]
    if sealed:
        _same(sealed, "sealed copies")
        return _decided(sealed[0].length, usable, least=least)
    may_end = len(given) == len(members) or accept_loss
    for best in (ReplicaCondition.WHOLE, ReplicaCondition.CUT):
        lengths = [
            answer.length
            for answer in usable
            if answer.condition is best and answer.length >= least
        ]
        # One that was cut says itself that there was more: who is silent may have it.
        if lengths and (best is ReplicaCondition.WHOLE or may_end):
            return _decided(min(lengths), usable, least=least)
    damaged = any(answer.condition is ReplicaCondition.DAMAGED for answer in given)
    durable = max((answer.durable for answer in given), default=0)
    together = max([together, *(answer.length for answer in usable)])
    if may_end and together and (together >= durable or accept_loss):
        return _decided(together, usable, least=least)
    if members and may_end and (accept_loss or not (damaged or durable)):
        return Agreement(length=0, volumes=(), lost=least)
    raise TailUncertain(_why(members, answers))


def _decided(length: int, usable: Iterable[ReplicaAnswer], *, least: int) -> Agreement:
    """Every sound copy that is long enough takes part, whatever else is wrong with its end."""
    lost = max(0, least - length)
    if length == 0:
        return Agreement(length=0, volumes=(), lost=lost)
    long_enough = [answer for answer in usable if answer.length >= length]
    _same([answer for answer in long_enough if answer.length == length], "copies of one length")
    volumes = tuple(answer.volume for answer in long_enough)
    return Agreement(length=length, volumes=volumes, lost=lost)


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
