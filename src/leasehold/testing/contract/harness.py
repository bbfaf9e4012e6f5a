"""How the suite opens the store under test, and how time passes for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from leasehold.clock import SystemClock
from leasehold.core.lease_timing import MAX_LEASE_S, MIN_LEASE_S
from leasehold.testing.clock import ManualClock

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from leasehold.clock import Clock
    from leasehold.model import Lease
    from leasehold.ports import Store


class Harness(ABC):
    """One store under test. Use ``ManualTime`` or ``RealTime`` as the base.

    The store need not be empty: each test uses its own names.

    Attributes:
        url: names the store to another process, by way of ``opener``; None if no other process
            can open it. The races then run as tasks of this process.
        opener: ``module:function`` of an async context manager that opens ``url``, by the
            machine's own clock.
        unit_s: the length of the short leases in the suite; all other times are multiples.
        exact: whether ``pass_time`` lets exactly that time pass and nothing else does. If not,
            edges are tested with tolerance, on the safe side.
        shortest_s: the shortest lease that the store grants.
        longest_s: the longest one. Where the suite needs a lease that outlasts the test and the
            store grants none, it takes the longest and gives it to ``keep``.
        tells_ends: whether the store knows when another holder's lease ends if it is not
            renewed. If not, the end that it reports may be later, by one lease at most.
        lives: how many random histories the suite runs for each seed.
    """

    url: str | None = None
    opener: str = "leasehold.stores:open_store"
    unit_s: float
    exact: bool
    clock: Clock
    shortest_s: float = MIN_LEASE_S
    longest_s: float = MAX_LEASE_S
    tells_ends: bool = True

    @property
    def lives(self) -> int:
        """Six where time costs nothing, else one."""
        return 6 if self.exact else 1

    def keep(self, lease: Lease) -> None:
        """Keep this lease alive until the end of the test, unless the test itself ends it.

        For stores that do not grant leases that long: ``pass_time`` has to renew it, without any
        other effect.
        """
        raise NotImplementedError(f"{lease.holder}: leases of that length have to be kept alive")

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Store]:
        """Open the same store again, as another user of it would."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Return when at least ``seconds`` have passed by the store's clock."""

    def stored(self) -> bytes | None:
        """Return all that the store keeps, as it keeps it; None if a test cannot see that."""
        return None

    @property
    def processes(self) -> bool:
        """Whether real processes can race for this store."""
        return self.url is not None


class ManualTime(Harness):
    """For stores that take a ``Clock``: pass them ``self.clock``, and no test waits."""

    unit_s = 10.0
    exact = True

    def __init__(self) -> None:
        self.clock: Clock = ManualClock()

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(seconds)


class RealTime(Harness):
    """For stores with their own clock: the suite waits, with a unit as short as possible.

    A unit has to be longer than two calls of the store may ever take on a busy machine.
    """

    unit_s = 0.3
    exact = False

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()

    async def pass_time(self, seconds: float) -> None:
        """Wait."""
        await self.clock.sleep(seconds)
