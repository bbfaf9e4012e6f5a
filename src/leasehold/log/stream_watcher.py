"""One watcher for all partitions of a stream: a thread that wakes receivers with more to read.

It learns of changes in two ways. inotify reports that an open segment has grown, once for each call
of ``watch``, so a busy partition costs nothing here. The journal reports everything else: segments
that begin, end, are recovered or removed. One query covers the whole stream: every ``IDLE_POLL_S``,
and more often while a receiver waits that inotify cannot wake. In case inotify misses a change, the
watched files are compared with their last state every ``FILE_CHECK_S``.

No change is lost between a read and a sleep if a receiver is added before its first read, clears
its wakeup before each read, and reads again whenever ``watch`` returns True.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING

from inotify_simple import INotify, flags

from leasehold.errors import LeaseholdError, UnknownStream, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leasehold.clock import Clock

log = logging.getLogger("leasehold.events")

SHORTEST_S = 0.02  # the next segment usually exists soon
LONGEST_S = 0.25
# While the kernel watches for all receivers, the journal only reports what it does not see.
IDLE_POLL_S = 1.0
FILE_CHECK_S = 5.0
_EVENTS = flags.MODIFY | flags.MOVE_SELF | flags.DELETE_SELF | flags.ONESHOT

Changes = tuple[int, "frozenset[str] | None"]


class WakeupOrigin(Enum):
    """What notifies a receiver that there is more."""

    KERNEL = "kernel"  # a segment is open, and the kernel watches it
    JOURNAL = "journal"  # none is open: the journal will have a line about the next one
    NOBODY = "nobody"  # one is open, and the kernel cannot watch it


class Wakeup:
    """Wakes one receiver, in whose event loop it is made. It also works before the wait."""

    def __init__(self, partition: str) -> None:
        self.partition = partition
        # These belong to the watcher, under its lock.
        self.origin = WakeupOrigin.JOURNAL
        self.paths: tuple[str, ...] = ()
        self.watch_ids: tuple[int, ...] = ()  # the kernel's, for the paths
        self.state: object = None  # that of the paths, before they were watched
        self._loop = asyncio.get_running_loop()
        self._notified = asyncio.Event()
        self._fresh = False

    def notify(self, *, fresh: bool = False) -> None:
        """Wake the receiver, from any thread; ``fresh``: it should ask the journal."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._notify, fresh)

    def clear(self) -> bool:
        """Forget all notifications before the next read; return whether one was ``fresh``."""
        fresh, self._fresh = self._fresh, False
        self._notified.clear()
        return fresh

    async def wait(self, max_s: float) -> None:
        """Return when it was notified since ``clear``, or when the time is over."""
        timer = self._loop.call_later(max_s, self._notified.set)
        try:
            await self._notified.wait()
        finally:
            timer.cancel()

    def _notify(self, fresh: bool) -> None:  # noqa: FBT001 - the loop calls it by position
        self._fresh = self._fresh or fresh
        self._notified.set()


