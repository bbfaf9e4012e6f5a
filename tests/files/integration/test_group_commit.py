"""One journal and many who use it: threads that share commits, processes, restarts, renames."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest
from tests.files.integration import test_journal as shared
from tests.files.integration.test_journal import (
    ANN,
    BOB,
    LIMITS,
    World,
    begun,
    closed,
    create,
    seal,
)
from tests.support.postgres import execute, fresh_database

from leasehold.errors import (
    FencedWrite,
    FileExists,
    FileHeld,
    InvalidName,
    InvalidUrl,
    LeaseholdError,
    StoreUnusable,
    UnknownFile,
    UsageError,
)
from leasehold.files import FileState
from leasehold.files.journal import Journal
from leasehold.files.journal import journal as journal_module
from leasehold.files.model import FileLeaseLimits, RecoveryReason
from leasehold.stores.blocking import Params, Tx, Value
from leasehold.stores.blocking_postgres import translated
from leasehold.testing.clock import ManualClock

world = shared.world
journal = shared.journal

THREADS = 8


class Gate:
    """A hook that holds up the first commit until told, and counts the commits by its calls."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.calls: list[tuple[str, str]] = []

    def __call__(self, step: str, moment: str) -> None:
        self.calls.append((step, moment))
        if len(self.calls) == 1:
            self.reached.set()
            assert self.go.wait(120)

    def commits(self) -> int:
        """How often it went from "before" to "after"."""
        moments = [moment for _, moment in self.calls]
        return sum(a != b for a, b in zip(moments, ["after", *moments], strict=False)) // 2


def together(
    journal: Journal, gate: Gate, calls: list[Callable[[], object]]
) -> list[object | LeaseholdError]:
    """Run the calls in threads of their own, all queued while a first commit is held up."""

    def outcome(call: Callable[[], object]) -> object | LeaseholdError:
        try:
            return call()
        except LeaseholdError as refusal:
            return refusal

    with ThreadPoolExecutor(len(calls) + 1) as threads:
        first = threads.submit(journal.enlist, BOB)
        assert gate.reached.wait(120)
        answers = [threads.submit(outcome, call) for call in calls]
        while len(journal._group._queue) < len(calls):
            threading.Event().wait(0.001)
        gate.go.set()
        first.result(120)
        return [answer.result(120) for answer in answers]


@pytest.mark.spec("F8")
def test_steps_of_several_threads_share_a_commit_and_a_refusal_disturbs_nobody(
    world: World,
) -> None:
    gate = Gate()
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as other:
        gone = create(other, "/gone")
        other.delete("/gone")
        closed(other, "/taken")
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock, hook=gate)) as journal:
        calls: list[Callable[[], object]] = [
            lambda n=n: create(journal, f"/{n}")  # type: ignore[misc]
            for n in range(THREADS)
        ]
        calls[3] = lambda: create(journal, "/taken", BOB)
        calls[5] = lambda: journal.complete(gone.ticket, seal(gone))
        answers = together(journal, gate, calls)
        assert gate.commits() == 2  # the one held up, and one for all the others
        assert isinstance(answers[3], FileExists)
        assert isinstance(answers[5], UnknownFile)
        good = [each for n, each in enumerate(answers) if n not in {3, 5}]
        assert len({each.ticket.epoch for each in good}) == 6  # type: ignore[attr-defined]
        assert [each.path for each in journal.list_open()] == [
            each.ticket.path  # type: ignore[attr-defined]
            for each in sorted(good, key=lambda each: each.block.id)  # type: ignore[attr-defined]
        ]
        assert journal.refused() == 1


def test_without_group_commit_each_step_has_its_own(world: World) -> None:
    gate = Gate()
    opened = Journal.open(
        world.url, limits=LIMITS, clock=world.clock, hook=gate, group_commit=False
    )
    with closing(opened) as journal:
        together(
            journal,
            gate,
            [lambda n=n: create(journal, f"/{n}") for n in range(4)],  # type: ignore[misc]
        )
    assert gate.commits() == 5


def test_a_transaction_that_fails_is_run_step_by_step(world: World) -> None:
    gate = Gate()

    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock, hook=gate)) as journal:
        # A number that no database can keep: it fails in the midst of the common transaction.
        bad = partial(
            journal.create,
            "/bad",
            ANN,
            replication=2**70,
            block_bytes=1,
            overwrite=False,
            volumes=("v1",),
            request="r",
        )
        good = [partial(create, journal, path) for path in ("/a", "/b")]
        answers = together(journal, gate, [good[0], bad, good[1]])
        assert isinstance(answers[1], LeaseholdError)
        assert [each.path for each in journal.list()] == ["/a", "/b"]
        assert [each.open_files for each in journal.holders() if each.id == "ann"] == [2]


