"""A store that loses requests and answers, as any network may."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio.lowlevel

from leasehold.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.ports import Store

# Every method of the protocol is in one of the two; the contract suite proves it.
CHANGING = (
    "declare",
    "forget",
    "grant",
    "renew",
    "revoke",
    "claim",
    "ask",
    "hand_over",
    "release",
    "break_",
    "checkpoint",
    "annotate",
    "request_hand_over",
    "request_leave",
    "reset",
)
READING = ("groups", "checkpoints", "resources", "members", "history", "fenced_writes")


class Lost(Enum):
    """What was lost. The caller cannot distinguish the two."""

    REQUEST = "the request: the store never heard of it"
    ANSWER = "the answer: the store has done it"


class FaultyStore:
    """Passes every call on to ``store``, unless ``lose`` decides that something is lost.

    ``lose`` is called once per call, with the name of the method. Each call yields to other tasks
    before and after it is carried out, so that calls of several tasks overlap. Closing this closes
    ``store``, too.

    Use it through ``as_store``, which is the same object with the type of a store.
    """

    def __init__(self, store: Store, lose: Callable[[str], Lost | None]) -> None:
        self._store = store
        self._lose = lose

    @property
    def as_store(self) -> Store:
        """This object, typed as a store."""
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._call, name, found) if name in CHANGING + READING else found

    async def _call(
        self, name: str, method: Callable[..., Awaitable[object]], *args: object, **named: object
    ) -> object:
        lost = self._lose(name)
        await anyio.lowlevel.checkpoint()
        if lost is Lost.REQUEST:
            raise StoreUnavailable(f"{name}: the request was lost on purpose")
        answer = await method(*args, **named)
        await anyio.lowlevel.checkpoint()
        if lost is Lost.ANSWER:
            raise StoreUnavailable(f"{name}: the answer was lost on purpose")
        return answer
