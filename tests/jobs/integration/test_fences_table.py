"""Fenced transactions on a real PostgreSQL: what an old epoch wrote is never committed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.support.postgres import database, execute

from leasehold.errors import (
    FencedWrite,
    InvalidName,
    InvalidUrl,
    StoreUnavailable,
    StoreUnusable,
    UsageError,
)
from leasehold.jobs.fences import FencedTable

pytestmark = pytest.mark.server


@dataclass(frozen=True)
class Run:
    epoch: int


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with database(migrated=False) as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    execute(server, "drop schema if exists leasehold_fence cascade")
    execute(server, "drop table if exists report")
    execute(server, "create table report (day int primary key, words text not null)")
    return server


@pytest.fixture
def table(url: str) -> Iterator[FencedTable]:
    with FencedTable(url, "nightly") as made:
        yield made


def put(table: FencedTable, epoch: int | Run, day: int, words: str) -> None:
    with table.transaction(epoch) as cursor:
        cursor.execute(
            "insert into report values (%s, %s) on conflict (day) do update set words = %s",
            [day, words, words],
        )


def report(url: str) -> dict[object, object]:
    return dict(execute(url, "select day, words from report"))  # type: ignore[arg-type]


def test_a_block_commits_at_its_end(table: FencedTable, url: str) -> None:
    assert table.highest_epoch() == 0
    with table.transaction(Run(epoch=3)) as cursor:
        cursor.execute("insert into report values (1, 'a')")
        assert report(url) == {}
    assert report(url) == {1: "a"}
    assert (table.highest_epoch(), table.fenced_writes()) == (3, 0)


@pytest.mark.spec("B5")
def test_an_old_epoch_is_refused_and_counted(table: FencedTable, url: str) -> None:
    put(table, 7, 1, "new")
    entered = False
    with pytest.raises(FencedWrite, match="epoch 6, and epoch 7") as told, table.transaction(6):
        entered = True
    assert not entered
    assert (told.value.key, told.value.epoch) == ("job/nightly", 6)
    assert "leasehold_fence.fence" in str(told.value)
    put(table, 7, 2, "again")
    assert (table.highest_epoch(), table.fenced_writes()) == (7, 1)
    assert report(url) == {1: "new", 2: "again"}


@pytest.mark.spec("B5")
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_transaction_that_began_before_and_commits_late_is_refused(
    table: FencedTable, url: str, level: str
) -> None:
    with pytest.raises(FencedWrite), table.transaction(1) as zombie:  # noqa: PT012
        zombie.execute(f"set transaction isolation level {level}".encode())
        zombie.execute("insert into report values (1, 'from the past')")
        with FencedTable(url, "nightly") as successor:
            put(successor, 2, 2, "new")  # does not wait for the one that sleeps
    assert report(url) == {2: "new"}
    assert table.fenced_writes() == 1
    put(table, 2, 3, "the connection is sound")
    assert len(report(url)) == 2


@pytest.mark.spec("B5")
def test_it_is_refused_even_if_the_new_holder_has_only_begun(table: FencedTable, url: str) -> None:
    with FencedTable(url, "nightly") as successor, successor.transaction(2) as cursor:
        with pytest.raises(FencedWrite):
            put(table, 1, 1, "from the past")
        cursor.execute("insert into report values (2, 'new')")
    assert report(url) == {2: "new"}


def test_a_new_holder_waits_for_one_that_has_compared_and_sees_what_it_wrote(
    table: FencedTable, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last check and the commit the row is locked."""
    compared, go_on = threading.Event(), threading.Event()
    real = FencedTable._compare

    def slow(self: FencedTable, connection: psycopg.Connection[object], number: int) -> None:
        real(self, connection, number)
        if number == 1:
            # Else the server ends it when it has been idle for five seconds.
            connection.execute("set local idle_in_transaction_session_timeout = 0")
            compared.set()
            assert go_on.wait(100)

    monkeypatch.setattr(FencedTable, "_compare", slow)
    first = threading.Thread(target=put, args=(table, 1, 1, "just in time"))
    first.start()
    assert compared.wait(100)
    found: list[object] = []

    def follow() -> None:
        with FencedTable(url, "nightly") as successor, successor.transaction(2) as cursor:
            found.extend(cursor.execute("select words from report").fetchall())

    second = threading.Thread(target=follow)
    second.start()
    with psycopg.connect(url, autocommit=True) as look:
        while not (waits := _waits_for_a_lock(look)) and second.is_alive():
            pass
    before = list(found)
    go_on.set()
    first.join()
    second.join()
    assert (waits, before) == (True, [])
    assert found == [("just in time",)]


def _waits_for_a_lock(look: psycopg.Connection[tuple[object, ...]]) -> bool:
    row = look.execute(
        "select count(*) > 0 from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock'"
    ).fetchone()
    return bool(row and row[0])


def test_several_transactions_of_one_holder_do_not_wait_for_each_other(
    table: FencedTable, url: str
) -> None:
    with FencedTable(url, "nightly") as other, table.transaction(1) as first:
        first.execute("insert into report values (1, 'a')")
        put(other, 1, 2, "b")
        assert report(url) == {2: "b"}
    assert report(url) == {1: "a", 2: "b"}


def test_jobs_have_epochs_of_their_own(table: FencedTable, url: str) -> None:
    put(table, 9, 1, "a")
    with FencedTable(url, "hourly") as other:
        put(other, 1, 2, "b")
        assert (other.highest_epoch(), table.highest_epoch()) == (1, 9)


