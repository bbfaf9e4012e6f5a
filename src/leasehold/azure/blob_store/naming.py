"""Names of blobs: where a group, a holder and the history of a key are kept.

::

    {prefix}/groups/{group}/book               the book of a group
    {prefix}/groups/{group}/holders/{holder}   the leased blob of each of its members
    {prefix}/alone/{holder}/…                  the same for a holder without a group
    {prefix}/slips/{group}/{holder}-{name}     positions of a member, beside the book
    {prefix}/history/{group}/{key}             the older terms of a key

A part is written as it is if it is of letters, digits, ``-``, ``_``, ``~`` and ``$``; all else is
quoted with ``=``. A long one is cut, and its digest put in the place of the rest: no two parts are
ever alike. What a part says is never read back from its name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import UUID

from leasehold.names import group_of

if TYPE_CHECKING:
    from leasehold.model import Ownership

GROUPS, ALONE = "groups/", "alone/"
_LONGEST_PART = 160
_DIGEST_LETTERS = 40


def part(text: str) -> str:
    """One part of a blob's name, for any text."""
    # Dots are special to URLs, and "=" is the sign of the quoting itself.
    quoted = quote(text, safe="$").replace(".", "%2E").replace("%", "=")
    if len(quoted) <= _LONGEST_PART:
        return quoted
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]
    # No quoted letter begins with "=h": a short name is never taken for a cut one.
    return f"{quoted[: _LONGEST_PART - _DIGEST_LETTERS - 2]}=h{digest}"


def token_digest(token: str) -> str:
    """What is kept of a token: who reads the container can not act with it."""
    return hashlib.sha256(f"leasehold token {token}".encode()).hexdigest()[:32]


def bare_ownership(ownership: Ownership) -> Ownership:
    """As books know it: with the digest of its token."""
    return replace(ownership, token=token_digest(ownership.token))


def lease_id(token: str) -> str:
    """The id of the blob lease of whoever has this token: a GUID that nobody can guess."""
    return str(UUID(bytes=hashlib.sha256(f"leasehold lease {token}".encode()).digest()[:16]))


@dataclass(frozen=True, slots=True)
class LeaseLocation:
    """Where a lease is kept: with its group, or alone."""

    group: str
    holder: str = ""

    @classmethod
    def of(cls, group: str, holder: str) -> LeaseLocation:
        """The home of a holder of ``group``, which may be empty."""
        return cls(group) if group else cls("", holder)

    @property
    def path(self) -> str:
        """The name that all its blobs begin with; ends with a slash."""
        if self.group:
            return f"{GROUPS}{part(self.group)}/"
        return f"{ALONE}{part(self.holder)}/"

    @property
    def book(self) -> str:
        """The blob of its book."""
        return f"{self.path}book"

    def holder_blob(self, holder: str) -> str:
        """The leased blob of one holder."""
        return f"{self.path}holders/{part(holder)}"

    @property
    def slips(self) -> str:
        """The name that all its slips begin with; ends with a slash."""
        return f"slips/{part(self.group)}/"

    def slip_blob(self, holder: str, name: str) -> str:
        """One slip of one holder: a name is never used twice."""
        return f"{self.slips}{part(holder)}-{name}"


def history_blob(key: str) -> str:
    """Where the older terms of a key are kept."""
    group = group_of(key)
    return f"history/{part(group)}/{part(key[len(group) + 1 :])}"
