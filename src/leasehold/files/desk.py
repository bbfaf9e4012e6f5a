"""Opens files for one holder, and recovers those that stand in its way or that it broke."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from leasehold.errors import (
    FileHeld,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    StoreError,
    UnknownFile,
)
from leasehold.files import monitor, recovery
from leasehold.files.model import Why
from leasehold.files.volumes import DEFAULT_REPLICATION
from leasehold.files.writer import FileWriter

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.files.model import FileStatus, Holder, Opened, Ticket
    from leasehold.files.options import FileOptions
    from leasehold.files.recovery import Progress, Surroundings
    from leasehold.files.renewer import Renewer
    from leasehold.files.volume import Volume


class Desk:
    """Safe to use from several threads."""

    def __init__(
        self,
        around: Surroundings,
        holder: Holder,
        *,
        options: FileOptions,
        renewer: Renewer,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """For one holder."""
        self._around = around
        self._journal = around.journal
        self._holder = holder
        self._options = options
        self._renewer = renewer
        self._clock = clock
        self._rng = rng
        self._turns = count(rng.randrange(1 << 16))
        # A request has to be told from others of this very holder, and no more.
        self._requests = count(rng.randrange(1 << 64))
        self._unanswered: dict[str, str] = {}

    @property
    def replication(self) -> int:
        """On how many volumes a block lies unless it is said otherwise."""
        volumes = len(self._around.volumes)
        return self._options.replication or min(DEFAULT_REPLICATION, volumes)

    def _new_request(self) -> str:
        return f"{next(self._requests):x}"

    def _chosen(self, replication: int) -> tuple[Volume, ...]:
        least = min(self._options.least_replicas, replication)
        return self._around.volumes.chosen(
            replication=replication, least=least, turn=next(self._turns)
        )

    def opened(
        self, path: str, replication: int, step: Callable[[tuple[str, ...], str], Opened]
    ) -> FileWriter:
        """Have the journal open a file by ``step``, recover it first if need be, and begin it.

        Raises:
            FileHeld: somebody is writing it, and was heard of.
            RecoveryInProgress: somebody is recovering it.
            TailUncertain: it had to be recovered and could not be.
            VolumeUnusable: too few volumes can be written.
        """
        volumes = tuple(volume.id for volume in self._chosen(replication))
        heard_at = self._clock.boottime_s()
        # After a lost answer the next call for this path goes under the same name: if the first
        # one was carried out, it is found again, and not held against us.
        request = self._unanswered.pop(path, None) or self._new_request()
        try:
            opened = self._asked(path, request, step, volumes)
        except (FileHeld, RecoveryInProgress) as refusal:
            ours = isinstance(refusal, FileHeld) and refusal.holder == self._holder.id
            if refusal.retry_after_s > 0 or ours:
                raise
            # Its writer was silent for the soft limit, or an attempt to recover it has failed or
            # had its time: nobody has to wait for it.
            self.recover_now(path, why=Why.SOFT)
            opened = self._asked(path, request, step, volumes)
        try:
            writer = FileWriter(
                opened,
                self._around,
                volumes_for=self._chosen,
                least_replicas=self._options.least_replicas,
                new_request=self._new_request,
                recover=self._ended,
                forget=self._renewer.remove,
            )
        except BaseException:
            # No volume took the block. Nothing was written: the file must not stay open for it.
            with suppress(LeaseholdError):
                self._journal.complete(opened.ticket, None)
            raise
        self._renewer.add(writer, heard_at=heard_at)
        return writer

    def _asked(
        self,
        path: str,
        request: str,
        step: Callable[[tuple[str, ...], str], Opened],
        volumes: tuple[str, ...],
    ) -> Opened:
        try:
            opened = step(volumes, request)
        except StoreError:
            self._unanswered[path] = request
            raise
        except LeaseholdError:
            self._unanswered.pop(path, None)
            raise
        self._unanswered.pop(path, None)
        return opened

    def _ended(self, ticket: Ticket) -> FileStatus:
        """Recover a file of our own after a failure, wherever it lies now."""
        status = self._journal.status_of(ticket.file_id)
        if status is None:
            raise UnknownFile(f"{ticket.path} was deleted while it was written")
        return self.recover_now(status.path, why=Why.CLOSE, ticket=ticket)

    def recover_now(
        self,
        path: str,
        *,
        why: Why,
        ticket: Ticket | None = None,
        accept_loss: bool = False,
        told: Callable[[Progress], None] = lambda _: None,
    ) -> FileStatus:
        """One attempt to recover a file; its trouble is noted with the file.

        Raises:
            UnknownFile: there is none.
            FileHeld: its writer was heard of, and ``why`` respects that.
            RecoveryInProgress: another attempt has time left.
            TailUncertain: the volumes do not tell enough.
            VolumeUnusable: no volume can take the file's end.
        """
        begun = self._journal.begin_recovery(path, self._holder, why=why, ticket=ticket)
        if begun is None:
            return self._journal.status(path)
        try:
            return recovery.carry_out(begun, self._around, accept_loss=accept_loss, told=told)
        except (UnknownFile, RecoveryInProgress):
            raise
        except (LeaseholdError, OSError) as error:
            pause_s = monitor.PAUSES.pause_s(begun.attempt, self._rng)
            with suppress(LeaseLost, UnknownFile):  # a newer one has begun, or there is no file
                self._journal.fail_recovery(begun, trouble=str(error), pause_s=pause_s)
            raise
