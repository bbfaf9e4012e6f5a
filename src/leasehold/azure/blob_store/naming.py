"""Names of blobs: the group document, the lease of a holder, checkpoints, and the history of a key.

::

    {prefix}/groups/{group}/book               the group document
    {prefix}/groups/{group}/holders/{holder}   the leased blob of each of its members
    {prefix}/alone/{holder}/…                  document and lease of a holder without a group
    {prefix}/slips/{group}/{holder}-{name}     a checkpoint blob of a member
    {prefix}/history/{group}/{key}             the older terms of a key

A part that has only letters, digits, ``-``, ``_``, ``~`` and ``$`` is written as it is; other
characters are quoted with ``=``. A long part is cut, and its digest replaces the rest: two
different texts never have the same name. The text is never read back from the name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID

from leasehold.names import group_of

GROUPS, UNGROUPED = "groups/", "alone/"
_LONGEST_PART = 160
_DIGEST_LETTERS = 40


def part(text: str) -> str:
    """Quote any text as one part of a blob's name."""
    # Dots are special to URLs, and "=" is the sign of the quoting itself.
    quoted = quote(text, safe="$").replace(".", "%2E").replace("%", "=")
    if len(quoted) <= _LONGEST_PART:
        return quoted
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]
    # No quoted letter begins with "=h": a short name is never taken for a cut one.
    return f"{quoted[: _LONGEST_PART - _DIGEST_LETTERS - 2]}=h{digest}"


def lease_id(token: str) -> str:
    """Return the id of the blob lease for this token: a GUID that other processes cannot guess."""
    return str(UUID(bytes=hashlib.sha256(f"leasehold lease {token}".encode()).digest()[:16]))


@dataclass(frozen=True, slots=True)
class LeaseLocation:
    """Where a lease is stored: with its group, or for a holder without a group."""

    group: str
    holder: str = ""

    @classmethod
    def of(cls, group: str, holder: str) -> LeaseLocation:
        """Return the location for a holder of ``group``, which may be empty."""
        return cls(group) if group else cls("", holder)

    @property
    def path(self) -> str:
        """The prefix of all its blobs; ends with a slash."""
        if self.group:
            return f"{GROUPS}{part(self.group)}/"
        return f"{UNGROUPED}{part(self.holder)}/"

    @property
    def document_blob(self) -> str:
        """The blob of the group document."""
        return f"{self.path}book"

    def holder_blob(self, holder: str) -> str:
        """Return the leased blob of one holder."""
        return f"{self.path}holders/{part(holder)}"

    @property
    def checkpoint_prefix(self) -> str:
        """The prefix of all its checkpoint blobs; ends with a slash."""
        return f"slips/{part(self.group)}/"

    def checkpoint_blob(self, holder: str, name: str) -> str:
        """Return one checkpoint blob of a holder; a name is never used twice."""
        return f"{self.checkpoint_prefix}{part(holder)}-{name}"


def history_blob(key: str) -> str:
    """Return the blob with the older terms of a key."""
    group = group_of(key)
    return f"history/{part(group)}/{part(key[len(group) + 1 :])}"
