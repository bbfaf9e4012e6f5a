"""What operators may ask of a store, each as one step on the books, like those of ``steps.py``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leasehold.model import Position
from leasehold.names import group_of
from leasehold.stores.sqlite.rows import info_of
from leasehold.stores.validation import same_place, unknown_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.stores.sqlite.books import Books
    from leasehold.stores.sqlite.database import Params
    from leasehold.stores.sqlite.rows import ResourceRow


def suggest(books: Books, key: str, epoch: int, to: str) -> bool:
    """See ``Store.suggest``."""
    receiver = books.living(to)
    if receiver is None or receiver.group != group_of(key) or receiver.dismissed:
        return False
    (info,) = books.tx.one("info", holder=to) or ("{}",)
    return not info_of(info).draining and books.put_question(key, epoch, to)


def dismiss(books: Books, holder: str) -> bool:
    """See ``Store.dismiss``."""
    row = books.living(holder)
    if row is None or not row.group:
        return False
    if not row.dismissed:
        row.dismissed = 1
        books.tx.run("lease_dismiss", holder=holder, version=books.next_version())
    return True


def reset(books: Books, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
    """See ``Store.reset``.

    Raises:
        UnknownResource: one of the keys is not declared, or is forgotten.
    """
    rows = books.rows(positions)
    for key in positions:
        if key not in rows or rows[key].forgotten:
            raise unknown_key(key)
    books.settle_keys(positions)
    owners = {key: rows[key].holder or rows[key].handed_to for key in positions}
    refused = {key: owner for key, owner in owners.items() if owner is not None}
    if not refused:
        _put_checkpoints(books, [rows[key] for key in _not_yet(books, positions)], positions)
    return refused


def _not_yet(books: Books, positions: Mapping[str, Position | None]) -> list[str]:
    """The keys that were not put there before, by the same call."""
    done = {
        key: None if number is None else Position(sequence_number=number, offset=offset)
        for key, number, offset in books.tx.all(
            "checkpoints_reset", keys=json.dumps(list(positions))
        )
    }
    return [
        key
        for key, position in positions.items()
        if key not in done or not same_place(done[key], position)
    ]


def _put_checkpoints(
    books: Books, rows: list[ResourceRow], positions: Mapping[str, Position | None]
) -> None:
    books.reset_terms(rows)
    written: list[Params] = []
    removed: list[Params] = []
    for row in rows:
        position = positions[row.key]
        if position is None:
            removed.append({"key": row.key})
        else:
            written.append(
                {
                    "key": row.key,
                    "grp": row.group,
                    "epoch": row.epoch,
                    "sequence_number": position.sequence_number,
                    "stream_offset": position.offset,
                    "wall": books.wall,
                }
            )
    books.tx.many("checkpoint_remove", removed)
    books.tx.many("checkpoint_write", written)
