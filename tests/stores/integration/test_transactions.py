"""A handler's own statements and its checkpoint: both or none, and only while it owns the key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.support import postgres
from tests.support.transactions import (
    GROUP,
    INSERT_5,
    KEYS,
    MINUTE,
    awaited,
    blocking,
    member,
    opened,
    owner,
    rows,
    run,
    stored,
    take_over,
    with_sink,
)

from leasehold.clock import SystemClock
from leasehold.errors import CheckpointBehind, FencedWrite, UsageError
from leasehold.model import CheckpointWrite, KeyClaim, Position
from leasehold.stores.postgres import PostgresStore, open_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.transactions import Begin

    from leasehold.stores.postgres.transactions import Transactions

pytestmark = [pytest.mark.anyio, pytest.mark.server]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SNAPSHOTS = ["repeatable read", "serializable"]


@pytest.fixture
def url() -> str:
    return with_sink()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_url(url, SystemClock())
    yield store
    await store.close()


@pytest.fixture
async def transactions(url: str) -> AsyncIterator[Transactions]:
    async with opened(url) as made:
        yield made


@pytest.fixture(params=[awaited, blocking])
def begin(request: pytest.FixtureRequest) -> Begin:
    chosen: Begin = request.param
    return chosen


# ------------------------------------------------------------------- both, or none


@pytest.mark.spec("C4")
async def test_rows_and_checkpoint_are_committed_together(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    async with begin(transactions, owned[0], 41) as execute:
        await execute(INSERT_5)
        assert rows(url) == []
        assert await stored(store) == {}
    assert rows(url) == [5]
    assert await stored(store) == {KEYS[0]: 41}


async def test_the_position_is_asked_when_the_block_ends(
    store: PostgresStore, transactions: Transactions
) -> None:
    _, owned = await owner(store)
    done = -1
    async with transactions.begin(owned[0], lambda: Position(sequence_number=done, offset="x")):
        done = 7
    with transactions.begin_blocking(owned[1], lambda: Position(sequence_number=done)):
        done = 8
    assert await stored(store) == {KEYS[0]: 7, KEYS[1]: 8}
    assert (await store.checkpoints(GROUP))[KEYS[0]].position.offset == "x"


@pytest.mark.spec("B5")
@pytest.mark.parametrize("end", ["stolen", "revoked", "broken"])
async def test_a_former_owner_writes_nothing_and_is_counted(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin, end: str
) -> None:
    lease, owned = await owner(store)
    ends = {
        "stolen": lambda: take_over(store),
        "revoked": lambda: store.revoke(lease),
        "broken": lambda: store.break_(KEYS[0], epoch=1, after=timedelta(0)),
    }
    with pytest.raises(FencedWrite, match=r"epoch 1\) has ended") as caught:
        await run(begin(transactions, owned[0], 5), INSERT_5, ends[end])
    assert (caught.value.key, caught.value.epoch, caught.value.reason) == (KEYS[0], 1, "fenced")
    assert rows(url) == []
    assert await stored(store) == {}
    assert await store.fenced_writes(GROUP) == 1


@pytest.mark.spec("B5")
async def test_a_lease_that_ran_out_by_the_servers_clock_writes_nothing(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    with postgres.stopped_clock(url) as set_clock:
        set_clock(NOON)
        _, owned = await owner(store)
        with pytest.raises(FencedWrite):
            await run(begin(transactions, owned[0], 5), INSERT_5, lambda: set_clock(NOON + MINUTE))
    assert rows(url) == []
    assert await stored(store) == {}


@pytest.mark.spec("C4")
@pytest.mark.parametrize("at", [8, 9], ids=["behind", "equal"])
async def test_a_position_that_the_stored_one_has_reached_rolls_back(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin, at: int
) -> None:
    _, owned = await owner(store)
    await store.checkpoint(
        [CheckpointWrite(ownership=owned[0], position=Position(sequence_number=9))]
    )
    with pytest.raises(CheckpointBehind, match=rf"reached {at} already.*are done.*rolled back"):
        await run(begin(transactions, owned[0], at), INSERT_5)
    assert rows(url) == []
    assert await stored(store) == {KEYS[0]: 9}
    assert await store.fenced_writes(GROUP) == 0


@pytest.mark.spec("B5")
async def test_a_former_owner_is_fenced_even_where_its_events_are_done(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    await run(begin(transactions, owned[0], 5), INSERT_5)
    await take_over(store)
    with pytest.raises(FencedWrite):
        await run(begin(transactions, owned[0], 5), "insert into sink values (6)")
    assert rows(url) == [5]
    assert await store.fenced_writes(GROUP) == 1


async def test_an_error_in_the_block_rolls_back_and_is_not_changed(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    error = TimeoutError("of the handler itself")

    def fail() -> None:
        raise error

    with pytest.raises(TimeoutError) as caught:
        await run(begin(transactions, owned[0], 5), INSERT_5, fail)
    assert caught.value is error
    assert rows(url) == []
    assert await stored(store) == {}


async def test_errors_of_the_callers_own_statements_go_through(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    with pytest.raises(psycopg.errors.UniqueViolation):
        await run(begin(transactions, owned[0], 5), INSERT_5, INSERT_5)
    assert rows(url) == []
    assert await stored(store) == {}


async def test_a_constraint_that_was_deferred_is_checked_before_the_ownership(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    postgres.execute(url, "create table child (n integer references sink initially deferred)")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await run(begin(transactions, owned[0], 5), "insert into child values (5)")
    assert await stored(store) == {}
    await run(begin(transactions, owned[0], 6), "insert into child values (5)", INSERT_5)
    assert await stored(store) == {KEYS[0]: 6}
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await run(
            begin(transactions, owned[0], 7),
            "insert into child values (7)",
            lambda: take_over(store),
        )
    assert await store.fenced_writes(GROUP) == 0


@pytest.mark.parametrize(
    "statements",
    [["commit"], ["rollback"], ["commit", "begin"], ["rollback and chain"], ["reset all"]],
)
async def test_a_block_that_ends_its_own_transaction_is_refused(
    store: PostgresStore, transactions: Transactions, begin: Begin, statements: list[str]
) -> None:
    _, owned = await owner(store)
    with pytest.raises(UsageError, match="leave the commit to the end of the block"):
        await run(begin(transactions, owned[0], 5), *statements)
    assert await stored(store) == {}


async def test_commit_by_the_driver_and_its_silent_rollback_are_refused(
    url: str, store: PostgresStore, transactions: Transactions
) -> None:
    _, owned = await owner(store)

    async def commit() -> None:
        async with transactions.begin(owned[0], lambda: Position(sequence_number=5)) as connection:
            await connection.execute(INSERT_5)
            await connection.commit()

    def commit_blocking() -> None:
        with transactions.begin_blocking(owned[0], lambda: Position(sequence_number=5)) as blocks:
            blocks.execute(INSERT_5)
            blocks.commit()

    with pytest.raises(psycopg.ProgrammingError, match="forbidden"):
        await commit()
    with pytest.raises(psycopg.ProgrammingError, match="forbidden"):
        commit_blocking()
    assert rows(url) == []
    assert await stored(store) == {}


async def test_a_rollback_without_a_word_is_refused(
    store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)

    def roll_back() -> None:
        raise psycopg.Rollback

    with pytest.raises(UsageError, match="an error of your own"):
        await run(begin(transactions, owned[0], 5), roll_back)
    assert await stored(store) == {}


async def test_an_error_of_a_statement_that_was_caught_is_not_forgotten(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)

    async def careless() -> None:
        async with begin(transactions, owned[0], 5) as execute:
            await execute(INSERT_5)
            with pytest.raises(psycopg.errors.UniqueViolation):
                await execute(INSERT_5)

    with pytest.raises(UsageError, match="around a statement that may fail"):
        await careless()
    assert rows(url) == []
    assert await stored(store) == {}


async def test_a_statement_that_may_fail_can_have_a_transaction_inside(
    url: str, store: PostgresStore, transactions: Transactions
) -> None:
    _, owned = await owner(store)
    async with transactions.begin(owned[0], lambda: Position(sequence_number=5)) as connection:
        await connection.execute(INSERT_5)
        with pytest.raises(psycopg.errors.UniqueViolation):
            async with connection.transaction():
                await connection.execute(INSERT_5)
    assert rows(url) == [5]
    assert await stored(store) == {KEYS[0]: 5}


# ---------------------------------------------------------------- isolation levels


@pytest.mark.parametrize("level", SNAPSHOTS)
async def test_a_snapshot_that_nothing_has_overtaken_is_committed(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin, level: str
) -> None:
    lease, owned = await owner(store)
    await run(
        begin(transactions, owned[0], 5),
        f"set transaction isolation level {level}",
        "select * from sink",
        lambda: store.renew(lease),
        INSERT_5,
    )
    assert rows(url) == [5]
    assert await stored(store) == {KEYS[0]: 5}


@pytest.mark.spec("B5")
@pytest.mark.parametrize("level", SNAPSHOTS)
async def test_a_takeover_after_the_snapshot_is_not_overlooked(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin, level: str
) -> None:
    _, owned = await owner(store)
    with pytest.raises(FencedWrite):
        await run(
            begin(transactions, owned[0], 5),
            f"set transaction isolation level {level}",
            "select * from sink",
            lambda: take_over(store),  # and the new owner has not written anything yet
            INSERT_5,
        )
    assert rows(url) == []
    assert await stored(store) == {}
    assert await store.fenced_writes(GROUP) == 1


@pytest.mark.spec("B5")
async def test_the_level_may_also_come_with_the_url(
    url: str, store: PostgresStore, begin: Begin
) -> None:
    _, owned = await owner(store)
    level = "&options=-c%20default_transaction_isolation%3Dserializable"
    async with opened(url + level) as transactions:
        with pytest.raises(FencedWrite):
            await run(
                begin(transactions, owned[0], 5), "select * from sink", lambda: take_over(store)
            )
    assert await store.fenced_writes(GROUP) == 1


async def test_a_renewal_that_the_snapshot_can_not_see_is_no_fence(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    ends = "update leasehold.lease set ends_at = clock_timestamp() + %s * interval '1 minute'"
    postgres.execute(url, ends, -1)
    with pytest.raises(psycopg.errors.SerializationFailure, match="may be run again"):
        await run(
            begin(transactions, owned[0], 5),
            "set transaction isolation level repeatable read",
            INSERT_5,
            lambda: postgres.execute(url, ends, 1) and None,
        )
    assert rows(url) == []
    assert await stored(store) == {}
    assert await store.fenced_writes(GROUP) == 0


async def test_a_question_to_the_owner_after_the_snapshot_asks_for_a_second_run(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    other = await member(store, "b")
    wanted = KeyClaim(key=KEYS[0], seen_epoch=1)
    steps = ["set transaction isolation level repeatable read", INSERT_5]
    with pytest.raises(psycopg.errors.SerializationFailure):
        await run(begin(transactions, owned[0], 5), *steps, lambda: store.ask(other, wanted))
    assert rows(url) == []
    assert await stored(store) == {}
    assert await store.fenced_writes(GROUP) == 0
    await run(begin(transactions, owned[0], 5), *steps)
    assert rows(url) == [5]
    assert await stored(store) == {KEYS[0]: 5}


async def test_a_conflict_over_the_callers_own_rows_goes_through(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)

    def skew() -> None:
        with psycopg.connect(url) as other:
            other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            other.execute("select count(*) from sink")
            other.execute("insert into sink values (1)")

    with pytest.raises(psycopg.errors.SerializationFailure, match="could not serialize"):
        await run(
            begin(transactions, owned[0], 5),
            "set transaction isolation level serializable",
            "select count(*) from sink",
            INSERT_5,
            skew,
        )
    assert rows(url) == [1]
    assert await stored(store) == {}
    assert await store.fenced_writes(GROUP) == 0
