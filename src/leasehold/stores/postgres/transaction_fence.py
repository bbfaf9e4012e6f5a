"""The steps that commit a caller's transaction together with its checkpoint.

The steps are generators: each ``Statement`` they yield is answered with a row, so the same steps
serve an asyncio connection and one that blocks.

Why it is safe: the store's check locks the owner's lease until the transaction ends, and every step
that ends an ownership locks that lease first (``sql/0002_parts.sql``). From the check to the commit
no other holder can take the key, not even if the lease expires in between: a claim waits, and then
sees the new checkpoint. Under REPEATABLE READ and SERIALIZABLE the check sees the past; there the
row of the key is locked as well, which fails if it was changed since the snapshot.

Why a block is not applied twice by its owner: a commit may continue at the server after the wait
for its answer has ended. The check waits for it (one block of a key at a time, from the check to
the commit), and then accepts only a position beyond the stored one: an equal one means that the
events are done.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from leasehold.errors import CheckpointBehind, FencedWrite, StoreUnavailable, UsageError
from leasehold.model import CheckpointWrite, Refusal
from leasehold.stores.blocking import named_queries
from leasehold.stores.postgres import migrations
from leasehold.stores.postgres.driver_errors import to_store_error
from leasehold.stores.postgres.long_names import id_of_key
from leasehold.stores.postgres.rows import to_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.model import Ownership, Position
    from leasehold.stores.postgres.address import DatabaseAddress

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]

_READ_COMMITTED = "read committed"
_BLOCK_OPEN = "open"
# The server ended a session that was idle in a transaction, and rolled that back.
_ENDED_WHILE_IDLE = "25P03"
_NOT_COMMITTED = "nothing of this transaction was committed; it may be run again"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement to send; the answer is its last row, empty if it has none."""

    query: bytes
    values: Mapping[str, object] | None = None


Steps: TypeAlias = Generator[Statement, Row, T]


class TransactionStage(Enum):
    """The stage of a transaction. What an error means depends on it."""

    BLOCK = "the caller's statements run"
    CHECK = "the ownership is checked"
    COMMIT = "the commit was sent"


class FencedCheckpoint(Exception):
    """The check has refused; under a snapshot it may have seen an older state."""


@cache
def _queries() -> Mapping[str, bytes]:
    text = files("leasehold.stores.postgres").joinpath("transactions.sql").read_text("utf-8")
    return {name: query.encode() for name, query in named_queries(text).items()}


