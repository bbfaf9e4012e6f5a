"""Blocking code in a simulated world: processes whose steps interleave as a seed decides.

A ``SimProcess`` runs ordinary blocking code in a thread. One thread of a world runs at a time: the
others wait for their turn, which the simulated loop gives them. A process passes its turn on where
it sleeps, and at some of its steps: each effect on a volume and each call of the journal is one. At
any step it may be stopped for long, as by SIGSTOP, or end, as by SIGKILL. What it does after its
end has no effect.

``SimDatabase`` is the journal's database, in memory; ``StepwiseCommit`` loses its answers.
"""

from __future__ import annotations

import sqlite3
import threading
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.errors import StoreUnavailable
from leasehold.files.journal.group_commit import ExpectedRead, JournalGroupCommit
from leasehold.files.journal.journal import queries as journal_queries
from leasehold.stores.blocking import SqliteTx
from leasehold.stores.sqlite.database import Transaction
from leasehold.stores.sqlite.migrations import migrations, queries, statements
from leasehold.testing.clock import START

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Awaitable, Callable

    from leasehold.files.journal.unit_of_work import JournalWork
    from leasehold.files.model import FileLeaseLimits
    from leasehold.stores.blocking import Tx

T = TypeVar("T")

_BOOTTIME_S = 1000.0
_MAX_STEP_S = 60.0  # of real time: a process that takes longer waits for something outside


# Where a pause is worst: a writer has a block and no file of it, or a recovery is half done.
WORST_STEPS = frozenset(
    {
        *("after create", "after append", "after next block"),
        *("sync frozen", "sync seal", "before recovered"),
    }
)
_WORST_RATE = 0.3


class ProcessEnded(BaseException):
    """The process was killed: raised in its thread, and by each of its later steps."""


class SimClock:
    """A ``Clock`` of the simulated loop."""

    slice_s = 1e9

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def boottime_s(self) -> float:
        """Return the simulated seconds, plus a constant."""
        return _BOOTTIME_S + self._loop.time()

    def utc_now(self) -> datetime:
        """Return a simulated date."""
        return START + timedelta(seconds=self._loop.time())

    async def sleep(self, seconds: float) -> None:
        """Not for simulated processes, which block."""
        raise NotImplementedError

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        """Not for simulated processes, which block."""
        raise NotImplementedError


