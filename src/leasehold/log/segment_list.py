"""The segments of one partition, in their order.

A segment is a file whose name is its first sequence number, in 20 digits, so that the order of
the paths is that of the events. The list is kept, and asked for again only on demand: one
journal query then tells what is new at the end, and nothing else is looked at.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.log.streams import base_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace

_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """One segment on the shelf: its first sequence number, and the path of its file."""

    base: int
    path: str


class SegmentList:
    """The segments below one directory. Not to be shared between threads."""

    def __init__(self, files: Namespace, directory: str) -> None:
        """Look at nothing yet."""
        self._files = files
        self._directory = directory
        self._known: list[ListedSegment] = []

    @property
    def known(self) -> Sequence[ListedSegment]:
        """The segments as they were when they were last asked for, the oldest first."""
        return self._known

    def read(self) -> Sequence[ListedSegment]:
        """All segments, asked for anew."""
        self._known = [entry for entry, _ in self._listed("")]
        return self._known

    def read_end(self) -> Sequence[ListedSegment]:
        """Ask only for what comes after the last one that is known; return all that are."""
        after = self._known[-1].path if self._known else ""
        self._known += [entry for entry, _ in self._listed(after)]
        return self._known

    def files(self) -> list[tuple[ListedSegment, FileStatus]]:
        """All segments with their files, asked for anew."""
        listed = list(self._listed(""))
        self._known = [entry for entry, _ in listed]
        return listed

    def containing(self, sequence: int) -> ListedSegment | None:
        """The last known segment that begins at or before ``sequence``; None if all come later."""
        at = bisect.bisect_right(self._known, sequence, key=lambda entry: entry.base)
        return self._known[at - 1] if at else None

    def after(self, base: int) -> ListedSegment | None:
        """The known segment that comes next after the one that begins at ``base``."""
        at = bisect.bisect_right(self._known, base, key=lambda entry: entry.base)
        return self._known[at] if at < len(self._known) else None

    def _listed(self, after: str) -> Iterator[tuple[ListedSegment, FileStatus]]:
        while page := self._files.list(self._directory, after=after, limit=_PAGE):
            for status in page:
                base = base_of(status.path)
                if base is not None:
                    yield ListedSegment(base=base, path=status.path), status
            if len(page) < _PAGE:
                return
            after = page[-1].path
