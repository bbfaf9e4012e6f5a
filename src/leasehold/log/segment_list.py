"""The segments of one partition, in their order.

The name of a segment is its first sequence number in 20 digits, so paths sort like events. The list
is cached, and read again only on demand: one journal query returns what is new at the end.
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
    """One segment: its first sequence number, and the path of its file."""

    base: int
    path: str


class SegmentList:
    """The segments below one directory. Not to be shared between threads."""

    def __init__(self, files: Namespace, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._known: list[ListedSegment] = []

    @property
    def known(self) -> Sequence[ListedSegment]:
        """The segments as they were when they were last asked for, the oldest first."""
        return self._known

    def read(self) -> Sequence[ListedSegment]:
        """Return all segments, read again."""
        self._known = [entry for entry, _ in self._listed("")]
        return self._known

    def read_end(self) -> Sequence[ListedSegment]:
        """Ask only for what comes after the last one that is known; return all that are."""
        after = self._known[-1].path if self._known else ""
        self._known += [entry for entry, _ in self._listed(after)]
        return self._known

    def files(self) -> list[tuple[ListedSegment, FileStatus]]:
        """Return all segments with their files, read again."""
        listed = list(self._listed(""))
        self._known = [entry for entry, _ in listed]
        return listed

    def containing(self, sequence: int) -> ListedSegment | None:
        """Return the last known segment from or before ``sequence``; None if all come later."""
        at = bisect.bisect_right(self._known, sequence, key=lambda entry: entry.base)
        return self._known[at - 1] if at else None

    def after(self, base: int) -> ListedSegment | None:
        """Return the known segment that comes next after the one that begins at ``base``."""
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