class Turns:
    """Who runs: the loop, or one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.back = threading.Lock()
        self.back.acquire()

    def give(self, turn: threading.Lock) -> None:
        """Let a process run until it passes its turn on."""
        turn.release()
        if not self.back.acquire(timeout=_MAX_STEP_S):
            raise RuntimeError("a simulated process waits for something outside the simulation")


class SimProcess:
    """One process. ``interrupt`` is called at some of its steps, and may pause or end it."""

    def __init__(
        self,
        name: str,
        turns: Turns,
        rng: random.Random,
        *,
        steps_between: int,
        interrupt: Callable[[SimProcess, str], None],
    ) -> None:
        self.name = name
        self.rng = rng
        self.ended = self.killed = False
        self.paused_until_s = 0.0
        self.steps = 0
        self.error: BaseException | None = None
        self.troubles: dict[str, int] = {}  # by volume: the step at which it failed last
        self._turns = turns
        self._turn = threading.Lock()
        self._turn.acquire()
        self._steps_between = steps_between
        self._left = rng.randint(1, steps_between)
        self._interrupt = interrupt
        self._thread: threading.Thread | None = None

    def start(self, main: Callable[[], None]) -> None:
        """Run ``main``, from the next turn on."""
        self._thread = threading.Thread(
            target=self._run, args=(main,), name=f"sim-{self.name}", daemon=True
        )
        self._thread.start()
        self._turns.loop.call_later(0.0, self._resume)

    def sleep(self, seconds: float) -> None:
        """Let others run for this time."""
        self.check_alive()
        self._turns.loop.call_later(seconds, self._resume)
        self._turns.back.release()
        self._turn.acquire()
        self.check_alive()

    def step(self, what: str) -> None:
        """Do one step; others may run before it."""
        self.check_alive()
        self.steps += 1
        self._left -= 1
        if self._left <= 0 or (what in WORST_STEPS and self.rng.random() < _WORST_RATE):
            self._left = self.rng.randint(1, self._steps_between)
            self._interrupt(self, what)

    def check_alive(self) -> None:
        """Raise ``ProcessEnded`` if the process was killed."""
        if self.killed:
            raise ProcessEnded(self.name)

    def met_trouble(self, volume: str) -> None:
        """Record that a volume has failed a call of this process."""
        self.troubles[volume] = self.steps

    def pause(self, seconds: float) -> None:
        """Stop it for this time, from its next turn on."""
        self.paused_until_s = self._turns.loop.time() + seconds

    def kill(self) -> None:
        """End it: only its thread is left, and ends now. Not from a process."""
        self.killed = True
        if not self.ended:
            self._turns.give(self._turn)

    def join(self) -> None:
        """Wait for the thread of a process that has ended."""
        if self._thread is not None:
            self._thread.join()

    def _resume(self) -> None:
        if self.ended:
            return
        loop = self._turns.loop
        if self.paused_until_s > loop.time():
            loop.call_at(self.paused_until_s, self._resume)
        else:
            self._turns.give(self._turn)

    def _run(self, main: Callable[[], None]) -> None:
        self._turn.acquire()
        try:
            if not self.killed:
                main()
        except ProcessEnded:
            self.killed = True
        except BaseException as error:  # noqa: BLE001 - raised by the world
            self.error = error
        self.ended = True
        self._turns.back.release()


@cache
def _empty_database() -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for text in migrations().values():
        for statement in statements(text):
            connection.execute(statement)
    found = connection.serialize()
    connection.close()
    return found


def _opened(contents: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(contents)
    return connection


class SimDatabase:
    """The database of all processes. Each transaction is one step, which others do not see half."""

    url = "simulated"

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self._connection = _opened(_empty_database())

    def copy(self) -> bytes:
        """Return all that is in it."""
        return self._connection.serialize()

    def restore(self, contents: bytes) -> None:
        """Replace it by an earlier copy."""
        # A new connection: statements that are cached do not survive new contents.
        self._connection.close()
        self._connection = _opened(contents)

    def rows(self, query: str) -> list[Any]:
        """Read something, for the checks."""
        return self._connection.execute(query).fetchall()

    def restart(self) -> None:
        """Do what a SQLite store does after a restart of the machine: no holder is left."""
        for name in ("reboot_file_holders", "reboot_file_attempts"):
            self._connection.execute(queries()[name])

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run a transaction."""
        return self._run("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run a transaction that reads."""
        return self._run("BEGIN", work)

    def close(self) -> None:
        """Stay open, for the other processes."""

    def end(self) -> None:
        """Close it for all."""
        self._connection.close()

    def _run(self, begin: str, work: Callable[[Tx], T]) -> T:
        connection = self._connection
        connection.execute(begin)
        try:
            found = work(SqliteTx(Transaction(connection), journal_queries(), self._clock))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        return found


class ProcessDatabase:
    """The database as one process reaches it; ``is_up`` is asked at each call."""

    url = "simulated"

    def __init__(
        self, database: SimDatabase, process: SimProcess, is_up: Callable[[], bool]
    ) -> None:
        self._database = database
        self._process = process
        self._is_up = is_up

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run a transaction, unless the database does not answer."""
        self._process.check_alive()
        if not self._is_up():
            raise StoreUnavailable("the journal does not answer")
        return self._database.write(work)

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run a transaction that reads, unless the database does not answer."""
        self._process.step("read the journal")
        if not self._is_up():
            raise StoreUnavailable("the journal does not answer")
        return self._database.read(work)

    def close(self) -> None:
        """Nothing is held."""


class StepwiseCommit(JournalGroupCommit):
    """The journal's steps of one process: a step before, and one between commit and answer."""

    def __init__(
        self,
        database: ProcessDatabase,
        process: SimProcess,
        *,
        limits: FileLeaseLimits,
        committed: Callable[[SimProcess, str], None],
        loses_answer: Callable[[], bool],
    ) -> None:
        super().__init__(database, limits=limits)
        self._process = process
        self._committed = committed
        self._loses_answer = loses_answer

    def run(
        self,
        name: str,
        step: Callable[[JournalWork], T],
        *,
        expected_read: ExpectedRead = ExpectedRead(),  # noqa: B008 - it is frozen
    ) -> T:
        """Run a step of the journal. The answer may be lost, after it was carried out."""
        self._process.step(f"before {name}")
        try:
            return self._run(name, step, expected_read)
        finally:
            if not self._process.killed:
                self._committed(self._process, name)
                self._process.step(f"after {name}")
                if self._loses_answer():
                    raise StoreUnavailable(f"the answer of the journal to {name!r} was lost")
