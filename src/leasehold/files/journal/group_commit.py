"""Group commit: steps of several threads share one transaction, and one wait for the disk.

A caller queues its step. If there is no leader, it leads: it takes what is queued, runs it in one
transaction and wakes the others, while the next group gathers. There is no thread for it, and a
caller that is alone does not wait.

Steps of a group have no order: all of their callers are still waiting. So those that declare their
first read come first, and are read for together. A step that refuses has changed nothing, and only
its caller gets the error. If the transaction itself fails, each step is run in its own transaction.

Steps of the main thread run in a ``WorkerThread``, because only the main thread is interrupted by
signals.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from leasehold.errors import LeaseholdError, StoreError, StoreUnavailable
from leasehold.files.journal.unit_of_work import JournalWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.files.model import FileLeaseLimits
    from leasehold.stores.blocking import BlockingDatabase, Tx


class _JournalTask:
    """One call. ``done`` is a plain lock, which no interrupt can leave half taken."""

    __slots__ = ("answer", "call", "done", "error")

    def __init__(self, call: Callable[[], Any] | None) -> None:
        self.call = call
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()  # released when it is done


class WorkerThread:
    """A thread that signals never reach.

    Made of a SimpleQueue and plain locks alone, each of them one step of the interpreter. The
    conditions of an executor are Python: an interrupt there leaves a lock held forever.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_JournalTask] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="leasehold-journal", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` in the thread and wait. If the wait is interrupted, the call still runs."""
        task = _JournalTask(call)
        self._tasks.put(task)
        task.done.acquire()  # until it is done
        if task.error is not None:
            raise task.error
        return task.answer

    def close(self) -> None:
        """End the thread after the queued calls."""
        self._tasks.put(_JournalTask(None))
        self._thread.join()

    def _work(self) -> None:
        while (call := (task := self._tasks.get()).call) is not None:
            try:
                task.answer = call()
            except BaseException as error:  # noqa: BLE001 - given to who waits
                task.error = error
            task.done.release()


T = TypeVar("T")
Step = Callable[[JournalWork], Any]
Hook = Callable[[str, str], None]

MAX_STEPS = 256


@dataclass(frozen=True, slots=True)
class ExpectedRead:
    """The first read of a step: what is at a path, or a file with its open block."""

    path: str | None = None
    file_id: int | None = None


_NONE = ExpectedRead()


class _JournalCall:
    """One step and its outcome."""

    __slots__ = ("answer", "error", "expected_read", "leads", "name", "step", "wake")

    def __init__(self, name: str, step: Step, expected_read: ExpectedRead) -> None:
        self.name = name
        self.step = step
        self.expected_read = expected_read
        self.leads = False
        # Acquired: acquiring it again waits until it is released. Much cheaper than an event.
        self.wake = threading.Lock()
        self.wake.acquire()
        self.answer: Any = None
        self.error: BaseException | None = None


class JournalGroupCommit:
    """Runs steps, durable when they return. Safe to use from several threads."""

    def __init__(
        self,
        database: BlockingDatabase,
        *,
        limits: FileLeaseLimits,
        hook: Hook | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """With ``max_steps`` = 1 each step has its own transaction."""
        self._database = database
        self._limits = limits
        self._hook = hook
        self._max_steps = max_steps
        self._lock = threading.Lock()
        self._queue: deque[_JournalCall] = deque()
        self._led = False
        self._worker: WorkerThread | None = None
        self._worker_pid = 0

    def run(
        self, name: str, step: Callable[[JournalWork], T], *, expected_read: ExpectedRead = _NONE
    ) -> T:
        """Run ``step``, alone or together with others, and return its answer.

        ``expected_read`` is its first read, if that is known.
        """
        if threading.current_thread() is threading.main_thread():
            # Signals are for the main thread alone. An interrupt between any two lines here would
            # leave the queue without a leader, or the database locked: so it only waits.
            return cast(
                "T", self._main_thread_worker().run(lambda: self._run(name, step, expected_read))
            )
        return self._run(name, step, expected_read)

    def _main_thread_worker(self) -> WorkerThread:
        if self._worker is None or self._worker_pid != os.getpid():
            self._worker, self._worker_pid = WorkerThread(), os.getpid()
        return self._worker

    def close(self) -> None:
        """End the worker thread, if there is one."""
        if self._worker is not None and self._worker_pid == os.getpid():
            self._worker.close()
            self._worker = None

    def _run(self, name: str, step: Callable[[JournalWork], T], expected_read: ExpectedRead) -> T:
        call = _JournalCall(name, step, expected_read)
        with self._lock:
            self._queue.append(call)
            call.leads, self._led = not self._led, True
        if not call.leads:
            self._wait(call)
        if call.leads:
            self._lead(call)
        if call.error is not None:
            raise call.error
        return cast("T", call.answer)

    def _wait(self, call: _JournalCall) -> None:
        try:
            call.wake.acquire()
        except BaseException:
            # Interrupted: no caller may wait for a leader that has gone.
            with self._lock:
                if call in self._queue:
                    self._queue.remove(call)
                if call.leads:
                    self._choose_leader()
            raise

    def _lead(self, call: _JournalCall) -> None:
        with self._lock:
            group = [self._queue.popleft() for _ in range(min(self._max_steps, len(self._queue)))]
        if len(group) > 1:
            group.sort(key=_rank)
        try:
            self._commit(group)
        except BaseException as error:
            lost = StoreUnavailable(
                "the thread that wrote for several was interrupted: the step may or may not have "
                "been done; read again"
            )
            lost.__cause__ = error
            for other in group:
                if other is not call:
                    other.error = lost
            raise
        finally:
            with self._lock:
                self._choose_leader()
            for other in group:
                if other is not call:
                    other.wake.release()

    def _choose_leader(self) -> None:
        self._led = bool(self._queue)
        if self._queue:
            self._queue[0].leads = True
            self._queue[0].wake.release()

    def _commit(self, group: Sequence[_JournalCall]) -> None:
        try:
            self._transact(group)
        except StoreUnavailable as error:
            # One by one each of them would wait for as long again.
            for call in group:
                # One each: an error collects the trace of the thread that raises it.
                call.error = StoreUnavailable(*error.args)
                call.error.__cause__ = error
        except Exception as error:  # noqa: BLE001 - given to the callers
            if len(group) == 1:
                group[0].error = error
                return
            for call in group:
                self._commit([call])

    def _transact(self, group: Sequence[_JournalCall]) -> None:
        outcomes = self._database.write(lambda tx: self._outcomes(tx, group))
        for call, (answer, error) in zip(group, outcomes, strict=True):
            call.answer, call.error = answer, error
        self._call_hook(group, "after")

    def _outcomes(
        self, tx: Tx, group: Sequence[_JournalCall]
    ) -> list[tuple[Any, LeaseholdError | None]]:
        work = JournalWork(tx, self._limits)
        if len(group) > 1:
            expected = [call.expected_read for call in group]
            work.prefetch(
                paths=[each.path for each in expected if each.path is not None],
                file_ids=[each.file_id for each in expected if each.file_id is not None],
            )
        outcomes = [_outcome(work, call.step) for call in group]
        work.finish()
        self._call_hook(group, "before")
        return outcomes

    def _call_hook(self, group: Sequence[_JournalCall], moment: str) -> None:
        if self._hook is not None:
            for call in group:
                self._hook(call.name, moment)


def _rank(call: _JournalCall) -> int:
    """Sort creates first: a holder that closes its last file in the same group keeps its lease."""
    expected_read = call.expected_read
    return 0 if expected_read.path is not None else 1 if expected_read.file_id is not None else 2


def _outcome(work: JournalWork, step: Step) -> tuple[Any, LeaseholdError | None]:
    try:
        return step(work), None
    except StoreError:
        raise
    except LeaseholdError as refusal:
        return None, refusal
