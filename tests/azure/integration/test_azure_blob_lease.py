"""The lease of a single blob against a real Azurite: every cell of the lease table, and the errors.

The documented behaviour of the service is the one we build for. Where Azurite differs, that is
said in ``AZURITE_DIFFERS``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import pytest
from tests.support.azurite import Azurite, shared_azurite_by_hand

from leasehold.azure import BlobLease
from leasehold.azure.blob_store.blob_lease import Blobs, open_blobs
from leasehold.core.lease_rules import COLUMNS, Move, evaluate
from leasehold.errors import FencedWrite, InvalidDuration, LeaseLost, UnknownResource
from leasehold.model import State
from leasehold.testing.clock import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.server]

A, B, C = (f"{letter * 8}-1111-4111-8111-111111111111" for letter in "abc")
LEASE, LONG = timedelta(seconds=15), timedelta(seconds=60)
AZURITE_DIFFERS = MappingProxyType(
    {(State.EXPIRED, Move.RENEW_OTHER): "it renews an expired lease whatever id is shown"}
)


@dataclass(slots=True)
class World:
    """A service whose clock is in our hands, and its blobs."""

    service: Azurite
    clock: ManualClock
    blobs: Blobs

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.set_clock(self.clock.utc_now())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    service, clock = shared_azurite_by_hand(), ManualClock()
    service.set_clock(clock.utc_now())
    async with open_blobs(service.new_store_url(), environment={}) as blobs:
        yield World(service, clock, blobs)


async def in_state(world: World, state: State, name: str, *, endless: bool = False) -> BlobLease:
    """A blob in that state; the lease it has, or had, is ``A``."""
    blob = world.blobs.lease(name)
    await blob.create(b"old")
    if state is State.AVAILABLE:
        return blob
    duration = LONG if state in {State.LEASED, State.BREAKING} else LEASE
    assert await blob.acquire(None if endless else duration, lease_id=A) == A
    if state is State.BREAKING:
        await blob.break_(after=timedelta(seconds=40))
    if state is State.BROKEN:
        await blob.break_(after=timedelta(seconds=0))
    return blob


Act = Callable[[BlobLease], Awaitable[object]]


async def _acquire(blob: BlobLease, lease_id: str = "") -> None:
    if await blob.acquire(LEASE, lease_id=lease_id) is None:
        raise LeaseLost("refused")


async def _release(blob: BlobLease, lease_id: str) -> None:
    if not await blob.release(lease_id):
        raise LeaseLost("refused")


async def _break(blob: BlobLease, after_s: float | None) -> None:
    after = None if after_s is None else timedelta(seconds=after_s)
    if await blob.break_(after=after) is None:
        raise LeaseLost("refused")


ACTS: dict[Move, Act] = {
    Move.ACQUIRE_NEW: _acquire,
    Move.ACQUIRE_SAME: lambda blob: _acquire(blob, A),
    Move.ACQUIRE_OTHER: lambda blob: _acquire(blob, B),
    Move.RENEW: lambda blob: blob.renew(A),
    Move.RENEW_OTHER: lambda blob: blob.renew(B),
    Move.CHANGE: lambda blob: blob.change(A, to=B),
    Move.CHANGE_AGAIN: lambda blob: blob.change(B, to=A),
    Move.CHANGE_OTHER: lambda blob: blob.change(B, to=C),
    Move.RELEASE: lambda blob: _release(blob, A),
    Move.RELEASE_OTHER: lambda blob: _release(blob, B),
    Move.BREAK_NOW: lambda blob: _break(blob, 0),
    Move.BREAK_AFTER: lambda blob: _break(blob, 20),
    Move.BREAK_AT_END: lambda blob: _break(blob, None),
    Move.WRITE: lambda blob: blob.write(b"new", lease_id=A),
    Move.WRITE_OTHER: lambda blob: blob.write(b"new", lease_id=B),
}


@pytest.mark.spec("L1", "L2", "L3", "L4", "L5", "L7")
@pytest.mark.parametrize("state", COLUMNS, ids=lambda state: state.value)
async def test_every_cell_of_the_table(world: World, state: State) -> None:
    blobs = {move: await in_state(world, state, f"{move.name}-{state.name}") for move in ACTS}
    if state is State.EXPIRED:
        world.pass_time(16)
    wrong = []
    for move, blob in blobs.items():
        found = await blob.read()
        assert found is not None
        assert found.state is state, move
        verdict, said = evaluate(state, move), ""
        try:
            await ACTS[move](blob)
        except LeaseLost as error:
            said = str(error)
        after = await blob.read()
        assert after is not None
        as_said = (said == "") is verdict.granted and (not said or _names(verdict.refusal, said))
        led_to = after.state is (verdict.to if verdict.granted else state)
        unwritten = verdict.granted or after.body == b"old"
        if (as_said and led_to and unwritten) is ((state, move) in AZURITE_DIFFERS):
            wrong.append(f"{move.value}: {verdict}, but {said or after.state}")
    assert not wrong, "\n".join(wrong)


def _names(refusal: object, said: str) -> bool:
    # What the class answers with None or False has no words of the service.
    return said == "refused" or str(getattr(refusal, "code", "")) in said


@pytest.mark.spec("L2")
async def test_each_acquisition_has_an_id_of_its_own(world: World) -> None:
    blob = await in_state(world, State.AVAILABLE, "ids")
    seen = set()
    for _ in range(3):
        found = await blob.acquire(LEASE)
        assert found is not None
        seen.add(found)
        assert await blob.acquire(LEASE) is None
        assert await blob.release(found)
    assert len(seen) == 3


@pytest.mark.spec("L3")
async def test_a_change_steals_the_lease_and_kills_the_old_id(world: World) -> None:
    blob = await in_state(world, State.LEASED, "stolen")
    thief = await blob.change(A)
    for late in (blob.renew(A), blob.change(A), blob.write(b"late", lease_id=A)):
        with pytest.raises(LeaseLost):
            await late
    await blob.write(b"mine", lease_id=thief, metadata={"owner": "thief"})
    found = await blob.read()
    assert found is not None
    assert (found.body, found.metadata, found.state) == (b"mine", {"owner": "thief"}, State.LEASED)


@pytest.mark.spec("L4")
async def test_a_renewal_counts_from_now(world: World) -> None:
    blob = await in_state(world, State.AVAILABLE, "renewed")
    assert await blob.acquire(LEASE, lease_id=A)
    world.pass_time(10)
    await blob.renew(A)
    world.pass_time(14.999)
    assert await blob.acquire(LEASE, lease_id=B) is None
    world.pass_time(0.001)
    assert await blob.acquire(LEASE, lease_id=B) == B
    with pytest.raises(LeaseLost):
        await blob.renew(A)


@pytest.mark.spec("L5")
async def test_a_second_break_can_only_shorten(world: World) -> None:
    blob = await in_state(world, State.LEASED, "broken")
    left = [await blob.break_(after=timedelta(seconds=seconds)) for seconds in (30, 50, 10, 30)]
    assert left == [timedelta(seconds=seconds) for seconds in (30, 30, 10, 10)]
    world.pass_time(10)
    assert await blob.acquire(LEASE) is not None


@pytest.mark.spec("L5")
async def test_an_endless_lease_ends_by_break_alone(world: World) -> None:
    blob = await in_state(world, State.LEASED, "endless", endless=True)
    world.pass_time(100_000)
    assert await blob.acquire(LEASE, lease_id=B) is None
    assert await blob.break_() == timedelta(0)
    assert await blob.acquire(LEASE, lease_id=B) == B


@pytest.mark.spec("L6")
@pytest.mark.parametrize("seconds", [0, 14, 61, 15.5, -1])
async def test_a_duration_out_of_range_names_the_range(world: World, seconds: float) -> None:
    blob = await in_state(world, State.AVAILABLE, "range")
    with pytest.raises(InvalidDuration, match=r"15 s to 60 s: say --lease 30s"):
        await blob.acquire(timedelta(seconds=seconds))
    found = await blob.read()
    assert found is not None
    assert found.state is State.AVAILABLE


@pytest.mark.spec("L7")
async def test_a_write_under_a_dead_id_changes_nothing(world: World) -> None:
    blob = await in_state(world, State.AVAILABLE, "dead")
    assert await blob.acquire(LEASE, lease_id=A)
    world.pass_time(15)
    with pytest.raises(FencedWrite, match="acquire it anew"):
        await blob.write(b"late", lease_id=A, metadata={"owner": "late"})
    found = await blob.read()
    assert found is not None
    assert (found.body, found.metadata) == (b"old", {})


async def test_what_is_not_there_is_said(world: World) -> None:
    blob = world.blobs.lease("missing")
    assert await blob.read() is None
    with pytest.raises(UnknownResource, match="missing"):
        await blob.acquire(LEASE)
    with pytest.raises(LeaseLost):
        await blob.renew(A)
    assert not await blob.release(A)
    assert await blob.break_() is None
    assert await blob.create(b"x")
    assert not await blob.create(b"y")
