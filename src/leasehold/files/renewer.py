"""Keeps a holder's lease alive while it has files open: one call for all of them.

The thread starts with the first file and ends some rounds after the last one. It runs every
``check_interval`` and renews at half the soft limit. A failure of the store is retried in the next
round. A holder that could not renew for the hard limit gives its files up: by then the monitor may
have recovered them, and its writers get a clear error. Before that they continue: the fence on the
volumes makes them safe, not time.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from leasehold.errors import LeaseLost, StoreError

if TYPE_CHECKING:
    from leasehold.clock import Clock
    from leasehold.files.journal import Journal
    from leasehold.files.model import FileHolder
    from leasehold.files.writer import FileWriter

log = logging.getLogger("leasehold.files")

_MARGIN = 0.05  # a clock may run slow by this much
_IDLE_ROUNDS = 10  # a program that writes many small files one by one keeps its thread


class Renewer:
    """The files of one holder."""

    def __init__(
        self,
        journal: Journal,
        holder: FileHolder,
        *,
        clock: Clock,
        check_interval_s: float,
        has_thread: bool = True,
    ) -> None:
        """Without a thread the caller has to call ``run_once`` as often."""
        self._has_thread = has_thread
        self._journal = journal
        self._holder = holder
        self._clock = clock
        self._check_interval_s = check_interval_s
        self._lock = threading.Lock()
        self._writers: set[FileWriter] = set()
        self._renewed_at = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def open_files(self) -> int:
        """How many files this holder has open."""
        return len(self._writers)

    def add(self, writer: FileWriter, *, renewed_at: float) -> None:
        """Keep this file too. Opening it renewed the lease at ``renewed_at`` at the earliest."""
        with self._lock:
            self._renewed_at = max(self._renewed_at, renewed_at) if self._writers else renewed_at
            self._writers.add(writer)
            if self._thread is None and self._has_thread:
                self._thread = threading.Thread(
                    target=self._run, name="leasehold-renewer", daemon=True
                )
                self._thread.start()

    def remove(self, writer: FileWriter) -> None:
        """This file is closed or lost."""
        with self._lock:
            self._writers.discard(writer)

    def run_once(self) -> bool:
        """Renew if it is due and return whether it was; retry closes that failed before."""
        renewed = self._renew_if_due()
        with self._lock:
            unclosed = [writer for writer in self._writers if writer.wants_close]
        for writer in unclosed:
            writer.close_quietly()
        return renewed

    def _renew_if_due(self) -> bool:
        now, limits = self._clock.boottime_s(), self._journal.limits
        with self._lock:
            silent_s = now - self._renewed_at
            writers = tuple(self._writers)
        if not writers or silent_s < limits.soft_s / 2:
            return False
        try:
            self._journal.renew(self._holder)
        except LeaseLost:
            # Everything was taken over. Each writer gets the details when it writes.
            log.warning("the lease of %s is gone", self._holder.id)
            return False
        except StoreError as error:
            log.warning("could not renew %s: %s", self._holder.id, error)
            if silent_s > limits.hard_s * (1 - _MARGIN):
                self._give_up(writers, silent_s)
            return False
        with self._lock:
            self._renewed_at = max(self._renewed_at, now)
        return True

    def close(self) -> None:
        """End the thread; the lease runs on until it is left or ends by time."""
        with self._lock:
            self._stop.set()
            thread, self._thread = self._thread, None
            writers = tuple(self._writers)
        for writer in writers:
            writer.leave_behind()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        idle = 0
        while not self._stop.wait(self._check_interval_s):
            try:
                self.run_once()
            except Exception:  # a bug of Leasehold's must not end the one that keeps all files
                log.exception("the renewer could not look")
            with self._lock:
                idle = 0 if self._writers else idle + 1
                if idle > _IDLE_ROUNDS:
                    self._thread = None
                    return

    def _give_up(self, writers: tuple[FileWriter, ...], silent_s: float) -> None:
        for writer in writers:
            writer.give_up(
                LeaseLost(
                    f"{writer.path}: the lease could not be renewed for {silent_s:.0f} s, which is "
                    "the hard limit: others may have recovered the file; look at it, then append",
                    key=writer.path,
                    epoch=writer.epoch,
                    reason="local_deadline",
                )
            )
