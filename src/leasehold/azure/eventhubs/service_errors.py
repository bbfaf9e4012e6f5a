"""Errors of a hub, and the errors of Leasehold that they become.

``ServiceError`` is what the hub has sent; ``to_leasehold_error`` turns it into an error that the
caller can act on, or into None for a transient failure, which is retried.
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

NOT_AUTHORIZED = {UNAUTHORIZED, AUTH_FAILED}
INVALID_POSITION = {ARGUMENT_ERROR, INVALID_OFFSET, OUT_OF_RANGE}
_NEW_RECEIVER = re.compile(r"New receiver '([^']*)'")
_HIGHER = re.compile(r"receiver with (?:a )?higher epoch", re.IGNORECASE)
_MAX_SHOWN_CHARS = 400
_STATUS = {401: UNAUTHORIZED, 403: UNAUTHORIZED, 404: NOT_FOUND, 410: NOT_FOUND}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceError:
    """An AMQP error condition and its description."""

    condition: str
    description: str = ""

    def __str__(self) -> str:
        text = self.description[:_MAX_SHOWN_CHARS]
        return f"{self.condition}: {text}" if text else self.condition


class ServiceRefused(Exception):
    """The hub has refused or ended something. Internal: callers of a source never see it."""

    def __init__(self, service_error: ServiceError) -> None:
        super().__init__(str(service_error))
        self.service_error = service_error


def service_error_of(error: Error | None, *, instead: str) -> ServiceError:
    """Read the error of a performative; ``instead`` is the description if it has none."""
    if error is None:
        return ServiceError(condition=LOST, description=instead)
    return ServiceError(condition=error.condition, description=error.description or "")


def status_error(code: int, description: str, condition: str = "") -> ServiceError:
    """Make the error for the status code of an answer."""
    return ServiceError(
        condition=condition or _STATUS.get(code, f"status {code}"), description=description
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What was requested, for error messages."""

    address: HubAddress
    consumer_group: str = ""
    partition: str = ""
    epoch: int | None = None
    end: int | None = None


def to_leasehold_error(
    service_error: ServiceError, context: RequestContext
) -> LeaseholdError | None:
    """Return the error to raise; None if a retry may help."""
    address, condition = context.address, service_error.condition
    if condition == STOLEN or _HIGHER.search(service_error.description):
        return _displaced(service_error, context)
    if condition == NOT_FOUND:
        group = context.consumer_group
        also = f", its consumer group {group!r}" if group else ""
        part = f" or its partition {context.partition}" if context.partition else ""
        todo = "check the name, or create it"
        if group:
            todo = "check the names, create it, or name another group with ?consumer_group=… in "
            todo += "the address"
        return UnknownStream(
            f"{address.namespace} has no event hub {address.hub!r}{also}{part} ({service_error}): "
            f"{todo}"
        )
    if condition in NOT_AUTHORIZED:
        return StoreUnusable(
            f"{address} does not let us in ({service_error}): check that the key or the identity "
            "is of this namespace, may listen (Azure Event Hubs Data Receiver), and has not been "
            "renewed"
        )
    return _data_error(service_error, context)


def _data_error(service_error: ServiceError, context: RequestContext) -> LeaseholdError | None:
    address, condition = context.address, service_error.condition
    if condition in INVALID_POSITION and context.end is not None:
        return BeyondEnd(
            f"partition {context.partition} of {address.hub!r} has no such place "
            f"({service_error}): its next event is {context.end}",
            end=context.end,
        )
    if condition in INVALID_POSITION and context.partition:
        return UsageError(
            f"{address.hub!r} has no partition {context.partition!r} ({service_error})"
        )
    if condition == DAMAGED:
        return DataDamaged(
            f"an event of partition {context.partition} of {address.hub!r} can not be read "
            f"({service_error.description}): skip it by moving the checkpoint, if it is not to be "
            "had"
        )
    if condition == DISABLED:
        return StoreUnusable(f"{address} is disabled ({service_error}): enable it in the portal")
    return None


def _displaced(service_error: ServiceError, context: RequestContext) -> ReaderDisplaced:
    found = _NEW_RECEIVER.search(service_error.description)
    by = found[1] if found and found[1] not in {"", "nil"} else None
    return ReaderDisplaced(
        f"partition {context.partition} of {context.address.hub!r} is read for "
        f"{context.consumer_group!r} by {by or 'another receiver'} ({service_error})",
        key=context.partition,
        epoch=context.epoch or 0,
        reason="stolen",
        now_held_by=by,
    )
