"""How much write-ahead log PostgreSQL writes for checkpoints, beside a row of its own for each key.

Each member writes the positions of its keys in one call, once in a round. A round is measured
right after a checkpoint of the server, when whole pages are logged, and some are without. An hour
has twelve of the first (``checkpoint_timeout`` is 5 minutes) and one of the others in each of the
other seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
from bench import databases
from bench.report import Bar, Row, cost

from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Position
from leasehold.names import partition_group, partition_key
from leasehold.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasehold.model import Ownership
    from leasehold.ports import Store

_HOUR = timedelta(hours=1)
_SERVER_CHECKPOINTS = 12
_ROUNDS_PER_HOUR = 3600
# The first writes the rows of the keys, the second moves them to shared rows.
_WARM_UP = 3
_WRITTEN = "select pg_current_wal_insert_lsn() - '0/0'"
_PLAIN = Path(__file__).with_name("write_ahead.sql")
_BAR = Bar(words="<= 2.6 GB", most=2.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """So many members with so many keys each; ``rounds`` without a checkpoint of the server."""

    members: int
    keys: int
    rounds: int

    @property
    def size(self) -> int:
        return self.members * self.keys

    def names(self, member: int) -> list[str]:
        first = member * self.keys
        return [partition_key("hub", "group", f"{first + n:06}") for n in range(self.keys)]


def rows(group: Group) -> list[Row]:
    with databases.postgres() as place:
        return anyio.run(_measured, place.url, group)


async def _measured(url: str, group: Group) -> list[Row]:
    async with open_store(url) as store:
        owned = [await _joined(store, group, member) for member in range(group.members)]

        async def ours(number: int) -> None:
            for each in owned:
                await store.checkpoint([_write(own, n, number) for n, own in enumerate(each)])

        shared = await _per_hour_gb(url, group, ours)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        statements = _PLAIN.read_text(encoding="utf-8").split(";")
        for statement in statements[:-2]:
            await connection.execute(statement.encode())
        await connection.execute(
            b"insert into plain.lease select generate_series(1, %(n)s)::text", {"n": group.members}
        )

        async def plain(number: int) -> None:
            for member in range(group.members):
                values: dict[str, Any] = {
                    "holder": str(member + 1),
                    "keys": group.names(member),
                    "grp": partition_group("hub", "group"),
                    "sequences": [1_000 * number + n for n in range(group.keys)],
                    "offsets": [str(123_456 * number + n) for n in range(group.keys)],
                }
                await connection.execute(statements[-2].encode(), values)

        single = await _per_hour_gb(url, group, plain)
    what = f"postgres: write-ahead log, {group.size:,} checkpoints a second"
    size = f"{group.members:,} calls of {group.keys}"
    return [
        cost(f"{what}, {size}: GB per hour", shared.hour_gb, bar=_BAR),
        cost(f"{what}, a row for each: GB per hour", single.hour_gb),
        cost("postgres: write-ahead log of a checkpoint: bytes", shared.bytes_each),
        cost("postgres: the same with a row for each: bytes", single.bytes_each),
    ]


@dataclass(frozen=True, slots=True)
class _Written:
    hour_gb: float
    bytes_each: float


async def _joined(store: Store, group: Group, number: int) -> Sequence[Ownership]:
    keys = group.names(number)
    await store.declare(keys)
    lease = await store.grant(
        holder=f"member-{number:06}",
        token=f"token of {number}",
        group=partition_group("hub", "group"),
        duration=_HOUR,
        info=MemberInfo(),
    )
    return await store.claim(lease, [KeyClaim(key=key, seen_epoch=0) for key in keys])


def _write(own: Ownership, n: int, number: int) -> CheckpointWrite:
    position = Position(sequence_number=1_000 * number + n, offset=str(123_456 * number + n))
    return CheckpointWrite(ownership=own, position=position)


async def _per_hour_gb(
    url: str, group: Group, write_all: Callable[[int], Awaitable[None]]
) -> _Written:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def round_bytes(number: int) -> int:
            before = await _number(connection, _WRITTEN)
            await write_all(number)
            return await _number(connection, _WRITTEN) - before

        for number in range(_WARM_UP):
            await write_all(number)
        await connection.execute("checkpoint")
        first = await round_bytes(_WARM_UP)
        quiet = median([await round_bytes(_WARM_UP + 1 + n) for n in range(group.rounds)])
    hour = _SERVER_CHECKPOINTS * first + (_ROUNDS_PER_HOUR - _SERVER_CHECKPOINTS) * quiet
    return _Written(hour_gb=hour / 1e9, bytes_each=quiet / group.size)


async def _number(connection: psycopg.AsyncConnection, query: str) -> int:
    row = await (await connection.execute(query.encode())).fetchone()
    assert row
    return int(row[0])
