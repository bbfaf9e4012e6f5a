"""What operators have said of jobs: paused, and *run it now*.

An order is the checkpoint of a key beside the job, ``paused/<name>`` or ``wanted/<name>``, that is
put there without a lease. Its history (``Store.history``) tells when orders were given. What stands
there and is not of our making is an order too, without words: it is never an error.

A wish for a run is taken once: whoever takes it owns its key for a moment and marks it as taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasehold.errors import JobHeld, UnknownResource
from leasehold.model import Position
from leasehold.names import job_key, last_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.clock import Clock
    from leasehold.model import Checkpoint
    from leasehold.ports import Store

PAUSE_GROUP, RUN_GROUP = "paused", "wanted"
_TRIES, _PAUSE_S = 20, 0.1
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequest:
    """What an operator said, and when.

    Attributes:
        by: who.
        why: in their words.
        given_at: when, by the store's clock.
        until: a pause ends by itself then; None: it lasts until it is ended.
        number: of a wish: the one to be taken.
    """

    by: str
    why: str
    given_at: datetime
    until: datetime | None = None
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequests:
    """All orders that stand, by the name of the job."""

    paused: Mapping[str, OperatorRequest]
    wanted: Mapping[str, OperatorRequest]

    def is_paused(self, name: str, *, now: datetime) -> bool:
        """Whether no run of the job may begin at this moment."""
        order = self.paused.get(name)
        return order is not None and (order.until is None or now < order.until)


def request_key(kind: str, name: str) -> str:
    """The key of an order for a job.

    Raises:
        InvalidName: it is no name of a job.
    """
    return f"{kind}/{job_key(name).partition('/')[2]}"


async def pause(
    store: Store, name: str, *, by: str, why: str = "", until: datetime | None = None, clock: Clock
) -> None:
    """Let no run begin until ``resume``, or until a moment. What runs goes on.

    Raises:
        InvalidName: it is no name of a job.
    """
    words = {"by": by, "why": why}
    if until is not None:
        words["until"] = until.astimezone(UTC).isoformat()
    await _put(store, request_key(PAUSE_GROUP, name), _position(0, words), clock)


async def resume(store: Store, name: str, *, clock: Clock) -> bool:
    """End the pause; False if there was none."""
    key = request_key(PAUSE_GROUP, name)
    if key not in await store.checkpoints(PAUSE_GROUP):
        return False
    await _put(store, key, None, clock)
    return True


async def request_run(store: Store, name: str, *, by: str, why: str = "", clock: Clock) -> None:
    """Have it run once as soon as somebody can, schedule or not; a wish that stands is enough.

    Raises:
        InvalidName: it is no name of a job.
        JobHeld: somebody has been taking a wish for seconds: try again.
    """
    key = request_key(RUN_GROUP, name)
    found = (await store.checkpoints(RUN_GROUP)).get(key)
    last = -1 if found is None else found.position.sequence_number
    if last % 2 == 0:  # it stands already
        return
    await _put(store, key, _position(last + 1, {"by": by, "why": why}), clock)


def taken_position(order: OperatorRequest) -> Position:
    """The mark on a wish, under the ownership of its key: nobody takes it any more."""
    return Position(sequence_number=order.number + 1, offset="{}")


async def read_requests(store: Store) -> OperatorRequests:
    """All orders that stand. Two reads."""
    paused, wanted = await store.checkpoints(PAUSE_GROUP), await store.checkpoints(RUN_GROUP)
    return OperatorRequests(
        paused={last_part(key): _parse_request(each) for key, each in paused.items()},
        wanted={
            last_part(key): _parse_request(each)
            for key, each in wanted.items()
            if each.position.sequence_number % 2 == 0
        },
    )


async def _put(store: Store, key: str, position: Position | None, clock: Clock) -> None:
    owners: Mapping[str, str] = {}
    for _ in range(_TRIES):
        try:
            owners = await store.reset({key: position})
        except UnknownResource:
            await store.declare([key])
            continue
        if not owners:
            return
        await clock.sleep(_PAUSE_S)
    holder = next(iter(owners.values()), "somebody")
    raise JobHeld(
        f"{holder} has been at {key} for {_TRIES * _PAUSE_S:g} s: try again",
        holder=holder,
        epoch=0,
        ends_in_s=0.0,
    )


def _position(number: int, words: Mapping[str, str]) -> Position:
    kept = {name: each[:_LONGEST_TEXT] for name, each in words.items() if each}
    return Position(sequence_number=number, offset=json.dumps(kept, ensure_ascii=False))


def _parse_request(checkpoint: Checkpoint) -> OperatorRequest:
    position = checkpoint.position
    words = _parse_fields(position.offset)
    return OperatorRequest(
        by=words.get("by", ""),
        why=words.get("why", ""),
        given_at=checkpoint.updated_at,
        until=_parse_time(words.get("until")),
        number=position.sequence_number,
    )


def _parse_fields(text: str) -> dict[str, str]:
    """The words of an order. One that can not be read stands as well, without them."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: each for name, each in found.items() if isinstance(each, str)}


def _parse_time(text: str | None) -> datetime | None:
    """The end of a pause; None if it has none that can be read: then it lasts until it is ended."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return aware.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