def test_a_lost_answer_is_given_again(world: World) -> None:
    lose = [True]

    def hook(step: str, moment: str) -> None:
        if moment == "after" and lose.pop():
            raise ConnectionError("the answer was lost")

    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock, hook=hook)) as journal:
        with pytest.raises(ConnectionError):
            create(journal)
        lose.append(False)
        opened = create(journal)
        assert opened.ticket.file_id == 1
        assert len(journal.history("/f")) == 1


# ------------------------------------------------------------------------- names


@pytest.mark.scenario("S09", "S10")
def test_a_writer_goes_on_when_its_file_or_directory_is_renamed(journal: Journal) -> None:
    one, two = create(journal, "/d/e/1"), create(journal, "/d/2")
    assert journal.rename("/d/e/1", "/x/1") == 1
    assert journal.rename("/d/e/1", "/x/1") == 1  # the same again
    assert journal.rename("/d", "/y") == 1
    new = create(journal, "/d/2", BOB)  # the old path, another file
    assert journal.rename("/x", "/y/x") == 1
    assert journal.rename("/x", "/y/x") == 1
    assert [each.path for each in journal.list("/y")] == ["/y/2", "/y/x/1"]
    assert journal.status("/y/x/1").holder == "ann"
    for each, path in ((one, "/y/x/1"), (two, "/y/2"), (new, "/d/2")):
        assert journal.complete(each.ticket, seal(each)).path == path
    assert [(each.step, each.path, each.detail) for each in journal.history("/y/2")][1] == (
        "rename",
        "/y/2",
        "from /d",
    )


def test_a_rename_takes_no_path_that_is_taken(journal: Journal) -> None:
    for path in ("/a", "/b", "/d/x", "/d/y"):
        closed(journal, path)
    for source, target in (
        ("/a", "/b"),
        ("/a", "/d"),
        ("/d", "/b"),
        ("/a", "/b/c"),
        ("/d/x", "/d"),
    ):
        with pytest.raises(FileExists):
            journal.rename(source, target)
    with pytest.raises(FileExists):
        journal.rename("/d", "/b", overwrite=True)
    for source, target in (("/d", "/d/z"), ("/a", "/a")):
        with pytest.raises(UsageError):
            journal.rename(source, target)
    with pytest.raises(UnknownFile):
        journal.rename("/none", "/z")
    with pytest.raises(UnknownFile):
        journal.rename("/none", "/b")
    held = journal.append("/b", ANN, volumes=("v1",), request="r")
    assert journal.rename("/a", "/b", overwrite=True) == 1
    with pytest.raises(UnknownFile):
        journal.check(held.ticket)
    assert [each.path for each in journal.list()] == ["/b", "/d/x", "/d/y"]


@pytest.mark.scenario("S08", "S15")
def test_the_writer_of_a_deleted_file_is_told_and_others_are_left(
    world: World, journal: Journal
) -> None:
    gone, left = create(journal, "/d/gone"), create(journal, "/d0")
    with pytest.raises(FileExists, match="recursive"):
        journal.delete("/d")
    assert journal.delete("/d/", recursive=True) == 1
    assert journal.delete("/d", recursive=True) == 0
    for again in (journal, world.open()):
        with pytest.raises(UnknownFile, match="deleted"):
            again.check(gone.ticket)
        again.check(left.ticket)
    assert len(journal.trash(limit=9)) == 2
    assert journal.delete("/d0") == 1
    assert journal.holders() == []
    with pytest.raises(UnknownFile):
        journal.status("/d0")
    with pytest.raises(InvalidName):
        journal.status("d0")


@pytest.mark.scenario("S06", "S07")
def test_files_are_listed_page_by_page(world: World, journal: Journal) -> None:
    opened = [create(journal, path) for path in ("/b/2", "/b-", "/b/1", "/a", "/b0")]
    assert [each.path for each in journal.list("/b/")] == ["/b/1", "/b/2"]
    assert [each.path for each in journal.list(limit=2)] == ["/a", "/b-"]
    assert [each.path for each in journal.list(after="/b-", limit=2)] == ["/b/1", "/b/2"]
    world.advance(30)
    create(journal, "/b/new")
    assert [each.path for each in journal.list_open("/b")] == ["/b/2", "/b/1", "/b/new"]
    assert [each.path for each in journal.list_open("/b", older_than_s=30)] == ["/b/2", "/b/1"]
    journal.complete(opened[0].ticket, None)
    begun(journal, "/b/1")
    (page,) = journal.list_open(after_id=opened[1].ticket.file_id, limit=1)
    assert (page.path, page.state) == ("/b/1", FileState.RECOVERING)
    with pytest.raises(InvalidName):
        journal.list_open("b")


