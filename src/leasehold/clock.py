"""Time, randomness and ids: the only module that takes them from the machine.

Everything else receives a ``Clock`` (and a ``random.Random``), so that the same code runs in
production and in the simulator, and a failing run can be repeated exactly.
"""

from __future__ import annotations

import asyncio
import math
import os
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


_NAMESPACES, _OFFSETS = Path("/proc/self/ns"), Path("/proc/self/timens_offsets")


def boottime_offset_s(offsets: str) -> float:
    """Return by how much the boot clock of a time namespace is ahead of the machine's.

    ``offsets`` is the text of ``/proc/self/timens_offsets``.
    """
    for line in offsets.splitlines():
        name, *numbers = line.split()
        if name == "boottime":
            seconds, nanoseconds = map(int, numbers)
            return seconds + nanoseconds / 1e9
    return 0.0


def _read_offset_s() -> float:
    """Return the offset of this process; 0 where the kernel does not know time namespaces."""
    try:
        # The offsets are those of children. A process that has unshared the namespace for its
        # children, and not entered it, cannot read its own: it keeps what it has read before.
        own, of_children = (_NAMESPACES / each for each in ("time", "time_for_children"))
        if own.readlink() != of_children.readlink():
            return _boottime_offset_s
        return boottime_offset_s(_OFFSETS.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0


def _read_offset_again() -> None:
    global _boottime_offset_s  # noqa: PLW0603 - of the process: a child may be in another namespace
    _boottime_offset_s = _read_offset_s()


_boottime_offset_s = 0.0
_read_offset_again()
os.register_at_fork(after_in_child=_read_offset_again)


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
        """Return CLOCK_BOOTTIME, the same in every time namespace of the machine."""
        return time.clock_gettime(_BOOTTIME) - _boottime_offset_s

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

    It is the same in every namespace: ``SystemClock.boottime_s`` is too.

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
