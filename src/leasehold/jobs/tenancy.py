"""The keys that are held under the lease of the moment, and what each renewal says of them.

A key that was held and has to be given up is told once to ``on_lost``. What the store says is ours
and nobody knows of is owed: it will be given back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from leasehold.core.lease_timing import CLOCK_RATE_ERROR
from leasehold.jobs.bunch import Bunch
from leasehold.jobs.holding import Ground, Holding
from leasehold.model import Ownership, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leasehold.model import Changes, Resource

log = logging.getLogger("leasehold.jobs")


class Tenancy:
    """One lease at a time, and its keys. It hears what becomes of the lease (see ``Hears``)."""

    def __init__(
        self,
        ground: Ground,
        *,
        on_lost: Callable[[str, str], None],
        on_asked: Callable[[str, str | None], None],
        on_owed: Callable[[], None],
    ) -> None:
        """Hold nothing yet. ``on_owed``: a renewal found something that is to be given back."""
        self.keys = Bunch()
        self.holding = Holding(ground)
        self.abroad: dict[str, Resource] = {}  # keys of other groups, as last seen
        self.claiming: frozenset[str] = frozenset()
        self.news = anyio.Event()
        self._ground, self._clock = ground, ground.clock
        self._on_lost, self._on_asked, self._on_owed = on_lost, on_asked, on_owed
        self._questions: dict[str, tuple[int, str | None]] = {}  # in which epoch, by whom

    def begin_anew(self) -> None:
        """The lease is over for good: another holder takes our place."""
        self.holding = Holding(self._ground)
        self._questions.clear()

    def resource(self, key: str) -> Resource | None:
        """A key as it was last seen; None if it was not."""
        seen, abroad = self.holding.view.resources.get(key), self.abroad.get(key)
        if seen is None or abroad is None:
            return seen or abroad
        return max(seen, abroad, key=lambda each: each.version)

    def remaining_s(self, key: str) -> float:
        """How long until the work on it must have stopped, if no renewal succeeds any more."""
        gone = self.keys.gone.get(key)
        if gone is not None:
            return max(0.0, gone.until_s - self._clock.boottime_s())
        return self.holding.remaining_s() if key in self.keys.held else 0.0

    def renewed(self, holding: Holding, changes: Changes, sent_s: float, /) -> None:
        """See ``Hears``."""
        held, now_s = self.keys.held, self._clock.boottime_s()
        for term in changes.ended:
            mine = held.get(term.key)
            if mine is not None and mine.epoch == term.epoch:
                self.lose(term.key, term.reason.value if term.reason else "lost", now_s)
        for resource in changes.resources:
            if resource.key not in self.claiming:
                self._look_for_stray(holding, resource)
            mine = held.get(resource.key)
            if mine is not None and resource.epoch >= mine.epoch:  # else it was not ours yet
                self._judge(holding, resource, sent_s)
        if any(peer.holder == holding.holder and peer.dismissed for peer in changes.peers):
            self._ask("", 0, None)
        if self.keys.owed:
            self._on_owed()
        if changes.resources or changes.peers or changes.ended:
            self.news.set()
            self.news = anyio.Event()

    def _judge(self, holding: Holding, resource: Resource, sent_s: float) -> None:
        """What the news of a key that is held mean for it."""
        if resource.holder != holding.holder:
            self.lose(resource.key, "lost", self._clock.boottime_s())
        elif resource.state is State.BREAKING and resource.breaking_s is not None:
            # Counted from the moment of asking, and short of a clock that runs slow.
            until_s = sent_s + resource.breaking_s * (1 - CLOCK_RATE_ERROR)
            self.lose(resource.key, "broken", min(until_s, holding.trusted_until_s))
        elif resource.asked_by is not None:
            self._ask(resource.key, resource.epoch, resource.asked_by)

    def lost(self, holding: Holding, reason: str, until_s: float, /) -> None:
        """See ``Hears``."""
        if holding is not self.holding:
            return
        holding.end(reason, until_s=until_s)
        for key in tuple(self.keys.held):
            self.lose(key, reason, until_s)

    def in_doubt(self, holding: Holding, keys: Iterable[str]) -> None:
        """A claim of these got no answer; a renewal may have seen already that it succeeded."""
        for resource in filter(None, map(self.resource, keys)):
            self._look_for_stray(holding, resource)

    def _look_for_stray(self, holding: Holding, resource: Resource) -> None:
        lease = holding.lease
        if lease is not None and resource.holder == lease.holder:
            proof = Ownership(
                key=resource.key, epoch=resource.epoch, holder=lease.holder, token=lease.token
            )
            self.keys.stray(resource, proof)

    def lose(self, key: str, reason: str, until_s: float) -> None:
        """It is held no more, which is told; nothing if it was not."""
        if not self.keys.lose(key, until_s=until_s):
            return
        self._questions.pop(key, None)
        log.warning("%s: %s is lost (%s): stop the work on it", self.holding.holder, key, reason)
        try:
            self._on_lost(key, reason)
        except Exception:
            log.exception("a listener of a keyring failed")

    def _ask(self, key: str, epoch: int, by: str | None) -> None:
        """Pass a question on, once for each reservation."""
        if self._questions.get(key) == (epoch, by):
            return
        self._questions[key] = epoch, by
        try:
            self._on_asked(key, by)
        except Exception:
            log.exception("a listener of a keyring failed")
