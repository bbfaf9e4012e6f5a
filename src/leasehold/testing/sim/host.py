"""A simulated host: its own clock, its own pauses, and the member that runs on it.

Code on a host runs only when the host does. After every wait it passes the host's gate: while the
host is paused nothing there proceeds, though its clock does. From outside, that looks like a pause
of the real program between two statements.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from leasehold.testing.sim.loop import simulated_sleep

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from leasehold.lease.member import Member
    from leasehold.model import Ownership
    from leasehold.testing.sim.faults import FaultRates

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=UTC)
HOST: ContextVar[Host] = ContextVar("the host that runs")


class Host:
    """One process on one machine, just started."""

    def __init__(self, name: str, *, rng: random.Random, rates: FaultRates) -> None:
        error = rates.clock_rate_error
        self.name = name
        self.rates = rates
        self.rng = rng
        self.running = True
        self.member: Member | None = None
        self.key_handler: HostKeyHandler | None = None
        self.task: asyncio.Task[None] | None = None
        self.clock_rate = 1.0 + rng.uniform(-error, error)
        # Every clock shows another time, and none is right.
        self.clock_offset_s = rng.uniform(0.0, 1e6)
        self.wall_error_s = rng.uniform(-60.0, 60.0) if error else 0.0
        self._pauses_s = 0.0
        self._paused_since_s = 0.0
        self._paused_until_s = 0.0

    def pause(self, seconds: float) -> None:
        """Stop the process for a while, as SIGSTOP, a long collection or a suspend would."""
        now_s = asyncio.get_running_loop().time()
        if not self.paused:
            self._paused_since_s = now_s
        until_s = max(self._paused_until_s, now_s + seconds)
        self._pauses_s += until_s - max(self._paused_until_s, now_s)
        self._paused_until_s = until_s

    def new_identity(self) -> tuple[str, str]:
        """Return the suffix of a new holder id, and a new token."""
        return f"{self.rng.getrandbits(32):08x}", f"{self.rng.getrandbits(128):032x}"

    def locally_owned(self) -> list[Ownership]:
        """Return what the member would act upon if it ran now."""
        return self.member.held() if self.running and self.member else []

    @property
    def paused(self) -> bool:
        """Whether it is paused now."""
        return self._paused_until_s > asyncio.get_running_loop().time()

    @property
    def is_stopped(self) -> bool:
        """Whether it has been paused for some time: none of its code may run now."""
        return self.paused and self._paused_since_s < asyncio.get_running_loop().time()

    @property
    def paused_total_s(self) -> float:
        """How long it has been paused in total until now, in seconds."""
        left_s = max(0.0, self._paused_until_s - asyncio.get_running_loop().time())
        return self._pauses_s - left_s

    async def gate(self) -> None:
        """Wait until the host runs; at random, pause it here."""
        if self.rates.pause and self.rng.random() < self.rates.pause:
            self.pause(self.rng.uniform(0.0, self.rates.max_pause_s))
        loop = asyncio.get_running_loop()
        while (left_s := self._paused_until_s - loop.time()) > 0:
            # A pause may be lengthened while it lasts, so check again.
            await simulated_sleep(left_s)


class HostClock:
    """The host's clock: a little fast or slow, and not stopped by a pause."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @property
    def slice_s(self) -> float:
        """Infinite: timers here follow the host's clock."""
        return math.inf

    def boottime_s(self) -> float:
        """Return the seconds of this host's clock."""
        host = self.host
        return host.clock_offset_s + asyncio.get_running_loop().time() * host.clock_rate

    def utc_now(self) -> datetime:
        """Return this host's wall clock, which may be wrong."""
        elapsed_s = asyncio.get_running_loop().time() + self.host.wall_error_s
        return START + timedelta(seconds=elapsed_s)

    async def sleep(self, seconds: float) -> None:
        """Sleep by this host's clock."""
        await simulated_sleep(seconds / self.host.clock_rate)
        await self.host.gate()

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        """Await with a timeout by this host's clock."""
        try:
            async with asyncio.timeout(seconds / self.host.clock_rate):
                result = await answer
        except TimeoutError:
            await self.host.gate()
            raise
        await self.host.gate()
        return result


class HostKeyHandler:
    """A key handler whose work takes some time to stop; it calls ``on_key_event``."""

    def __init__(
        self, host: Host, on_key_event: Callable[[Host, str, Ownership, str], None]
    ) -> None:
        self._host = host
        self._on_key_event = on_key_event

    def opened(self, ownership: Ownership) -> None:
        """Report that the key was opened."""
        self._on_key_event(self._host, "opened", ownership, "")

    def drain(self, ownership: Ownership) -> bool:
        """Report the request, and stop after a random time."""
        self._on_key_event(self._host, "drain", ownership, "")
        drain_s = self._host.rates.drain_s and self._host.rng.uniform(0, self._host.rates.drain_s)
        if not drain_s:
            return True
        asyncio.get_running_loop().call_later(drain_s, self._drained, ownership)
        return False

    def closed(self, ownership: Ownership, reason: str) -> None:
        """Report that the key was closed."""
        self._on_key_event(self._host, "closed", ownership, reason)

    def _drained(self, ownership: Ownership) -> None:
        host = self._host
        if not host.running or host.member is None:
            return
        if host.paused:
            asyncio.get_running_loop().call_later(1.0, self._drained, ownership)
        else:
            host.member.drained(ownership)