class StreamWatcher:
    """Safe to use from several threads. Its thread starts with the first receiver that waits."""

    def __init__(
        self,
        name: str,
        *,
        changes: Callable[[int | None], Changes],
        check: Callable[[], object],
        clock: Clock,
    ) -> None:
        """Watch nothing yet.

        ``changes`` asks the journal what changed after a line; ``check`` raises ``UnknownStream``
        when the stream is gone: the journal has no line about one without segments.
        """
        self.queries = 0
        self._name = name
        self._changes = changes
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        self._wake_fd: int | None = None
        self._kernel: INotify | None = None
        self._thread: threading.Thread | None = None
        self._last_line: int | None = None
        self._wakeups: set[Wakeup] = set()
        self._watching: dict[int, set[Wakeup]] = {}
        self._waiting: set[Wakeup] = set()
        self.pause_s = SHORTEST_S
        self._polled_at = self._checked_at = self._files_checked_at = clock.boottime_s()
        self._is_failing = False
        self._closed = False

    # ------------------------------------------------------ for receivers

    def add(self, wakeup: Wakeup) -> None:
        """Notify it until it is removed. Asks the journal if it is the first one."""
        last_line = self._changes(None)[0] if self._last_line is None else self._last_line
        with self._lock:
            if self._closed:
                raise UsageError("the source is closed: open another one")
            if not self._wakeups:
                self._last_line = last_line
                self._wake_thread()
            self._wakeups.add(wakeup)

    def remove(self, wakeup: Wakeup) -> None:
        """Stop notifying it. Safe to call twice."""
        with self._lock:
            self._unwatch(wakeup)
            self._wakeups.discard(wakeup)
            self._waiting.discard(wakeup)

    def watch(self, wakeup: Wakeup, paths: tuple[str, ...], *, remote: bool) -> bool:
        """Notify it when one of these files changes; True: read again, one may have changed before.

        With ``remote`` another machine writes them, and this kernel does not see it.
        """
        state = _state(paths)
        with self._lock:
            if wakeup not in self._wakeups:
                return False  # it was removed while its thread was reading
            if wakeup.paths == paths and len(wakeup.watch_ids) == len(paths):
                return False
            self._unwatch(wakeup)
            wakeup.paths, wakeup.state = paths, state
            if paths and not remote and self._start_watching(wakeup):
                wakeup.origin = WakeupOrigin.KERNEL
                return True
            if not paths and wakeup.origin is not WakeupOrigin.JOURNAL:
                self._poll_soon()
            wakeup.origin = WakeupOrigin.NOBODY if paths else WakeupOrigin.JOURNAL
            return False

    @contextmanager
    def waiting(self, wakeup: Wakeup) -> Iterator[None]:
        """Mark its receiver as waiting."""
        with self._lock:
            if not self._closed:
                if wakeup.origin is not WakeupOrigin.KERNEL and not self._has_unwatched():
                    self._poll_soon()
                self._waiting.add(wakeup)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(wakeup)

    def close(self) -> None:
        """Notify all, end the thread, and close all descriptors. Safe to call twice."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            self._wake_thread()
        self._notify(self._wakeups)
        if thread is not None:
            thread.join()
        with self._lock:
            if self._kernel is not None:
                self._kernel.close()
                self._kernel = None
            if self._wake_fd is not None:
                os.close(self._wake_fd)
                self._wake_fd = None
            self._watching.clear()
            self._wakeups.clear()

    # -------------------------------------------------- under the lock

    def _start_watching(self, wakeup: Wakeup) -> bool:
        """Watch its files with inotify. Where that is not possible, the receiver polls."""
        try:
            if self._kernel is None:
                self._kernel = INotify()
                self._poll_soon()  # the thread has to poll it
            for path in wakeup.paths:
                watch_id = self._kernel.add_watch(path, _EVENTS)
                self._watching.setdefault(watch_id, set()).add(wakeup)
                wakeup.watch_ids += (watch_id,)
        except OSError:  # no such file, no watches left, no inotify here
            self._unwatch(wakeup)
            return False
        return True

    def _unwatch(self, wakeup: Wakeup) -> None:
        for watch_id in wakeup.watch_ids:
            others = self._watching.get(watch_id, set())
            others.discard(wakeup)
            if not others:
                self._watching.pop(watch_id, None)
                with suppress(OSError):  # the kernel has dropped it
                    if self._kernel is not None:
                        self._kernel.rm_watch(watch_id)
        wakeup.watch_ids = ()

    def _has_unwatched(self) -> bool:
        return any(wakeup.origin is not WakeupOrigin.KERNEL for wakeup in self._waiting)

    def _poll_soon(self) -> None:
        """Query the journal soon; start the thread the first time."""
        self.pause_s = SHORTEST_S
        if self._closed:
            return
        if self._wake_fd is None:
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread = threading.Thread(
                target=self._run, args=(self._wake_fd,), name=self._name, daemon=True
            )
            self._thread.start()
        self._wake_thread()

    def _wake_thread(self) -> None:
        """Wake the thread, if there is one."""
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    # --------------------------------------------------- in the thread

    def _run(self, wake_fd: int) -> None:
        while not self._closed:
            poll = select.poll()
            poll.register(wake_fd, select.POLLIN)
            with self._lock:
                kernel = self._kernel
            if kernel is not None:
                poll.register(kernel.fd, select.POLLIN)
            remaining_s = self._poll_due_in_s()
            poll.poll(None if remaining_s is None else remaining_s * 1000)
            with suppress(BlockingIOError):
                os.eventfd_read(wake_fd)
            if kernel is not None and not self._closed:
                self._handle_kernel_events(kernel)
            remaining_s = self._poll_due_in_s()
            if remaining_s is not None and remaining_s <= 0 and not self._closed:
                self._poll_journal()
                self._check_watched_files()

    def _poll_due_in_s(self) -> float | None:
        """Return the seconds until the next query of the journal; None without receivers."""
        with self._lock:
            if not self._wakeups:
                return None
            is_calm = self._is_failing or not self._has_unwatched()
            pause_s = IDLE_POLL_S if is_calm else self.pause_s
            return max(self._polled_at + pause_s - self._clock.boottime_s(), 0.0)

    def _handle_kernel_events(self, kernel: INotify) -> None:
        """Notify those whose files have changed. Each watch of the kernel is used once."""
        events = kernel.read(timeout=0)
        if any(event.mask & flags.Q_OVERFLOW for event in events):
            self._notify(self._wakeups)
        notified: set[Wakeup] = set()
        with self._lock:
            for event in events:
                for wakeup in self._watching.pop(event.wd, ()):
                    wakeup.watch_ids = tuple(each for each in wakeup.watch_ids if each != event.wd)
                    notified.add(wakeup)
        self._notify(notified)

    def _check_watched_files(self) -> None:
        """Notify those whose files have changed without an event, every ``FILE_CHECK_S``."""
        now = self._clock.boottime_s()
        if now - self._files_checked_at < FILE_CHECK_S:
            return
        self._files_checked_at = now
        with self._lock:
            known = [
                (wakeup, wakeup.paths, wakeup.state) for wakeup in self._waiting if wakeup.watch_ids
            ]
        self._notify([wakeup for wakeup, paths, state in known if _state(paths) != state])

    def _poll_journal(self) -> None:
        """Notify those whose partition has a new line in the journal."""
        self._polled_at = now = self._clock.boottime_s()
        self.queries += 1
        try:
            self._last_line, paths = self._changes(self._last_line)
            if now - self._checked_at >= IDLE_POLL_S:
                self._checked_at = now
                self._check()
        except (
            UnknownStream,
            UsageError,
        ):  # deleted, or the log was closed
            self._is_failing = True
            self._notify(self._wakeups, fresh=True)
            return
        except LeaseholdError as error:
            if not self._is_failing:
                log.warning("%s: the journal can not be asked: %s", self._name, error)
            self._is_failing = True
            return
        self._is_failing = False
        with self._lock:
            self.pause_s = min(self.pause_s * 2, LONGEST_S) if paths == frozenset() else SHORTEST_S
        if paths is None:
            self._notify(self._wakeups, fresh=True)
        elif paths:
            changed = {path.split("/")[-2] for path in paths}
            self._notify(
                (wakeup for wakeup in self._wakeups if wakeup.partition in changed), fresh=True
            )

    def _notify(self, wakeups: Iterable[Wakeup], *, fresh: bool = False) -> None:
        with self._lock:
            notified = tuple(wakeups)
        for wakeup in notified:
            wakeup.notify(fresh=fresh)


def _state(paths: Iterable[str]) -> list[tuple[int, int] | None]:
    """Return what changes with each of these files when it is written."""
    state: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            found = os.stat(path)  # noqa: PTH116 - many files: a Path costs more than the call
        except OSError:
            state.append(None)
        else:
            state.append((found.st_mtime_ns, found.st_size))
    return state
