"""The journal of the file layer: it alone decides who may write which file.

Each method is one atomic step, durable when it returns. Each may be called again after a lost
answer: it then returns the same and changes nothing. Volumes of a block are returned in the order
of their ids. Calls block; any number of threads may call at the same time, and share commits.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeVar

from leasehold.clock import SystemClock
from leasehold.errors import UnknownFile
from leasehold.files.journal import copy_steps, steps
from leasehold.files.journal.group_commit import MAX_STEPS, ExpectedRead, JournalGroupCommit
from leasehold.files.journal.rows import FileRow, blocks_of, entry_of, loss_of
from leasehold.files.journal.unit_of_work import KEPT_LINES, JournalWork, as_json
from leasehold.files.model import NO_MARK, below, check_directory, check_path
from leasehold.stores.blocking import named_queries, open_blocking

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Mapping

    from leasehold.clock import Clock
    from leasehold.files.model import (
        Block,
        BlockCopy,
        FileHolder,
        FileLeaseLimits,
        FileLoss,
        FileRecovery,
        FileStatus,
        HolderStatus,
        JournalEntry,
        OpenedFile,
        RecoveryReason,
        SealedBlock,
        VolumeMark,
        WriteTicket,
    )
    from leasehold.stores.blocking import BlockingDatabase, Params

T = TypeVar("T")

_IDLE_AT_ONCE = 100


@cache
def queries() -> Mapping[str, str]:
    """Return the statements of the journal, by name."""
    text = files("leasehold.files.journal").joinpath("queries.sql").read_text(encoding="utf-8")
    return named_queries(text)


class Journal:
    """Files, blocks, holders and epochs, in the database of a store."""

    def __init__(
        self, database: BlockingDatabase, group: JournalGroupCommit, limits: FileLeaseLimits
    ) -> None:
        self.limits = limits
        self._database = database
        self._group = group

    @classmethod
    def open(
        cls,
        url: str,
        *,
        limits: FileLeaseLimits,
        clock: Clock | None = None,
        hook: Callable[[str, str], None] | None = None,
        group_commit: bool = True,
        create: bool = True,
    ) -> Journal:
        """Open the journal in the store's database; with ``create``, made or brought up to date.

        ``hook`` is called with the name of each step that writes, and ``"before"`` or ``"after"``
        its commit. Without ``group_commit`` each step has its own commit.
        """
        database = open_blocking(
            url, queries=queries(), clock=clock or SystemClock(), guard="guard", create=create
        )
        max_steps = MAX_STEPS if group_commit else 1
        return cls(
            database,
            JournalGroupCommit(database, limits=limits, hook=hook, max_steps=max_steps),
            limits,
        )

    @property
    def url(self) -> str:
        """The URL of the store, without its secrets."""
        return self._database.url

    def close(self) -> None:
        """Close the database. Safe to call twice."""
        self._group.close()
        self._database.close()

    # ----------------------------------------------------------- holders

    def enlist(self, holder: FileHolder) -> None:
        """Begin or renew the holder's lease."""
        self._group.run("enlist", lambda work: work.enlist(holder))

    def renew(self, holder: FileHolder) -> None:
        """Renew the lease over all the holder's files, also late if no file was taken over."""
        self._group.run("renew", lambda work: steps.renew(work, holder))

    def leave(self, holder: FileHolder) -> None:
        """End the lease, unless a file is open under it."""
        self._group.run("leave", lambda work: steps.leave(work, holder))

    def holders(self, *, limit: int = 1000) -> list[HolderStatus]:
        """Return who has a lease, the one that has been silent longest first."""
        return self._read(lambda work: steps.holders(work, limit))

    # ----------------------------------------------------------- volumes

    def namespace_id(self, *, new_id: str) -> str:
        """Return the id of the namespace, which its volumes store; by default ``new_id``."""
        known = self._read(lambda work: (work.tx.one("namespace") or ("",))[0])
        if known:
            return str(known)
        return self._group.run("namespace", lambda work: steps.namespace_id(work, new_id))

    def register_volume(self, volume_id: str, path: str) -> None:
        """Store the path of a volume; it may have moved."""
        self._group.run(
            "register volume", lambda work: steps.register_volume(work, volume_id, path)
        )

    def volumes(self) -> dict[str, str]:
        """Return the path of each volume by its id."""
        return self._read(steps.volumes)

    def replace_volume(self, volume_id: str, *, by: str, path: str) -> None:
        """Forget a volume that is gone for good; register the one that takes its place."""
        self._group.run(
            "replace volume",
            lambda work: copy_steps.replace_volume(work, volume_id, by=by, path=path),
        )

    def numbers(self) -> VolumeMark:
        """Return the highest block id and epoch that were drawn."""
        return self._read(lambda work: work.numbers())

    def adopt(self, mark: VolumeMark) -> None:
        """Continue after these numbers: blocks and epochs up to them are never drawn."""
        self._group.run("adopt", lambda work: work.raise_numbers(mark))

    # ----------------------------------------------------------- writing

    def create(
        self,
        path: str,
        holder: FileHolder,
        *,
        replication: int,
        block_bytes: int,
        overwrite: bool,
        volumes: tuple[str, ...],
        request: str,
        mark: VolumeMark = NO_MARK,
    ) -> OpenedFile:
        """Make a file and open it. Also renews the holder's lease.

        ``request`` is the caller's unique name for this call: with the same one it is a repetition.
        ``mark`` is that of the volumes: refused with ``VolumeNewer`` if it is above the journal's.
        """
        open_request = steps.OpenRequest(
            path=check_path(path),
            holder=holder,
            volumes=steps.check_volumes(volumes),
            request=request,
            replication=replication,
            block_bytes=block_bytes,
            overwrite=overwrite,
            mark=mark,
        )
        return self._group.run(
            "create",
            lambda work: steps.create(work, open_request),
            expected_read=ExpectedRead(path=open_request.path),
        )

    def append(
        self,
        path: str,
        holder: FileHolder,
        *,
        volumes: tuple[str, ...],
        request: str,
        mark: VolumeMark = NO_MARK,
    ) -> OpenedFile:
        """Open a closed file, to continue in a new block at its end. Also renews the lease."""
        open_request = steps.OpenRequest(
            path=check_path(path),
            holder=holder,
            volumes=steps.check_volumes(volumes),
            request=request,
            mark=mark,
        )
        return self._group.run("append", lambda work: steps.append(work, open_request))

    def next_block(
        self,
        ticket: WriteTicket,
        sealed: SealedBlock,
        *,
        volumes: tuple[str, ...],
        request: str = "",  # noqa: ARG002 - the sealed block names the call well enough
        mark: VolumeMark = NO_MARK,
    ) -> Block:
        """Seal the open block and begin the next one. The same seal again is a repetition."""
        checked = steps.check_volumes(volumes)
        return self._group.run(
            "next block",
            lambda work: steps.next_block(work, ticket, sealed, volumes=checked, mark=mark),
        )

    def drop_volumes(self, ticket: WriteTicket, block_id: int, *, keep: tuple[str, ...]) -> None:
        """Leave the open block on the volumes to keep; its other replicas go to the trash."""
        self._group.run(
            "drop volumes",
            lambda work: steps.drop_volumes(work, ticket, block_id, keep=keep),
        )

    def complete(self, ticket: WriteTicket, sealed: SealedBlock | None) -> FileStatus:
        """Close the file; without a seal, or one of no bytes, the open block is dropped."""
        return self._group.run(
            "close",
            lambda work: steps.complete(work, ticket, sealed),
            expected_read=ExpectedRead(file_id=ticket.file_id),
        )

    def discard(self, ticket: WriteTicket) -> None:
        """Delete the file, while it is the ticket's."""
        self._group.run("discard", lambda work: steps.discard(work, ticket))

    def check(self, ticket: WriteTicket) -> None:
        """Return if the file is still the ticket's."""
        # A step that writes: a refusal is counted. It is asked once for each block, and when a
        # volume has failed.
        self._group.run(
            "check",
            lambda work: steps.check(work, ticket),
            expected_read=ExpectedRead(file_id=ticket.file_id),
        )

    def refused(self) -> int:
        """Return how many steps were refused to those whose lease had ended, ever."""
        return self._read(lambda work: int((work.tx.one("meta") or (0,))[-1]))

    # ---------------------------------------------------------- recovery

    def begin_recovery(
        self,
        path: str,
        holder: FileHolder,
        *,
        reason: RecoveryReason,
        ticket: WriteTicket | None = None,
    ) -> FileRecovery | None:
        """Draw a recovery id and fence the holder of the file; return None if it is closed.

        With a ticket only the file of the ticket is meant, and only while it is the holder's own.
        """
        return self._group.run(
            "recovery begun",
            lambda work: steps.begin_recovery(work, check_path(path), holder, reason, ticket),
        )

    def commit_recovery(
        self,
        recovery: FileRecovery,
        sealed: SealedBlock | None,
        *,
        lost_bytes: int = 0,
        lost_detail: str = "",
    ) -> FileStatus:
        """Close the file with the end that was found; without a seal the open block is dropped.

        ``lost_bytes`` of what followed had been acknowledged: the loss is kept with the file, and
        ``lost_detail`` in its history. A detail alone is a loss of an unknown number of bytes.
        """
        return self._group.run(
            "recovered",
            lambda work: steps.commit(
                work, recovery, sealed, lost_bytes=lost_bytes, lost_detail=lost_detail
            ),
        )

    def fail_recovery(self, recovery: FileRecovery, *, trouble: str, pause_s: float) -> None:
        """End the attempt; the next one is due after ``pause_s``."""
        self._group.run(
            "recovery failed",
            lambda work: steps.fail(work, recovery, trouble=trouble, pause_s=pause_s),
        )

    def due(self, *, limit: int) -> list[str]:
        """Return the paths that the monitor should recover now, those of the oldest holders first.

        Holders without files that are past the hard limit are forgotten on the way.
        """
        paths, idle = self._read(
            lambda work: (steps.due(work, limit), steps.idle(work, _IDLE_AT_ONCE))
        )
        if idle:
            self._group.run("forget holders", lambda work: steps.drop_idle(work, idle))
        return paths

    # ------------------------------------------------------------- reads

    def status(self, path: str) -> FileStatus:
        """Return the file at a path."""
        checked = check_path(path)
        return self._read(lambda work: steps.file_at(work, checked).status(work.now))

    def status_of(self, file_id: int) -> FileStatus | None:
        """Return the file of this id under its current path; None if it is gone."""

        def query(work: JournalWork) -> FileStatus | None:
            row = work.tx.one("file", id=file_id)
            return None if row is None else FileRow(*row).status(work.now)

        return self._read(query)

    def view(self, path: str) -> tuple[FileStatus, tuple[Block, ...]]:
        """Return the file at a path and all its blocks in one snapshot."""
        checked = check_path(path)

        def query(work: JournalWork) -> tuple[FileStatus, tuple[Block, ...]]:
            row = steps.file_at(work, checked)
            return row.status(work.now), blocks_of(work.tx.all("blocks", file_id=row.id))

        return self._read(query)

    def view_of(self, file_id: int) -> tuple[FileStatus, tuple[Block, ...]]:
        """Return the file of this id and all its blocks in one snapshot, under its current path."""

        def query(work: JournalWork) -> tuple[FileStatus, tuple[Block, ...]]:
            row = work.tx.one("file", id=file_id)
            if row is None:
                raise UnknownFile(f"file {file_id} was deleted")
            return FileRow(*row).status(work.now), blocks_of(work.tx.all("blocks", file_id=file_id))

        return self._read(query)

    def list(self, prefix: str = "/", *, after: str = "", limit: int = 1000) -> list[FileStatus]:
        """Return the files below a directory in the order of their paths, after ``after``."""
        low, high = below(check_directory(prefix))

        def query(work: JournalWork) -> builtins.list[FileStatus]:
            rows = work.tx.all("files_below", low=low, high=high, after=after, limit=limit)
            return [FileRow(*row).status(work.now) for row in rows]

        return self._read(query)

    def list_open(
        self, prefix: str = "/", *, older_than_s: float = 0.0, after_id: int = 0, limit: int = 1000
    ) -> builtins.list[FileStatus]:
        """Return files below a directory that are open or recovering, by id, after ``after_id``.

        Only those that were opened ``older_than_s`` ago or earlier, by the wall clock.
        """
        low, high = below(check_directory(prefix))

        def query(work: JournalWork) -> builtins.list[FileStatus]:
            moment = datetime.fromisoformat(work.wall) - timedelta(seconds=older_than_s)
            rows = work.tx.all(
                "files_open",
                low=low,
                high=high,
                before=moment.isoformat(timespec="microseconds"),
                after_id=after_id,
                limit=limit,
            )
            return [FileRow(*row).status(work.now) for row in rows]

        return self._read(query)

    def history(self, path: str, *, limit: int = 20) -> builtins.list[JournalEntry]:
        """Return what was done to the file at a path, the newest first."""
        checked = check_path(path)

        def query(work: JournalWork) -> builtins.list[JournalEntry]:
            file_id = steps.file_at(work, checked).id
            return [entry_of(row) for row in work.tx.all("history", file_id=file_id, limit=limit)]

        return self._read(query)

    def losses(self, file_id: int) -> builtins.list[FileLoss]:
        """Return the acknowledged bytes that recoveries of a file did not find any more."""
        return self._read(
            lambda work: [loss_of(row) for row in work.tx.all("losses", file_id=file_id)]
        )

    def block(self, block_id: int) -> Block | None:
        """Return the block of this id; None if its file is gone."""
        return self._read(lambda work: steps.block_by_id(work, block_id))

    def changes(
        self, prefix: str = "/", *, after: int | None = None
    ) -> tuple[int, frozenset[str] | None]:
        """Return the last line number, and the paths below a directory with lines after ``after``.

        None for the paths: not known, since ``after`` was not given or is too old.
        While nothing changes this is one query, however many files there are.
        """
        low, high = below(check_directory(prefix))

        def query(work: JournalWork) -> tuple[int, frozenset[str] | None]:
            last = int((work.tx.one("last_line") or (0,))[0])
            if after is None or not last - KEPT_LINES <= after <= last:
                return last, None
            if after == last:
                return last, frozenset()
            rows = work.tx.all("paths_changed", after=after, low=low, high=high)
            return last, frozenset(path for (path,) in rows)

        return self._read(query)

    # ------------------------------------------------------------ copies

    def blocks_after(self, block_id: int, *, limit: int) -> builtins.list[tuple[str, int, Block]]:
        """Return complete blocks in the order of their ids, with path and replication."""

        def query(work: JournalWork) -> builtins.list[tuple[str, int, Block]]:
            rows = work.tx.all("blocks_after", after=block_id, limit=limit)
            files = {row[2]: (str(row[0]), int(row[1])) for row in rows}
            return [(*files[each.id], each) for each in blocks_of(row[2:] for row in rows)]

        return self._read(query)

    def open_blocks_on(self, volume_id: str) -> frozenset[int]:
        """Return the open blocks that have a replica on a volume."""
        rows = self._read(lambda work: work.tx.all("open_on", volume_id=volume_id))
        return frozenset(block_id for (block_id,) in rows)

    def begin_copy(
        self, block: Block, volume: str, holder: FileHolder, *, mark: VolumeMark = NO_MARK
    ) -> BlockCopy:
        """Claim the copy of a complete block to a volume, for the time of an attempt.

        Raises:
            FencedWrite: another process copies it, or it is not as it was seen.
            VolumeNewer: ``mark``, that of the volume, is above the journal's numbers.
        """
        return self._group.run(
            "copy begun",
            lambda work: copy_steps.begin(work, block, volume, holder=holder, mark=mark),
        )

    def renew_copy(self, copy: BlockCopy) -> None:
        """Extend the claim; ``FencedWrite`` if it was ended."""
        self._group.run("copy renewed", lambda work: copy_steps.renew(work, copy))

    def commit_copy(self, copy: BlockCopy, holder: FileHolder) -> None:
        """Make a copy that is durable a replica of its block; what it replaces is removed.

        Raises:
            FencedWrite: the claim was ended, or the block is gone.
        """
        self._group.run("copied", lambda work: copy_steps.commit(work, copy, holder=holder))

    def end_copy(self, copy: BlockCopy) -> None:
        """Give a copy up; its files are removed."""
        self._group.run("copy ended", lambda work: copy_steps.end(work, copy))

    def copies_over(
        self, *, limit: int, without: Iterable[str] = ()
    ) -> builtins.list[tuple[int, str, int]]:
        """Return copies to remove, as block id, volume id and epoch; end those that are late."""

        def query(work: JournalWork) -> builtins.list[tuple[int, str, int, int]]:
            return work.tx.all("copies_over", now=work.now, limit=limit, without=as_json(without))

        found = self._read(query)
        if not all(is_over for *_, is_over in found):
            self._group.run("copies ended", lambda work: copy_steps.end_late(work, limit))
            found = self._read(query)
        return [(block, volume, epoch) for block, volume, epoch, is_over in found if is_over]

    def forget_copies(self, removed: Iterable[tuple[int, str, int]]) -> None:
        """Forget copies that have been removed."""
        params: builtins.list[Params] = [
            {"block_id": block, "volume_id": volume, "epoch": epoch, "is_over": 1}
            for block, volume, epoch in removed
        ]
        if params:
            self._group.run("forget copies", lambda work: work.tx.many("copy_forget", params))

    # ------------------------------------------------------------- paths

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> int:
        """Rename a file or a directory; return how many files moved. Writers continue."""
        origin, goal = check_path(source), check_path(target)
        return self._group.run(
            "rename", lambda work: steps.rename(work, origin, goal, overwrite=overwrite)
        )

    def delete(self, path: str, *, recursive: bool = False, by_log: bool = False) -> int:
        """Delete a file, open or not, or a directory; return how many files were deleted."""
        checked = check_directory(path)
        return self._group.run(
            "delete", lambda work: steps.delete(work, checked, recursive=recursive, by_log=by_log)
        )

    def check_no_stream(self, path: str) -> None:
        """Return if nothing at or below the path belongs to a stream of the log."""
        checked = check_directory(path)
        self._read(lambda work: steps.check_no_stream(work, checked))

    # ------------------------------------------------------------- trash

    def trash(self, *, limit: int, without: Iterable[str] = ()) -> builtins.list[tuple[int, str]]:
        """Return replicas of no file, as block id and volume id, except on volumes ``without``."""
        return self._read(lambda work: work.tx.all("trash", limit=limit, without=as_json(without)))

    def forget_trash(self, pairs: Iterable[tuple[int, str]]) -> None:
        """Forget replicas that have been removed."""
        params: builtins.list[Params] = [
            {"block_id": block, "volume_id": volume} for block, volume in pairs
        ]
        if params:
            self._group.run("forget trash", lambda work: work.tx.many("trash_forget", params))

    def _read(self, query: Callable[[JournalWork], T]) -> T:
        return self._database.read(lambda tx: query(JournalWork(tx, self.limits)))
