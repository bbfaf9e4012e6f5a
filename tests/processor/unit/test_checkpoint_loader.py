"""Where a partition resumes is read after its claim: a read that began before does not count."""

from __future__ import annotations

import random
from collections.abc import Mapping

import anyio
import pytest
from tests.processor.simulation.pump_mutants import joins_a_read_in_progress

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable
from leasehold.model import Checkpoint, Position
from leasehold.processor.checkpoint_writer import CheckpointLoader

pytestmark = pytest.mark.anyio
KEYS = ("a", "b", "c")


class Reads:
    """A store whose n-th read shows position n in all keys, and is answered when it is told to."""

    def __init__(self, *, fails: int = 0) -> None:
        self.began = [anyio.Event() for _ in range(9)]
        self.may_answer = [anyio.Event() for _ in range(9)]
        self.count = 0
        self._fails = fails

    async def load(self) -> Mapping[str, Checkpoint]:
        number = self.count
        self.count += 1
        self.began[number].set()
        await self.may_answer[number].wait()
        if number < self._fails:
            raise StoreUnavailable("no answer")
        at, now = Position(sequence_number=number), SystemClock().utc_now()
        return {key: Checkpoint(key=key, epoch=1, position=at, updated_at=now) for key in KEYS}


async def _claims_while_a_read_is_in_progress(*, fails: int = 0) -> tuple[Reads, dict[str, int]]:
    """Claim ``a``; while its checkpoint is read, claim ``b`` and ``c``. Return what each found."""
    reads, found = Reads(fails=fails), dict[str, int]()
    loader = CheckpointLoader(reads.load, clock=SystemClock(), rng=random.Random(0))

    async def claimed(key: str) -> None:
        checkpoint = await loader.checkpoint(key)
        assert checkpoint is not None
        found[key] = checkpoint.position.sequence_number

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claimed, "a")
            await reads.began[0].wait()
            tasks.start_soon(claimed, "b")
            tasks.start_soon(claimed, "c")
            await anyio.wait_all_tasks_blocked()
            for each in reads.may_answer:
                each.set()
    return reads, found


@pytest.mark.spec("C3")
async def test_a_partition_that_is_claimed_during_a_read_waits_for_the_next_one() -> None:
    reads, found = await _claims_while_a_read_is_in_progress()
    assert found == {"a": 0, "b": 1, "c": 1}
    assert reads.count == 2  # those that were claimed together share a read


@pytest.mark.spec("C3")
async def test_a_read_that_is_repeated_counts_from_its_last_beginning_only_for_its_own() -> None:
    """After a read without an answer the later claims still get one of their own."""
    reads, found = await _claims_while_a_read_is_in_progress(fails=1)
    assert found == {"a": 1, "b": 2, "c": 2}
    assert reads.count == 3


@pytest.mark.spec("C3", "B9")
async def test_a_claim_that_joins_a_read_in_progress_is_found_out() -> None:
    with joins_a_read_in_progress.in_place():
        _, found = await _claims_while_a_read_is_in_progress()
    assert found == {"a": 0, "b": 0, "c": 0}
