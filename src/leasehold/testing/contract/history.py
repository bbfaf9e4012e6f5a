"""History: every term, newest first, with the reason of its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import MappingProxyType

import pytest

from leasehold.model import EndReason, Lease, Ownership, Term
from leasehold.testing.contract.store_case import LONG, ContractBase, StoreCase

End = Callable[[StoreCase, Lease, Ownership], Awaitable[object]]


async def _release(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    return await store_case.store.release([ownership])


async def _revoke_lapsed(store_case: StoreCase, lease: Lease, ownership: Ownership) -> object:
    """Give it up after the local deadline; said again, also as released, it stays ``lapsed``."""
    await store_case.store.revoke(lease, lapsed=True)
    await store_case.store.revoke(lease)
    return await store_case.store.release([ownership])


async def _expire_then_revoke_lapsed(store_case: StoreCase, lease: Lease, _: Ownership) -> object:
    await store_case.wait()
    await store_case.store.revoke(lease, lapsed=True)
    return None


async def _revoke(store_case: StoreCase, lease: Lease, _: Ownership) -> object:
    await store_case.store.revoke(lease)
    return None


async def _hand_over(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    return await store_case.hand_over(ownership, await store_case.member("receiver"))


async def _steal(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    return await store_case.own(await store_case.member("thief"), ownership.key, force=True)


async def _break(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    return await store_case.store.break_(ownership.key, epoch=ownership.epoch, after=timedelta(0))


async def _break_slowly(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    await store_case.store.break_(ownership.key, epoch=ownership.epoch, after=store_case.units(0.5))
    await store_case.wait()
    return await store_case.store.renew(await store_case.member("watcher"))


async def _expire(store_case: StoreCase, _: Lease, __: Ownership) -> object:
    await store_case.wait()
    return await store_case.store.renew(await store_case.member("watcher"))


async def _expire_then_claim(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    await store_case.wait()
    return await store_case.own(await store_case.member("next"), ownership.key)


async def _expire_then_steal(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    await store_case.wait()
    return await store_case.own(await store_case.member("thief"), ownership.key, force=True)


async def _expire_then_release(store_case: StoreCase, _: Lease, ownership: Ownership) -> object:
    await store_case.wait()
    return await store_case.store.release([ownership])


async def _expire_then_break(store_case: StoreCase, lease: Lease, ownership: Ownership) -> object:
    await store_case.wait()
    return await _break(store_case, lease, ownership)


async def _expire_then_hand_over(
    store_case: StoreCase, lease: Lease, ownership: Ownership
) -> object:
    await store_case.wait()
    await _hand_over(store_case, lease, ownership)
    return await store_case.store.renew(await store_case.member("watcher"))


async def _break_slowly_then_release(
    store_case: StoreCase, _: Lease, ownership: Ownership
) -> object:
    await store_case.store.break_(ownership.key, epoch=ownership.epoch, after=store_case.units(0.5))
    await store_case.wait()
    return await store_case.store.release([ownership])


ENDS: MappingProxyType[str, tuple[End, EndReason]] = MappingProxyType(
    {
        "release": (_release, EndReason.RELEASED),
        "revoke": (_revoke, EndReason.RELEASED),
        "revoke, lapsed": (_revoke_lapsed, EndReason.LAPSED),
        "hand over": (_hand_over, EndReason.HANDED_OVER),
        "steal": (_steal, EndReason.STOLEN),
        "break": (_break, EndReason.BROKEN),
        "break slowly": (_break_slowly, EndReason.BROKEN),
        "expire": (_expire, EndReason.EXPIRED),
        "expire, then claim": (_expire_then_claim, EndReason.EXPIRED),
        "expire, then steal": (_expire_then_steal, EndReason.EXPIRED),
        "expire, then revoke, lapsed": (_expire_then_revoke_lapsed, EndReason.EXPIRED),
        "expire, then release": (_expire_then_release, EndReason.EXPIRED),
        "expire, then break": (_expire_then_break, EndReason.EXPIRED),
        "expire, then hand over": (_expire_then_hand_over, EndReason.EXPIRED),
        "break slowly, then release": (_break_slowly_then_release, EndReason.BROKEN),
    }
)


class HistoryContract(ContractBase):
    """What has been."""

    @pytest.mark.spec("B10")
    @pytest.mark.parametrize("way", ENDS)
    async def test_the_reason_is_the_first_thing_that_ended_it(
        self, scene: StoreCase, way: str
    ) -> None:
        """What came later, when the term was over, does not change it."""
        end, reason = ENDS[way]
        units = 1 if way.startswith("expire") else LONG
        lease, ownership = await scene.owned(units=units)
        await end(scene, lease, ownership)
        assert (await scene.reasons(ownership.key))[0] is reason

    @pytest.mark.spec("B10")
    async def test_newest_first_and_complete(self, scene: StoreCase) -> None:
        """Every epoch once, none left out; the newest alone may be open."""
        (key,) = await scene.declared("k")
        leases = [await scene.member(name) for name in "abc"]
        expected = []
        for epoch in range(1, 13):
            lease = leases[epoch % 3]
            await scene.own(lease, key, force=True)
            expected.append((epoch, lease.holder))
        terms = await scene.store.history(key, limit=100)
        assert [(term.epoch, term.holder) for term in terms] == expected[::-1]
        assert [term.reason for term in terms] == [None] + [EndReason.STOLEN] * 11
        _assert_times(terms)
        assert {term.key for term in terms} == {key}

    async def test_limit(self, scene: StoreCase) -> None:
        """Ten unless asked for more or fewer; never more than there are."""
        (key,) = await scene.declared("k")
        lease = await scene.member("a")
        for _ in range(12):
            await scene.store.release([await scene.own(lease, key)])
        lengths = [len(await scene.store.history(key, limit=limit)) for limit in (1, 11, 50)]
        assert [len(await scene.store.history(key)), *lengths] == [10, 1, 11, 12]
        assert [term.epoch for term in await scene.store.history(key, limit=1)] == [12]

    async def test_nothing_of_nothing(self, scene: StoreCase) -> None:
        """A key that was never owned, or never declared, has no terms."""
        (key,) = await scene.declared("k")
        assert list(await scene.store.history(key)) == []
        assert list(await scene.store.history(scene.key("unknown"))) == []

    async def test_the_last_hundred_are_kept(self, scene: StoreCase) -> None:
        """Older ones may be dropped, so that no key grows forever."""
        (key,) = await scene.declared("k")
        lease = await scene.member("a")
        for _ in range(103):
            await scene.store.release([await scene.own(lease, key)])
        terms = await scene.store.history(key, limit=100)
        assert [term.epoch for term in terms] == list(range(103, 3, -1))
        _assert_times(terms)

    async def test_it_outlives_a_key_that_is_forgotten(self, scene: StoreCase) -> None:
        """And continues where it was when the key is declared again."""
        lease, ownership = await scene.owned()
        await scene.store.release([ownership])
        await scene.store.forget([ownership.key])
        assert await scene.reasons(ownership.key) == [EndReason.RELEASED]
        await scene.store.declare([ownership.key])
        await scene.own(lease, ownership.key)
        assert await scene.reasons(ownership.key) == [EndReason.RELEASED, None]


def _assert_times(terms: object) -> None:
    assert isinstance(terms, list | tuple)
    last: Term | None = None
    for term in reversed(terms):
        assert term.started_at.tzinfo is not None
        assert term.ended_at is None or term.ended_at >= term.started_at
        if last is not None:
            assert last.ended_at is not None
            assert last.ended_at <= term.started_at
        last = term
