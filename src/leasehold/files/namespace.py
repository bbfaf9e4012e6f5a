"""The entry point of the file layer: a namespace of files by path. Everything blocks.

``FileOperations`` opens files for one holder, and recovers those that are in its way or that it
broke. ``AsyncNamespace`` in ``aio.py`` is the same for asynchronous programs.
"""

from __future__ import annotations

import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Self

from leasehold.clock import (
    SystemClock,
    boot_id,
    host_name,
    new_suffix,
    new_token,
    system_random,
)
from leasehold.core.backoff import Backoff
from leasehold.errors import (
    FileHeld,
    InvalidOptions,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    StoreError,
    UnknownFile,
    UsageError,
    VolumeUnusable,
)
from leasehold.files import monitor, recovery
from leasehold.files.disk import SystemDisk
from leasehold.files.journal import Journal
from leasehold.files.model import (
    FileHolder,
    FileOptions,
    FileState,
    RecoveryReason,
    check_block_size,
    check_replication,
)
from leasehold.files.open_files import BoundedDisk
from leasehold.files.reader import FileReader
from leasehold.files.recovery import RecoveryContext, RecoveryPlan, RecoveryProgress
from leasehold.files.renewer import Renewer
from leasehold.files.repair import MissingCopy, Repairer, copying, missing_copies
from leasehold.files.verify import Fault, verify
from leasehold.files.volumes import DEFAULT_REPLICATION, Volumes
from leasehold.files.writer import FileWriter
from leasehold.names import holder_id, seconds_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.errors import VolumeNewer
    from leasehold.files.disk import Disk
    from leasehold.files.model import (
        FileLoss,
        FileStatus,
        HolderStatus,
        JournalEntry,
        OpenedFile,
        VolumeMark,
        WriteTicket,
    )
    from leasehold.files.volumes import Volume

    OpenStep = Callable[[tuple[str, ...], str, VolumeMark], OpenedFile]


