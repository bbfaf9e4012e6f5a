"""What an error means at each stage of a transaction, where a real server can hardly be made to."""

from __future__ import annotations

import psycopg
import pytest

from leasehold.errors import FencedWrite, StoreUnavailable, StoreUnusable
from leasehold.model import CheckpointWrite, Ownership, Position
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.transaction_fence import (
    FencedCheckpoint,
    TransactionFence,
    TransactionStage,
)

OWNED = Ownership(key="partition/s/g/0", epoch=3, holder="a", token="secret-a")
UNKNOWN, NOTHING = "outcome is unknown", "nothing of this transaction was committed"


def guard(stage: TransactionStage) -> TransactionFence:
    return TransactionFence(
        ownership=OWNED,
        address=DatabaseAddress.of("postgresql://me:hunter2@db/app"),
        stage=stage,
        write=CheckpointWrite(ownership=OWNED, position=Position(sequence_number=7)),
    )


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        psycopg.OperationalError("server closed the connection unexpectedly"),
        psycopg.errors.AdminShutdown("terminating connection"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("broken", [True, False])
def test_a_commit_without_a_plain_no_is_unknown(error: Exception, broken: bool) -> None:
    meant = guard(TransactionStage.COMMIT).meaning(error, broken=broken)
    assert isinstance(meant, StoreUnavailable)
    assert UNKNOWN in str(meant)
    assert "has reached 7," in str(meant)
    assert "hunter2" not in str(meant)
    assert "secret-a" not in str(meant)


def test_a_session_ended_while_it_stood_still_has_committed_nothing() -> None:
    error = psycopg.errors.IdleInTransactionSessionTimeout("terminating connection")
    meant = guard(TransactionStage.COMMIT).meaning(error, broken=True)
    assert isinstance(meant, StoreUnavailable)
    assert NOTHING in str(meant)
    assert UNKNOWN not in str(meant)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), StoreUnavailable),
        (psycopg.errors.LockNotAvailable("lock timeout"), StoreUnavailable),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), StoreUnusable),
    ],
    ids=repr,
)
def test_a_check_that_fails_has_committed_nothing(error: Exception, kind: type[Exception]) -> None:
    meant = guard(TransactionStage.CHECK).meaning(error, broken=False)
    assert isinstance(meant, kind)
    assert NOTHING in str(meant)


@pytest.mark.parametrize(
    "error", [TimeoutError(), ValueError(), psycopg.errors.DeadlockDetected("x")], ids=repr
)
def test_the_callers_own_errors_stay_what_they_are(error: Exception) -> None:
    assert guard(TransactionStage.BLOCK).meaning(error, broken=False) is error


@pytest.mark.spec("B5")
def test_a_refusal_stands_even_if_it_can_not_be_counted() -> None:
    assert isinstance(
        guard(TransactionStage.CHECK).refusal(FencedCheckpoint(), fenced=None), FencedWrite
    )


def test_a_refusal_by_a_snapshot_that_nobody_confirms_is_no_verdict() -> None:
    by_snapshot = guard(TransactionStage.CHECK)
    by_snapshot.by_snapshot = True
    meant = by_snapshot.refusal(FencedCheckpoint(), fenced=None)
    assert isinstance(meant, StoreUnavailable)
    assert NOTHING in str(meant)
