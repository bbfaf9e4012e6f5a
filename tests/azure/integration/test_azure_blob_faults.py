"""The Azure Blob store under bad luck: pauses, late writes, broken leases, odd answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
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

from leasehold.azure.blob_store import AzureBlobStore, document_cache
from leasehold.azure.blob_store.container import OK
from leasehold.azure.blob_store.http import HttpResponse
from leasehold.azure.blob_store.naming import LeaseLocation, lease_id
from leasehold.errors import LeaseLost, StoreUnavailable, StoreUnusable
from leasehold.model import EndReason, KeyClaim, Lease, MemberInfo, State

pytestmark = [pytest.mark.anyio, pytest.mark.server]


@pytest.fixture
def url() -> str:
    return shared_azurite().new_store_url()


def renewed(store: AzureBlobStore, lease: Lease) -> bool:
    """Renew the blob's lease itself: its holder hears of nothing."""
    blob = LeaseLocation.of(lease.group, lease.holder).holder_blob(lease.holder)
    return store._container.lease(blob, "renew", NEVER, lease_id=lease_id(lease.token)).status == OK


# ------------------------------------------------------------------ when a break is due


@pytest.mark.spec("L5")
async def test_a_break_after_a_whole_lease_lasts_a_whole_lease() -> None:
    """Its owner may have renewed a moment before, and believes in it for all that time."""
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        lease = await granted(store, duration=LEASE)
        (mine,) = await owned(store, lease, 1)
        assert await store.break_(mine.key, epoch=1, after=LEASE)
        world.pass_time(14.5)
        assert renewed(store, lease)
        assert (await store.resources(GROUP))[mine.key].state is State.BREAKING
        other = await granted(store, "other")
        assert not await store.claim(other, [KeyClaim(key=mine.key, seen_epoch=1)])
        world.pass_time(2.5)
        assert await store.claim(other, [KeyClaim(key=mine.key, seen_epoch=1)])


@pytest.mark.spec("L5")
@pytest.mark.parametrize("again", [False, True], ids=["once", "and again"])
async def test_a_break_that_is_written_late_does_not_come_early(again: bool) -> None:
    """Who orders it is paused before the write; meanwhile the owner renews, and hears nothing."""
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store, opened(world.url, world.clock) as other:
        lease = await granted(store, duration=LEASE)
        (mine,) = await owned(store, lease, 1)
        watcher = await granted(other, "watcher")
        real = store._container.put

        def late(name: str, body: bytes, **named: object) -> str | None:
            for _ in range(2):
                world.pass_time(10)
                assert renewed(store, lease)
                assert renewed(store, watcher)
            return real(name, body, **named)  # type: ignore[arg-type]

        with patch.object(store._container, "put", late):
            assert await store.break_(mine.key, epoch=1, after=LEASE)
        if again:
            assert await other.break_(mine.key, epoch=1, after=LEASE)
        assert not await other.claim(watcher, [KeyClaim(key=mine.key, seen_epoch=1)])
        changes = [each for each in (await store.renew(lease)).resources if each.key == mine.key]
        assert changes[0].breaking_s is not None
        assert 13.0 <= changes[0].breaking_s <= 15.0
        world.pass_time(14.5)
        assert not await other.claim(watcher, [KeyClaim(key=mine.key, seen_epoch=1)])
        assert renewed(store, lease)
        world.pass_time(2.5)
        assert await other.claim(watcher, [KeyClaim(key=mine.key, seen_epoch=1)])
        assert (await other.history(mine.key))[1].reason is EndReason.BROKEN


async def test_a_second_break_only_shortens_and_a_later_write_keeps_the_first() -> None:
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        lease = await granted(store)
        (mine,) = await owned(store, lease, 1)
        shown = []
        for after_s in (30, 50, 20, 40):
            await store.break_(mine.key, epoch=1, after=timedelta(seconds=after_s))
            await store.declare([f"{GROUP}/new {after_s}"])
            shown.append((await store.resources(GROUP))[mine.key].breaking_s)
        assert shown == [30.0, 30.0, 20.0, 20.0]


