"""A thread for the steps of the main thread, which alone is interrupted by signals."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class _Task:
    """One call. ``done`` is a plain lock, which no interrupt can leave half taken."""

    __slots__ = ("answer", "call", "done", "error")

    def __init__(self, call: Callable[[], Any] | None) -> None:
        self.call = call
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()  # released when it is done


class Helper:
    """A thread that signals never reach.

    Made of a SimpleQueue and plain locks alone, each of them one step of the interpreter. The
    conditions of an executor are Python: an interrupt there leaves a lock taken for ever.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="leasehold-journal", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Any]) -> Any:
        """Have it called, and wait. Who is interrupted leaves; the call is carried out."""
        task = _Task(call)
        self._tasks.put(task)
        task.done.acquire()  # until it is done
        if task.error is not None:
            raise task.error
        return task.answer

    def close(self) -> None:
        """End the thread after what waits."""
        self._tasks.put(_Task(None))
        self._thread.join()

    def _work(self) -> None:
        while (call := (task := self._tasks.get()).call) is not None:
            try:
                task.answer = call()
            except BaseException as error:  # noqa: BLE001 - given to who waits
                task.error = error
            task.done.release()
