"""What a member believes it owns, and the order in which belief begins and ends.

A key is in exactly one of these places, and moves only forward::

    (nothing) ──open──> held ──drain──> held, draining ──> leaving ──settled──> (nothing)
                          └─────────────── close ────────────────────────────────^

A key that was only kept for this member goes to ``leaving`` directly, when it is passed on.

``held``: believed, while the trust window lasts. ``draining``: still held, its work is stopping.
``leaving``: not believed any more; the message that gives it up is to be sent, and sent again
until the store's own word shows that it has arrived. No epoch comes back from there.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.model import Ownership
    from leasehold.ports import Keeper


log = logging.getLogger("leasehold.member")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """An ownership to be given up, to a holder or, without one, to anybody.

    ``in_order``: its work was stopped in good order, and its last position stored.
    """

    ownership: Ownership
    to: str | None
    in_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drain:
    to: str | None
    until_s: float


class Holdings:
    """The keys of one lease. Tells the keeper of each change, exactly once."""

    def __init__(self, keeper: Keeper) -> None:
        """Hold nothing."""
        self._keeper = keeper
        self._held: dict[str, Ownership] = {}
        self._drains: dict[str, _Drain] = {}
        self._leaving: dict[str, Leaving] = {}

    @property
    def held(self) -> Mapping[str, Ownership]:
        """What is believed, if the trust window lasts."""
        return self._held

    @property
    def leaving(self) -> Mapping[str, Leaving]:
        """What is to be given up."""
        return self._leaving

    @property
    def empty(self) -> bool:
        """Whether nothing is held and nothing is left to be given up."""
        return not self._held and not self._leaving

    def open(self, ownership: Ownership) -> None:
        """Begin to believe, unless this epoch is known already."""
        known = self._held.get(ownership.key)
        if known is not None and known.epoch >= ownership.epoch:
            return
        if known is not None:
            self.close(known.key, reason="lost")
        gone = self._leaving.get(ownership.key)
        if gone is not None and gone.ownership.epoch >= ownership.epoch:
            return
        self._leaving.pop(ownership.key, None)
        self._held[ownership.key] = ownership
        log.info("owned: %s, epoch %d", ownership.key, ownership.epoch)
        self._keeper.opened(ownership)

    def close(self, key: str, *, reason: str) -> None:
        """Stop believing, and have the work stopped."""
        ownership = self._held.pop(key, None)
        self._drains.pop(key, None)
        if ownership is not None:
            log.info("closed: %s, epoch %d (%s)", key, ownership.epoch, reason)
            self._keeper.closed(ownership, reason)

    def close_held(self, *, reason: str) -> None:
        """Stop believing in everything. An error of the keeper does not keep the rest open."""
        errors: list[Exception] = []
        for key in list(self._held):
            try:
                self.close(key, reason=reason)
            except Exception as error:  # noqa: BLE001
                errors.append(error)
        if errors:
            raise errors[0]

    def close_all(self, *, reason: str) -> None:
        """Stop believing in everything, and forget what was to be given up."""
        self._leaving.clear()
        self.close_held(reason=reason)

    def drain(self, key: str, *, to: str | None, until_s: float) -> None:
        """Stop the work on a key in good order, then give it up.

        A key that is stopping already only gets its time shortened: a break may come while a
        hand-over is under way.
        """
        ownership, begun = self._held.get(key), self._drains.get(key)
        if ownership is None:
            return
        if begun is not None:
            self._drains[key] = _Drain(to=begun.to, until_s=min(until_s, begun.until_s))
            return
        self._drains[key] = _Drain(to=to, until_s=until_s)
        if self._keeper.drain(ownership):
            self.drained(ownership)

    def drained(self, ownership: Ownership, *, reason: str | None = None) -> None:
        """The work under this ownership has stopped: stop believing, and give it up."""
        drain = self._drains.get(ownership.key)
        if drain is not None and self._held.get(ownership.key) == ownership:
            self.close(ownership.key, reason=reason or ("handed over" if drain.to else "released"))
            self.give_up(ownership, to=drain.to, in_order=reason is None)

    def believed(self, key: str, now_s: float) -> Ownership | None:
        """The ownership of a key, unless the time to stop its work is over."""
        drain = self._drains.get(key)
        return None if drain and drain.until_s <= now_s else self._held.get(key)

    def all_believed(self, now_s: float) -> list[Ownership]:
        """All ownerships but those whose time to stop is over."""
        late = set(self.overdue(now_s))
        return [each for key, each in list(self._held.items()) if key not in late]

    def overdue(self, now_s: float) -> list[str]:
        """Keys whose work did not stop in time."""
        # Asked from other threads too: the list is made in one step.
        return [key for key, drain in list(self._drains.items()) if drain.until_s <= now_s]

    def force_overdue(self, now_s: float) -> None:
        """Stop by force what did not stop in time, and give it up."""
        for key in self.overdue(now_s):
            self.drained(self._held[key], reason="drain limit")

    def next_deadline_s(self) -> float:
        """When the next key must have stopped."""
        return min((drain.until_s for drain in self._drains.values()), default=math.inf)

    def give_up(self, ownership: Ownership, *, to: str | None, in_order: bool = False) -> None:
        """Have the message sent that ends this ownership."""
        self._leaving[ownership.key] = Leaving(ownership=ownership, to=to, in_order=in_order)

    def settled(self, key: str, *, epoch: int) -> None:
        """The store's word: this epoch has ended."""
        leaving = self._leaving.get(key)
        if leaving is not None and leaving.ownership.epoch <= epoch:
            del self._leaving[key]
