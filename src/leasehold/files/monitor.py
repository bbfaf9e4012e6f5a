"""Recovers files whose writers are gone, and removes the blocks of deleted files.

Every pass is bounded: it reads what is due by index, oldest first, begins no recovery after its
budget, and leaves the rest to the next pass. A file whose recovery fails gets a time for its next
attempt, with growing pauses, and does not delay others.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.backoff import Backoff
from leasehold.errors import (
    FileHeld,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    StoreError,
    UnknownFile,
)
from leasehold.files import fence as sealing
from leasehold.files.block_copy import remove_copy
from leasehold.files.model import RecoveryReason
from leasehold.files.recovery import run_recovery

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.files.model import FileHolder
    from leasehold.files.recovery import RecoveryContext
    from leasehold.files.volumes import Volume

log = logging.getLogger("leasehold.files")

RETRY_BACKOFF = Backoff(base_s=2.0, max_s=300.0)
_MAX_PER_PASS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPass:
    """What one pass did."""

    recovered: int = 0
    failed: int = 0
    removed: int = 0
    left: bool = False


class Monitor:
    """One for each open namespace; several at the same time are safe."""

    def __init__(
        self,
        context: RecoveryContext,
        holder: FileHolder,
        *,
        clock: Clock,
        rng: random.Random,
        interval_s: float,
        budget_s: float,
    ) -> None:
        self._context = context
        self._holder = holder
        self._clock = clock
        self._rng = rng
        self._interval_s = interval_s
        self._budget_s = budget_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run a pass every ``interval_s`` in a thread until ``close``."""
        self._thread = threading.Thread(target=self._run, name="leasehold-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the recovery it is at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def run_once(self) -> MonitorPass:
        """Run one pass."""
        deadline_s = self._clock.boottime_s() + self._budget_s
        recovered = failed = 0
        due = self._context.journal.due(limit=_MAX_PER_PASS)
        for path in due:
            if self._clock.boottime_s() >= deadline_s or self._stop.is_set():
                return MonitorPass(recovered=recovered, failed=failed, left=True)
            if self._recover(path):
                recovered += 1
            else:
                failed += 1
        removed = self._sweep_trash(deadline_s)
        return MonitorPass(
            recovered=recovered,
            failed=failed,
            removed=removed,
            left=_MAX_PER_PASS in {len(due), removed},
        )

    def _run(self) -> None:
        # Waits first, so that an error can never make it spin.
        while not self._stop.wait(self._interval_s):
            try:
                self.run_once()
            except LeaseholdError as error:
                log.warning("the monitor could not look: %s", error)
            except Exception:  # a bug must not end the only thread that cleans up
                log.exception("the monitor could not look")

    def _recover(self, path: str) -> bool:
        journal = self._context.journal
        try:
            recovery = journal.begin_recovery(path, self._holder, reason=RecoveryReason.HARD)
        except (FileHeld, RecoveryInProgress, UnknownFile):
            return False  # another process was faster, or its holder is back
        except StoreError:
            raise
        except LeaseholdError as error:
            log.warning("%s can not be recovered: %s", path, error)
            return False  # one bad file must not delay others
        if recovery is None:
            return False
        try:
            run_recovery(recovery, self._context)
        except (FileHeld, RecoveryInProgress, UnknownFile) as error:
            log.info("%s: %s", path, error)
            return False
        except (LeaseholdError, OSError) as error:
            pause_s = RETRY_BACKOFF.pause_s(recovery.attempt, self._rng)
            log.warning(
                "%s can not be recovered (attempt %d, next in %.0f s): %s",
                path,
                recovery.attempt,
                pause_s,
                error,
            )
            with suppress(LeaseLost, UnknownFile):  # a newer one has begun, or there is no file
                journal.fail_recovery(recovery, trouble=str(error), pause_s=pause_s)
            return False
        return True

    def _sweep_trash(self, deadline_s: float) -> int:
        return sweep(self._context, is_over=lambda: self._clock.boottime_s() >= deadline_s)


def sweep(context: RecoveryContext, *, is_over: Callable[[], bool] = lambda: False) -> int:
    """Remove replicas that the journal has given up; return how many.

    A volume that is away is tried once; replicas on the others are removed.
    """
    removed, unavailable = 0, set[str]()
    while True:
        gone, failed = _remove_trash(context, unavailable, is_over)
        if gone:
            context.journal.forget_trash(gone)
        copies, failed_too = _remove_copies(context, unavailable | failed, is_over)
        if copies:
            context.journal.forget_copies(copies)
        removed += len(gone) + len(copies)
        failed |= failed_too
        unavailable |= failed
        more = _MAX_PER_PASS in {len(gone), len(copies)}
        if not (failed or more) or is_over():
            return removed


def _remove_trash(
    context: RecoveryContext, unavailable: set[str], is_over: Callable[[], bool]
) -> tuple[list[tuple[int, str]], set[str]]:
    gone: list[tuple[int, str]] = []
    failed: set[str] = set()
    usable: dict[str, Volume] = {}
    for block_id, volume_id in context.journal.trash(limit=_MAX_PER_PASS, without=unavailable):
        if is_over():
            break
        if volume_id in failed:
            continue
        try:
            if not context.volumes.is_replaced(volume_id):
                if volume_id not in usable:
                    usable[volume_id] = context.volumes.usable(volume_id)
                sealing.remove(usable[volume_id], block_id, disk=context.disk)
        except (LeaseholdError, OSError) as error:
            log.debug("block %x stays on volume %s for now: %s", block_id, volume_id, error)
            failed.add(volume_id)
        else:
            gone.append((block_id, volume_id))
    return gone, failed


def _remove_copies(
    context: RecoveryContext, unavailable: set[str], is_over: Callable[[], bool]
) -> tuple[list[tuple[int, str, int]], set[str]]:
    """Remove copies whose claim has ended, and those of deleted files."""
    gone: list[tuple[int, str, int]] = []
    failed: set[str] = set()
    for block_id, volume_id, epoch in context.journal.copies_over(
        limit=_MAX_PER_PASS, without=unavailable
    ):
        if is_over():
            break
        if volume_id in failed:
            continue
        try:
            if not context.volumes.is_replaced(volume_id):
                volume = context.volumes.usable(volume_id)
                remove_copy(volume, block_id, epoch, disk=context.disk)
        except (LeaseholdError, OSError) as error:
            log.debug("a copy of block %x stays on %s for now: %s", block_id, volume_id, error)
            failed.add(volume_id)
        else:
            gone.append((block_id, volume_id, epoch))
    return gone, failed
