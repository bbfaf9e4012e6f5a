"""The SQLite store: all processes of one machine, one file, no server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from anyio import CancelScope, to_thread

from leasehold.errors import LeaseLost, StoreUnusable
from leasehold.names import check_name
from leasehold.stores.sqlite import steps
from leasehold.stores.sqlite.books import UnitOfWork
from leasehold.stores.sqlite.group_commit import SqliteGroupCommit
from leasehold.stores.sqlite.location import (
    BUSY_LIMIT_S,
    check_path,
    machine_boot_id,
    ready_database,
)
from leasehold.stores.sqlite.rows import SqliteResourceRow, checkpoint_of, member_of, term_of
from leasehold.stores.validation import (
    HISTORY_LIMIT,
    check_hand_over_request,
    checked_keys,
    checked_lease,
    checked_notes,
    checked_positions,
    limit_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from leasehold.clock import Clock
    from leasehold.model import (
        Changes,
        Checkpoint,
        CheckpointWrite,
        HandOver,
        KeyClaim,
        Lease,
        MemberInfo,
        MemberRecord,
        Note,
        Ownership,
        Position,
        Refusal,
        Resource,
        Term,
    )
    from leasehold.stores.sqlite.database import Database, Transaction

T = TypeVar("T")


class SqliteStore:
    """A ``Store`` in a SQLite file. Its clock is that of the machine since its last start.

    A call that is cancelled may still be carried out: to its caller that is *unknown*, as the
    contract says of an answer that never came.
    """

    def __init__(self, database: Database, *, url: str, clock: Clock, boot_id: str) -> None:
        """Over a database that is ready; ``SqliteStore.open`` makes one."""
        self._database = database
        self._url = url
        self._clock = clock
        self._boot_id = boot_id
        # A thread of our own: a program that fills the common pool with slow work does not delay a
        # renewal.
        self._group_commit = SqliteGroupCommit(database)

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock,
        boot_id: str | None = None,
        busy_limit_s: float = BUSY_LIMIT_S,
        url: str | None = None,
        create: bool = True,
    ) -> SqliteStore:
        """Open the file; with ``create``, made or brought up to date where needed.

        ``boot_id`` names this start of the machine (by default the kernel's own name for it).
        ``busy_limit_s`` is how long a call waits for other processes in total.

        Raises:
            InvalidUrl: the path is that of a database in memory.
            UsageError: there is no such store yet, without ``create``.
            StoreUnavailable: other processes kept it locked for too long.
            StoreUnusable: no such directory, read-only, full, damaged, newer, or not ours.
        """
        path = Path(path)
        check_path(path)
        boot_id = boot_id or machine_boot_id()
        connected = partial(ready_database, path, clock, boot_id, busy_limit_s, create=create)
        database = await to_thread.run_sync(connected)
        url = url or f"sqlite:///{quote(str(path))}"
        return cls(database, url=url, clock=clock, boot_id=boot_id)

    @property
    def url(self) -> str:
        """The URL of the store, without secrets."""
        return self._url

    # ----------------------------------------------------------- changes

    async def declare(self, keys: Sequence[str]) -> int:
        """Declare keys; return how many are new."""
        checked = checked_keys(keys)
        return await self._step(lambda books: steps.declare(books, checked))

    async def forget(self, keys: Sequence[str]) -> int:
        """Forget keys without an owner; return how many were forgotten."""
        checked = checked_keys(keys)
        return await self._step(lambda books: steps.forget(books, checked))

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """Grant a lease."""
        lease = checked_lease(holder=holder, token=token, group=group, duration=duration)
        return await self._step(lambda books: steps.grant(books, lease, info))

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """Extend a lease; return what changed."""
        return await self._step(lambda books: steps.renew(books, lease, since, info))

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        """End a lease and all that it holds."""
        await self._step(lambda books: steps.revoke(books, lease, lapsed=lapsed))

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """Claim keys under a lease; return what was won."""
        return await self._step(lambda books: steps.claim(books, lease, wanted, force=force))

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """Ask the owner of a key to hand it over."""
        return await self._step(lambda books: steps.ask(books, lease, wanted))

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """Hand keys over to other holders; return the keys that were passed."""
        kept_s = limit_s(limit, what="hand-over limit")
        return await self._step(lambda books: steps.hand_over(books, hand_overs, kept_s))

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Release keys; return those that are released."""
        checked = checked_notes(ownerships, notes)
        return await self._step(lambda books: steps.release(books, ownerships, checked))

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """Break one ownership, after a while."""
        after_s = limit_s(after, what="break period")
        return await self._step(lambda books: steps.break_(books, key, epoch, after_s))

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """Write checkpoints; return the refused ones."""
        return await self._step(lambda books: steps.checkpoint(books, marks))

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """Replace the notes of terms; return the refused keys."""
        return await self._step(lambda books: steps.annotate(books, notes))

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        """Request that the owner hands a key over."""
        check_hand_over_request(key, epoch=epoch, to=to)
        return await self._step(lambda books: steps.request_hand_over(books, key, epoch, to))

    async def request_leave(self, holder: str) -> bool:
        """Request that a member leaves its group."""
        check_name(holder, what="holder")
        return await self._step(lambda books: steps.request_leave(books, holder))

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """Set or remove checkpoints of keys without an owner; return the owners of the others."""
        checked = checked_positions(positions)
        return await self._step(lambda books: steps.reset(books, checked))

    # ------------------------------------------------------------- reads

    async def groups(self) -> Sequence[str]:
        """List the groups that have keys."""
        rows = await self._read(lambda tx, _: tx.all("groups"))
        return sorted(group for (group,) in rows)

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """Read the checkpoints of a group."""
        rows = await self._read(lambda tx, _: tx.all("checkpoints", grp=group))
        return {row[0]: checkpoint_of(row) for row in rows}

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """Read the keys of a group."""
        return await self._read(
            lambda tx, now: {
                row[0]: SqliteResourceRow(*row).shown(now)
                for row in tx.all("resources_of_group", grp=group)
            }
        )

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """Read the members of a group."""
        return await self._read(
            lambda tx, now: {
                row[0]: member_of(row, now) for row in tx.all("peers_live", grp=group, now=now)
            }
        )

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """Read the terms of a key, newest first."""
        most = max(0, min(limit, HISTORY_LIMIT))
        rows = await self._read(lambda tx, _: tx.all("history", key=key, most=most))
        return [term_of(row) for row in rows]

    async def fenced_writes(self, group: str) -> int:
        """Return how many writes were fenced in a group."""
        row = await self._read(lambda tx, _: tx.one("fenced", grp=group))
        return 0 if row is None else int(row[0])

    async def close(self) -> None:
        """See ``Store``. Waits for the call that is running; not to be called off."""
        with CancelScope(shield=True):
            await self._group_commit.close()

    # ------------------------------------------------------------- parts

    async def _step(self, step: Callable[[UnitOfWork], T]) -> T:
        def work(tx: Transaction) -> T | LeaseLost:
            # The clock is read under the write lock: waiting for it may have taken a while.
            version = self._checked_version(tx)
            now, wall = self._clock.boottime_s(), self._clock.utc_now()
            books = UnitOfWork(tx, version=version, now=now, wall=wall)
            try:
                answer: T | LeaseLost = step(books)
            except LeaseLost as lost:
                answer = lost  # what time has ended stays ended: to be committed before we say so
            books.finish()
            return answer

        answer = await self._group_commit.write(work)
        if isinstance(answer, LeaseLost):
            raise answer
        return answer

    async def _read(self, read: Callable[[Transaction, float], T]) -> T:
        def work(tx: Transaction) -> T:
            self._checked_version(tx)
            return read(tx, self._clock.boottime_s())

        return await self._group_commit.read(work)

    def _checked_version(self, tx: Transaction) -> int:
        version, boot_id = tx.meta()
        if boot_id != self._boot_id:
            raise StoreUnusable(
                f"{self._database.path} is being used from another machine or after a restart of "
                "this one: its times mean nothing here; SQLite serves one machine, and "
                "PostgreSQL several"
            )
        return version
