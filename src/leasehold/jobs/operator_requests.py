"""The requests of operators for jobs: pause it, and run it now.

A request is the checkpoint of a key beside the job, ``paused/<name>`` or ``wanted/<name>``, written
without a lease. The history of that key (``Store.history``) shows when requests were made. A
checkpoint that Leasehold did not write is a request without text; it is never an error.

A request for a run is taken once: the node that takes it owns its key for a moment and writes the
position *taken*.
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
    """One request of an operator.

    Attributes:
        by: the operator.
        why: the reason that the operator gave.
        given_at: when, by the store's clock.
        until: when a pause ends; None: it lasts until it is ended.
        number: of a request for a run: its sequence number in the store.
    """

    by: str
    why: str
    given_at: datetime
    until: datetime | None = None
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequests:
    """All requests in force, by the name of the job."""

    paused: Mapping[str, OperatorRequest]
    run_requests: Mapping[str, OperatorRequest]

    def is_paused(self, name: str, *, now: datetime) -> bool:
        """Return whether no run of the job may start now."""
        request = self.paused.get(name)
        return request is not None and (request.until is None or now < request.until)


def request_key(kind: str, name: str) -> str:
    """Return the key of a request for a job."""
    return f"{kind}/{job_key(name).partition('/')[2]}"


async def pause(
    store: Store, name: str, *, by: str, why: str = "", until: datetime | None = None, clock: Clock
) -> None:
    """Let no run start until ``resume``, or until a time. Current runs continue."""
    fields = {"by": by, "why": why}
    if until is not None:
        fields["until"] = until.astimezone(UTC).isoformat()
    await _put(store, request_key(PAUSE_GROUP, name), _position(0, fields), clock)


async def resume(store: Store, name: str, *, clock: Clock) -> bool:
    """End the pause; False if there was none."""
    key = request_key(PAUSE_GROUP, name)
    if key not in await store.checkpoints(PAUSE_GROUP):
        return False
    await _put(store, key, None, clock)
    return True


async def request_run(store: Store, name: str, *, by: str, why: str = "", clock: Clock) -> None:
    """Request one run, schedule or not, as soon as a node can. One request is kept at a time."""
    key = request_key(RUN_GROUP, name)
    found = (await store.checkpoints(RUN_GROUP)).get(key)
    last = -1 if found is None else found.position.sequence_number
    if last % 2 == 0:  # there is one already
        return
    await _put(store, key, _position(last + 1, {"by": by, "why": why}), clock)


async def cancel_run_request(store: Store, name: str, *, clock: Clock) -> bool:
    """Withdraw the request for a run; False if there is none, or a node has taken it."""
    requests = await read_requests(store)
    request = requests.run_requests.get(name)
    if request is None:
        return False
    await _put(store, request_key(RUN_GROUP, name), taken_position(request), clock)
    return True


def taken_position(request: OperatorRequest) -> Position:
    """Return the position that marks a request for a run as taken."""
    return Position(sequence_number=request.number + 1, offset="{}")


async def read_requests(store: Store) -> OperatorRequests:
    """Read all requests in force. Two calls."""
    paused, run_requests = await store.checkpoints(PAUSE_GROUP), await store.checkpoints(RUN_GROUP)
    return OperatorRequests(
        paused={last_part(key): _parse_request(each) for key, each in paused.items()},
        run_requests={
            last_part(key): _parse_request(each)
            for key, each in run_requests.items()
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


def _position(number: int, fields: Mapping[str, str]) -> Position:
    kept = {name: each[:_LONGEST_TEXT] for name, each in fields.items() if each}
    return Position(sequence_number=number, offset=json.dumps(kept, ensure_ascii=False))


def _parse_request(checkpoint: Checkpoint) -> OperatorRequest:
    position = checkpoint.position
    fields = _parse_fields(position.offset)
    return OperatorRequest(
        by=fields.get("by", ""),
        why=fields.get("why", ""),
        given_at=checkpoint.updated_at,
        until=_parse_time(fields.get("until")),
        number=position.sequence_number,
    )


def _parse_fields(text: str) -> dict[str, str]:
    """Parse the fields of a request. One that cannot be read is in force too, without fields."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: each for name, each in found.items() if isinstance(each, str)}


def _parse_time(text: str | None) -> datetime | None:
    """Parse the end of a pause; None if it cannot be read: then ``resume`` ends it."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return aware.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
