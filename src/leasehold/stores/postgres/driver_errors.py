"""What the driver's errors mean: which are transient, and what to do about the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from leasehold.errors import InvalidName, LeaseholdError, StoreUnavailable, StoreUnusable

if TYPE_CHECKING:
    from leasehold.stores.postgres.address import DatabaseAddress

# Class 08 and no code at all: the connection broke. 57P0x: the server stops or starts.
# 53300: too many connections. 40001 and 40P01: another transaction was in the way.
_TRANSIENT = ("08", "57P0", "53300", "40001", "40P01")
# 57014: statement timeout or cancelled by hand. 55P03: lock timeout. 53: out of resources.
_UNAVAILABLE = ("57014", "55P03", "53")
_ADVICE = {
    "25006": "it is read-only: give the URL of the primary, or a list of hosts with "
    "target_session_attrs=read-write",
    "53100": "its disk is full: make room on the server",
    "42501": "the user lacks a right: let the owner of the schema leasehold grant it usage, and "
    "all rights on its tables and functions",
    "3F000": "the schema leasehold is gone: open the store anew, which makes it again",
    "42P01": "a table of the schema leasehold is gone: restore it from a backup",
    "42883": "a function of the schema leasehold is gone: restore it from a backup",
    "XX001": "its data is damaged: restore it from a backup",
    "XX002": "its data is damaged: restore it from a backup",
}


def is_transient(error: psycopg.Error) -> bool:
    """Return whether the same call may succeed on a new connection in a moment."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_TRANSIENT)


def to_store_error(error: Exception, address: DatabaseAddress) -> LeaseholdError:
    """Return the error to raise: what failed, why (the driver's text), and what to do."""
    code = (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
    message = _driver_message(error)
    if code in _ADVICE:
        return StoreUnusable(
            f"PostgreSQL at {address.where} can not serve: {message}; {_ADVICE[code]}"
        )
    if isinstance(error, psycopg.DataError):
        return InvalidName(f"PostgreSQL can not keep a text or number of this call: {message}")
    if code.startswith(_UNAVAILABLE) or not code or code.startswith(_TRANSIENT):
        return StoreUnavailable(
            f"no answer from PostgreSQL at {address.where}: {message}; see that the server runs "
            "and is reachable, and that user, password and database are right"
        )
    return StoreUnusable(
        f"PostgreSQL at {address.where} refused: {message} (SQLSTATE {code}); see the server's log"
    )


def _driver_message(error: Exception) -> str:
    # The full text of a driver's error may quote the row it is about, token included.
    first = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((first or str(error)).split()) or type(error).__name__
