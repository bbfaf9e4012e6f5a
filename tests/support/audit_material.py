"""Material for audits, as plain records: a clean life of two partitions, and what to change in it.

Partition 0 goes from ``a``, who is killed, to ``b``; partition 1 belongs to ``b`` all the time.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from leasehold.events import PartitionEnds
from leasehold.model import Checkpoint, EndReason, Position, Term
from leasehold.names import partition_key
from leasehold.spark import Commit
from leasehold.spark.audit import AuditMaterial
from leasehold.spark.reading import Range

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
STREAM = NOON.isoformat()


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def term(
    partition: str,
    epoch: int,
    holder: str,
    start_s: float,
    end_s: float | None = None,
    reason: EndReason | None = None,
) -> Term:
    return Term(
        key=partition_key("orders", "billing", partition),
        epoch=epoch,
        holder=holder,
        started_at=at(start_s),
        ended_at=None if end_s is None else at(end_s),
        reason=reason,
    )


def commit(name: str, partition: str, start: int, end: int, epoch: int, holder: str) -> Commit:
    """One row for each event; the time is that of the driver, and says nothing."""
    return Commit(
        commit=name,
        range=Range(partition=partition, start=start, end=end),
        epoch=epoch,
        holder=holder,
        began_at=at(start),
        committed_at=at(start + 1.5),
        rows=end - start,
    )


def checkpoint(
    partition: str, epoch: int, done: int, at_s: float, *, stream: str = STREAM
) -> Checkpoint:
    return Checkpoint(
        key=partition_key("orders", "billing", partition),
        epoch=epoch,
        position=Position(sequence_number=done, stream=stream),
        updated_at=at(at_s),
    )


TERMS = (
    term("0", 1, "a", 0, 20, EndReason.EXPIRED),
    term("0", 2, "b", 21),
    term("1", 1, "b", 0),
)
COMMITS = (
    commit("v1", "0", 0, 10, 1, "a"),
    commit("v2", "1", 0, 5, 1, "b"),
    commit("v3", "0", 10, 20, 2, "b"),
)
CLEAN = AuditMaterial(
    stream="orders",
    group="billing",
    store="sqlite:///leases.db",
    at=at(60),
    terms=TERMS,
    checkpoints=(checkpoint("0", 2, 19, 30), checkpoint("1", 1, 4, 30)),
    epochs={"0": 2, "1": 1},
    sink="delta:delays",
    commits=COMMITS,
    ends={"0": PartitionEnds(first=0, next=24), "1": PartitionEnds(first=0, next=5)},
    identity=STREAM,
)
# What the sink and the log hold after it.
SUNK = [("0", number) for number in range(20)] + [("1", number) for number in range(5)]
LOGGED = [("0", number) for number in range(24)] + [("1", number) for number in range(5)]


def with_terms(*terms: Term, epochs: dict[str, int] | None = None) -> AuditMaterial:
    """Only terms, and nothing else that could be against them."""
    known = epochs or {each.key[-1]: each.epoch for each in terms}
    return replace(
        CLEAN, terms=terms, epochs=known, checkpoints=(), sink=None, commits=None, ends=None
    )


def with_commits(*commits: Commit) -> AuditMaterial:
    return replace(CLEAN, commits=commits, checkpoints=())
