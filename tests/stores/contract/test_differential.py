"""Random lives, led on the memory store and on another side by side: every answer is the same.

Versions are each store's own, and no order is promised within an answer: both are left out.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.postgres import database, stopped_clock

from leasehold.errors import LeaseLost, UnknownResource
from leasehold.model import (
    CheckpointWrite,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Note,
    Ownership,
    Position,
)
from leasehold.names import group_of
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore
from leasehold.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from leasehold.model import Changes, Resource
    from leasehold.ports import Store

    # A new store, and what tells it that time has passed.
    Opener = Callable[[ManualClock], AbstractAsyncContextManager[tuple[Store, Callable[[], None]]]]

KEYS = ("p/a/0", "p/a/1", "p/a/2", "p/b/0", "job/x")
GROUPS = sorted({*map(group_of, KEYS), ""})
OFTEN = ("claim", "renew", "pass_time", "break_", "hand_over", "grant")
SELDOM = ("release", "ask", "checkpoint", "annotate", "declare", "forget", "revoke")
OPERATORS = ("suggest", "dismiss", "reset")
# A position moves between the row of its key and a shared one only if a term has several.
WRITERS = 8 * ("checkpoint",) + ("claim", "claim", "pass_time", "release", "break_", "reset")
OFFSETS = ("", "17", "x", "5", "007", "0")
SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0, 900_000.0)
SOME, LEASES = st.integers(0, 4), range(5)


class Step(NamedTuple):
    """One call; each kind uses what it needs. ``late`` is the distance from the right epoch."""

    call: str
    me: int
    other: int
    keys: list[int]
    late: int
    odd: bool
    span: int


def steps(calls: tuple[str, ...]) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        call=st.sampled_from(calls),
        me=SOME,
        other=SOME,
        keys=st.lists(SOME, min_size=1, max_size=4),
        late=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        odd=st.sampled_from([False, False, False, True]),
        span=st.sampled_from([0, 1, 1, 2, 2, 3, 3, 4, 5]),
    )


LIVES = st.lists(steps(2 * OFTEN + SELDOM + OPERATORS), min_size=8, max_size=50)
LIVES_OF_WRITERS = st.lists(steps(WRITERS), min_size=30, max_size=60)
MANY = settings(max_examples=40, derandomize=True, database=None)
FEW = settings(MANY, max_examples=20)


async def act(store: Store, step: Step, seen: dict[str, Resource], known: dict[int, int]) -> Any:
    """Take the step as the holder ``me``; what needs an ownership is done by the owner."""
    lease = Lease(
        holder=f"h{step.me}",
        token="wrong" if step.odd else f"token-{step.me}",
        group=("p/a", "p/a", "p/b", "p/b", "")[step.me],
        duration_s=2.0 + step.me,
    )
    mine = Lease(**asdict(lease) | {"token": f"token-{step.me}"})
    keys, within = [KEYS[i] for i in step.keys], timedelta(seconds=min(SECONDS[step.span], 100))
    owned = [_owned(seen.get(key), key, lease, step) for key in keys]
    text = ("", "begun", "half done", "done", "été 🚀")[step.other]
    wanted = [KeyClaim(key=each.key, seen_epoch=each.epoch, note=text) for each in owned]
    said = text if step.late == 0 else None
    passed = [HandOver(ownership=each, to=f"h{step.other}", note=said) for each in owned]
    at = Position(sequence_number=step.other, offset=OFFSETS[step.span])
    info = MemberInfo(pid=step.span)
    asked = {"holder": lease.holder, "token": lease.token, "group": lease.group}

    async def renew() -> Changes:
        since = known.get(step.me, 0)
        told = await store.renew(mine, since=since, info=info if step.odd else None)
        known[step.me] = told.version if step.late == 0 else since  # else the answer is lost
        return told

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "declare": lambda: store.declare(keys),
        "forget": lambda: store.forget(keys),
        "grant": lambda: store.grant(**asked, duration=timedelta(seconds=2 + step.me), info=info),
        "renew": renew,
        "revoke": lambda: store.revoke(lease, lapsed=step.odd),
        "claim": lambda: store.claim(mine, wanted, force=step.odd),
        "ask": lambda: store.ask(mine, wanted[0]),
        "hand_over": lambda: store.hand_over(passed, limit=within),
        "release": lambda: store.release(owned, notes=dict.fromkeys(keys[::2], text)),
        "break_": lambda: store.break_(keys[0], epoch=wanted[0].seen_epoch, after=within),
        "checkpoint": lambda: store.checkpoint(
            [CheckpointWrite(ownership=o, position=at) for o in owned]
        ),
        "annotate": lambda: store.annotate(
            [Note(ownership=o, text=f"{text}{n}") for n, o in enumerate(owned)]
        ),
        "suggest": lambda: store.request_hand_over(
            keys[0], epoch=max(0, wanted[0].seen_epoch), to=f"h{step.other}"
        ),
        "dismiss": lambda: store.request_leave(f"h{step.other}"),
        "reset": lambda: store.reset(dict.fromkeys(keys, None if step.odd else at)),
    }
    return await calls[step.call]()


def _owned(seen: Resource | None, key: str, me: Lease, step: Step) -> Ownership:
    epoch = (seen.epoch if seen else 0) - step.late
    holder = (seen and (seen.holder or seen.handed_to)) or me.holder
    if step.call in {"claim", "ask"} or step.span == 0:
        holder = me.holder
    token = me.token if me.token == "wrong" else f"token-{holder[1:]}"
    return Ownership(key=key, epoch=epoch, holder=holder, token=token)


async def look(store: Store) -> Any:
    reads = (store.resources, store.members, store.checkpoints, store.fenced_writes)
    found: list[Any] = [await read(group) for group in GROUPS for read in reads]
    return [*found, await store.groups(), *[await store.history(key) for key in KEYS]]


def plain(answer: Any) -> Any:
    if is_dataclass(answer) and not isinstance(answer, type):
        answer = asdict(answer)
    if isinstance(answer, dict):
        return {key: plain(answer[key]) for key in sorted(answer) if key != "version"}
    if isinstance(answer, list | tuple):
        return sorted(map(plain, answer), key=repr)
    return round(answer, 6) if isinstance(answer, float) else answer


async def compare(steps: list[Step], opener: Opener) -> None:
    clock = ManualClock()
    memory, start = MemoryStore(clock), Step("declare", 0, 0, [*LEASES], 0, odd=False, span=0)
    births = [Step("grant", number, 0, [0], 0, odd=False, span=0) for number in LEASES]
    async with opener(clock) as (store, time_passed):
        lives: list[tuple[Store, dict[int, int]]] = [(memory, {}), (store, {})]
        for number, step in enumerate((start, *births, *steps)):
            if step.call == "pass_time":
                clock.advance(SECONDS[step.span])
                time_passed()
                continue
            found = [await memory.resources(group) for group in GROUPS]
            seen = {key: each for group in found for key, each in group.items()}
            answers: list[Any] = []
            for each, known in lives:
                try:
                    answers.append(await act(each, step, seen, known))
                except (LeaseLost, UnknownResource) as error:
                    answers.append(str(error))
                last = number == len(births) + len(steps)
                answers.append(await look(each) if last or number % 4 == 0 else None)
            assert plain(answers[0]) == plain(answers[2]), step
            assert plain(answers[1]) == plain(answers[3]), step


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.mark.server
@pytest.mark.spec("B7")
@FEW
@given(steps=LIVES)
def test_postgres_and_memory_answer_alike(url: str, steps: list[Step]) -> None:
    anyio.run(compare, steps, _postgres(url))


@pytest.mark.server
@pytest.mark.spec("B7")
@MANY
@given(steps=LIVES_OF_WRITERS)
def test_postgres_and_memory_keep_the_same_checkpoints(url: str, steps: list[Step]) -> None:
    anyio.run(compare, steps, _postgres(url))


def _postgres(url: str) -> Opener:
    @asynccontextmanager
    async def opener(clock: ManualClock) -> AsyncIterator[tuple[Store, Callable[[], None]]]:
        with stopped_clock(url) as set_clock:
            set_clock(clock.utc_now())
            async with open_store(url) as store:
                yield store, lambda: set_clock(clock.utc_now())

    return opener


@pytest.mark.spec("B7")
@MANY
@given(steps=LIVES)
def test_sqlite_and_memory_answer_alike(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    path: Path = tmp_path_factory.mktemp("sqlite")

    @asynccontextmanager
    async def opener(clock: ManualClock) -> AsyncIterator[tuple[Store, Callable[[], None]]]:
        async with open_store(f"sqlite:///{path}/leases.db", clock=clock) as store:
            yield store, lambda: None

    anyio.run(compare, steps, opener)
