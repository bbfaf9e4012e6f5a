"""Error conditions and descriptions for refused links, requests and deliveries."""

from __future__ import annotations

from leasehold.azure.amqp.composites import Error
from leasehold.errors import (
    BufferFull,
    LeaseholdError,
    StoreError,
    UnknownStream,
    UsageError,
)

UNAUTHORIZED = "amqp:unauthorized-access"
NOT_FOUND = "amqp:not-found"
INTERNAL = "amqp:internal-error"
STOLEN = "amqp:link:stolen"
TOO_BIG = "amqp:link:message-size-exceeded"
TOO_MANY = "amqp:resource-limit-exceeded"
FORCED = "amqp:connection:forced"
DETACH_FORCED = "amqp:link:detach-forced"
BUSY = "com.microsoft:server-busy"
ARGUMENT = "com.microsoft:argument-error"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
AUTH_FAILED = "com.microsoft:auth-failed"


class RequestRefused(Exception):
    """A refused link, request or delivery. ``status`` is the code in answers of request nodes."""

    def __init__(self, condition: str, description: str, *, status: int = 400) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description
        self.status = status

    @property
    def error(self) -> Error:
        """The error as it is sent."""
        return Error(condition=self.condition, description=self.description)


def unauthorized(what: str) -> RequestRefused:
    """Refuse a client without a token; the text does not reveal what exists."""
    return RequestRefused(
        UNAUTHORIZED,
        f"Unauthorized access. A token with a claim on {what} is required.",
        status=401,
    )


def refused_for(error: BaseException) -> RequestRefused:
    """Return the refusal that reports an error of the log to a client."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, UnknownStream):
        return RequestRefused(
            NOT_FOUND, "The messaging entity could not be found: it was deleted.", status=404
        )
    if isinstance(error, BufferFull | StoreError):
        return RequestRefused(
            BUSY, f"The log can not store or read now, try again: {error}", status=503
        )
    if isinstance(error, UsageError):
        return RequestRefused(ARGUMENT, str(error))
    detail = str(error) if isinstance(error, LeaseholdError) else "see the log of the hub"
    return RequestRefused(INTERNAL, f"The log could not serve this: {detail}", status=500)
