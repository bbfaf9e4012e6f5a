"""The Azure Blob store on a real Azurite: calls, faults, secrets, and what is left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.azure_blob_scene import (
    GROUP,
    LEASE,
    NEVER,
    ManualTimeScene,
    granted,
    keys,
    opened,
    owned,
)
from tests.support.azurite import shared_azurite

from leasehold.azure.blob_store import AzureBlobStore, http
from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.naming import LeaseLocation, history_blob, lease_id
from leasehold.clock import SystemClock
from leasehold.errors import InvalidDuration, LeaseLost, StoreUnavailable, StoreUnusable
from leasehold.model import (
    CheckpointWrite,
    EndReason,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
    State,
)
from leasehold.processor import EventProcessor
from leasehold.stores import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.server]


@pytest.fixture
def url() -> str:
    return shared_azurite().new_store_url()


# ------------------------------------------------------------------ calls


@pytest.mark.spec("B1", "P15")
async def test_calls_do_not_grow_with_what_is_owned(url: str) -> None:
    async with opened(url) as store, opened(url) as other:
        calls = _Calls(store)
        await store.declare(keys(256))
        assert calls.since() <= 2
        lease, rival = await granted(store), await granted(other, "rival")
        version = (await store.renew(lease)).version
        calls.since()
        taken = await store.claim(lease, [KeyClaim(key=key, seen_epoch=0) for key in keys(256)])
        assert (len(taken), calls.since()) == (256, 1)
        marks = [
            CheckpointWrite(ownership=each, position=Position(sequence_number=1)) for each in taken
        ]
        assert not await store.checkpoint(marks)
        assert calls.since() == 1
        version = (await store.renew(lease, since=version)).version
        calls.since()
        for _ in range(3):
            assert not (await store.renew(lease, since=version)).resources
            assert calls.since() == 2
        assert len(await store.resources(GROUP)) == 256
        assert calls.since() == 1
        await store.release(taken)
        assert calls.since() == 1
        others = _Calls(other)
        assert len((await other.renew(rival)).resources) == 256
        assert others.since() == 3


async def test_a_thousand_keys_are_declared_by_one_write(url: str) -> None:
    async with opened(url) as store:
        calls = _Calls(store)
        assert await store.declare(keys(1000)) == 1000
        assert calls.since() <= 2


class _Calls:
    def __init__(self, store: AzureBlobStore) -> None:
        self._store, self._seen = store, store.http_client.calls

    def since(self) -> int:
        before, self._seen = self._seen, self._store.http_client.calls
        return self._seen - before


# ------------------------------------------------------------------ faults


@contextmanager
def answers_lost(method: str, *, done: bool, times: int = 1) -> Iterator[list[bytes]]:
    """The next requests of this kind break: carried out before, or never sent."""
    real, lost = http.HttpConnection.exchange, list[bytes]()

    def exchange(self: http.HttpConnection, request: bytes) -> object:
        if not request.startswith(method.encode()) or len(lost) >= times:
            return real(self, request)
        lost.append(request)
        if done:
            real(self, request)
        raise ConnectionResetError("the line is dead")

    with patch.object(http.HttpConnection, "exchange", exchange):
        yield lost


@pytest.mark.parametrize("done", [True, False], ids=["answer lost", "request lost"])
async def test_a_write_whose_answer_is_lost_is_done_once(url: str, done: bool) -> None:
    async with opened(url) as store:
        await store.declare(keys(2))
        lease = await granted(store)
        wanted = [KeyClaim(key=key, seen_epoch=0) for key in keys(2)]
        with answers_lost("PUT", done=done) as lost:
            taken = await store.claim(lease, wanted)
        assert len(lost) == 1
        assert [each.epoch for each in taken] == [1, 1]
        assert [len(await store.history(key)) for key in keys(2)] == [1, 1]
        forged = [
            CheckpointWrite(
                ownership=Ownership(key=key, epoch=9, holder="x", token="y"), position=position
            )
            for key, position in zip(keys(1), [Position(sequence_number=1)], strict=True)
        ]
        with answers_lost("PUT", done=done):
            await store.checkpoint(forged)
        assert await store.fenced_writes(GROUP) == 1


async def test_lost_answers_of_every_other_kind_are_asked_for_again(url: str) -> None:
    async with opened(url) as store:
        await store.declare(keys(1))
        for method in ("GET", "PUT"):
            with answers_lost(method, done=True):
                lease = await granted(store, f"host {method}")
            with answers_lost(method, done=True):
                await store.renew(lease)
            with answers_lost("DELETE", done=True):
                await store.revoke(lease)
            with pytest.raises(LeaseLost) as caught:
                await store.renew(lease)
            assert caught.value.reason == EndReason.RELEASED.value


async def test_a_service_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="see that the endpoint is right"):
        async with open_store("azure-blob://127.0.0.1:9/devstoreaccount1/c01?tls=0"):
            pass


async def test_a_processor_whose_lease_can_not_be_had_declares_nothing(url: str) -> None:
    class Source:
        name = "orders"

        async def partitions(self) -> list[str]:
            raise AssertionError("nothing is to be asked before the lease was checked")

        receiver = None

    source: Any = Source()
    processor = EventProcessor(source, group="billing", store=url, on_event=print)
    with pytest.raises(InvalidDuration, match=r"timedelta\(seconds=30\)"):
        await processor.start()
    async with opened(url) as store:
        assert await store.resources(GROUP) == {}
        with pytest.raises(InvalidDuration, match="10 s can not be had"):
            await EventProcessor(source, group="billing", store=store, on_event=print).start()
        store.check_lease(timedelta(seconds=30))


async def test_a_container_that_is_gone_is_said(url: str) -> None:
    from azure.storage.blob import ContainerClient

    async with opened(url) as store:
        lease = await granted(store)
        name = BlobAddress.of(url, {}).container
        connected = shared_azurite().connection_string
        with ContainerClient.from_connection_string(connected, name) as client:
            client.delete_container()
        with pytest.raises(StoreUnusable, match="is gone"):
            await store.renew(lease)


async def test_a_damaged_document_stops_its_group_and_no_other(url: str) -> None:
    async with opened(url) as store:
        await store.declare([*keys(1), "job/nightly"])
        document = LeaseLocation(GROUP).document_blob
        found = store._container.get(document, NEVER)
        assert found is not None
        store._container.put(document, b"{", etag=found.etag, metadata={}, cancelled=NEVER)
        with pytest.raises(StoreUnusable, match="damaged"):
            await store.resources(GROUP)
        assert set(await store.resources("job")) == {"job/nightly"}


# ------------------------------------------------------------------ the end of a lease


@pytest.mark.spec("L4", "L7")
async def test_a_lease_that_was_ended_can_not_be_renewed_behind_the_books_back() -> None:
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        dying = await granted(store, "dying", duration=LEASE)
        await owned(store, dying, 1)
        watcher = await granted(store, "watcher")
        world.pass_time(15)
        blob = LeaseLocation(GROUP).holder_blob("dying")
        assert (await store.resources(GROUP))[keys(1)[0]].state is State.EXPIRED
        changes = await store.renew(watcher)
        assert [each.alive for each in changes.members if each.holder == "dying"] == [False]
        late = store._container.lease(blob, "renew", NEVER, lease_id=lease_id(dying.token))
        assert late.status == 404
        with pytest.raises(LeaseLost):
            await store.renew(dying)


async def test_who_renewed_just_before_it_was_to_be_ended_lives_on() -> None:
    """The listing said that it is over, and then it was renewed: the service decides."""
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        dying = await granted(store, "dying", duration=LEASE)
        (mine,) = await owned(store, dying, 1)
        watcher = await granted(store, "watcher")
        world.pass_time(15)
        blob = LeaseLocation(GROUP).holder_blob("dying")
        real = store._container.list

        def look(path: str, cancelled: threading.Event) -> object:
            found = real(path, cancelled)
            store._container.lease(blob, "renew", NEVER, lease_id=lease_id(dying.token))
            return found

        with patch.object(store._container, "list", look):
            await store.renew(watcher)
        assert set(await store.members(GROUP)) == {"dying", "watcher"}
        assert not await store.checkpoint(
            [CheckpointWrite(ownership=mine, position=Position(sequence_number=1))]
        )


async def test_a_break_is_never_early() -> None:
    """The service tells whole seconds: the rest is on the safe side."""
    world = ManualTimeScene()
    world.pass_time(0.9)
    async with opened(world.url, world.clock) as store:
        lease = await granted(store)
        (mine,) = await owned(store, lease, 1)
        broken = await store.break_(mine.key, epoch=1, after=timedelta(seconds=20))
        assert broken is not None
        assert broken.breaking_s == 20.0
        world.pass_time(20)
        shown = (await store.resources(GROUP))[mine.key]
        assert (shown.state, shown.breaking_s) == (State.BREAKING, 0.0)
        world.pass_time(1.1)
        assert (await store.resources(GROUP))[mine.key].state is State.BROKEN


async def test_a_lease_that_an_operator_broke_past_the_store_is_lost(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        blob = LeaseLocation(GROUP).holder_blob(lease.holder)
        store._container.lease(blob, "break", NEVER, lease_break_period=60)
        with pytest.raises(LeaseLost) as caught:
            await store.renew(lease)
        assert caught.value.reason == EndReason.BROKEN.value
        store._container.lease(blob, "break", NEVER, lease_break_period=0)
        with pytest.raises(LeaseLost) as caught:
            await store.renew(lease)
        assert caught.value.reason == EndReason.EXPIRED.value


async def test_those_who_were_alone_leave_nothing_behind_for_ever() -> None:
    world = ManualTimeScene()

    async def loner(store: AzureBlobStore, name: str) -> Lease:
        return await store.grant(
            holder=name, token=name, group="", duration=LEASE, info=MemberInfo()
        )

    async with opened(world.url, world.clock) as store:
        for number in range(4):
            await loner(store, f"old {number}")
        for _ in range(2):
            world.pass_time(4000)
            await loner(store, f"new {world.clock.boottime_s()}")
        left = {name.split("/")[1] for name in store._container.list("alone/", NEVER)}
        assert len(left) == 4
        await loner(store, "last")
        left = {name.split("/")[1] for name in store._container.list("alone/", NEVER)}
        assert not [name for name in left if name.startswith("old")]


@pytest.mark.spec("P3", "L1")
@pytest.mark.parametrize("by_hand", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_a_dead_host_is_replaced(by_hand: bool) -> None:
    """By a clock in our hands, and by the service's own: that takes 15 s."""
    world = ManualTimeScene() if by_hand else None
    url, ours = (world.url, world.clock) if world else (shared_azurite().new_store_url(), None)
    clock = SystemClock()
    async with opened(url, ours) as store, opened(url, ours) as second:
        dying = await granted(store, "dying", duration=LEASE)
        sent_s = clock.boottime_s()
        (mine,) = await owned(store, dying, 1)
        watcher = await granted(second, "watcher")

        async def state() -> State:
            await second.renew(watcher)
            return (await second.resources(GROUP))[mine.key].state

        if world is not None:
            world.pass_time(14)
            assert await state() is State.LEASED
            world.pass_time(1)
            assert await state() is not State.LEASED
        else:
            while await state() is State.LEASED:
                await clock.sleep(0.2)
            assert clock.boottime_s() - sent_s > 14.0
        (taken,) = await second.claim(watcher, [KeyClaim(key=mine.key, seen_epoch=1)])
        assert taken.epoch == 2
        refused = await store.checkpoint(
            [CheckpointWrite(ownership=mine, position=Position(sequence_number=1))]
        )
        assert [each.value for each in refused.values()] == ["fenced"]
        assert (await second.history(mine.key))[1].reason is EndReason.EXPIRED


