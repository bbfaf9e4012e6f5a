"""Old terms: they leave the book for a blob of their key, so that the book stays small.

They are written there before the book without them is, and each is known by its epoch: whoever
does it twice, or stops in between, has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import StoreUnavailable
from leasehold.stores.azure_blob.document_json import terms_from_json, terms_to_json
from leasehold.stores.azure_blob.naming import history_blob
from leasehold.stores.validation import HISTORY_LIMIT

if TYPE_CHECKING:
    import threading

    from leasehold.model import Term
    from leasehold.stores.azure_blob.container import Container
    from leasehold.stores.azure_blob.group_document import Book
    from leasehold.stores.rows import ResourceRow

# A key has up to so many terms in the book, and fewer after a spill. Only a share of the full keys
# at a time, so that no call takes long; but all have had their turn after so many writes, long
# before one has so many terms that the oldest are dropped.
_MANY = 8
_FEW = 4
_SHARES = 32
_TRIES = 20


class Spill:
    """Moves old terms out of books, and finds them again."""

    def __init__(self, container: Container) -> None:
        """Move nothing yet."""
        self._container = container

    def relieve(self, book: Book, given_up: threading.Event) -> bool:
        """Move the oldest terms of the fullest keys out, if there are many; whether there were."""
        full = [row for row in book.rows if len(row.terms) > _MANY]
        full.sort(key=lambda row: len(row.terms), reverse=True)
        for row in full[: 1 + len(full) // _SHARES]:
            self._move(book, row, given_up)
        return bool(full)

    def history(self, key: str, terms: list[Term], given_up: threading.Event) -> list[Term]:
        """All terms that are kept of a key, oldest first; ``terms`` are those of the book."""
        found = self._container.get(history_blob(key), given_up)
        older = terms_from_json(key, found.body) if found is not None else []
        return _joined(older, terms)

    def _move(self, book: Book, row: ResourceRow, given_up: threading.Event) -> None:
        leaving, staying = row.terms[:-_FEW], row.terms[-_FEW:]
        name = history_blob(row.key)
        for _ in range(_TRIES):
            found = self._container.get(name, given_up)
            older = terms_from_json(row.key, found.body) if found is not None else []
            body = terms_to_json(row.key, _joined(older, leaving)[-HISTORY_LIMIT:])
            etag = found.etag if found is not None else None
            if found is not None and found.body == body:
                break
            try:
                done = self._container.put(name, body, etag=etag, metadata={}, given_up=given_up)
            except StoreUnavailable:
                continue  # unknown: read again, and find out
            if done is not None:
                break
        else:
            raise StoreUnavailable(f"the history of {row.key} can not be written")
        row.terms[:] = staying
        book.spilled.add(row.key)


def _joined(older: list[Term], newer: list[Term]) -> list[Term]:
    by_epoch = {term.epoch: term for term in older} | {term.epoch: term for term in newer}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]
