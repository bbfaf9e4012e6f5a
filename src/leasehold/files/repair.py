"""Copies that are missing, and how they are made again.

A copy is missing if a complete block is on fewer volumes than its file asks for, or if a volume
that answers does not have what the journal says. A volume that does not answer is waited for: its
copies count, since it may only be unmounted. ``Repairer`` makes missing copies again, some bytes in
each pass; a copy that does not fit into one pass is continued in the next.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from leasehold.core.backoff import Backoff
from leasehold.errors import (
    DataDamaged,
    FencedWrite,
    LeaseholdError,
    ProcessExhausted,
    StoreError,
    VolumeUnusable,
)
from leasehold.files import reader
from leasehold.files.block_copy import check_sources, complete_records, make_copy, remove_copy
from leasehold.files.journal.copy_steps import COPY_CLAIM_S
from leasehold.files.model import BlockState

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator, Iterator

    from leasehold.clock import Clock
    from leasehold.files.model import Block, FileHolder, FileOptions
    from leasehold.files.recovery import RecoveryContext
    from leasehold.files.volumes import Volume

log = logging.getLogger("leasehold.files")

PAGE: Final = 500  # how many blocks are looked at together
_RETRY_BACKOFF = Backoff(base_s=10.0, max_s=600.0)
_MAX_REMEMBERED = 10_000
_LOST: Final = (
    "no volume that answers has all of it sound: bring back volumes that are away, or restore the "
    "file from elsewhere"
)
# A block is copied only to a volume that keeps this much free, for the writers.
_KEPT_FREE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCopy:
    """A copy of a complete block that is missing.

    ``volume`` is where it is missing, or where it would be made; empty if no volume can take it.
    ``sound`` is how many copies there are. ``trouble`` is why it cannot be made now; empty if it
    can.
    """

    path: str
    block: Block
    volume: str
    what: str
    sound: int = 0
    trouble: str = ""


class Survey:
    """One look at blocks: volumes are asked once whether they can be used, and then remembered."""

    def __init__(self, context: RecoveryContext) -> None:
        """Learn which volumes there are now."""
        self._context = context
        context.volumes.refresh()
        self._volumes = {volume.id: volume for volume in context.volumes.all()}
        self._unreadable: dict[str, str] = {}
        self._usable: dict[str, int | str] = {}
        for volume_id in self._volumes:
            try:
                context.volumes.readable(volume_id)
            except (LeaseholdError, OSError) as error:
                self._unreadable[volume_id] = str(error)

    def restore_directories(self) -> None:
        """Make directories again that are missing on volumes that answer."""
        for volume_id, volume in self._volumes.items():
            if volume_id not in self._unreadable:
                with suppress(OSError, VolumeUnusable):
                    _restore_directories(volume, self._context)

    def _free(self, volume_id: str) -> int | str:
        """Return the free bytes of a volume; if it cannot be written, why."""
        if volume_id not in self._usable:
            try:
                volume = self._context.volumes.usable(volume_id)
                self._usable[volume_id] = volume.free_bytes()
            except (LeaseholdError, OSError) as error:
                self._usable[volume_id] = str(error)
        return self._usable[volume_id]

    def missing(
        self,
        path: str,
        replication: int,
        block: Block,
        *,
        compare: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Iterator[MissingCopy]:
        """Yield the copies of a complete block that are missing.

        ``compare`` reads every replica and also yields those that are damaged. ``progress`` gets
        the number of bytes compared.
        """
        sound: list[str] = []
        bad: dict[str, str] = {}
        for volume_id in block.volumes:
            if volume_id not in self._volumes:
                continue  # it was replaced: what was there is missing somewhere
            if volume_id in self._unreadable:
                bad[volume_id] = ""
                continue
            fault = self._fault(block, self._volumes[volume_id], compare=compare)
            progress(block.length if compare else 0)
            if fault is None:
                sound.append(volume_id)
            else:
                bad[volume_id] = fault
        lost = "" if sound else self._lost(block, compare=compare)
        for volume_id, fault in bad.items():
            what = fault or f"block {block.id:#x} can not be read"
            trouble = self._trouble(block, volume_id) or lost
            yield MissingCopy(
                path=path,
                block=block,
                volume=volume_id,
                what=what,
                sound=len(sound),
                trouble=trouble,
            )
        wanted = min(replication, len(self._volumes))
        have = len(sound) + len(bad)
        targets = self._targets(block)
        for _ in range(wanted - have):
            target = next(targets, "")
            if target:
                self._usable[target] = int(self._free(target)) - block.length
            yield MissingCopy(
                path=path,
                block=block,
                volume=target,
                what=f"block {block.id:#x} is on {have} of {wanted} volumes",
                sound=len(sound),
                trouble=lost if target else self._no_target(block),
            )

    def _fault(self, block: Block, volume: Volume, *, compare: bool) -> str | None:
        """Return what is wrong with a replica; None if nothing was found."""
        disk = self._context.disk
        try:
            if compare:
                faults = reader.verify(block, volume, disk=disk)
            else:
                faults = reader.absence(block, volume, disk=disk)
        except OSError as error:
            faults = [f"block {block.id:#x} can not be read: {error}"]
        if faults:
            # Between the first question and this one it may have been unmounted.
            try:
                volume.check(write=False)
            except VolumeUnusable as error:
                self._unreadable[volume.id] = str(error)
                return ""
        return faults[0] if faults else None

    def _lost(self, block: Block, *, compare: bool) -> str:
        """Return why no copy can be made, if no replica is whole: their pieces may be enough.

        Without ``compare`` only the records are read.
        """
        find = check_sources if compare else complete_records
        try:
            find(block, _sources(block, self._context), disk=self._context.disk)
        except DataDamaged:
            return _LOST
        return ""

    def _trouble(self, block: Block, volume_id: str) -> str:
        """Return why a copy to this volume cannot be made now; empty if it can."""
        if volume_id in self._unreadable:
            return self._unreadable[volume_id]
        free = self._free(volume_id)
        if isinstance(free, str):
            return free
        if free < block.length + _KEPT_FREE_BYTES:
            return _no_room(volume_id, free)
        return ""

    def _targets(self, block: Block) -> Iterator[str]:
        """Yield volumes that do not have the block and can take it, the emptiest first."""
        others = [each for each in self._volumes if each not in block.volumes]
        good = [each for each in others if not self._trouble(block, each)]
        yield from sorted(good, key=lambda each: (-int(self._free(each)), each))

    def _no_target(self, block: Block) -> str:
        why = [self._trouble(block, each) for each in self._volumes if each not in block.volumes]
        return f"no other volume can take it: {'; '.join(filter(None, why)) or 'there is none'}"


def _no_room(volume_id: str, free: int) -> str:
    return f"volume {volume_id} has {free} bytes free: make room"


def missing_copies(
    context: RecoveryContext,
    *,
    path: str | None = None,
    compare: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[MissingCopy]:
    """Yield the missing copies of one file, or of all files in the order of their blocks.

    Raises:
        UnknownFile: there is no such file.
    """
    survey = Survey(context)
    if path is not None:
        status, blocks = context.journal.view(path)
        for block in blocks:
            if block.state is BlockState.COMPLETE:
                yield from survey.missing(
                    status.path, status.replication, block, compare=compare, progress=progress
                )
        return
    after = 0
    while page := context.journal.blocks_after(after, limit=PAGE):
        for each, replication, block in page:
            yield from survey.missing(each, replication, block, compare=compare, progress=progress)
        after = page[-1][2].id


def copying(
    missing: MissingCopy, context: RecoveryContext, holder: FileHolder, clock: Clock
) -> Generator[int, None, None]:
    """Make a missing copy, claimed and committed in the journal; yield the bytes of each piece.

    Raises:
        FencedWrite: another process copies the block, or it is not as it was seen.
        DataDamaged: a piece is sound on no volume that answers.
        VolumeUnusable: the volume cannot be written.
        OSError: it failed.
    """
    journal, block = context.journal, missing.block
    target = context.volumes.usable(missing.volume)
    if target.free_bytes() < block.length + _KEPT_FREE_BYTES:
        raise VolumeUnusable(_no_room(target.id, target.free_bytes()))
    _restore_directories(target, context)
    if not context.disk.exists(target.directory(block.id)):
        raise VolumeUnusable(
            f"volume {target.id} has lost the directory {target.directory(block.id)}, and a file "
            "that is being written was there. Recover the file first."
        )
    copy = journal.begin_copy(block, missing.volume, holder, mark=context.volumes.mark([target]))
    renewed_at = clock.boottime_s()
    try:
        with closing(
            make_copy(
                copy,
                target,
                _sources(copy.block, context, last=missing.volume),
                disk=context.disk,
                boot_id=context.boot_id,
            )
        ) as pieces:
            for count in pieces:
                if clock.boottime_s() - renewed_at > COPY_CLAIM_S / 3:
                    renewed_at = clock.boottime_s()
                    journal.renew_copy(copy)
                yield count
    except (Exception, GeneratorExit, KeyboardInterrupt):
        with suppress(LeaseholdError):  # then the claim ends by itself
            journal.end_copy(copy)
        raise
    try:
        journal.commit_copy(copy, holder)
    except FencedWrite:
        with suppress(OSError, ProcessExhausted):
            remove_copy(target, block.id, copy.epoch, disk=context.disk)
        raise


def _restore_directories(volume: Volume, context: RecoveryContext) -> None:
    if volume.missing_directories():
        volume.check()
        volume.restore_directories(context.journal.open_blocks_on(volume.id))


def _sources(block: Block, context: RecoveryContext, *, last: str = "") -> list[Volume]:
    """Return the volumes that have a replica and can be read."""
    found = []
    for volume in context.volumes.known(sorted(block.volumes, key=lambda each: each == last)):
        with suppress(VolumeUnusable):
            volume.check(write=False)
            found.append(volume)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPass:
    """What one pass did: copies that were made, and their bytes, those of unfinished ones too."""

    copied: int = 0
    copied_bytes: int = 0
    failed: int = 0
    left: bool = False


class Repairer:
    """One for each open namespace; several at the same time are safe."""

    def __init__(
        self,
        context: RecoveryContext,
        holder: FileHolder,
        *,
        clock: Clock,
        rng: random.Random,
        options: FileOptions,
    ) -> None:
        self._context = context
        self._holder = holder
        self._clock = clock
        self._rng = rng
        self._wait_s = options.monitor_interval.total_seconds()
        self._budget_s = options.monitor_budget.total_seconds()
        self._look_every_s = options.repair_interval.total_seconds()
        self._budget_bytes = options.repair_bytes
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._found: deque[MissingCopy] = deque()
        self._current: tuple[MissingCopy, Generator[int, None, None]] | None = None
        self._after = 0
        self._next_look_s = 0.0
        self._failures: dict[tuple[int, str], tuple[int, float]] = {}

    def start(self) -> None:
        """Run a pass every ``monitor_interval`` in a thread until ``close``."""
        if self._budget_bytes:
            self._thread = threading.Thread(target=self._run, name="leasehold-repair", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread after the piece it is at, and give up the copy that is not finished."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._give_up()

    def run_once(self) -> RepairPass:
        """Look at some blocks if it is time, and copy what is missing within the budget."""
        deadline_s = self._clock.boottime_s() + self._budget_s
        copied = copied_bytes = failed = 0
        if self._current is None and not self._found:
            self._look()
        while self._current is not None or self._found:
            over = copied_bytes >= self._budget_bytes or self._clock.boottime_s() >= deadline_s
            if over or self._stop.is_set():
                return RepairPass(
                    copied=copied, copied_bytes=copied_bytes, failed=failed, left=True
                )
            if self._current is None:
                missing = self._found.popleft()
                self._current = missing, copying(missing, self._context, self._holder, self._clock)
            missing, pieces = self._current
            try:
                copied_bytes += next(pieces)
            except StopIteration:
                copied += 1
                self._current = None
                self._failures.pop(_key(missing), None)
                log.info("%s: copied %s", missing.path, _where(missing))
            except (LeaseholdError, OSError) as error:
                failed += 1
                self._current = None
                self._remember(missing, error)
                if isinstance(error, StoreError):
                    raise
        return RepairPass(copied=copied, copied_bytes=copied_bytes, failed=failed)

    def _run(self) -> None:
        # Waits first, so that an error can never make it spin.
        while not self._stop.wait(self._wait_s):
            try:
                self.run_once()
            except LeaseholdError as error:
                log.warning("missing copies could not be made: %s", error)
            except Exception:  # a bug must not end the thread
                log.exception("missing copies could not be made")
                self._give_up()

    def _look(self) -> None:
        """Find what is missing among the next blocks; after some that miss nothing, pause."""
        now = self._clock.boottime_s()
        if now < self._next_look_s:
            return
        page = self._context.journal.blocks_after(self._after, limit=PAGE)
        self._after = page[-1][2].id if len(page) == PAGE else 0
        if page:
            survey = Survey(self._context)
            survey.restore_directories()
            found = [
                missing
                for path, replication, block in page
                for missing in survey.missing(path, replication, block)
                if not missing.trouble and self._is_due(missing, now)
            ]
            # Blocks with the fewest copies first: they are in the greatest danger.
            self._found.extend(sorted(found, key=lambda missing: missing.sound))
        if not self._found:
            self._next_look_s = now + self._look_every_s

    def _is_due(self, missing: MissingCopy, now: float) -> bool:
        return self._failures.get(_key(missing), (0, 0.0))[1] <= now

    def _remember(self, missing: MissingCopy, error: Exception) -> None:
        """Try it again later, with growing pauses: it must not delay others."""
        attempts = self._failures.get(_key(missing), (0, 0.0))[0]
        if not isinstance(error, FencedWrite) or not attempts:  # else another process copies it
            attempts += 1
        pause_s = _RETRY_BACKOFF.pause_s(attempts, self._rng)
        if len(self._failures) >= _MAX_REMEMBERED:
            self._failures.clear()
        self._failures[_key(missing)] = attempts, self._clock.boottime_s() + pause_s
        level = logging.DEBUG if isinstance(error, FencedWrite) else logging.WARNING
        log.log(
            level,
            "%s: cannot copy %s (attempt %d): %s; retrying in %.0f s",
            missing.path,
            _where(missing),
            attempts,
            error,
            pause_s,
        )

    def _give_up(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            pieces = current[1]
            with suppress(LeaseholdError, OSError):
                pieces.close()


def _key(missing: MissingCopy) -> tuple[int, str]:
    return missing.block.id, missing.volume


def _where(missing: MissingCopy) -> str:
    return f"block {missing.block.id:#x} ({missing.block.length} bytes) to volume {missing.volume}"
