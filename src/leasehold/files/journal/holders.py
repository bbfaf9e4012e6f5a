"""Steps on holders and volumes. A renewal changes one row, whatever the number of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import LeaseLost
from leasehold.files.journal.rows import holder_of
from leasehold.files.journal.unit_of_work import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.files.journal.unit_of_work import Books
    from leasehold.files.model import Holder, HolderStatus


def renew(books: Books, holder: Holder) -> None:
    """Extend the lease. Late is good enough, as long as nobody has ended it.

    Raises:
        LeaseLost: the holder is not in the books any more, or its id is used by another.
    """
    if books.tx.run("holder_renew", id=holder.id, token=holder.token, now=books.now):
        return
    found = books.tx.one("holder_token", id=holder.id)
    reason = "unknown" if found is None else "another token is in use"
    what = "has no lease" if found is None else "is used by another incarnation"
    raise LeaseLost(
        f"the holder {holder.id} {what}: it closed all its files, or they were taken over; "
        "check each file, and open anew what is still needed",
        key=holder.id,
        reason=reason,
    )


def leave(books: Books, holder: Holder) -> None:
    """End the lease, unless it still covers an open file. Not to be there is no error."""
    if books.tx.one("holder_token", id=holder.id) == (holder.token,):
        books.drop_idle(holder.id)


def holders(books: Books, limit: int) -> list[HolderStatus]:
    """All holders, the one that has been silent longest first."""
    return [holder_of(row, books.now) for row in books.tx.all("holders", most=limit)]


def idle(books: Books, limit: int) -> list[str]:
    """Holders without files that are past the hard limit."""
    before = books.now - books.limits.hard_s
    return [each for (each,) in books.tx.all("holders_idle", before=before, most=limit)]


def drop_idle(books: Books, ids: Iterable[str]) -> None:
    """End the leases of those that are still so."""
    before = books.now - books.limits.hard_s
    books.tx.run("holders_drop_idle", ids=listed(ids), before=before)


def namespace_id(books: Books, new_id: str) -> str:
    """The id by which volumes know whose they are; given once and for all."""
    books.tx.run("namespace_write", namespace=new_id)
    return str((books.tx.one("namespace") or ("",))[0])


def register_volume(books: Books, volume_id: str, path: str) -> None:
    """Note where a volume lies."""
    books.tx.run("volume_write", id=volume_id, path=path, wall=books.wall)


def volumes(books: Books) -> dict[str, str]:
    """Where each volume lies, by its id."""
    return dict(books.tx.all("volumes"))
