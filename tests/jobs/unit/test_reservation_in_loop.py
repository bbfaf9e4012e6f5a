"""Reservations whose answer is lost, or which nobody waits for any more. On simulated time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from leasehold.errors import StoreUnavailable
from leasehold.jobs import AsyncReservation, Done, Held, Outcome, try_reserve_async
from leasehold.jobs.run_log import log_entries
from leasehold.model import CheckpointWrite, KeyClaim, Lease, Ownership, Refusal
from leasehold.names import job_key
from leasehold.runtime.loop_thread import SameLoop
from leasehold.stores.registry import Registry
from leasehold.testing.sim.faults import NO_FAULTS
from leasehold.testing.sim.host import START, Host, HostClock
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.store import SimServer, SimStore

KEY = job_key("nightly")


def host(name: str) -> Host:
    return Host(name, rng=random.Random(name), rates=NO_FAULTS)


async def try_nightly(store: SimStore) -> AsyncReservation | Held | Done:
    return await try_reserve_async(
        "nightly",
        store=store,
        occurrence=START,
        clock=HostClock(store.host),
        rng=store.host.rng,
        sides=SameLoop,
        identity=store.host.new_identity,
    )


def play(story: Callable[[SimServer], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        await story(SimServer(Registry()))

    run_simulated(main())


def outcomes(server: SimServer) -> list[Outcome | None]:
    return [each.outcome for each in log_entries(server.registry.history(KEY, 10))]


@pytest.mark.spec("J2", "J5")
def test_a_reservation_in_the_loop_of_the_caller_is_renewed_and_released() -> None:
    async def story(server: SimServer) -> None:
        store = SimStore(server, host("one"))
        answer = await try_nightly(store)
        assert isinstance(answer, AsyncReservation)
        async with answer as reservation:
            await asyncio.sleep(100)
            reservation.check()
            await reservation.progress("half of it")
            assert isinstance(await try_nightly(SimStore(server, host("two"))), Held)
        assert outcomes(server) == [Outcome.OK]
        assert isinstance(await try_nightly(SimStore(server, host("three"))), Done)

    play(story)


def test_what_was_reserved_by_a_request_that_came_late_is_no_run() -> None:
    """It comes after the process has looked for it, and before its lease is ended."""

    class Late(SimStore):
        claimed: tuple[Lease, Sequence[KeyClaim]] | None = None

        async def claim(
            self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
        ) -> Sequence[Ownership]:
            del force
            self.claimed = (lease, wanted)
            raise StoreUnavailable("on its way")

        async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
            assert self.claimed is not None
            assert await super().claim(*self.claimed)
            await super().revoke(lease, lapsed=lapsed)

    async def story(server: SimServer) -> None:
        with pytest.raises(StoreUnavailable):
            await try_nightly(Late(server, host("one")))
        assert outcomes(server) == [Outcome.NO_RUN]

    play(story)


def test_an_occurrence_that_is_reserved_when_its_caller_is_called_off_is_still_open() -> None:
    class CallsOff(SimStore):
        task: asyncio.Task[object]

        async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
            refused = await super().checkpoint(marks)
            self.task.cancel()
            return refused

    async def story(server: SimServer) -> None:
        store = CallsOff(server, host("one"))
        store.task = asyncio.create_task(try_nightly(store))
        with pytest.raises(asyncio.CancelledError):
            await store.task
        await asyncio.sleep(1)
        assert outcomes(server) == [Outcome.NO_RUN]
        answer = await try_nightly(SimStore(server, host("two")))
        assert isinstance(answer, AsyncReservation)
        assert answer.attempt == 1

    play(story)
