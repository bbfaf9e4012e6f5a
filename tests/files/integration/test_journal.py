"""The journal on both databases: every step, its refusals, and the same call once more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.support.postgres import database, stopped_clock

from leasehold.errors import (
    FencedWrite,
    FileExists,
    FileHeld,
    InvalidOptions,
    LeaseLost,
    RecoveryInProgress,
    UnknownFile,
    UsageError,
)
from leasehold.files import BlockState, FileState
from leasehold.files.journal import Journal, unit_of_work
from leasehold.files.model import (
    FileHolder,
    FileLeaseLimits,
    FileRecovery,
    OpenedFile,
    RecoveryReason,
    SealedBlock,
)
from leasehold.testing.clock import ManualClock

ANN = FileHolder(id="ann", token="ta", host="north", pid=11, address="north:1")
BOB = FileHolder(id="bob", token="tb", host="south", pid=22)
MONITOR = FileHolder(id="monitor", token="tm", host="north", pid=33)
LIMITS = FileLeaseLimits(soft_s=60.0, hard_s=1200.0, attempt_s=90.0)


@dataclass
class World:
    """One namespace, its clock, and the journals opened on it."""

    url: str
    clock: ManualClock
    tell: Callable[[ManualClock], None]
    journals: list[Journal] = field(default_factory=list)

    def open(self) -> Journal:
        self.journals.append(Journal.open(self.url, limits=LIMITS, clock=self.clock))
        return self.journals[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.tell(self.clock)


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    if request.param == "sqlite":
        world = World(f"sqlite:///{tmp_path}/leases.db", clock, lambda _: None)
        yield world
        for journal in world.journals:
            journal.close()
        return
    with database() as url, stopped_clock(url) as set_clock:
        world = World(url, clock, lambda clock: set_clock(clock.utc_now()))
        world.advance(0)
        yield world
        for journal in world.journals:
            journal.close()


@pytest.fixture
def journal(world: World) -> Journal:
    return world.open()


def create(
    journal: Journal,
    path: str = "/f",
    holder: FileHolder = ANN,
    *,
    overwrite: bool = False,
    request: str = "",
) -> OpenedFile:
    return journal.create(
        path,
        holder,
        replication=2,
        block_bytes=100,
        overwrite=overwrite,
        volumes=("v1", "v2"),
        request=request or f"{holder.id} {path}",
    )


def seal(
    opened: OpenedFile, length: int = 10, *, volumes: tuple[str, ...] = ("v1", "v2")
) -> SealedBlock:
    return SealedBlock(block_id=opened.block.id, length=length, checksum=2**32 - 1, volumes=volumes)


def closed(
    journal: Journal, path: str = "/f", holder: FileHolder = ANN, length: int = 10
) -> OpenedFile:
    opened = create(journal, path, holder)
    journal.complete(opened.ticket, seal(opened, length))
    return opened


def begun(
    journal: Journal,
    path: str = "/f",
    holder: FileHolder = BOB,
    reason: RecoveryReason = RecoveryReason.ASKED,
) -> FileRecovery:
    recovery = journal.begin_recovery(path, holder, reason=reason)
    assert recovery is not None
    return recovery


def steps(journal: Journal, path: str = "/f") -> list[str]:
    return [entry.step for entry in journal.history(path)]


# --------------------------------------------------------------------- opening and closing


@pytest.mark.spec("F1", "F5")
@pytest.mark.scenario("S01", "S08")
def test_a_holder_has_one_lease_over_its_files_until_the_last_is_closed(journal: Journal) -> None:
    opened = [create(journal, f"/{name}") for name in "abcd"]
    for left, each in enumerate(reversed(opened)):
        (holder,) = journal.holders()
        assert (holder.id, holder.host, holder.pid, holder.open_files) == (
            "ann",
            "north",
            11,
            4 - left,
        )
        journal.complete(each.ticket, seal(each))
    assert journal.holders() == []
    assert [each.state for each in journal.list()] == [FileState.CLOSED] * 4


def test_a_new_file_has_ids_an_epoch_and_one_open_block(world: World, journal: Journal) -> None:
    first, second = create(journal, "/a/x"), create(journal, "/a/y", BOB)
    assert (first.ticket.epoch, second.ticket.epoch) == (1, 2)
    assert first.block.volumes == ("v1", "v2")
    status, (block,) = journal.view("/a/x")
    assert block == first.block
    assert (block.state, block.generation, block.start) == (BlockState.OPEN, 1, 0)
    assert (status.state, status.holder, status.host) == (FileState.OPEN, "ann", "north")
    assert (status.address, status.length, status.replication) == ("north:1", 0, 2)
    world.advance(7)
    assert journal.status("/a/x").idle_s == pytest.approx(7, abs=1e-3)
    assert journal.status_of(first.ticket.file_id) == journal.status("/a/x")
    assert journal.status_of(99) is None


@pytest.mark.spec("F2")
def test_a_second_writer_is_told_who_holds_the_file(world: World, journal: Journal) -> None:
    opened = create(journal)
    world.advance(20)
    calls: list[Callable[[], object]] = [
        lambda: create(journal, holder=BOB),
        lambda: journal.append("/f", BOB, volumes=("v1",), request="r"),
    ]
    for call in calls:
        with pytest.raises(FileHeld) as refused:
            call()
        error = refused.value
        assert (error.path, error.holder, error.host, error.address) == (
            "/f",
            "ann",
            "north",
            "north:1",
        )
        assert (error.epoch, error.since) == (opened.ticket.epoch, journal.status("/f").opened_at)
        assert error.retry_after_s == pytest.approx(40, abs=1e-3)
        assert "ann on north (process 11)" in str(error)
    world.advance(100)
    with pytest.raises(FileHeld, match="taken over now") as refused:
        create(journal, holder=BOB)
    assert refused.value.retry_after_s == 0
    with pytest.raises(FileHeld, match="by this very holder"):
        create(journal, request="another call")
    assert steps(journal) == ["create"]


@pytest.mark.parametrize("path", ["/d", "/d/e/f/g", "/d/e/f"])
def test_a_path_that_is_taken_is_refused_and_says_by_what(journal: Journal, path: str) -> None:
    closed(journal, "/d/e/f")
    words = {"/d": "/d is a directory: /d/e/f", "/d/e/f/g": "/d/e/f is a file"}
    for overwrite in (False, True):
        if path == "/d/e/f" and overwrite:
            continue
        with pytest.raises(FileExists, match=words.get(path, "is there already")):
            create(journal, path, BOB, overwrite=overwrite)
    assert [each.path for each in journal.list()] == ["/d/e/f"]
    assert journal.holders() == []


@pytest.mark.scenario("S13", "S14")
def test_overwriting_takes_the_path_from_a_file_that_is_open(journal: Journal) -> None:
    old = create(journal)
    new = create(journal, holder=BOB, overwrite=True)
    assert new.ticket.file_id != old.ticket.file_id
    with pytest.raises(UnknownFile, match="deleted or overwritten"):
        journal.complete(old.ticket, seal(old))
    assert sorted(journal.trash(limit=9)) == [(old.block.id, "v1"), (old.block.id, "v2")]
    assert [each.id for each in journal.holders()] == ["bob"]
    mine = create(journal, holder=BOB, overwrite=True, request="again")
    journal.renew(BOB)  # its own file gone, its lease not
    assert journal.complete(mine.ticket, seal(mine)).length == 10
    assert journal.refused() == 1


def test_append_goes_on_in_a_new_block_under_a_new_epoch(journal: Journal) -> None:
    first = closed(journal)
    again = journal.append("/f", BOB, volumes=("v3", "v1"), request="r")
    assert again.ticket.epoch > first.ticket.epoch
    assert (again.block.index, again.block.start) == (1, 10)
    assert (again.block.volumes, again.block_bytes, again.replication) == (("v1", "v3"), 100, 2)
    assert journal.append("/f", BOB, volumes=("v3", "v1"), request="r") == again
    journal.complete(again.ticket, seal(again, 5, volumes=("v1",)))
    status, blocks = journal.view("/f")
    assert status.length == 15
    assert [block.volumes for block in blocks] == [("v1", "v2"), ("v1",)]
    assert journal.trash(limit=9) == [(again.block.id, "v3")]
    assert steps(journal) == ["close", "append", "close", "create"]
    with pytest.raises(UnknownFile, match="there is no file /g"):
        journal.append("/g", BOB, volumes=("v1",), request="r")


def test_blocks_are_sealed_one_after_the_other(journal: Journal) -> None:
    opened = create(journal)
    journal.drop_volumes(opened.ticket, opened.block.id, keep=("v2",))
    journal.drop_volumes(opened.ticket, opened.block.id, keep=("v2",))
    with pytest.raises(UsageError, match="lies on v2"):
        journal.drop_volumes(opened.ticket, opened.block.id, keep=("v1",))
    with pytest.raises(UsageError, match="not the open one"):
        journal.drop_volumes(opened.ticket, 99, keep=("v2",))
    sealed = seal(opened, volumes=("v2",))
    block = journal.next_block(opened.ticket, sealed, volumes=("v1", "v2"), request="r")
    assert journal.next_block(opened.ticket, sealed, volumes=("v1", "v2"), request="r") == block
    assert (block.index, block.start, block.generation) == (1, 10, opened.ticket.epoch)
    with pytest.raises(UsageError, match="is not the open one"):
        journal.next_block(opened.ticket, replace(sealed, length=9), volumes=("v1",))
    with pytest.raises(InvalidOptions):
        journal.next_block(opened.ticket, sealed, volumes=())
    # The answer of next_block was lost and the writer closes with the block it knows.
    status = journal.complete(opened.ticket, sealed)
    assert journal.complete(opened.ticket, sealed) == status
    assert (status.length, len(journal.view("/f")[1])) == (10, 1)
    assert journal.trash(limit=9) == [(1, "v1"), (2, "v1"), (2, "v2")]
    journal.forget_trash([(1, "v1"), (2, "v2")])
    assert journal.trash(limit=9) == [(2, "v1")]
    assert steps(journal) == ["close", "next block", "drop volumes", "create"]


def test_every_step_of_a_writer_may_be_repeated(journal: Journal) -> None:
    opened = create(journal)
    assert create(journal) == opened
    assert create(journal, overwrite=True) == opened
    status = journal.complete(opened.ticket, seal(opened))
    assert journal.complete(opened.ticket, seal(opened)) == status
    with pytest.raises(FencedWrite) as refused:
        journal.complete(opened.ticket, seal(opened, 11))
    assert (refused.value.reason, refused.value.now_held_by) == ("closed", None)
    other = journal.append("/f", BOB, volumes=("v1",), request="r")
    # Somebody has gone on meanwhile: it is still true that we had closed it.
    assert journal.complete(opened.ticket, seal(opened)).id == status.id
    journal.enlist(BOB)
    journal.leave(BOB)
    assert journal.status("/f").holder == "bob"
    empty = journal.complete(other.ticket, None)
    assert journal.complete(other.ticket, None) == empty
    assert (empty.length, len(journal.view("/f")[1])) == (10, 1)
    assert len(journal.history("/f", limit=2)) == 2
    assert len(journal.history("/f")) == 4


# ----------------------------------------------------------------------------- holders


def test_renewal_is_for_the_incarnation_that_holds(world: World, journal: Journal) -> None:
    opened = create(journal)
    world.advance(5000)
    journal.renew(ANN)  # late, and nobody has taken anything
    assert journal.holders()[0].idle_s == pytest.approx(0, abs=1e-3)
    other = replace(ANN, token="stolen")
    for call in (journal.renew, journal.enlist):
        with pytest.raises(LeaseLost) as refused:
            call(other)
        assert (refused.value.key, refused.value.reason) == ("ann", "holder_id_in_use")
    with pytest.raises(LeaseLost):
        create(journal, "/g", other)
    with pytest.raises(FencedWrite):
        journal.check(replace(opened.ticket, holder=other))
    journal.leave(other)
    journal.leave(ANN)  # it still has a file
    assert journal.holders()[0].open_files == 1
    with pytest.raises(LeaseLost) as refused:
        journal.renew(BOB)
    assert refused.value.reason == "unknown"
    journal.enlist(BOB)
    journal.leave(BOB)
    journal.leave(BOB)
    assert [each.id for each in journal.holders(limit=1)] == ["ann"]


@pytest.mark.spec("F1")
@pytest.mark.scenario("S02", "S04", "S16")
def test_what_is_due_comes_oldest_holder_first_and_up_to_the_limit(
    world: World, journal: Journal
) -> None:
    for number in range(6):
        holder = FileHolder(id=f"h{number}", token="t", host="h", pid=number)
        create(journal, f"/{9 - number}", holder)
        world.advance(1)
    journal.enlist(replace(ANN, id="idle"))
    assert journal.due(limit=9) == []
    world.advance(1200 - 3)  # three are past the hard limit; the fourth is at it, to the second
    assert journal.due(limit=9) == ["/9", "/8", "/7"]
    world.advance(0.5)
    assert journal.due(limit=9) == ["/9", "/8", "/7", "/6"]
    assert journal.due(limit=2) == ["/9", "/8"]
    assert [each.id for each in journal.holders()][-1] == "idle"
    world.advance(10)
    assert len(journal.due(limit=9)) == 6
    assert "idle" not in [each.id for each in journal.holders()]
    assert len(journal.holders()) == 6  # those with files keep their lease


@pytest.mark.spec("F8")
def test_history_keeps_the_newest_lines(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_of_work, "KEPT_LINES", 5)
    monkeypatch.setattr(unit_of_work, "_PRUNE_EVERY", 4)
    opened = create(journal)
    for keep in (("v1", "v2"), ("v2",)):
        journal.drop_volumes(opened.ticket, opened.block.id, keep=keep)
    for number in range(20):
        closed(journal, f"/{number}")
    assert journal.history("/f") == []
    assert steps(journal, "/19") == ["close", "create"]


# ----------------------------------------------------------------------------- recovery


@pytest.mark.spec("F3")
@pytest.mark.parametrize(
    ("reason", "limit_s"), [(RecoveryReason.SOFT, 60), (RecoveryReason.HARD, 1200)]
)
def test_a_file_is_taken_only_after_the_limit(
    world: World, journal: Journal, reason: RecoveryReason, limit_s: int
) -> None:
    opened, other = create(journal), create(journal, "/other")
    world.advance(limit_s - 0.5)
    with pytest.raises(FileHeld) as refused:
        begun(journal, reason=reason)
    assert refused.value.retry_after_s == pytest.approx(0.5, abs=1e-3)
    world.advance(0.75)
    recovery = begun(journal, reason=reason)
    assert (recovery.attempt, recovery.was_held_by, recovery.block) == (1, "ann", opened.block)
    assert recovery.id > other.ticket.epoch
    # One file was taken, and not the lease: the others are written on.
    journal.renew(ANN)
    journal.check(other.ticket)
    with pytest.raises(FencedWrite, match="being recovered by bob") as fenced:
        journal.complete(opened.ticket, seal(opened))
    assert (fenced.value.reason, fenced.value.now_held_by) == ("recovered", "bob")
    assert (fenced.value.key, fenced.value.epoch) == ("/f", opened.ticket.epoch)


@pytest.mark.parametrize("reason", [RecoveryReason.ASKED, RecoveryReason.CLOSE])
@pytest.mark.parametrize("holder", [ANN, BOB])
def test_on_request_no_limit_is_looked_at(
    journal: Journal, reason: RecoveryReason, holder: FileHolder
) -> None:
    opened = create(journal)
    recovery = begun(journal, holder=holder, reason=reason)
    status = journal.commit_recovery(recovery, seal(opened, 7, volumes=("v2",)))
    assert (status.state, status.length, status.epoch) == (FileState.CLOSED, 7, recovery.id)
    ((block,),) = (journal.view("/f")[1],)
    assert (block.generation, block.volumes, block.length) == (recovery.id, ("v2",), 7)
    assert journal.trash(limit=9) == [(opened.block.id, "v1")]
    assert journal.begin_recovery("/f", BOB, reason=reason) is None
    assert journal.holders() == []
    assert steps(journal) == ["recovered", "recovery begun", "create"]


@pytest.mark.scenario("S80")
def test_a_commit_of_recovery_may_be_repeated_and_only_the_newest_counts(
    world: World, journal: Journal
) -> None:
    opened = create(journal)
    late = begun(journal)
    newest = begun(journal)  # the same holder supersedes itself
    assert (newest.attempt, newest.id > late.id) == (2, True)
    with pytest.raises(FencedWrite):
        journal.commit_recovery(late, seal(opened))
    with pytest.raises(FencedWrite):
        journal.fail_recovery(late, trouble="late", pause_s=1)
    with pytest.raises(UsageError):
        journal.commit_recovery(newest, seal(opened, volumes=("v3",)))
    status = journal.commit_recovery(newest, seal(opened))
    assert journal.commit_recovery(newest, seal(opened)) == status
    journal.fail_recovery(newest, trouble="too late", pause_s=1)
    assert journal.status("/f") == status
    again = journal.append("/f", ANN, volumes=("v1",), request="r")
    assert journal.commit_recovery(newest, seal(opened)).id == status.id
    assert journal.status("/f").epoch == again.ticket.epoch
    with pytest.raises(FencedWrite, match="was recovered") as refused:
        journal.next_block(opened.ticket, seal(opened), volumes=("v1",))
    assert (refused.value.reason, refused.value.now_held_by) == ("recovered", "ann")
    assert journal.refused() == 3


@pytest.mark.spec("F5")
@pytest.mark.parametrize("sealed", [False, True])
def test_a_tail_without_bytes_is_dropped(journal: Journal, sealed: bool) -> None:
    opened = create(journal)
    recovery = begun(journal)
    status = journal.commit_recovery(recovery, seal(opened, 0) if sealed else None)
    assert (status.state, status.length) == (FileState.CLOSED, 0)
    assert journal.view("/f")[1] == ()
    assert len(journal.trash(limit=9)) == 2
    assert journal.commit_recovery(recovery, None) == status
    assert steps(journal)[0] == "tail dropped"


@pytest.mark.spec("F4")
@pytest.mark.scenario("S82")
def test_attempts_are_one_at_a_time_and_come_again(world: World, journal: Journal) -> None:
    opened = create(journal)
    world.advance(1300)
    first = begun(journal, holder=MONITOR, reason=RecoveryReason.HARD)
    assert journal.due(limit=9) == []
    world.advance(30)
    for reason in RecoveryReason:
        with pytest.raises(RecoveryInProgress) as busy:
            begun(journal, reason=reason)
        assert (busy.value.attempt, busy.value.path) == (1, "/f")
        assert busy.value.retry_after_s == pytest.approx(60, abs=1e-3)
    with pytest.raises(RecoveryInProgress):
        create(journal, holder=BOB)
    world.advance(61)  # it had its time
    assert journal.due(limit=9) == ["/f"]
    second = begun(journal, holder=MONITOR, reason=RecoveryReason.HARD)
    for _ in range(2):
        journal.fail_recovery(second, trouble="v1 is gone", pause_s=300)
    status = journal.status("/f")
    assert (status.trouble, status.attempts) == ("v1 is gone", 2)
    assert status.next_attempt_s == pytest.approx(300, abs=1e-3)
    assert steps(journal).count("recovery failed") == 1
    with pytest.raises(RecoveryInProgress) as busy:
        begun(journal, reason=RecoveryReason.HARD)
    assert busy.value.retry_after_s == pytest.approx(300, abs=1e-3)
    assert journal.due(limit=9) == []
    world.advance(300)
    assert journal.due(limit=9) == ["/f"]
    third = begun(journal, reason=RecoveryReason.SOFT)
    with pytest.raises(FencedWrite):
        journal.commit_recovery(first, seal(opened))
    done = journal.commit_recovery(third, seal(opened))
    assert (done.attempts, done.trouble, journal.due(limit=9)) == (0, "", [])


@pytest.mark.scenario("S85")
def test_a_file_deleted_during_its_recovery_stays_deleted(journal: Journal) -> None:
    opened = create(journal, "/d/f")
    recovery = begun(journal, "/d/f")
    assert journal.delete("/d", recursive=True) == 1
    new = create(journal, "/d/f")
    with pytest.raises(UnknownFile, match="deleted while"):
        journal.commit_recovery(recovery, seal(opened))
    journal.check(new.ticket)
    with pytest.raises(UnknownFile):
        journal.begin_recovery("/d", BOB, reason=RecoveryReason.ASKED)


KILLED = """
import os, sys
from tests.files.integration.test_journal import LIMITS, Journal, ManualClock, create
kill = lambda step, at: os.kill(os.getpid(), 9) if (step, at) == ("create", sys.argv[2]) else None
create(Journal.open(sys.argv[1], limits=LIMITS, clock=ManualClock(), hook=kill))
"""


@pytest.mark.spec("F8")
@pytest.mark.parametrize(("moment", "found"), [("before", []), ("after", ["/f"])])
@pytest.mark.process
def test_a_step_is_there_after_a_kill_if_it_was_committed(
    world: World, moment: str, found: list[str]
) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, world.url, moment], check=False)
    assert ended.returncode == -9
    journal = world.open()
    assert [each.path for each in journal.list()] == found
    assert create(journal).ticket.file_id == 1  # the same request: done now, or given again
