"""What this process knows by itself of the leases that it has asked for.

A blob lease that was granted or renewed runs for its duration from a moment after the request was
sent. Until then, less a part for a clock that runs slow, nobody need be asked whether it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.core.lease_timing import CLOCK_RATE_ERROR
from leasehold.stores.azure_blob.naming import token_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.clock import Clock

_MOST = 10_000


class Proofs:
    """By holder: under which token, and until when."""

    def __init__(self, clock: Clock) -> None:
        """Know nothing."""
        self._clock = clock
        self._until: dict[str, tuple[str, float]] = {}

    def note(self, holder: str, token: str, *, sent_s: float, duration_s: float) -> None:
        """The service has said yes to a request that was sent at that moment."""
        if len(self._until) >= _MOST:
            self._until.clear()
        until_s = sent_s + duration_s * (1 - CLOCK_RATE_ERROR)
        self._until[holder] = (token_digest(token), until_s)

    def drop(self, holder: str) -> None:
        """Know nothing of it any more."""
        self._until.pop(holder, None)

    def of(self, shown: Iterable[tuple[str, str]]) -> set[str]:
        """Of (holder, token) the holders whose lease is known to run."""
        now_s, known = self._clock.boottime_s(), set()
        for holder, token in set(shown):
            found = self._until.get(holder)
            if found and found[1] > now_s and found[0] == token_digest(token):
                known.add(holder)
        return known
