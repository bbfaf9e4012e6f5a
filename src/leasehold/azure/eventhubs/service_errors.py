"""What a hub says when it refuses or ends something, in our words.

``ServiceError`` is the word of the hub as it is; ``error_of`` makes of it the error that whoever
called can act on, or None: then it is trouble that passes, and the thing to do is to try again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import (
    BeyondEnd,
    DataDamaged,
    LeaseholdError,
    ReaderDisplaced,
    StoreUnusable,
    UnknownStream,
    UsageError,
)

if TYPE_CHECKING:
    from leasehold.azure.amqp.composites import Error
    from leasehold.azure.eventhubs.address import HubAddress

STOLEN = "amqp:link:stolen"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
AUTH_FAILED = "com.microsoft:auth-failed"
ARGUMENT_ERROR = "com.microsoft:argument-error"
INVALID_OFFSET = "com.microsoft:georeplication:invalid-offset"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
DISABLED = "com.microsoft:entity-disabled"
LIMIT = "amqp:resource-limit-exceeded"
TOO_MANY = "amqp:link:transfer-limit-exceeded"
LOST = "leasehold:connection-lost"
DAMAGED = "leasehold:damaged"

REFUSED = {UNAUTHORIZED, AUTH_FAILED}
NO_PLACE = {ARGUMENT_ERROR, INVALID_OFFSET, OUT_OF_RANGE}
_NEW_RECEIVER = re.compile(r"New receiver '([^']*)'")
_HIGHER = re.compile(r"receiver with (?:a )?higher epoch", re.IGNORECASE)
_LONGEST_SHOWN = 400
_STATUS = {401: UNAUTHORIZED, 403: UNAUTHORIZED, 404: NOT_FOUND, 410: NOT_FOUND}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceError:
    """A condition of AMQP, and what was said with it."""

    condition: str
    description: str = ""

    def __str__(self) -> str:
        words = self.description[:_LONGEST_SHOWN]
        return f"{self.condition}: {words}" if words else self.condition


class ServiceRefused(Exception):
    """The hub has refused or ended something; ours only, nobody outside sees it."""

    def __init__(self, refusal: ServiceError) -> None:
        """Keep it."""
        super().__init__(str(refusal))
        self.refusal = refusal


def refusal_of(error: Error | None, *, instead: str) -> ServiceError:
    """The refusal in a performative; ``instead`` where it holds none."""
    if error is None:
        return ServiceError(condition=LOST, description=instead)
    return ServiceError(condition=error.condition, description=error.description or "")


def status_refusal(code: int, description: str, condition: str = "") -> ServiceError:
    """The refusal that an answer of a node stands for."""
    return ServiceError(
        condition=condition or _STATUS.get(code, f"status {code}"), description=description
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What was asked for when it was refused."""

    address: HubAddress
    consumer_group: str = ""
    partition: str = ""
    epoch: int | None = None
    end: int | None = None


def error_of(refusal: ServiceError, asked: RequestContext) -> LeaseholdError | None:
    """The error to raise; None if it is worth another try."""
    address, condition = asked.address, refusal.condition
    if condition == STOLEN or _HIGHER.search(refusal.description):
        return _stolen(refusal, asked)
    if condition == NOT_FOUND:
        group = asked.consumer_group
        also = f", its consumer group {group!r}" if group else ""
        part = f" or its partition {asked.partition}" if asked.partition else ""
        todo = "check the name, or create it"
        if group:
            todo = "check the names, create it, or name another group with ?consumer_group=… in "
            todo += "the address"
        return UnknownStream(
            f"{address.namespace} has no event hub {address.hub!r}{also}{part} ({refusal}): {todo}"
        )
    if condition in REFUSED:
        return StoreUnusable(
            f"{address} does not let us in ({refusal}): check that the key or the identity is of "
            "this namespace, may listen (Azure Event Hubs Data Receiver), and has not been renewed"
        )
    return _of_data(refusal, asked)


def _of_data(refusal: ServiceError, asked: RequestContext) -> LeaseholdError | None:
    address, condition = asked.address, refusal.condition
    if condition in NO_PLACE and asked.end is not None:
        return BeyondEnd(
            f"partition {asked.partition} of {address.hub!r} has no such place ({refusal}): its "
            f"next event is {asked.end}",
            end=asked.end,
        )
    if condition in NO_PLACE and asked.partition:
        return UsageError(f"{address.hub!r} has no partition {asked.partition!r} ({refusal})")
    if condition == DAMAGED:
        return DataDamaged(
            f"an event of partition {asked.partition} of {address.hub!r} can not be read "
            f"({refusal.description}): skip it by moving the checkpoint, if it is not to be had"
        )
    if condition == DISABLED:
        return StoreUnusable(f"{address} is disabled ({refusal}): enable it in the portal")
    return None


def _stolen(refusal: ServiceError, asked: RequestContext) -> ReaderDisplaced:
    found = _NEW_RECEIVER.search(refusal.description)
    by = found[1] if found and found[1] not in {"", "nil"} else None
    return ReaderDisplaced(
        f"partition {asked.partition} of {asked.address.hub!r} is read for "
        f"{asked.consumer_group!r} by {by or 'another receiver'} ({refusal})",
        key=asked.partition,
        epoch=asked.epoch or 0,
        reason="stolen",
        now_held_by=by,
    )
