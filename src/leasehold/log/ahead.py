"""Checksums compared side by side: while a reader is at some frames, a thread is at later ones.

A reader with much to read goes through it in spans. It compares the first half of a span itself,
as always, and meanwhile a thread compares the second half. A span is as long as a usual segment:
to hand over single frames takes longer than to compare them. A reader never waits for the thread.
Where it catches up with it, the machine has other work, and the rest is halved anew.

Guarantees:

* ``True`` means: this frame, in the very bytes that are at hand, has the checksum it was written
  with. Anything else is left to the reader, so damage is found and repaired in one place.
* One thread at most. It begins when a reader has read ``RUN_BYTES`` in a row, its frames are
  large, and as much again lies before it. It ends with ``close``, or when nobody holds the reader.
* It goes no further than the end of a span, and stops at the next frame when the reader leaves.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final

from leasehold.errors import DataDamaged
from leasehold.log.frame import Kind, read_body
from leasehold.log.segment import Segment

if TYPE_CHECKING:
    from leasehold.log.frame import FrameHeader

LARGE_BYTES: Final = 256 << 10  # smaller frames take longer to find than to compare
RUN_BYTES: Final = 4 << 20
SPAN_BYTES: Final = 64 << 20
_MOST_FRAMES: Final = SPAN_BYTES // LARGE_BYTES


class Ahead:
    """For the thread of its reader. It starts no thread until there is a backlog."""

    def __init__(self) -> None:
        """Know of nothing yet."""
        self._view: memoryview | None = None
        self._span: _Span | None = None
        self._run_bytes = 0
        self._helper: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def is_sound(self, view: memoryview, header: FrameHeader) -> bool:
        """Whether this frame was compared and is right; and see to those that come later.

        False says nothing about the frame: nobody has compared it, or it is damaged.
        """
        if view is not self._view:  # another segment, more of the same, or another volume's bytes
            self._leave()
            self._view = view
        self._run_bytes += header.length
        span = self._span
        if span is not None and header.position < span.middle:
            return False
        if span is not None and header in span.sound:
            return True
        self._ask(view, header)
        return False

    def jump(self) -> None:
        """The reader goes on elsewhere: it has to read for a while before it is helped again."""
        self._leave()
        self._run_bytes = 0

    def close(self) -> None:
        """End the thread, and wait for it: it may be comparing one more frame."""
        self._leave()
        helper, self._helper = self._helper, None
        if helper is not None and self._process == os.getpid():
            helper.shutdown()

    def _ask(self, view: memoryview, header: FrameHeader) -> None:
        """Have the thread begin in the middle of what comes after this frame, if that is much."""
        start = header.end
        size = min(len(view) - start, SPAN_BYTES)
        if self._run_bytes < RUN_BYTES or size < RUN_BYTES or header.length < LARGE_BYTES:
            return
        if self._process != os.getpid():
            return  # a fork does not take the thread along
        self._leave()
        self._view = view
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "leasehold-ahead")
        span = _Span(view, start, size)
        try:
            self._helper.submit(span.compare)
        except RuntimeError:  # no more threads, or Python is ending: the reader does it alone
            return
        self._span = span

    def _leave(self) -> None:
        if self._span is not None:
            self._span.is_left = True
        self._view, self._span = None, None


class _Span:
    """Frames of one view; from ``middle`` on they are the thread's. It knows no reader."""

    def __init__(self, view: memoryview, start: int, size: int) -> None:
        self.middle = start + size // 2
        self.sound: set[FrameHeader] = set()
        self.is_left = False
        self._view = view
        self._start = start
        self._end = start + size

    def compare(self) -> None:
        """Note which frames have their checksum."""
        try:
            for header in islice(Segment(self._view).frames(self._start), _MOST_FRAMES):
                if header.position >= self._end or self.is_left:
                    return
                if header.position >= self.middle and header.kind is Kind.EVENTS:
                    read_body(self._view, header)
                    self.sound.add(header)
        except DataDamaged:
            return  # the reader comes to the same place, and knows what to do