@dataclass(slots=True, kw_only=True)
class TransactionFence:
    """One transaction of a caller, from its start to its end."""

    ownership: Ownership
    address: DatabaseAddress
    stage: TransactionStage = TransactionStage.BLOCK
    by_snapshot: bool = False
    write: CheckpointWrite | None = None

    def began(self) -> Steps[None]:
        """Start: the first step in a new transaction."""
        yield Statement(_queries()["began"])

    def concluded(self, status: TransactionStatus, position: Callable[[], Position]) -> Steps[None]:
        """Conclude the caller's block, which ended without an error; run deferred constraints."""
        _check_status(status)
        self.write = CheckpointWrite(ownership=self.ownership, position=position())
        isolation, block = yield Statement(_queries()["concluded"])
        if block != _BLOCK_OPEN:
            raise _ended_by_caller()
        self.by_snapshot = isolation != _READ_COMMITTED
        self.stage = TransactionStage.CHECK

    def checked(self) -> Steps[None]:
        """Check the ownership and write the checkpoint: the last steps before the commit."""
        key = {"key": id_of_key(self.ownership.key)}
        yield Statement(_queries()["alone"], key)
        stored = yield Statement(_queries()["reached"], key)
        refusal = yield from self._written()
        if refusal is Refusal.FENCED:
            raise FencedCheckpoint  # first of all: the stored position may be a new owner's
        done = bool(stored) and stored[0] >= self._pending_write().position.sequence_number
        if done or refusal is Refusal.BEHIND:
            raise self._done_already()
        if self.by_snapshot:
            yield Statement(_queries()["unchanged"], key)

    def needs_recheck(self, error: Exception) -> bool:
        """Return whether a check that failed has to be repeated after the rollback."""
        refused = isinstance(error, FencedCheckpoint | psycopg.errors.SerializationFailure)
        return refused and self.stage is TransactionStage.CHECK

    def rechecked(self) -> Steps[bool]:
        """Check again, in a new transaction, whether the write is fenced; the store counts that.

        If it is not, the new transaction must be rolled back: it has written only the position.
        """
        yield Statement(_queries()["fresh"])
        return (yield from self._written()) is Refusal.FENCED

    def refusal(self, error: Exception, *, fenced: bool | None) -> Exception:
        """Return the error for a check that failed, after it was repeated (None: no answer)."""
        if fenced or (
            fenced is None and isinstance(error, FencedCheckpoint) and not self.by_snapshot
        ):
            return FencedWrite(
                f"the checkpoint of {self.ownership.key} was refused: the ownership (epoch "
                f"{self.ownership.epoch}) has ended; the transaction was rolled back; stop the "
                "work on it",
                key=self.ownership.key,
                epoch=self.ownership.epoch,
                reason="fenced",
            )
        if not isinstance(error, FencedCheckpoint):
            return error
        if fenced is None:
            return StoreUnavailable(
                f"no answer from PostgreSQL at {self.address.where} to the question who owns "
                f"{self.ownership.key} by now; {_NOT_COMMITTED}"
            )
        return psycopg.errors.SerializationFailure(
            f"the lease on {self.ownership.key} was renewed after the snapshot of this "
            f"transaction, which can not see that; {_NOT_COMMITTED}"
        )

    def meaning(self, error: Exception, *, broken: bool) -> Exception:
        """Return the error to raise for ``error``: itself if it is the caller's own."""
        if self.stage is TransactionStage.BLOCK:
            if not (broken and isinstance(error, psycopg.Error)):
                return error
        elif not isinstance(error, psycopg.Error | TimeoutError):
            return error
        elif self.stage is TransactionStage.COMMIT:
            return self._of_commit(error)
        elif isinstance(error, psycopg.errors.SerializationFailure):
            return error
        store_error = to_store_error(error, self.address)
        kind = StoreUnavailable if broken else type(store_error)
        return kind(f"{store_error}; {_NOT_COMMITTED}")

    def _of_commit(self, error: Exception) -> Exception:
        if isinstance(error, psycopg.Error):
            if error.sqlstate == _ENDED_WHILE_IDLE:
                return StoreUnavailable(f"{to_store_error(error, self.address)}; {_NOT_COMMITTED}")
            # The server rejected the commit: the transaction is rolled back for that reason.
            if error.diag.severity_nonlocalized == "ERROR":
                return error
        return StoreUnavailable(
            f"{to_store_error(error, self.address)}; the answer to the commit is missing, so its "
            f"outcome is unknown: read the checkpoint of {self.ownership.key}. If it has reached "
            f"{self._pending_write().position.sequence_number}, the events up to there are done; "
            "if not, the server may still be at work on it: run the same block again with the same "
            "position, which waits for it and is refused if it was committed"
        )

    def _done_already(self) -> CheckpointBehind:
        return CheckpointBehind(
            f"the stored checkpoint of {self.ownership.key} has reached "
            f"{self._pending_write().position.sequence_number} already: the events up to there are "
            "done, by an earlier block or by one whose answer was lost; this transaction was "
            "rolled "
            "back. Do not run it again: go on with the events after the stored checkpoint"
        )

    def _written(self) -> Steps[Refusal | None]:
        write = self._pending_write()
        _, refusals = yield Statement(
            migrations.queries()["checkpoint_in_block"],
            {
                **to_columns([write.ownership]),
                "sequences": [write.position.sequence_number],
                "offsets": [write.position.stored_offset],
            },
        )
        return Refusal(refusals[0]) if refusals else None

    def _pending_write(self) -> CheckpointWrite:
        if self.write is None:
            raise RuntimeError("concluded() comes before this step")
        return self.write


def clean_session() -> Steps[None]:
    """Remove all state of a caller from the session. Also shows that the server answers."""
    yield Statement(_queries()["clean"])


def _check_status(status: TransactionStatus) -> None:
    if status is TransactionStatus.IDLE:
        raise _ended_by_caller()
    if status is TransactionStatus.INERROR:
        raise UsageError(
            "a statement of this transaction has failed, so it can not be committed, and the "
            f"error was caught in the block; {_NOT_COMMITTED}. Put 'async with "
            "connection.transaction():' around a statement that may fail"
        )
    if status is TransactionStatus.ACTIVE:
        raise UsageError(
            "a statement still runs on the connection: read its result to the end, or close its "
            f"cursor, before the block ends; {_NOT_COMMITTED}"
        )


def rolled_back_by_caller() -> UsageError:
    """Make the error for a block that raised ``psycopg.Rollback``, which would end it silently."""
    return UsageError(
        f"psycopg.Rollback would hide that {_NOT_COMMITTED.partition(';')[0]}: raise an error of "
        "your own to roll it back"
    )


def _ended_by_caller() -> UsageError:
    return UsageError(
        "the block has ended its transaction by a statement of its own (COMMIT, ROLLBACK, RESET "
        "ALL), so the checkpoint can not be one with it and was not written: leave the commit to "
        "the end of the block, and raise an error to roll back"
    )