async def test_without_the_service_s_time_nothing_is_begun(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        (mine,) = await owned(store, lease, 1)
        with (
            patch.object(document_cache, "service_time_now", lambda *_: None),
            pytest.raises(StoreUnavailable, match="what time it is"),
        ):
            await store.break_(mine.key, epoch=1, after=LEASE)
        assert (await store.resources(GROUP))[mine.key].state is State.LEASED


# ------------------------------------------------------------------ leases


async def test_a_lease_that_the_document_has_ended_is_not_kept_alive_by_renewals() -> None:
    """Its blob may still be there, because who revoked it was cut off."""
    world = ManualTimeScene()
    async with opened(world.url, world.clock) as store:
        lease = await granted(store, duration=LEASE)
        with (
            patch.object(store._container, "delete", _unavailable),
            pytest.raises(StoreUnavailable),
        ):
            await store.revoke(lease)
        world.pass_time(10)
        with pytest.raises(LeaseLost):
            await store.renew(lease)
        world.pass_time(5)
        listed = store._container.list(LeaseLocation(GROUP).path, NEVER)
        assert not any(blob.locked for blob in listed.values())


async def test_a_grant_is_not_repeated_on_a_lease_that_was_broken_past_the_store(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        blob = LeaseLocation(GROUP).holder_blob(lease.holder)
        store._container.lease(blob, "break", NEVER, lease_break_period=60)
        with pytest.raises(LeaseLost) as caught:
            await granted(store)
        assert caught.value.reason == EndReason.BROKEN.value


async def test_a_call_that_was_given_up_sends_nothing_more(url: str) -> None:
    """A grant that goes on behind its caller's back could bring a dead lease to life."""
    async with opened(url) as store:
        cancelled, before = threading.Event(), store.http_client.calls
        cancelled.set()
        lease = Lease(holder="late", token="t", group=GROUP, duration_s=15.0)
        with pytest.raises(StoreUnavailable, match="given up"):
            store._leases.grant(lease, MemberInfo(), cancelled)
        assert store.http_client.calls == before


async def test_a_guest_does_not_make_the_document_grow_for_ever(url: str) -> None:
    async with opened(url) as store:
        lease = await store.grant(
            holder="worker", token="t", group="", duration=timedelta(seconds=60), info=MemberInfo()
        )
        await store.declare(["job/a"])
        sizes, version = [], 0
        for epoch in range(24):
            (mine,) = await store.claim(lease, [KeyClaim(key="job/a", seen_epoch=epoch)])
            await store.release([mine])
            changes = await store.renew(lease, since=version)
            assert [term.epoch for term in changes.ended] == [epoch + 1]
            version = changes.version
            document = store._cache.read(
                LeaseLocation("job"), lambda context: context.document, NEVER
            )
            row = document.lease_row("worker")
            assert row is not None
            sizes.append(len(row.ended_terms))
        assert max(sizes) <= 2


# ------------------------------------------------------------------ answers


def _unavailable(*_args: object, **_named: object) -> bool:
    raise StoreUnavailable("the line is dead")


def _changed(store: AzureBlobStore, **more: str) -> Callable[..., HttpResponse]:
    """As ``Wire.request``, with more in the query of each listing."""
    real = store.http_client.request

    def ask(method: str, path: str, **named: object) -> HttpResponse:
        query = dict(named.pop("query", None) or {})  # type: ignore[call-overload]
        if query.get("comp") == "list":
            query |= more
        return real(method, path, query=query, **named)  # type: ignore[arg-type]

    return ask


async def test_a_listing_of_many_pages_is_read_whole(url: str) -> None:
    async with opened(url) as store:
        names = [f"höst {number} / 100% & <more>" for number in range(5)]
        with patch.object(store.http_client, "request", _changed(store, maxresults="2")):
            leases = [await granted(store, name) for name in names]
            assert set(await store.members(GROUP)) == set(names)
            (mine,) = await owned(store, leases[-1], 1)
            for lease in leases:
                members = (await store.renew(lease)).members
                assert {each.holder for each in members if each.alive} == set(names)
            assert (await store.resources(GROUP))[mine.key].state is State.LEASED
            assert await store.groups() == [GROUP]


async def test_a_listing_that_is_none_is_said_to_be_so(url: str) -> None:
    async with opened(url) as store:
        real = store.http_client.request

        def ask(method: str, path: str, **named: object) -> HttpResponse:
            answer = real(method, path, **named)  # type: ignore[arg-type]
            return replace(answer, body=b"<html>Please log in<br></html>")

        with (
            patch.object(store.http_client, "request", ask),
            pytest.raises(StoreUnusable, match="makes no sense"),
        ):
            await store.groups()


async def test_books_without_metadata_are_passed_over_by_searches(url: str) -> None:
    async with opened(url) as store:
        await granted(store)
        await store.declare([*keys(1), "job/nightly"])
        document = LeaseLocation(GROUP).document_blob
        found = store._container.get(document, NEVER)
        assert found is not None
        store._container.put(document, found.body, etag=found.etag, metadata={}, cancelled=NEVER)
        assert await store.groups() == ["job"]
        assert not await store.request_leave("host")
        assert set(await store.resources(GROUP)) == set(keys(1))
