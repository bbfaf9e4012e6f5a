"""Blocks of either kind, and a store with an owner of two partitions, for tests of transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from inspect import isawaitable
from typing import Any, TypeAlias

import anyio.to_thread
from tests.support import postgres

from leasehold.clock import SystemClock
from leasehold.model import KeyClaim, Lease, MemberInfo, Ownership, Position
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.transactions import Transactions

Execute: TypeAlias = Callable[..., Awaitable[list[Any]]]
Block: TypeAlias = AbstractAsyncContextManager[Execute]
Begin: TypeAlias = Callable[[Transactions, Ownership, int], Block]

GROUP = "partition/stream/group"
KEYS = [f"{GROUP}/{n}" for n in range(2)]
MINUTE = timedelta(minutes=1)
INSERT_5 = "insert into sink values (5)"


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Transactions]:
    made = Transactions.of(url, **{"clock": SystemClock(), **settings})
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def awaited(made: Transactions, owned: Ownership, at: int) -> AsyncIterator[Execute]:
    async with made.begin(owned, lambda: Position(sequence_number=at)) as connection:

        async def execute(statement: str, *values: object) -> list[Any]:
            cursor = await connection.execute(statement.encode(), values or None)
            return await cursor.fetchall() if cursor.description else []

        yield execute


@asynccontextmanager
async def blocking(made: Transactions, owned: Ownership, at: int) -> AsyncIterator[Execute]:
    block = made.begin_blocking(owned, lambda: Position(sequence_number=at))
    connection = await in_thread(block.__enter__)

    def run(statement: str, *values: object) -> list[Any]:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    async def execute(statement: str, *values: object) -> list[Any]:
        done: list[Any] = await in_thread(run, statement, *values)
        return done

    try:
        yield execute
    except Exception as error:
        if not await in_thread(block.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await in_thread(block.__exit__, None, None, None)


def with_sink() -> str:
    """The URL of a store with nothing in it, and with an empty table ``sink`` beside it."""
    url = postgres.empty_store()
    postgres.execute(url, "create table sink (n integer primary key)")
    return url


async def in_thread(*arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(*arguments)


async def member(store: PostgresStore, name: str) -> Lease:
    return await store.grant(
        holder=name, token=f"secret-{name}", group=GROUP, duration=MINUTE, info=MemberInfo()
    )


async def owner(store: PostgresStore) -> tuple[Lease, list[Ownership]]:
    await store.declare(KEYS)
    lease = await member(store, "a")
    return lease, list(await store.claim(lease, [KeyClaim(key=k, seen_epoch=0) for k in KEYS]))


async def take_over(store: PostgresStore, *, force: bool = True) -> Ownership:
    robber = await member(store, "b")
    (taken,) = await store.claim(robber, [KeyClaim(key=KEYS[0], seen_epoch=1)], force=force)
    return taken


async def stored(store: PostgresStore) -> dict[str, int]:
    found = await store.checkpoints(GROUP)
    return {key: each.position.sequence_number for key, each in found.items()}


def rows(url: str) -> list[int]:
    return [n for (n,) in postgres.execute(url, "select n from sink order by n")]  # type: ignore[misc]


def sessions(url: str, *, but: int = 0) -> list[int]:
    """The server's processes for connections of ours, as an administrator sees them."""
    found = postgres.execute(
        url,
        "select pid from pg_stat_activity where datname = current_database() "
        "and application_name = 'leasehold' and pid <> %s",
        but,
    )
    return [pid for (pid,) in found]  # type: ignore[misc]


async def run(block: Block, *steps: str | Callable[[], object]) -> None:
    """A block of statements, and of other things that happen between them."""
    async with block as execute:
        for step in steps:
            if isinstance(step, str):
                await execute(step)
            elif isawaitable(done := step()):
                await done