# ------------------------------------------------------------------ history


@pytest.mark.spec("B10")
async def test_old_terms_leave_the_document_and_are_found_again(url: str) -> None:
    async with opened(url) as store, opened(url) as second:
        lease = await granted(store)
        (mine,) = await owned(store, lease, 1)
        for epoch in range(1, 30):
            await store.release([mine], notes={mine.key: f"note {epoch}"})
            (mine,) = await store.claim(lease, [KeyClaim(key=mine.key, seen_epoch=epoch)])
        document = store._container.get(LeaseLocation(GROUP).document_blob, NEVER)
        assert document is not None
        assert len(json.loads(document.body)["keys"][0][4]) <= 9
        for each in (store, second):
            terms = await each.history(mine.key, limit=100)
            assert [term.epoch for term in terms] == list(range(30, 0, -1))
            assert [term.note for term in terms[1:]] == [f"note {n}" for n in range(29, 0, -1)]
            assert [term.epoch for term in await each.history(mine.key, limit=2)] == [30, 29]


async def test_a_spill_that_was_left_half_done_loses_and_doubles_nothing(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        (mine,) = await owned(store, lease, 1)
        real, failed = store._container.put, list[str]()

        def put(name: str, body: bytes, **named: object) -> str | None:
            # The history is written, and then the document of this step is not.
            if name == LeaseLocation(GROUP).document_blob and history_blob(mine.key) in failed[-1:]:
                failed.append("book")
                raise StoreUnavailable("the machine was switched off")
            failed.append(name)
            return real(name, body, **named)  # type: ignore[arg-type]

        with patch.object(store._container, "put", put):
            for epoch in range(1, 25):
                await store.release([mine])
                (mine,) = await store.claim(lease, [KeyClaim(key=mine.key, seen_epoch=epoch)])
        assert "book" in failed
        terms = await store.history(mine.key, limit=100)
        assert [term.epoch for term in terms] == list(range(25, 0, -1))
