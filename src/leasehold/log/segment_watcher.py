"""Sleep until a segment may have grown, without polling.

inotify wakes the thread when the records of the open block change: that is where the writer
acknowledges. It cannot always do that: no segment may be open, the file system may be remote, or
the user may have no watches left. So every sleep is bounded: it grows from ``SHORTEST_S`` to
``LONGEST_S``, and starts again after each event.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from inotify_simple import INotify, flags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHORTEST_S = 0.25  # with a watch: only for what the kernel does not report
SHORTEST_UNWATCHED_S = 0.02  # without one: the next segment usually exists soon
LONGEST_S = 1.0
_EVENTS = flags.MODIFY | flags.MOVE_SELF | flags.DELETE_SELF
_GONE = flags.MOVE_SELF | flags.DELETE_SELF | flags.IGNORED


class SegmentWatcher:
    """Sleeps until one of its files changes. One thread sleeps; any may wake it or close it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake_fd = -1  # made by the first sleep: many readers never sleep
        self._is_woken = False
        self._close_wake_fd: Callable[[], object] = lambda: None
        self._kernel: INotify | None = None
        self._paths: tuple[str, ...] = ()
        self._watch_ids: list[int] = []
        self._pause_s = 0.0
        self._closed = False

    @property
    def watching(self) -> bool:
        """Whether the kernel reports changes."""
        return bool(self._watch_ids)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files to watch, whether the kernel watches them or not."""
        return self._paths

    def watch(self, paths: Sequence[str]) -> None:
        """Wake up for changes of these files. Read them after this call, not before."""
        paths_to_watch = tuple(paths)
        if paths_to_watch == self._paths and (self._watch_ids or not paths_to_watch):
            return
        self._unwatch()
        self._paths = paths_to_watch
        for path in paths_to_watch:
            # No such file, no watches left, no inotify here: the bounded sleep is enough then.
            with suppress(OSError):
                if self._kernel is None:
                    self._kernel = INotify()
                    weakref.finalize(self, self._kernel.close)  # closing twice is safe
                self._watch_ids.append(self._kernel.add_watch(path, _EVENTS))

    def sleep(self, max_s: float) -> bool:
        """Return when a file has changed, at ``wake``, or when the pause is over.

        The result is whether the kernel or ``wake`` ended the sleep.
        """
        shortest_s = SHORTEST_S if self._watch_ids else SHORTEST_UNWATCHED_S
        self._pause_s = min(max(self._pause_s * 2, shortest_s), LONGEST_S)
        poll = select.poll()
        if self._take_wake():
            self._pause_s = 0.0
            return True
        if self._wake_fd >= 0:
            poll.register(self._wake_fd, select.POLLIN)
        if self._kernel is not None:
            poll.register(self._kernel.fd, select.POLLIN)
        woken = bool(poll.poll(max(min(self._pause_s, max_s), 0.0) * 1000))
        if woken:
            self._pause_s = 0.0
            self._drain_events()
        return woken

    def reset_pause(self) -> None:
        """Start again with short sleeps."""
        self._pause_s = 0.0

    def wake(self) -> None:
        """End the sleep, now or when it begins."""
        with self._lock:
            if self._closed:
                return
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)
            else:
                self._is_woken = True

    def close(self) -> None:
        """Close all descriptors. No thread may sleep in it afterwards."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._close_wake_fd()
            self._wake_fd = -1
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
        self._watch_ids = []

    def _take_wake(self) -> bool:
        """Return whether it was woken before its first sleep; from then on by a descriptor."""
        with self._lock:
            if self._wake_fd < 0 and not self._closed:
                with suppress(OSError):  # no descriptor is free: the bounded sleep is enough
                    self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                    self._close_wake_fd = weakref.finalize(self, os.close, self._wake_fd)
            is_woken, self._is_woken = self._is_woken, False
            return is_woken

    def _drain_events(self) -> None:
        """Read the events of the kernel; stop watching a file that was removed."""
        if self._wake_fd >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        events = self._kernel.read(timeout=0) if self._kernel is not None else ()
        if any(event.wd in self._watch_ids and event.mask & _GONE for event in events):
            self._unwatch()

    def _unwatch(self) -> None:
        for watch_id in self._watch_ids:
            with suppress(OSError):  # the kernel drops the watch of a file that was removed
                if self._kernel is not None:
                    self._kernel.rm_watch(watch_id)
        self._watch_ids = []
        self._paths = ()
