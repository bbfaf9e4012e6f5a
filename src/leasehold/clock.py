"""Time, randomness and ids: the only module that takes them from the machine.

Everything else receives a ``Clock`` (and a ``random.Random``), so that the same code runs in
production and in the simulator, and a failing run can be repeated exactly.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")

# CLOCK_MONOTONIC stops while a Linux machine is suspended; a lease does not.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SUFFIX_BYTES = 4
_TOKEN_BYTES = 16


class Clock(Protocol):
    """The clock of a holder.

    ``boottime_s`` never goes back and continues while the machine is suspended. It is comparable
    only within one machine since its last start. ``utc_now`` is for display; no decision uses it.
    """

    @property
    def slice_s(self) -> float:
        """The longest wait after which the clock should be read again.

        The timers behind ``sleep`` and ``bounded`` may stop while the machine is suspended;
        ``boottime_s`` does not.
        """
        ...

    def boottime_s(self) -> float:
        """Return the seconds since some fixed time, suspend included."""
        ...

    def utc_now(self) -> datetime:
        """Return the wall clock, for display and history only."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` by this clock."""
        ...

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        """Await ``answer`` for ``seconds`` at most.

        Raises:
            TimeoutError: no answer in time. Whether the call took effect is unknown.
        """
        ...


class SystemClock:
    """The machine's own clock."""

    slice_s = 0.25

    def boottime_s(self) -> float:
        """Return CLOCK_BOOTTIME."""
        return time.clock_gettime(_BOOTTIME)

    def utc_now(self) -> datetime:
        """Return the machine's wall clock in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Sleep in the running event loop."""
        await anyio.sleep(seconds)

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        """Cancel ``answer`` when the time is over."""
        with anyio.fail_after(max(seconds, 0.0)):
            try:
                return await answer
            except asyncio.CancelledError:
                # ``asyncio.gather`` forgets whose cancellation it passes on, if one of its tasks
                # has ended on its own; then no scope would recognise it as its own, and it would
                # end the whole task. The scope that did cancel does so again.
                if anyio.current_effective_deadline() == -math.inf:
                    await anyio.sleep_forever()
                raise


def boot_id() -> str:
    """Name this start of this machine; leases from another boot have ended.

    Raises:
        OSError: the machine has no boot id (not Linux).
    """
    return _BOOT_ID.read_text(encoding="ascii").strip()


def host_name() -> str:
    """Return the machine's short name, for display."""
    return socket.gethostname().split(".", maxsplit=1)[0] or "host"


def system_random() -> random.Random:
    """Return a generator seeded from the machine, for jitter and randomised strategies."""
    return random.Random(secrets.randbits(64))


def new_token() -> str:
    """Return a lease token: unguessable, new for each grant."""
    return secrets.token_hex(_TOKEN_BYTES)


def new_suffix() -> str:
    """Return the last part of a holder id, which makes each incarnation a new holder."""
    return secrets.token_hex(_SUFFIX_BYTES)
