"""One watcher for all partitions of a stream: a thread that rings whoever may have more to read.

It hears of changes in two ways. The kernel tells when an open segment grows (inotify), once for
each time that somebody aims at it, so a busy partition costs nothing here. The journal tells all
else: segments that begin, end, are recovered or removed. It is asked for the whole stream at once:
every ``CALM_S``, and more often while somebody waits whom the kernel can not wake. The kernel is
not trusted blindly: every ``SWEEP_S`` the watched files are compared with what they were.

Nothing is lost between a look and a sleep if a receiver enters before its first look, stills its
bell before each look, and looks again whenever ``aim`` says so.
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

SHORTEST_S = 0.02  # the next segment is usually there at once
LONGEST_S = 0.25
# The kernel watches for all who wait: the journal has only to tell what it does not see.
CALM_S = 1.0
SWEEP_S = 5.0
_EVENTS = flags.MODIFY | flags.MOVE_SELF | flags.DELETE_SELF | flags.ONESHOT

Changes = tuple[int, "frozenset[str] | None"]


class WakeupOrigin(Enum):
    """Who will tell that there is more."""

    KERNEL = "kernel"  # a segment is open, and the kernel watches it
    JOURNAL = "journal"  # none is open: the journal will have a line about the next one
    NOBODY = "nobody"  # one is open, and the kernel can not watch it


class Wakeup:
    """Made in the event loop of its receiver. A ring is heard, also if nobody waits yet."""

    def __init__(self, partition: str) -> None:
        """Silent."""
        self.partition = partition
        # These belong to the watcher, under its lock.
        self.sight = WakeupOrigin.JOURNAL
        self.paths: tuple[str, ...] = ()
        self.numbers: tuple[int, ...] = ()  # the kernel's, for the paths
        self.state: object = None  # that of the paths, before they were watched
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._fresh = False

    def ring(self, *, fresh: bool = False) -> None:
        """Wake the receiver, from any thread; ``fresh``: it should ask the journal."""
        with suppress(RuntimeError):  # the loop has ended, and nobody waits in it
            self._loop.call_soon_threadsafe(self._ring, fresh)

    def still(self) -> bool:
        """Forget all rings before the look that follows; say whether one was ``fresh``."""
        fresh, self._fresh = self._fresh, False
        self._rung.clear()
        return fresh

    async def wait(self, max_s: float) -> None:
        """Return when it was rung since ``still``, or when the time is over."""
        timer = self._loop.call_later(max_s, self._rung.set)
        try:
            await self._rung.wait()
        finally:
            timer.cancel()

    def _ring(self, fresh: bool) -> None:  # noqa: FBT001 - the loop calls it by position
        self._fresh = self._fresh or fresh
        self._rung.set()


class StreamWatcher:
    """Safe to use from several threads. Its thread begins with the first who waits."""

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
        when the stream is gone, which the journal does not tell of one without segments.
        """
        self.queries = 0
        self._name = name
        self._changes = changes
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        self._wake: int | None = None
        self._kernel: INotify | None = None
        self._thread: threading.Thread | None = None
        self._line: int | None = None
        self._bells: set[Wakeup] = set()
        self._aimed: dict[int, set[Wakeup]] = {}
        self._asleep: set[Wakeup] = set()
        self.pause_s = SHORTEST_S
        self._asked_at = self._checked_at = self._swept_at = clock.boottime_s()
        self._in_trouble = False
        self._closed = False

    # ------------------------------------------------------ for receivers

    def enter(self, bell: Wakeup) -> None:
        """Ring it from now on, until it leaves. Asks the journal if it is the first one.

        Raises:
            StoreUnavailable: the journal does not answer.
            UsageError: closed.
        """
        line = self._changes(None)[0] if self._line is None else self._line
        with self._lock:
            if self._closed:
                raise UsageError("the source is closed: open another one")
            if not self._bells:
                self._line = line
                self._stir()
            self._bells.add(bell)

    def leave(self, bell: Wakeup) -> None:
        """Ring it no more. Again is harmless."""
        with self._lock:
            self._forget(bell)
            self._bells.discard(bell)
            self._asleep.discard(bell)

    def aim(self, bell: Wakeup, paths: tuple[str, ...], *, elsewhere: bool) -> bool:
        """Ring it when one of these files changes; True: look again, one may have done so before.

        With ``elsewhere`` another machine writes them, and this kernel does not see it.
        """
        state = _state(paths)
        with self._lock:
            if bell not in self._bells:
                return False  # it has left while its thread was looking
            if bell.paths == paths and len(bell.numbers) == len(paths):
                return False
            self._forget(bell)
            bell.paths, bell.state = paths, state
            if paths and not elsewhere and self._is_watched(bell):
                bell.sight = WakeupOrigin.KERNEL
                return True
            if not paths and bell.sight is not WakeupOrigin.JOURNAL:
                self._hurry()
            bell.sight = WakeupOrigin.NOBODY if paths else WakeupOrigin.JOURNAL
            return False

    @contextmanager
    def asleep(self, bell: Wakeup) -> Iterator[None]:
        """While this lasts, its receiver waits."""
        with self._lock:
            if not self._closed:
                if bell.sight is not WakeupOrigin.KERNEL and not self._has_blind():
                    self._hurry()
                self._asleep.add(bell)
        try:
            yield
        finally:
            with self._lock:
                self._asleep.discard(bell)

    def close(self) -> None:
        """Ring all, end the thread, and give everything back to the kernel. Again is harmless."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            self._stir()
        self._ring(self._bells)
        if thread is not None:
            thread.join()
        with self._lock:
            if self._kernel is not None:
                self._kernel.close()
                self._kernel = None
            if self._wake is not None:
                os.close(self._wake)
                self._wake = None
            self._aimed.clear()
            self._bells.clear()

    # -------------------------------------------------- under the lock

    def _is_watched(self, bell: Wakeup) -> bool:
        """Have the kernel watch for it. Where it can not, the receiver looks by itself."""
        try:
            if self._kernel is None:
                self._kernel = INotify()
                self._hurry()  # the thread is to listen to it
            for path in bell.paths:
                number = self._kernel.add_watch(path, _EVENTS)
                self._aimed.setdefault(number, set()).add(bell)
                bell.numbers += (number,)
        except OSError:  # no such file, no watches left, no inotify here
            self._forget(bell)
            return False
        return True

    def _forget(self, bell: Wakeup) -> None:
        for number in bell.numbers:
            others = self._aimed.get(number, set())
            others.discard(bell)
            if not others:
                self._aimed.pop(number, None)
                with suppress(OSError):  # the kernel has dropped it
                    if self._kernel is not None:
                        self._kernel.rm_watch(number)
        bell.numbers = ()

    def _has_blind(self) -> bool:
        return any(bell.sight is not WakeupOrigin.KERNEL for bell in self._asleep)

    def _hurry(self) -> None:
        """Ask soon; and start the thread if this is the first time."""
        self.pause_s = SHORTEST_S
        if self._closed:
            return
        if self._wake is None:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread = threading.Thread(
                target=self._run, args=(self._wake,), name=self._name, daemon=True
            )
            self._thread.start()
        self._stir()

    def _stir(self) -> None:
        """Let the thread see what has changed, if there is one."""
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    # --------------------------------------------------- in the thread

    def _run(self, wake: int) -> None:
        while not self._closed:
            poll = select.poll()
            poll.register(wake, select.POLLIN)
            with self._lock:
                kernel = self._kernel
            if kernel is not None:
                poll.register(kernel.fd, select.POLLIN)
            left_s = self._left_s()
            poll.poll(None if left_s is None else left_s * 1000)
            with suppress(BlockingIOError):
                os.eventfd_read(wake)
            if kernel is not None and not self._closed:
                self._hear(kernel)
            left_s = self._left_s()
            if left_s is not None and left_s <= 0 and not self._closed:
                self._ask()
                self._sweep()

    def _left_s(self) -> float | None:
        """How long until the journal is to be asked; None while there is nobody to be told."""
        with self._lock:
            if not self._bells:
                return None
            is_calm = self._in_trouble or not self._has_blind()
            pause_s = CALM_S if is_calm else self.pause_s
            return max(self._asked_at + pause_s - self._clock.boottime_s(), 0.0)

    def _hear(self, kernel: INotify) -> None:
        """Ring those whose files have changed. Each watch of the kernel is for one time."""
        told = kernel.read(timeout=0)
        if any(event.mask & flags.Q_OVERFLOW for event in told):
            self._ring(self._bells)
        rung: set[Wakeup] = set()
        with self._lock:
            for event in told:
                for bell in self._aimed.pop(event.wd, ()):
                    bell.numbers = tuple(each for each in bell.numbers if each != event.wd)
                    rung.add(bell)
        self._ring(rung)

    def _sweep(self) -> None:
        """Now and then: ring those whose files have changed without a word of the kernel."""
        now = self._clock.boottime_s()
        if now - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        with self._lock:
            known = [(bell, bell.paths, bell.state) for bell in self._asleep if bell.numbers]
        self._ring([bell for bell, paths, state in known if _state(paths) != state])

    def _ask(self) -> None:
        """Ring those whose partition the journal has a new line about."""
        self._asked_at = now = self._clock.boottime_s()
        self.queries += 1
        try:
            self._line, paths = self._changes(self._line)
            if now - self._checked_at >= CALM_S:
                self._checked_at = now
                self._check()
        except (UnknownStream, UsageError):  # deleted, or the log was closed: they will see it
            self._in_trouble = True
            self._ring(self._bells, fresh=True)
            return
        except LeaseholdError as error:
            if not self._in_trouble:
                log.warning("%s: the journal can not be asked: %s", self._name, error)
            self._in_trouble = True
            return
        self._in_trouble = False
        with self._lock:
            self.pause_s = min(self.pause_s * 2, LONGEST_S) if paths == frozenset() else SHORTEST_S
        if paths is None:
            self._ring(self._bells, fresh=True)
        elif paths:
            changed = {path.split("/")[-2] for path in paths}
            self._ring((bell for bell in self._bells if bell.partition in changed), fresh=True)

    def _ring(self, bells: Iterable[Wakeup], *, fresh: bool = False) -> None:
        with self._lock:
            rung = tuple(bells)
        for bell in rung:
            bell.ring(fresh=fresh)


def _state(paths: Iterable[str]) -> list[tuple[int, int] | None]:
    """What changes with each of these files when it is written."""
    state: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            found = os.stat(path)  # noqa: PTH116 - many at once: a Path costs more than the look
        except OSError:
            state.append(None)
        else:
            state.append((found.st_mtime_ns, found.st_size))
    return state
