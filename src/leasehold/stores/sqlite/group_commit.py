"""Group commit: one thread runs the calls of a store on its connection, in batches.

Guarantees:

1. A call returns when what it wrote is on disk. Calls that wait at the same time share a
   transaction, and so one sync. They see each other's changes in the order of the calls.
2. No call fails because of another: if a transaction of several fails, each gets its own. The
   exception is a file that other processes keep locked: it is locked for all of them.
3. A call that is cancelled before its batch starts is not carried out. Later its outcome is
   *unknown*.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast

from leasehold.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.stores.sqlite.database import Database, Transaction

T = TypeVar("T")

_MAX_BATCH = 64
_IDLE_S = 1.0


class TransactionKind(Enum):
    """What kind of transaction a call needs."""

    WRITE = "write"
    READ = "read"
    CLOSE = "close"  # none: the connection is closed


class _QueuedCall:
    """One call, and the future that waits for it."""

    __slots__ = ("answer", "batch", "error", "future", "given_up", "kind", "loop", "work")

    def __init__(self, kind: TransactionKind, work: Callable[[Transaction], Any]) -> None:
        self.kind = kind
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.given_up = False
        self.batch: _CallBatch | None = None
        self.answer: Any = None
        self.error: Exception | None = None


class _CallBatch(threading.Event):
    """Calls in one transaction; set when all of them were cancelled."""

    def __init__(self, calls: Sequence[_QueuedCall]) -> None:
        super().__init__()
        self.calls = calls


class SqliteGroupCommit:
    """One connection, for calls from any event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_QueuedCall] = queue.SimpleQueue()
        self._pending: list[_QueuedCall] = []  # taken from the queue, and not in a batch yet
        self._thread: threading.Thread | None = None

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` under the write lock. See ``Database.write``."""
        return cast("T", await self._ask(TransactionKind.WRITE, work))

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` without the write lock. See ``Database.read``."""
        return cast("T", await self._ask(TransactionKind.READ, work))

    async def close(self) -> None:
        """Close the connection, after all earlier calls."""
        if not self._database.forked:
            await self._ask(TransactionKind.CLOSE, lambda _: None)

    async def _ask(self, kind: TransactionKind, work: Callable[[Transaction], Any]) -> Any:
        self._database.check_process()
        call = _QueuedCall(kind, work)
        with self._lock:
            self._queue.put(call)
            if self._thread is None:
                # A daemon: a program that forgot to close its store must still be able to end.
                self._thread = threading.Thread(target=self._serve, name="sqlite", daemon=True)
                self._thread.start()
        try:
            return await call.future
        except asyncio.CancelledError:
            self._give_up(call)
            raise

    def _give_up(self, call: _QueuedCall) -> None:
        with self._lock:
            call.given_up = True
            batch = call.batch
        # The batch may be waiting for the lock of the file: it can stop waiting.
        if batch is not None and all(each.given_up for each in batch.calls):
            batch.set()

    # ------------------------------------------------------------ the thread

    def _serve(self) -> None:
        while calls := self._next_calls():
            self._run(calls)
            _deliver(calls)

    def _next_calls(self) -> Sequence[_QueuedCall]:
        """Return the next batch; empty: the thread has ended."""
        while True:
            with suppress(queue.Empty):
                if not self._pending:
                    self._pending.append(self._queue.get(timeout=_IDLE_S))
                while True:
                    self._pending.append(self._queue.get_nowait())
            with self._lock:
                self._pending = [each for each in self._pending if not each.given_up]
                if self._pending:
                    return self._next_batch()
                if self._queue.empty():
                    self._thread = None
                    return ()

    def _next_batch(self) -> Sequence[_QueuedCall]:
        """Take all calls of the same kind as the first one, but none that comes after a close."""
        kinds = [each.kind for each in self._pending]
        end = (
            max(1, kinds.index(TransactionKind.CLOSE))
            if TransactionKind.CLOSE in kinds
            else len(kinds)
        )
        same = [each for each in self._pending[:end] if each.kind is kinds[0]]
        taken = same[:_MAX_BATCH]
        self._pending = [each for each in self._pending if each not in taken]
        batch = _CallBatch(taken)
        for each in taken:
            each.batch = batch
        return taken

    def _run(self, calls: Sequence[_QueuedCall]) -> None:
        try:
            for call, answer in zip(calls, self._run_transaction(calls), strict=True):
                call.answer = answer
        except StoreUnavailable as error:
            # One by one each of them would wait for as long again. Each gets its own error, which
            # collects the traceback of the task that raises it.
            for call in calls:
                call.error = StoreUnavailable(*error.args)
                call.error.__cause__ = error.__cause__
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            if len(calls) == 1:
                calls[0].error = error
                return
            for call in calls:
                self._run([call])

    def _run_transaction(self, calls: Sequence[_QueuedCall]) -> Sequence[Any]:
        def work(tx: Transaction) -> Sequence[Any]:
            return [call.work(tx) for call in calls]

        kind, given_up = calls[0].kind, calls[0].batch
        if kind is TransactionKind.CLOSE:
            self._database.close()
            return [None]
        if kind is TransactionKind.WRITE:
            return self._database.write(work, given_up)
        return self._database.read(work, given_up)


def _deliver(calls: Sequence[_QueuedCall]) -> None:
    for loop in {call.loop for call in calls}:
        mine = [call for call in calls if call.loop is loop]
        with suppress(RuntimeError):  # the loop has ended, and so have its tasks
            loop.call_soon_threadsafe(_set_results, mine)


def _set_results(calls: Sequence[_QueuedCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.answer)