# -------------------------------------------------------- processes and restarts


@pytest.mark.spec("F8")
@pytest.mark.scenario("S05", "S20")
def test_a_restart_keeps_everything(world: World) -> None:
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as first:
        first.register_volume("v1", "old place")
        first.register_volume("v1", "disk one")
        one, two = create(first, "/d/1"), create(first, "/2")
        first.rename("/d", "/e")
        recovery = begun(first, "/2")
        before = first.view("/e/1"), first.view("/2"), first.holders(), first.history("/2")
    second = world.open()
    assert second.volumes() == {"v1": "disk one"}
    assert before == (
        second.view("/e/1"),
        second.view("/2"),
        second.holders(),
        second.history("/2"),
    )
    with pytest.raises(FencedWrite):
        second.complete(two.ticket, seal(two))
    assert second.complete(one.ticket, seal(one)).length == 10
    assert second.commit_recovery(recovery, seal(two)).length == 10
    third = create(second, "/3")
    assert third.ticket.epoch > recovery.id
    assert third.block.id > two.block.id


@pytest.mark.scenario("S16")
def test_after_a_reboot_all_holders_are_silent_and_attempts_over(tmp_path: Path) -> None:
    path, limits = tmp_path / "leases.db", FileLeaseLimits()
    with closing(Journal.open(f"sqlite:///{path}", limits=limits, clock=ManualClock())) as journal:
        create(journal, "/1")
        create(journal, "/2")
        recovery = begun(journal, "/2")
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("UPDATE meta SET boot_id = 'an earlier one'")
        # Used from two boots at once: nobody's seconds mean anything.
        with pytest.raises(StoreUnusable, match="restart"):
            journal.status("/1")
        with pytest.raises(StoreUnusable):
            journal.renew(ANN)
    with closing(Journal.open(f"sqlite:///{path}", limits=limits, clock=ManualClock())) as journal:
        assert journal.due(limit=9) == ["/1", "/2"]
        newer = begun(journal, "/2", shared.MONITOR, reason=RecoveryReason.HARD)
        assert (newer.id > recovery.id, newer.attempt) == (True, 2)
        assert begun(journal, "/1", BOB, reason=RecoveryReason.SOFT).was_held_by == "ann"


WORKER = """
import sys
from leasehold.errors import FileExists, FileHeld
from leasehold.files.journal import Journal
from leasehold.files.journal import journal as journal_module
from leasehold.files.model import FileHolder, FileLeaseLimits, SealedBlock
url, name = sys.argv[1:]
journal = Journal.open(url, limits=FileLeaseLimits())
me = FileHolder(id=name, token=name, host="h", pid=1)
won = 0
for number in range(30):
    try:
        opened = journal.create(f"/{number}", me, replication=1, block_bytes=1, overwrite=False,
                                volumes=("v",), request=name)
    except (FileExists, FileHeld):
        continue
    journal.renew(me)
    sealed = SealedBlock(block_id=opened.block.id, length=1, checksum=0, volumes=("v",))
    journal.complete(opened.ticket, sealed)
    won += 1
print(won)
"""


