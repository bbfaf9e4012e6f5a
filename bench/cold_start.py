"""What it costs PostgreSQL that a whole group starts within ten seconds.

The calls of each member are made in the order of their times, one after the other, without waiting
between them: it joins, renews twice with a short wait between, claims its share, and renews once in
each interval until it has learned of all claims. Answers are counted and not read. Keys that move
because members came later are not part of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import psycopg
from bench import databases
from bench.report import Bar, Row, cost

from leasehold.core.lease_timing import LeaseTiming
from leasehold.core.token_digest import token_digest
from leasehold.model import MemberInfo
from leasehold.names import partition_group, partition_key
from leasehold.stores import open_store
from leasehold.stores.postgres import migrations
from leasehold.stores.postgres.rows import to_info

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TIMING = LeaseTiming()
_JOIN_WITHIN_S = 10.0
_WAIT_FOR_OTHERS_S = 0.1 * _TIMING.renew_s
_IN_TIME = Bar(words=f"<= {_TIMING.call_s:g} s", most=_TIMING.call_s)
_SHORT = Bar(words="<= 30", most=30.0)
_HOUR_S = 3600.0
_HISTORY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """So many members that start together, each with a share of so many keys."""

    members: int
    share: int = 20

    @property
    def keys(self) -> int:
        return self.members * self.share

    def __str__(self) -> str:
        return f"{self.members:,} x {self.keys:,}"


@dataclass(slots=True)
class Costs:
    """Of all calls of a start. ``first``: bytes of the last newcomer's first answer."""

    received: int = 0
    first: int = 0
    cpu_s: float = 0.0
    longest_s: float = 0.0
    versions: list[int] = field(default_factory=list)


def rows(sizes: Sequence[Start]) -> list[Row]:
    found: list[Row] = []
    each: list[tuple[float, float]] = []
    for start in sizes:
        with databases.postgres() as place:
            costs = anyio.run(_started, place.url, start, place.cpu_clock)
        kb, cpu_ms = costs.received / start.members / 1e3, 1e3 * costs.cpu_s / start.members
        each.append((kb, cpu_ms))
        what = f"postgres: {start} start within {_JOIN_WITHIN_S:g} s"
        told = start.keys + start.members
        found += [
            cost(f"{what}: kB received by each", kb),
            cost(f"{what}: server's CPU ms for each", cpu_ms),
            cost(f"{what}: first answer, bytes per key and member", costs.first / told, bar=_SHORT),
            cost(f"{what}: longest call, seconds", costs.longest_s, bar=_IN_TIME),
        ]
    (few_kb, few_ms), (many_kb, many_ms) = each[0], each[-1]
    what = f"postgres: start, {sizes[-1]} / {sizes[0]}"
    return [
        *found,
        cost(f"{what}: bytes for each", many_kb / few_kb),
        cost(f"{what}: server's CPU for each", many_ms / few_ms),
    ]


async def _started(url: str, start: Start, cpu_clock: Callable[[], Callable[[], float]]) -> Costs:
    group = partition_group("hub", "group")
    keys = [partition_key("hub", "group", f"{n:06}") for n in range(start.keys)]
    async with open_store(url) as store:
        await store.declare(keys)
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=2)
    cpu_s, costs = cpu_clock(), Costs(versions=[0] * start.members)

    async def call(name: str, **values: object) -> list[bytes]:
        begun_s = time.perf_counter()
        cursor = await connection.execute(migrations.queries()[name], values)
        costs.longest_s = max(costs.longest_s, time.perf_counter() - begun_s)
        result = cursor.pgresult
        assert result
        row = [result.get_value(0, column) or b"" for column in range(result.nfields)]
        costs.received += sum(map(len, row))
        return row

    def me(number: int) -> dict[str, object]:
        return {"holder": f"member-{number:06}", "token": token_digest(f"token {number}")}

    async def renew(number: int) -> None:
        before = costs.received
        answer = await call("renew", **me(number), info=None)
        since = costs.versions[number]
        if int(answer[1]) != since:
            answer = await call("changes", holder=me(number)["holder"], since=since)
            costs.versions[number] = int(answer[0])
        if since == 0:
            costs.first = costs.received - before

    async def join(number: int) -> None:
        info = MemberInfo(host="worker-17.example", pid=10_000 + number)
        names: dict[str, list[str]] = {"ids": [], "names": []}
        limits = {"duration_s": _HOUR_S, "remember_s": _HOUR_S, "remember_loose_s": _HOUR_S}
        await call("grant", **me(number), group=group, info=to_info(info), **limits, **names)
        await renew(number)

    async def claim(number: int) -> None:
        await renew(number)
        share = keys[number * start.share : (number + 1) * start.share]
        wanted = {"keys": share, "seen": [0] * len(share), "notes": [""] * len(share)}
        await call("claim", **me(number), **wanted, force=False, keep=_HISTORY)

    begun_s = cpu_s() - time.process_time()
    for _, number, step in _schedule(start):
        await (join, claim, renew)[step](number)
    costs.cpu_s = cpu_s() - time.process_time() - begun_s
    await connection.close()
    return costs


def _schedule(start: Start) -> list[tuple[float, int, int]]:
    """When each member takes which step: joins, claims, renews until it has learned of all."""
    steps: list[tuple[float, int, int]] = []
    settled_s = _JOIN_WITHIN_S + _WAIT_FOR_OTHERS_S
    for number in range(start.members):
        at_s = number * _JOIN_WITHIN_S / start.members
        steps += [(at_s, number, 0), (at_s + _WAIT_FOR_OTHERS_S, number, 1)]
        while at_s <= settled_s:
            at_s += _TIMING.renew_s
            steps.append((at_s, number, 2))
    return sorted(steps)
