"""Steps on paths: what is there, rename, delete. Files are known by id, so writers go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import FileExists, UsageError
from leasehold.files import paths
from leasehold.files.journal import refusals
from leasehold.files.journal.rows import FileRow

if TYPE_CHECKING:
    from leasehold.files.journal.unit_of_work import Books


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is at a path: a file, or a file where a directory should be, or the first file below."""

    path: str
    row: FileRow | None
    above: str | None
    below: str | None

    def check_free(self) -> None:
        """Look whether a file could be at this path, whatever file is there now.

        Raises:
            FileExists: the path is a directory, or a part of it is a file.
        """
        if self.above is not None:
            raise refusals.below_file(self.path, self.above)
        if self.below is not None:
            raise refusals.is_directory(self.path, self.below)


def look(books: Books, path: str) -> Place:
    """What is at a path, in one question."""
    found = [FileRow(*row) for row in books.look(path)]
    return Place(
        path=path,
        row=next((row for row in found if row.path == path), None),
        above=next((row.path for row in found if len(row.path) < len(path)), None),
        below=next((row.path for row in found if len(row.path) > len(path)), None),
    )


def file_at(books: Books, path: str) -> FileRow:
    """The file at a path.

    Raises:
        UnknownFile: there is none.
    """
    found = books.tx.one("file_at", path=path)
    if found is None:
        raise refusals.unknown(path)
    return FileRow(*found)


def remove_one(books: Books, row: FileRow, *, by: str) -> None:
    """Delete one file, open or not; its blocks go to the trash."""
    low, high = paths.only(row.path)
    books.note(
        "delete",
        file_id=row.id,
        path=row.path,
        epoch=row.epoch,
        holder=row.holder,
        detail=f"overwritten by {by}" if by else "",
    )
    _remove_range(books, low, high)
    if not row.closed and row.holder != by:
        books.drop_idle(row.holder)


def delete(books: Books, path: str, *, recursive: bool) -> int:
    """Delete a file or a directory; return how many files went. Nothing there: 0, as when repeated.

    Raises:
        FileExists: it is a directory, and ``recursive`` was not said.
    """
    place = look(books, path)
    if place.row is not None:
        remove_one(books, place.row, by="")
        return 1
    if place.below is None:
        return 0
    if not recursive:
        raise FileExists(
            f"{path} is a directory, {place.below} lies below it: say recursive to delete all of it"
        )
    low, high = paths.below(path)
    (count,) = books.tx.one("files_count", low=low, high=high) or (0,)
    books.note_range("delete", low=low, high=high, target="", cut=1, count=count)
    _remove_range(books, low, high)
    return int(count)


def rename(books: Books, source: str, target: str, *, overwrite: bool) -> int:
    """Give a file or a whole directory another path; return how many files moved.

    Raises:
        UnknownFile: there is nothing at ``source``.
        FileExists: ``target`` is taken.
        UsageError: the target lies below the source, or is the same.
    """
    if target == source or target.startswith(f"{source}/"):
        raise UsageError(f"{source} can not be renamed to {target}, itself or a path below it")
    origin, place = look(books, source), look(books, target)
    if origin.row is None and origin.below is None:
        count = _renamed_before(books, place, source)
        if count:
            return count
        raise refusals.unknown(source)
    # The file that is moved away is no obstacle above its own target; that was refused before.
    place.check_free()
    if place.row is not None and (not overwrite or origin.row is None):
        raise refusals.exists(target)
    low, high = paths.only(source) if origin.row is not None else paths.below(source)
    (count,) = books.tx.one("files_count", low=low, high=high) or (0,)
    cut = len(source) + 1
    (longest,) = books.tx.one("files_longest", low=low, high=high) or ("",)
    paths.check_path(target + str(longest)[len(source) :])
    detail = f"from {source}"
    if place.row is not None:
        remove_one(books, place.row, by="a rename")
    books.note_range(
        "rename", low=low, high=high, target=target, cut=cut, count=count, detail=detail
    )
    books.tx.run("files_rename", low=low, high=high, target=target, cut=cut)
    return int(count)


def _renamed_before(books: Books, place: Place, source: str) -> int:
    """How many files this very rename has moved before, if it was the last thing that was done."""
    sample = place.row
    if sample is None and place.below is not None:
        sample = file_at(books, place.below)
    if sample is None:
        return 0
    books.flush_lines()
    last = books.tx.one("history", file_id=sample.id, most=1)
    if last is None or last[2] != "rename" or last[7] != f"from {source}":
        return 0
    if place.row is not None:
        return 1
    low, high = paths.below(place.path)
    (count,) = books.tx.one("files_count", low=low, high=high) or (0,)
    return int(count)


def _remove_range(books: Books, low: str, high: str) -> None:
    books.tx.run("replicas_trash_of_range", low=low, high=high)
    books.tx.run("replicas_drop_of_range", low=low, high=high)
    books.tx.run("blocks_drop_of_range", low=low, high=high)
    books.tx.run("files_drop", low=low, high=high)
