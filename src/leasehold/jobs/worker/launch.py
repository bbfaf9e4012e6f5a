"""Starting functions, and hearing how they end.

A plain function gets a thread of its own, an async one is a task on the work side: neither can keep
the lease side from renewing. A task can be cancelled; a thread can only be told.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.jobs.worker.definition import Job
    from leasehold.jobs.worker.run import Run
    from leasehold.runtime.loop_thread import Bridge

# Called on the lease side, once, with the error that ended the function, if one did.
Ended = "Callable[[BaseException | None], None]"


class Launcher:
    """Starts runs; ``bridge`` says where async functions live."""

    def __init__(self, bridge: Bridge) -> None:
        """Nothing runs yet."""
        self._bridge = bridge
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, job: Job, run: Run, ended: Callable[[BaseException | None], None]
    ) -> Callable[[], None] | None:
        """Begin; return what cancels it, or None if nothing can."""
        given = (run,) if job.takes_run else ()
        if not job.is_async:
            thread = threading.Thread(
                target=self._threaded,
                args=(partial(job.function, *given), ended),
                name=f"job {job.name}",
                daemon=True,  # one that does not stop must not keep the process from ending
            )
            try:
                thread.start()
            except RuntimeError as error:  # there are too many: this run fails, the rest goes on
                self._bridge.to_lease(partial(ended, error))
            return None
        launch = _Launch(partial(job.function, *given), self, ended)
        self._bridge.to_work(launch.begin)
        return lambda: self._bridge.to_work(launch.cancel)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task until it ends: the loop itself does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tell(self, call: Callable[[], None]) -> None:
        """Have it called on the lease side."""
        self._bridge.to_lease(call)

    def _threaded(
        self, function: Callable[[], object], ended: Callable[[BaseException | None], None]
    ) -> None:
        error: BaseException | None = None
        try:
            function()
        except BaseException as raised:  # noqa: BLE001 - whatever ends a run is its outcome
            error = raised
        self._bridge.to_lease(partial(ended, error))


class _Launch:
    """An async function on the work side."""

    def __init__(
        self,
        function: Callable[[], object],
        launcher: Launcher,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._function = function
        self._launcher = launcher
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._exit: SystemExit | None = None

    def begin(self) -> None:
        if self._cancelled:
            self._launcher.tell(partial(self._ended, asyncio.CancelledError()))
            return
        self._task = asyncio.get_running_loop().create_task(self._live())
        self._launcher.keep(self._task)
        self._task.add_done_callback(self._over)

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _live(self) -> None:
        try:
            await self._function()  # type: ignore[misc]  # an async one, as its job says
        except SystemExit as error:
            # A loop would end with it, and the whole worker. A KeyboardInterrupt may do that: it
            # comes from a person, and not from the function.
            self._exit = error

    def _over(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        error = error or self._exit
        self._launcher.tell(partial(self._ended, error))
