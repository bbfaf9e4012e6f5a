"""A file open for writing.

Guarantees:

* ``flush``: what was written before is on every volume of the block, and any reader sees it.
* ``sync``: the same, and it survives a power cut.
* ``close``: the same, and the file is complete; it never changes again under this name unless
  a process appends to it or replaces it.
* When the file was taken over, the next ``write``, ``flush``, ``sync`` or ``close`` that reaches
  the volumes raises ``LeaseLost``, and what was not acknowledged before is not acknowledged.

Not guaranteed: that bytes which were not flushed are dropped. They may survive a recovery.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from leasehold.errors import (
    LeaseholdError,
    LeaseLost,
    StoreError,
    UnknownFile,
    UsageError,
    VolumeUnusable,
)
from leasehold.files.block_meta import PIECE_BYTES
from leasehold.files.block_writer import BlockWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from leasehold.files.disk import Bytes
    from leasehold.files.model import Block, FileStatus, OpenedFile, SealedBlock, WriteTicket
    from leasehold.files.recovery import RecoveryContext
    from leasehold.files.volumes import Volume


class FileWriter:
    """Made by ``Namespace.create`` and ``Namespace.append``. Safe to use from several threads."""

    def __init__(
        self,
        opened: OpenedFile,
        around: RecoveryContext,
        *,
        volumes_for: Callable[[int], tuple[Volume, ...]],
        min_replicas: int,
        new_request: Callable[[], str],
        recover: Callable[[WriteTicket], FileStatus],
        forget: Callable[[FileWriter], None],
    ) -> None:
        self._ticket = opened.ticket
        self._context = around
        self._volumes_for = volumes_for
        self._min_replicas = min_replicas
        self._new_request = new_request
        self._recover = recover
        self._forget = forget
        self._block_bytes = opened.block_bytes
        self._replication = opened.replication
        self._lock = threading.RLock()
        self._buffered = bytearray()
        self._closed = False
        self._closing = False
        self._given_up = False
        self._sealed: SealedBlock | None = None
        self._broken: LeaseholdError | None = None
        self._pid = os.getpid()
        self._unreported = False
        self._written = opened.block.start
        self._start = opened.block.start
        self._block = self._begin_block(opened.block)

    @property
    def path(self) -> str:
        """The path it was opened under; a rename does not change it here."""
        return self._ticket.path

    @property
    def epoch(self) -> int:
        """The fencing token: higher than that of any earlier writer of any file."""
        return self._ticket.epoch

    @property
    def length(self) -> int:
        """All that was written, acknowledged or not."""
        return self._start + self._block.length + len(self._buffered)

    @property
    def acknowledged(self) -> int:
        """What readers see."""
        return self._start + self._block.acknowledged

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def wants_close(self) -> bool:
        """Whether it is to be closed and the journal does not know yet."""
        return (self._closing or self._given_up) and not self._closed

    def close_quietly(self) -> None:
        """Retry what ``close`` could not do; its caller got the error, or will get it."""
        if not self._lock.acquire(blocking=False):
            return  # its close is in progress, and others must not wait for it
        try:
            with suppress(LeaseholdError):
                if self._given_up:
                    self._surrender()
                else:
                    self.close()
        finally:
            self._lock.release()

    @property
    def volumes(self) -> tuple[str, ...]:
        """The volumes that the open block is on."""
        return self._block.volumes

    def write(self, data: Bytes) -> int:
        """Buffer ``data``; it is written to the volumes when a piece is full.

        Raises:
            LeaseLost: the file was taken over.
            VolumeUnusable: no volume is left, or fewer than ``min_replicas``.
        """
        view = memoryview(data).cast("B")
        with self._lock:
            self._check_open()
            self._written += len(view)
            try:
                with self._broken_if_interrupted():
                    self._buffer_or_write(view)
            except LeaseholdError as error:
                self._broken = self._broken or error
                raise
        return len(view)

    def flush(self) -> int:
        """Make all that was written visible; return the file's length.

        Raises:
            LeaseLost: the file was taken over.
            VolumeUnusable: no volume is left, or fewer than ``min_replicas``.
            StoreError: the journal has to be asked, and did not answer; flush again.
        """
        with self._lock:
            self._check_open()
            with self._broken_if_interrupted():
                self._write_buffered()
                if self._block.acknowledged < self._block.length:
                    self._confirm_ownership()
                    self._block.acknowledge()
            return self.acknowledged

    def sync(self) -> int:
        """Make all that was written visible and durable; return the file's length.

        Raises:
            LeaseLost: the file was taken over.
            VolumeUnusable: no volume is left, or fewer than ``min_replicas``.
            StoreError: the journal has to be asked, and did not answer; flush again.
        """
        with self._lock:
            self._check_open()
            with self._broken_if_interrupted():
                self._write_buffered()
                if min(self._block.durable, self._block.acknowledged) < self._block.length:
                    self._confirm_ownership()
                    self._block.sync()
            return self.acknowledged

    def close(self) -> FileStatus | None:
        """Make all durable, seal the file and release it; return its status.

        After a failed write the file is recovered instead: it ends where it was acknowledged, or
        a little after. If the journal does not answer, the file is still held: close it again, or
        leave it to the background, which tries until it succeeds. After that, closing does nothing.

        Raises:
            LeaseLost: the file was taken over; its new owner decides what becomes of it.
            UnknownFile: it was deleted in the meantime.
            VolumeUnusable: what was not acknowledged could not be written; the rest is kept.
            StoreError: the journal did not answer.
        """
        self._check_process()
        with self._lock:
            was_closing, self._closing = self._closing, True
            if self._given_up and self._broken is not None:
                self._surrender()
                if was_closing:
                    return None
                raise self._broken
            if self._closed:
                return None
            try:
                status = self._complete()
            except StoreError:
                raise
            except LeaseholdError:
                self._end()
                raise
            self._end()
            return status

    def discard(self) -> None:
        """Delete the file instead of closing it; only while this writer holds it.

        Raises:
            LeaseLost: the file was taken over, and is left to its new owner.
            UnknownFile: it was deleted already.
            StoreError: the journal did not answer; the file is still open.
        """
        with self._lock:
            self._check_open()
            self._context.journal.discard(self._ticket)
            self._end()

    def leave_behind(self) -> None:
        """The namespace is being closed before the file: the file stays open in the journal."""
        with self._lock:
            if self._broken is None:
                self._broken = UsageError(
                    f"{self.path} was still open when its namespace was closed: its lease will "
                    "run out and somebody will recover it; close files before the namespace"
                )
            self._block.close()

    def give_up(self, error: LeaseholdError) -> None:
        """Let every later call raise ``error``: the holder could not renew for too long.

        The file itself is given back in the background, as soon as the journal answers: a client
        that continues to write other files must not keep this one by renewing its lease.
        """
        # Without the lock: its close may hang, and others must not wait for it.
        if self._broken is None:
            self._broken = error
            self._given_up = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:  # the first error is the one to raise
            with suppress(LeaseholdError):
                self.close()

    def _complete(self) -> FileStatus:
        if isinstance(self._broken, LeaseLost | UnknownFile):
            raise self._broken
        if self._broken is not None:
            status = self._recover(self._ticket)
            if self._unreported and status.length < self._written:
                # It happened in a close() that could only report that the journal did not answer.
                raise VolumeUnusable(
                    f"{self.path}: {self._written} bytes were written and {status.length} are "
                    "kept: append the rest again"
                )
            return status
        try:
            if self._sealed is None and self.length > self._start:
                with self._broken_if_interrupted():
                    last, self._buffered = self._buffered, bytearray()
                    self._sealed = self._block.seal(last)
        except VolumeUnusable:
            self._unreported = True
            self._recover(self._ticket)
            raise
        except BaseException:
            self._unreported = True
            raise
        return self._context.journal.complete(self._ticket, self._sealed)

    def _surrender(self) -> None:
        """Close the file in the journal, if this writer still holds it; if not now, then later."""
        if self._closed:
            return
        try:
            self._recover(self._ticket)
        except StoreError:
            return
        except LeaseholdError:
            pass  # another holder has it, or the monitor continues the recovery
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._block.close()
        self._forget(self)

    def _buffer_or_write(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            room = self._piece_room()
            if not self._buffered and len(view) - at >= room:
                self._block.write_piece(view[at : at + room])
                at += room
            else:
                part = view[at : at + room - len(self._buffered)]
                self._buffered += part
                at += len(part)
                if len(self._buffered) >= room:
                    self._write_buffered()
            if self._block.length >= self._block_bytes:
                self._roll()

    @contextmanager
    def _broken_if_interrupted(self) -> Iterator[None]:
        """Stop for good after an error that is not a ``LeaseholdError``: part of it may be done."""
        try:
            yield
        except LeaseholdError:
            raise
        except BaseException as error:
            self._broken = self._broken or VolumeUnusable(
                f"{self.path}: a write was interrupted ({error!r}): what was acknowledged is kept; "
                "close the file, then append to it"
            )
            raise

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self.path} was opened before this process was forked: only its parent writes "
                "it; open another file in each process"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._broken is not None and not self._closing:
            raise self._broken
        if self._closed or self._closing:
            raise UsageError(f"{self.path} is closed: append to it to write more")

    def _piece_room(self) -> int:
        return min(PIECE_BYTES, self._block_bytes - self._block.length)

    def _write_buffered(self) -> None:
        if self._buffered:
            piece, self._buffered = self._buffered, bytearray()
            self._block.write_piece(piece)

    def _confirm_ownership(self) -> None:
        """Check with the journal that this writer holds the file, before a block counts.

        From then on the check on the volumes is enough. Before, it is not: a writer may have been
        paused before it made its replicas, and a recovery found none to fence.
        """
        if self._block.acknowledged:
            return
        try:
            self._context.journal.check(self._ticket)
        except (LeaseLost, UnknownFile) as error:
            self._broken = error
            raise

    def _roll(self) -> None:
        """Seal the block that is full and begin the next."""
        sealed = self._block.seal()
        volumes = self._volumes_for(self._replication)
        block = self._context.journal.next_block(
            self._ticket,
            sealed,
            volumes=tuple(volume.id for volume in volumes),
            request=self._new_request(),
            mark=self._context.volumes.mark(volumes),
        )
        begun = self._begin_block(block)
        self._block.close()
        self._start += sealed.length
        self._block = begun

    def _begin_block(self, block: Block) -> BlockWriter:
        return BlockWriter.create(
            block.id,
            block.generation,
            block.file_id,
            [self._context.volumes.get(each) for each in block.volumes],
            disk=self._context.disk,
            boot_id=self._context.boot_id,
            on_failed=lambda failed, left: self._drop_failed_volumes(block.id, failed, left),
        )

    def _drop_failed_volumes(
        self, block_id: int, failed: Mapping[str, OSError], left: tuple[str, ...]
    ) -> None:
        """Drop volumes that failed, if this writer still holds the file, before it acknowledges."""
        try:
            self._context.journal.check(self._ticket)
            if len(left) < self._min_replicas:
                raise VolumeUnusable(_no_volume(self.path, failed, left, self._min_replicas))
            self._context.journal.drop_volumes(self._ticket, block_id, keep=left)
        except LeaseholdError as error:
            self._broken = error
            raise


def _no_volume(
    path: str, failed: Mapping[str, OSError], left: tuple[str, ...], min_replicas: int
) -> str:
    errors = "; ".join(f"{volume}: {error}" for volume, error in failed.items())
    return (
        f"{path}: {len(left)} volumes are left and {min_replicas} are needed ({errors}): what was "
        "acknowledged is kept; make room or repair a volume, then append to the file"
    )