class FileOperations:
    """Safe to use from several threads."""

    def __init__(
        self,
        around: RecoveryContext,
        holder: FileHolder,
        *,
        options: FileOptions,
        renewer: Renewer,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._context = around
        self._journal = around.journal
        self._holder = holder
        self._options = options
        self._renewer = renewer
        self._clock = clock
        self._rng = rng
        self._turns = count(rng.randrange(1 << 16))
        # A request has to differ from others of this holder only.
        self._requests = count(rng.randrange(1 << 64))
        self._unanswered: dict[str, str] = {}

    @property
    def replication(self) -> int:
        """The default number of volumes of a block."""
        volumes = len(self._context.volumes)
        return self._options.replication or min(DEFAULT_REPLICATION, volumes)

    def _new_request(self) -> str:
        return f"{next(self._requests):x}"

    def _choose_volumes(self, replication: int) -> tuple[Volume, ...]:
        min_volumes = min(self._options.min_replicas, replication)
        return self._context.volumes.choose(
            replication=replication, min_volumes=min_volumes, turn=next(self._turns)
        )

    def open_file(
        self,
        path: str,
        replication: int,
        step: OpenStep,
    ) -> FileWriter:
        """Have the journal open a file by ``step``, recover it first if need be, and begin it."""
        chosen = self._choose_volumes(replication)
        volumes, mark = tuple(each.id for each in chosen), self._context.volumes.mark(chosen)
        renewed_at = self._clock.boottime_s()
        # After a lost answer the next call for this path goes under the same name: if the first
        # one was carried out, it is found again, and not held against us.
        request = self._unanswered.pop(path, None) or self._new_request()
        try:
            opened = self._open_in_journal(path, request, step, volumes, mark)
        except (FileHeld, RecoveryInProgress) as refusal:
            ours = isinstance(refusal, FileHeld) and refusal.holder == self._holder.id
            if refusal.retry_after_s > 0 or ours:
                raise
            # Its writer was silent for the soft limit, or an attempt to recover it has failed or
            # has timed out: there is nothing to wait for.
            self.recover_now(path, reason=RecoveryReason.SOFT)
            opened = self._open_in_journal(path, request, step, volumes, mark)
        try:
            writer = FileWriter(
                opened,
                self._context,
                volumes_for=self._choose_volumes,
                min_replicas=self._options.min_replicas,
                new_request=self._new_request,
                recover=self._recover_own,
                forget=self._renewer.remove,
            )
        except BaseException:
            # No volume took the block. Nothing was written: the file must not stay open for it.
            with suppress(LeaseholdError):
                self._journal.complete(opened.ticket, None)
            raise
        self._renewer.add(writer, renewed_at=renewed_at)
        return writer

    def _open_in_journal(
        self,
        path: str,
        request: str,
        step: OpenStep,
        volumes: tuple[str, ...],
        mark: VolumeMark,
    ) -> OpenedFile:
        try:
            opened = step(volumes, request, mark)
        except StoreError:
            self._unanswered[path] = request
            raise
        except LeaseholdError:
            self._unanswered.pop(path, None)
            raise
        self._unanswered.pop(path, None)
        return opened

    def _recover_own(self, ticket: WriteTicket) -> FileStatus:
        """Recover a file of this holder after a failure, under its current path."""
        status = self._journal.status_of(ticket.file_id)
        if status is None:
            raise UnknownFile(f"{ticket.path} was deleted while it was written")
        return self.recover_now(status.path, reason=RecoveryReason.CLOSE, ticket=ticket)

    def recover_now(
        self,
        path: str,
        *,
        reason: RecoveryReason,
        ticket: WriteTicket | None = None,
        accept_loss: bool = False,
        lost_detail: str = "",
        progress: Callable[[RecoveryProgress], None] = lambda _: None,
    ) -> FileStatus:
        """Try once to recover a file; store the error of a failed attempt with the file."""
        begun = self._journal.begin_recovery(path, self._holder, reason=reason, ticket=ticket)
        if begun is None:
            return self._journal.status(path)
        try:
            return recovery.run_recovery(
                begun,
                self._context,
                accept_loss=accept_loss,
                lost_detail=lost_detail,
                progress=progress,
            )
        except (UnknownFile, RecoveryInProgress):
            raise
        except (LeaseholdError, OSError) as error:
            pause_s = monitor.RETRY_BACKOFF.pause_s(begun.attempt, self._rng)
            with suppress(LeaseLost, UnknownFile):  # a newer one has begun, or there is no file
                self._journal.fail_recovery(begun, trouble=str(error), pause_s=pause_s)
            raise


_SYNC_THREADS = 16
_RETRY_BACKOFF = Backoff(base_s=0.05, max_s=2.0)
_LONGEST_WAIT_S = 7 * 24 * 3600.0


class Namespace:
    """Files by path, journalled in a store's database, their bytes on volumes.

    Safe to use from several threads; each process opens its own.
    """

    def __init__(
        self,
        around: RecoveryContext,
        holder: FileHolder,
        *,
        options: FileOptions,
        clock: Clock,
        helpers: Executor | None = None,
        rng: random.Random | None = None,
        has_threads: bool = True,
    ) -> None:
        """Made by ``Namespace.open``. ``helpers`` are ended with the namespace.

        Without threads the caller has to renew, by ``run_once`` of ``renewer``.
        """
        self._sync_threads = helpers
        self._context = around
        self._journal = around.journal
        self._holder = holder
        self._options = options
        self._clock = clock
        self._rng = rng or system_random()
        self._closing = threading.Event()
        self._renewer = Renewer(
            self._journal,
            holder,
            clock=clock,
            check_interval_s=options.check_interval.total_seconds(),
            has_thread=has_threads,
        )
        self._operations = FileOperations(
            around,
            holder,
            options=options,
            renewer=self._renewer,
            clock=clock,
            rng=self._rng,
        )
        self.monitor = monitor.Monitor(
            around,
            _new_holder("monitor"),
            clock=clock,
            rng=self._rng,
            interval_s=options.monitor_interval.total_seconds(),
            budget_s=options.monitor_budget.total_seconds(),
        )
        self.repairer = Repairer(
            around, _new_holder("repair"), clock=clock, rng=self._rng, options=options
        )

    @classmethod
    def open(
        cls,
        url: str,
        *,
        volumes: Sequence[Path | str] = (),
        name: str = "writer",
        address: str = "",
        options: FileOptions | None = None,
        run_monitor: bool = True,
        create: bool = True,
        clock: Clock | None = None,
        disk: Disk | None = None,
        hook: Callable[[str, str], None] | None = None,
    ) -> Namespace:
        """Open the namespace in the database that ``url`` names.

        ``volumes`` are directories to keep blocks in, usually one for each disk. They are
        remembered: later calls need not name them. ``name`` begins the id of this holder.
        ``address`` is shown to processes that find a file held by this one. ``hook`` is called
        around each commit of the journal, for tests. Without ``create`` the database must be a
        store of this version: nothing is created or upgraded in it.

        Raises:
            InvalidUrl: the URL names no database that can keep files.
            StoreUnavailable: there is no answer.
            StoreUnusable: the store cannot be used.
            VolumeUnusable: a directory is no volume of this namespace and not empty.
            UsageError: there is no volume, or without ``create`` no store yet.
        """
        options = options or FileOptions()
        clock = clock or SystemClock()
        helpers = None if disk else ThreadPoolExecutor(_SYNC_THREADS, "leasehold-sync")
        disk = BoundedDisk(disk or SystemDisk(helpers))
        journal = Journal.open(url, limits=options.limits, clock=clock, hook=hook, create=create)
        try:
            found = Volumes.opened(journal, volumes, disk=disk, clock=clock, new_id=new_suffix)
            _check_replication(options, len(found))
        except BaseException:
            journal.close()
            if helpers is not None:
                helpers.shutdown()
            raise
        around = RecoveryContext(
            journal=journal,
            volumes=found,
            disk=disk,
            boot_id=uuid.UUID(boot_id()).bytes,
            up_s=clock.boottime_s(),
        )
        holder = _new_holder(name, address)
        namespace = cls(around, holder, options=options, clock=clock, helpers=helpers)
        if run_monitor:
            namespace.monitor.start()
            namespace.repairer.start()
        return namespace

    @property
    def url(self) -> str:
        """The store's URL without its secrets."""
        return self._journal.url

    @property
    def holder(self) -> str:
        """The id under which this process writes."""
        return self._holder.id

    @property
    def renewer(self) -> Renewer:
        """What keeps the files of this process."""
        return self._renewer

    @property
    def volumes(self) -> Sequence[Volume]:
        """All volumes, usable or not."""
        return self._context.volumes.all()

    # ------------------------------------------------------------ writing

    def create(
        self,
        path: str,
        *,
        overwrite: bool = False,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> FileWriter:
        """Begin a new file.

        A file at this path whose writer was silent for the soft limit is recovered first.
        ``overwrite`` replaces any file at the path, also one that is being written.

        Raises:
            FileExists: the path is taken.
            FileHeld: another holder is writing it; the error has the holder and when to retry.
            RecoveryInProgress: another process is recovering it.
            VolumeUnusable: no volume can be written.
        """
        check_replication(replication)
        if block_bytes is not None:
            check_block_size(block_bytes)
        wanted = replication or self._operations.replication

        def step(volumes: tuple[str, ...], request: str, mark: VolumeMark) -> OpenedFile:
            return self._journal.create(
                path,
                self._holder,
                replication=wanted,
                block_bytes=block_bytes or self._options.block_bytes,
                overwrite=overwrite,
                volumes=volumes,
                request=request,
                mark=mark,
            )

        writer = self._operations.open_file(path, wanted, step)
        if overwrite:
            monitor.sweep(self._context)  # so that the writer of the replaced file is refused
        return writer

    def append(self, path: str) -> FileWriter:
        """Continue after the end of a file, in a new block.

        A file whose writer was silent for the soft limit is recovered and taken over.

        Raises:
            UnknownFile: there is none.
            FileHeld: another holder is writing it; the error has the holder and when to retry.
            RecoveryInProgress: another process is recovering it.
            TailUncertain: it had to be recovered and could not be.
            VolumeUnusable: no volume can be written.
        """
        wanted = self._journal.status(path).replication

        def step(volumes: tuple[str, ...], request: str, mark: VolumeMark) -> OpenedFile:
            return self._journal.append(
                path, self._holder, volumes=volumes, request=request, mark=mark
            )

        return self._operations.open_file(path, wanted, step)

    # ----------------------------------------------------------- recovery

    def recover(
        self,
        path: str,
        *,
        timeout: timedelta,
        accept_loss: bool = False,
        lost_detail: str = "",
        progress: Callable[[RecoveryProgress], None] = lambda _: None,
    ) -> FileStatus:
        """Close a file, regardless of its holder, and wait until that is done.

        ``accept_loss`` treats what no volume has, or only volumes that do not answer, as lost for
        good: the file then ends with the longest part that is sound, piece by piece, which may be
        nothing. ``plan_recovery`` says before what that is. Acknowledged bytes that are lost are
        in ``losses`` from then on, with ``lost_detail``.

        No limit applies: its writer is fenced. A recovery that another process began is waited
        for, and taken over when it has timed out.

        Raises:
            UnknownFile: there is none.
            RecoveryInProgress: the time is over and another's attempt still runs.
            TailUncertain: the time is over and the volumes still do not have enough data.
            VolumeUnusable: the time is over and no volume can take the file's end.
        """
        timeout_s = seconds_of(timeout, what="timeout", min_s=0.0, max_s=_LONGEST_WAIT_S)
        deadline = self._clock.boottime_s() + timeout_s
        for failures in count(1):
            try:
                return self._operations.recover_now(
                    path,
                    reason=RecoveryReason.ASKED,
                    accept_loss=accept_loss,
                    lost_detail=lost_detail,
                    progress=progress,
                )
            except UnknownFile:
                raise
            except LeaseholdError as error:
                if isinstance(error, UsageError) or self._clock.boottime_s() >= deadline:
                    raise
                pause_s = _RETRY_BACKOFF.pause_s(failures, self._rng)
                if isinstance(error, RecoveryInProgress):
                    pause_s = min(pause_s, max(error.retry_after_s, 0.01))
                progress(RecoveryProgress(path=path, step=f"waiting: {error}", attempt=failures))
                self._wait(min(pause_s, max(0.0, deadline - self._clock.boottime_s())))
        raise AssertionError("unreachable")  # pragma: no cover

    def _wait(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def plan_recovery(self, path: str) -> RecoveryPlan:
        """Return what ``recover`` with ``accept_loss`` would keep and lose; change nothing.

        Raises:
            UnknownFile: there is none.
            TailUncertain: the copies contradict each other.
        """
        return recovery.plan_recovery(path, self._context)

    def is_closed(self, path: str) -> bool:
        """Return whether the file is complete.

        Raises:
            UnknownFile: there is none.
        """
        return self._journal.status(path).state is FileState.CLOSED

    # ------------------------------------------------------------ reading

    def read(self, path: str) -> FileReader:
        """Open a file for reading, regardless of its writer.

        Raises:
            UnknownFile: there is none.
        """
        return FileReader(path, self._context)

    def status(self, path: str) -> FileStatus:
        """Return a file as it is now.

        Raises:
            UnknownFile: there is none.
        """
        return self._journal.status(path)

    def list(
        self, prefix: str = "/", *, after: str = "", limit: int = 1000
    ) -> Sequence[FileStatus]:
        """Return files below the directory ``prefix`` by path, from the one after ``after``."""
        return self._journal.list(prefix, after=after, limit=limit)

    def list_open(
        self,
        prefix: str = "/",
        *,
        older_than: timedelta | None = None,
        after_id: int = 0,
        limit: int = 1000,
    ) -> Sequence[FileStatus]:
        """Return files that are not closed, by id; with ``older_than`` those open for that long."""
        return self._journal.list_open(
            prefix,
            older_than_s=seconds_of(
                older_than or timedelta(0), what="older_than", min_s=0.0, max_s=_LONGEST_WAIT_S
            ),
            after_id=after_id,
            limit=limit,
        )

    def changes(
        self, prefix: str = "/", *, after: int | None = None
    ) -> tuple[int, frozenset[str] | None]:
        """Return the number of the journal's last line, and the paths with lines after ``after``.

        Only those below the directory ``prefix``. None for the paths: not known, since
        ``after`` was not given or is too old. Bytes that are added to a file have no line.
        """
        return self._journal.changes(prefix, after=after)

    def holders(self, *, limit: int = 1000) -> Sequence[HolderStatus]:
        """Return the holders with open files, the most silent first."""
        return self._journal.holders(limit=limit)

    def history(self, path: str, *, limit: int = 20) -> Sequence[JournalEntry]:
        """Return what was done to a file, newest first."""
        return self._journal.history(path, limit=limit)

    def losses(self, path: str) -> Sequence[FileLoss]:
        """Return the acknowledged bytes that recoveries of a file did not find on any volume.

        Raises:
            UnknownFile: there is none.
        """
        return self._journal.losses(self._journal.status(path).id)

    def refused(self) -> int:
        """Return how many steps of former owners were refused, ever."""
        return self._journal.refused()

    def verify(
        self, path: str, *, progress: Callable[[int], None] = lambda _: None
    ) -> Sequence[Fault]:
        """Compare every replica with its checksums and with the journal.

        Raises:
            UnknownFile: there is no such file.
        """
        return verify(path, self._context, progress=progress)

    # ------------------------------------------------------------- paths

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> int:
        """Rename a file or a directory; return how many files. Writers continue undisturbed.

        Raises:
            UnknownFile: there is no such file or directory.
            FileExists: the target is taken.
            UsageError: it is a path of a stream of the log.
        """
        renamed = self._journal.rename(source, target, overwrite=overwrite)
        if overwrite:
            monitor.sweep(self._context)  # so that the writer of the replaced file is refused
        return renamed

    def delete(self, path: str, *, recursive: bool = False, by_log: bool = False) -> int:
        """Delete a file, or with ``recursive`` a directory; return how many files: 0 if none.

        A writer of such a file is refused at its next flush. ``by_log``: the log itself deletes
        segments of its own.

        Raises:
            FileExists: it is a directory, and ``recursive`` was not given.
            UsageError: it has segments of a stream of the log; nothing was deleted.
        """
        deleted = self._journal.delete(path, recursive=recursive, by_log=by_log)
        monitor.sweep(self._context)
        return deleted

    def check_no_stream(self, path: str) -> None:
        """Return if nothing at or below the path belongs to a stream of the log.

        Raises:
            UsageError: ``delete`` would refuse it.
        """
        self._journal.check_no_stream(path)

    # ------------------------------------------------------------ volumes

    def check_volume(self, volume_id: str) -> None:
        """Return if a volume can be written.

        Raises:
            VolumeNewer: it was written under a newer state of the database.
            VolumeUnusable: it cannot be used; the message says why.
        """
        self._context.volumes.usable(volume_id)

    def newer_volumes(self) -> dict[str, VolumeNewer]:
        """Return the volumes that are newer than the database, by id, each with the error."""
        return self._context.volumes.newer()

    def missing_copies(
        self,
        path: str | None = None,
        *,
        compare: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Iterator[MissingCopy]:
        """Yield the copies of complete blocks that are missing: of one file, or of all.

        ``compare`` also finds those that are damaged: every replica is read. ``progress`` gets the
        number of bytes compared since its last call.

        Raises:
            UnknownFile: there is no such file.
        """
        return missing_copies(self._context, path=path, compare=compare, progress=progress)

    def repair(
        self, missing: MissingCopy, *, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Make a missing copy now; it is compared and durable when this returns.

        ``progress`` gets the number of bytes copied since its last call.

        Raises:
            FencedWrite: another process copies the block, or it is not as it was seen.
            DataDamaged: some of its bytes are sound on no volume that answers.
            VolumeUnusable: the volume cannot be written, or it failed.
        """
        try:
            for count in copying(missing, self._context, self._holder, self._clock):
                progress(count)
        except OSError as error:
            if isinstance(error, LeaseholdError):
                raise
            raise VolumeUnusable(
                f"volume {missing.volume} failed: {error}. No copy was made; repair it or make room"
            ) from error
        monitor.sweep(self._context)

    def check_replacement(self, volume_id: str, root: Path | str) -> None:
        """Return if ``replace_volume`` may be called so; change nothing.

        Raises:
            UsageError: the volume answers, or there is none with this id.
        """
        self._context.volumes.check_replacement(volume_id, root)

    def replace_volume(self, volume_id: str, root: Path | str) -> str:
        """Forget a volume that is gone for good and make one at ``root`` in its place.

        ``root`` is a new, empty directory; it may have the old path. Returns the new volume's id.
        The copies of the old volume are missing from then on, and made again on others.

        Raises:
            UsageError: the volume answers, or there is none with this id.
            VolumeUnusable: no volume can be made at ``root``.
        """
        return self._context.volumes.replace(volume_id, root)

    def adopt_volumes(self) -> VolumeMark:
        """Continue with an older database under newer volumes; return the highest mark.

        New blocks and epochs get numbers above all marks. Blocks that only the newer database
        knew stay on the volumes; nothing reads or removes them.
        """
        mark = self._context.volumes.mark(self.volumes)
        self._journal.adopt(mark)
        return mark

    # ------------------------------------------------------------- ending

    def close(self) -> None:
        """Stop the threads and leave. Files that are still open stay so: close them first.

        Safe to call twice.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._renewer.close()
        self.monitor.close()
        self.repairer.close()
        try:
            self._journal.leave(self._holder)
        finally:
            self._journal.close()
            if self._sync_threads is not None:
                self._sync_threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _new_holder(name: str, address: str = "") -> FileHolder:
    host = host_name()
    return FileHolder(
        id=holder_id(name, host=host, suffix=new_suffix()),
        token=new_token(),
        host=host,
        pid=os.getpid(),
        address=address,
    )


def _check_replication(options: FileOptions, volumes: int) -> None:
    if options.replication is not None and options.replication > volumes:
        raise InvalidOptions(
            f"replication <= number of volumes does not hold ({options.replication} > {volumes}): "
            "add volumes or lower the replication"
        )