def test_a_connection_of_the_caller_is_used_with_its_own_rows_and_stays_open(url: str) -> None:
    with psycopg.connect(url, row_factory=dict_row) as mine:
        with FencedTable(mine, "nightly") as table:
            with table.transaction(4) as cursor:
                cursor.execute("insert into report values (1, 'a') returning day")
                assert cursor.fetchall() == [{"day": 1}]
            assert table.highest_epoch() == 4
        assert not mine.closed
        assert report(url) == {1: "a"}
        mine.execute("select 1")  # begins a transaction
        with pytest.raises(UsageError, match="in a transaction already"), table.transaction(4):
            pass
    with pytest.raises(UsageError, match="is closed"), table.transaction(4):
        pass


def test_an_error_in_the_block_rolls_it_back_and_is_raised_as_it_is(
    table: FencedTable, url: str
) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation), table.transaction(1) as cursor:  # noqa: PT012
        cursor.execute("insert into report values (1, 'a')")
        cursor.execute("insert into report values (1, 'b')")
    assert report(url) == {}
    put(table, 1, 1, "c")
    assert report(url) == {1: "c"}


def test_a_statement_that_failed_and_was_caught_commits_nothing(
    table: FencedTable, url: str
) -> None:
    with pytest.raises(UsageError, match="has failed"), table.transaction(1) as cursor:  # noqa: PT012
        cursor.execute("insert into report values (1, 'a')")
        with pytest.raises(psycopg.errors.UniqueViolation):
            cursor.execute("insert into report values (1, 'b')")
    assert report(url) == {}


@pytest.mark.parametrize("statement", [b"commit", b"rollback", b"commit; begin"])
def test_a_block_that_ends_its_transaction_by_itself_is_found_out(
    table: FencedTable, statement: bytes
) -> None:
    with (
        pytest.raises(UsageError, match="by a statement of its own"),
        table.transaction(1) as cursor,
    ):
        cursor.execute(statement)
    put(table, 1, 1, "a")


def test_blocks_can_not_be_nested(table: FencedTable) -> None:
    with (
        table.transaction(1),
        pytest.raises(UsageError, match="can not be nested"),
        table.transaction(1),
    ):
        pass


def test_what_was_deferred_fails_before_the_commit(table: FencedTable, url: str) -> None:
    execute(url, "create table day (day int primary key)")
    execute(
        url,
        "alter table report add constraint known foreign key (day) references day "
        "deferrable initially deferred",
    )
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        put(table, 1, 1, "a")
    assert report(url) == {}
    execute(url, "drop table day cascade")


def test_a_row_that_is_deleted_while_the_block_runs_lets_nothing_through(
    table: FencedTable, url: str
) -> None:
    with pytest.raises(UsageError, match="run it again"), table.transaction(5) as cursor:  # noqa: PT012
        cursor.execute("insert into report values (1, 'a')")
        execute(url, "delete from leasehold_fence.fence")
    assert report(url) == {}
    put(table, 1, 1, "after the store was made anew")


def test_many_that_come_first_at_once_make_the_tables_once(url: str) -> None:
    begin, failed = threading.Barrier(6), []

    def work(epoch: int) -> None:
        begin.wait()
        try:
            with FencedTable(url, "nightly") as table:
                put(table, epoch, epoch, "a")
        except FencedWrite:
            failed.append(epoch)

    threads = [threading.Thread(target=work, args=(epoch,)) for epoch in range(1, 7)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert 6 not in failed
    assert sorted([*report(url), *failed]) == [1, 2, 3, 4, 5, 6]  # type: ignore[type-var]


def test_a_connection_that_broke_is_made_anew(table: FencedTable, url: str) -> None:
    put(table, 1, 1, "a")
    assert table._connection is not None
    pid = table._connection.info.backend_pid
    execute(url, "select pg_terminate_backend(%s)", pid)
    with pytest.raises(StoreUnavailable):
        put(table, 1, 2, "b")
    put(table, 1, 2, "b")
    assert report(url) == {1: "a", 2: "b"}


def test_a_user_without_rights_is_told_what_is_missing(url: str) -> None:
    role = f"fence_guest_{os.getpid()}"
    execute(url, f"create role {role}")
    try:
        with psycopg.connect(url, autocommit=True) as guest:
            guest.execute(f"set role {role}".encode())
            with pytest.raises(StoreUnusable, match=r"grant this user .* insert"):
                FencedTable(guest, "nightly").highest_epoch()
            with FencedTable(url, "nightly") as mine:
                put(mine, 1, 1, "a")
            execute(url, f"grant usage on schema leasehold_fence to {role}")
            execute(
                url,
                f"grant select, insert, update on all tables in schema leasehold_fence to {role}",
            )
            assert FencedTable(guest, "nightly").highest_epoch() == 1
            with FencedTable(guest, "nightly").transaction(2):
                pass
    finally:
        execute(url, f"drop owned by {role}")
        execute(url, f"drop role {role}")


def test_wrong_arguments_are_refused(url: str) -> None:
    with pytest.raises(InvalidName):
        FencedTable(url, "")
    with pytest.raises(InvalidUrl):
        FencedTable("postgresql://a:b:c/d", "nightly")
    with pytest.raises(UsageError, match=r"psycopg[.]Connection"):
        FencedTable(7, "nightly")  # type: ignore[arg-type]
    away = FencedTable("postgresql://nobody@127.0.0.1:1/none", "nightly")
    with pytest.raises(StoreUnavailable):
        away.highest_epoch()