@pytest.mark.process
def test_two_processes_share_one_namespace(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, url, name], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    try:
        won = [int(worker.communicate(timeout=120)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0]
    with closing(Journal.open(url, limits=LIMITS)) as journal:
        assert sum(won) == len(journal.list()) == 30
        assert {each.state for each in journal.list()} == {FileState.CLOSED}
        assert len({each.epoch for each in journal.list()}) == 30
        assert journal.holders() == []


@pytest.mark.parametrize("world", ["postgres"], indirect=True)
def test_a_broken_connection_is_replaced(world: World, journal: Journal) -> None:
    opened = create(journal)
    execute(
        world.url,
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() "
        "and query not like '%%test_clock set%%'",
    )
    journal.renew(ANN)
    assert journal.complete(opened.ticket, seal(opened)).length == 10


# ----------------------------------------------------------------------- opening


def test_files_need_a_store_that_lasts() -> None:
    for url in ("memory://", "ftp://x", "sqlite://", "sqlite:///a?b"):
        with pytest.raises(InvalidUrl, match="sqlite:///"):
            Journal.open(url, limits=LIMITS)


@pytest.mark.server
def test_a_journal_opens_inside_an_event_loop_and_makes_its_tables() -> None:
    async def main(url: str) -> list[object]:
        with closing(Journal.open(url, limits=LIMITS)) as journal:
            return [journal.list(), journal.url]

    url = fresh_database(migrated=False)
    assert anyio.run(main, url)[0] == []
    with closing(Journal.open(url, limits=LIMITS)) as journal:
        create(journal)
        with pytest.raises(FileHeld):
            create(journal, holder=BOB)
    with pytest.raises(UsageError, match="is closed"):
        journal.list()
    with psycopg.connect(url) as raw:
        assert raw.execute("select count(*) from leasehold.fs_file").fetchone() == (1,)


def test_a_closed_journal_says_so(journal: Journal) -> None:
    journal.close()
    journal.close()
    for call in (lambda: journal.renew(ANN), journal.volumes):
        with pytest.raises(UsageError, match="is closed"):
            call()


def test_statements_are_translated_for_the_other_database() -> None:
    text = "SELECT :a_1 || ':b', x::text, '100%' FROM t WHERE y = :c -- not :d\n"
    expected = "SELECT %(a_1)s || ':b', x::text, '100%%' FROM t WHERE y = %(c)s -- not :d\n"
    assert translated(text) == expected.encode()


class Counting:
    """A transaction that notes the names of its statements."""

    def __init__(self, tx: Tx, names: list[str]) -> None:
        self._tx, self._names = tx, names
        self.now, self.wall = tx.now, tx.wall

    def one(self, name: str, **params: Value) -> object:
        self._names.append(name)
        return self._tx.one(name, **params)

    def all(self, name: str, **params: Value) -> list[object]:
        self._names.append(name)
        return self._tx.all(name, **params)

    def run(self, name: str, **params: Value) -> int:
        self._names.append(name)
        return self._tx.run(name, **params)

    def many(self, name: str, params: Sequence[Params]) -> None:
        self._names.append(name)
        self._tx.many(name, params)


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_the_hot_steps_are_a_few_statements(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    for number in range(20):
        create(journal, f"/{number}")
    write = journal._database.write
    counted = lambda work: write(lambda tx: work(Counting(tx, names)))  # noqa: E731
    monkeypatch.setattr(journal._database, "write", counted)
    journal.renew(ANN)
    assert names == ["holder_renew"]  # one row, however many files
    # In a group these, and the reading of the counters, are shared by all its steps.
    ends = ["line", "meta_write"]
    names.clear()
    opened = create(journal, "/f")
    steps = ["look", "holder_enlist", "meta", "file_add", "block_add", "replicas_add"]
    assert names == [*steps, *ends]
    names.clear()
    journal.complete(opened.ticket, seal(opened))
    assert names == ["held", "meta", "block_seal", "file_close", "holder_drop", *ends]


INDEXED = {
    "due_held": ["fs_holder_by_age (renewed_s<?)", "fs_file_held (holder=? AND"],
    "due_again": ["SEARCH fs_file USING INDEX fs_file_recovering"],
    "held": ["SEARCH fs_block USING INDEX fs_block_open"],
    "helds": ["SEARCH fs_block USING INDEX fs_block_open"],
    "holder_drop": ["SEARCH fs_file USING COVERING INDEX fs_file_held"],
    "files_open": ["fs_file USING INDEX fs_file_open"],
    "look": ["SEARCH fs_file USING INDEX"],
    "looks": ["SEARCH fs_file USING INDEX", "SEARCH fs_file USING COVERING INDEX"],
    "file_close_rows": ["SEARCH fs_file USING INTEGER PRIMARY KEY"],
    "block_seal_rows": ["SEARCH fs_block USING INTEGER PRIMARY KEY"],
}


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", INDEXED)
def test_what_is_asked_often_is_found_by_index(world: World, journal: Journal, name: str) -> None:
    create(journal)
    text = journal_module.queries()[name]
    values = dict.fromkeys(re.findall(r":(\w+)", text), 1)
    with closing(sqlite3.connect(world.url.removeprefix("sqlite:///"))) as raw:
        plan = "\n".join(row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {text}", values))
    assert [part for part in INDEXED[name] if part not in plan] == [], plan
    assert "SCAN fs_file" not in plan, plan
    assert "SCAN fs_holder" not in plan, plan


def test_a_writer_recovers_only_what_is_its_own(journal: Journal) -> None:
    opened = create(journal)
    begun(journal, holder=BOB)
    with pytest.raises(FencedWrite):
        journal.begin_recovery("/f", ANN, reason=RecoveryReason.CLOSE, ticket=opened.ticket)
    create(journal, overwrite=True, request="another file")
    with pytest.raises(UnknownFile):
        journal.begin_recovery("/f", ANN, reason=RecoveryReason.CLOSE, ticket=opened.ticket)
