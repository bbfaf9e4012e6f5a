"""Telling the store of keys that are given back: kept for one holder, or free for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.model import HandOver

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from leasehold.jobs.bunch import Owed
    from leasehold.jobs.holding import Holding
    from leasehold.ports import Store


async def settle(
    store: Store, owed: Collection[Owed], *, limit: timedelta, holding: Holding
) -> None:
    """Hand over what is to be kept for somebody, for so long at most, and release the rest.

    What can not be handed over is released. All of it may be said again.

    Raises:
        StoreUnavailable: no answer: unknown.
    """
    passed = [
        HandOver(ownership=each.proof, to=each.to, note=each.note or None)
        for each in owed
        if each.to is not None
    ]
    kept: Collection[str] = ()
    if passed:
        kept = await holding.call("hand_over", store.hand_over(passed, limit=limit))
    rest = [each for each in owed if each.proof.key not in kept]
    if rest:
        notes = {each.proof.key: each.note for each in rest if each.note}
        answer = store.release([each.proof for each in rest], notes=notes or None)
        await holding.call("release", answer)
