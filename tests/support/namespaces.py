"""Namespaces over a real database and real directories, in a world whose time is moved by hand.

Nobody renews by himself here: the renewers look every half hour of real time. A holder that is to
stay alive is renewed by hand, one that is to be dead is left alone while time passes.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.support.postgres import database, stopped_clock

from leasehold.errors import LeaseholdError
from leasehold.files import FileOptions, Namespace
from leasehold.files.disk import SystemDisk
from leasehold.testing.clock import START, ManualClock
from leasehold.testing.disk import FailingDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from leasehold.files.model import Block

SOFT_S = 3600.0
HARD_S = 10 * SOFT_S
ATTEMPT_S = 90.0
OPTIONS = FileOptions(
    soft_limit=timedelta(seconds=SOFT_S),
    hard_limit=timedelta(seconds=HARD_S),
    check_interval=timedelta(seconds=SOFT_S / 2),
    recovery_timeout=timedelta(seconds=ATTEMPT_S),
)
AT_ONCE = timedelta(0)
SOON = timedelta(seconds=120)


class World:
    """A database, three volumes, and a clock for both."""

    def __init__(
        self,
        url: str,
        roots: Sequence[Path],
        *,
        clock: ManualClock,
        passed: Callable[[float], None],
    ) -> None:
        self.url = url
        self.roots = tuple(roots)
        self.clock = clock
        self.disk = FailingDisk(SystemDisk())
        self._passed = passed
        self._opened: list[Namespace] = []

    def open(self, name: str = "writer", **settings: Any) -> Namespace:
        """One more client, as another process would have it."""
        given: dict[str, Any] = {
            "volumes": self.roots,
            "options": OPTIONS,
            "run_monitor": False,
            "clock": self.clock,
            "disk": self.disk,
        }
        namespace = Namespace.open(self.url, name=name, **given | settings)
        self._opened.append(namespace)
        return namespace

    def pass_s(self, seconds: float) -> None:
        """Let time pass, for the store and for everybody else."""
        self.clock.advance(seconds)
        self._passed(seconds)

    def close(self) -> None:
        """Close what the test left open."""
        for namespace in self._opened:
            with suppress(LeaseholdError):
                namespace.close()


@contextmanager
def world(store: str, directory: Path) -> Iterator[World]:
    """A world over ``"sqlite"`` or ``"postgres"``."""
    roots = [directory / f"volume-{number}" for number in range(3)]
    clock = ManualClock()
    if store == "sqlite":
        made = World(
            f"sqlite:///{directory}/store.db", roots, clock=clock, passed=lambda seconds: None
        )
        try:
            yield made
        finally:
            made.close()
        return
    with database() as url, stopped_clock(url) as set_clock:
        now = START

        def passed(seconds: float) -> None:
            nonlocal now
            now += timedelta(seconds=seconds)
            set_clock(now)

        passed(0.0)
        made = World(url, roots, clock=clock, passed=passed)
        try:
            yield made
        finally:
            made.close()


def blocks(namespace: Namespace, path: str) -> tuple[Block, ...]:
    """The blocks of a file, as the journal knows them."""
    return namespace._context.journal.view(path)[1]


def steps(namespace: Namespace, path: str) -> list[str]:
    """What was done to a file, oldest first."""
    return [entry.step for entry in reversed(namespace.history(path, limit=1000))]


def content(namespace: Namespace, path: str) -> bytes:
    """What a reader sees."""
    return namespace.read(path).read()


def renew(namespace: Namespace) -> None:
    """What its renewer would do."""
    namespace._context.journal.renew(namespace._holder)
