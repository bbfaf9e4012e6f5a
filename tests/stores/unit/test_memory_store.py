"""The memory store from several threads: one step at a time, whoever calls."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasehold.clock import SystemClock
from leasehold.model import CheckpointWrite, EndReason, KeyClaim, MemberInfo, Position
from leasehold.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUP = "partition/stream/group"
KEYS = [f"{GROUP}/{number}" for number in range(3)]
THREADS, ROUNDS = 4, 120


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    """Let threads change places as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _in_threads(work: Callable[[int], None]) -> None:
    """Run it in all threads at once; the first error of any is raised here."""
    start, errors = threading.Barrier(THREADS), list[BaseException]()

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


@pytest.mark.spec("B7")
@pytest.mark.usefixtures("_eager_threads")
def test_members_in_several_threads_never_get_the_same_epoch() -> None:
    store = MemoryStore(SystemClock())
    won: list[tuple[str, int]] = []

    async def live(number: int) -> None:
        lease = await store.grant(
            holder=f"h{number}",
            token=f"t{number}",
            group=GROUP,
            duration=timedelta(minutes=5),
            info=MemberInfo(),
        )
        since = 0
        for turn in range(ROUNDS):
            since = (await store.renew(lease, since=since, info=MemberInfo(pid=turn))).version
            seen = await store.resources(GROUP)
            wanted = [KeyClaim(key=key, seen_epoch=seen[key].epoch) for key in KEYS]
            taken = await store.claim(lease, wanted)
            won.extend((each.key, each.epoch) for each in taken)
            at = Position(sequence_number=0)
            assert not await store.checkpoint(
                [CheckpointWrite(ownership=each, position=at) for each in taken]
            )
            assert list(await store.release(taken)) == [each.key for each in taken]

    asyncio.run(store.declare(KEYS))
    _in_threads(lambda number: asyncio.run(live(number)))
    assert len(won) == len(set(won)) > 0
    for key in KEYS:
        epochs = sorted(epoch for each, epoch in won if each == key)
        assert epochs == list(range(1, len(epochs) + 1))


@pytest.mark.spec("B7")
@pytest.mark.usefixtures("_eager_threads")
def test_readers_and_operators_do_not_trip_over_writers() -> None:
    store = MemoryStore(SystemClock())

    async def live(number: int) -> None:
        for turn in range(ROUNDS):
            key = f"{GROUP}{turn % 7}/{number}-{turn}"
            await store.declare([key])
            assert f"{GROUP}{turn % 7}" in await store.groups()
            assert await store.reset({key: Position(sequence_number=turn)}) == {}
            assert key in await store.checkpoints(f"{GROUP}{turn % 7}")
            (term,) = await store.history(key)
            assert term.reason is EndReason.RESET

    _in_threads(lambda number: asyncio.run(live(number)))
    found = [len(asyncio.run(store.resources(f"{GROUP}{number}"))) for number in range(7)]
    assert sum(found) == THREADS * ROUNDS
