"""The runs of one worker, from the reservation to the release.

Guarantees:

- A function runs only while its job is reserved here, or is asked to stop while there is still
  time. Each attempt starts directly after a check of the reservation.
- A job is released only when its function has ended. One that does not end is *stuck*: it keeps
  its reservation, and the process has to end, since nothing else can stop a thread.
- Runs that end together are written to the store together: one call for their progress, one for
  the releases.
- No function can delay a renewal: a plain function gets its own thread, an async one is a task on
  the work side. A task can be cancelled; a thread can only be asked to stop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import anyio

from leasehold.core.backoff import Backoff
from leasehold.errors import StoreError
from leasehold.jobs import run_log
from leasehold.jobs.holding import TRUST_OVER
from leasehold.jobs.run_log import Outcome
from leasehold.jobs.worker.job_state import REPLACED, STOPPED, TIMEOUT, ActiveJob, RunResult
from leasehold.jobs.worker.run import Run
from leasehold.model import Refusal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from anyio.abc import TaskGroup

    from leasehold.clock import Clock
    from leasehold.jobs.keyring import Keyring
    from leasehold.jobs.worker.definition import Job
    from leasehold.model import Position
    from leasehold.runtime.loop_thread import LoopLink

# Called on the lease side, once, with the error that ended the function, if one did.
Ended = "Callable[[BaseException | None], None]"


class Launcher:
    """Starts runs; async functions run on the work side of ``loops``."""

    def __init__(self, loops: LoopLink) -> None:
        self._loops = loops
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, job: Job, run: Run, ended: Callable[[BaseException | None], None]
    ) -> Callable[[], None] | None:
        """Start the function; return a call that cancels it, or None if nothing can."""
        given = (run,) if job.takes_run else ()
        if not job.is_async:
            thread = threading.Thread(
                target=self._run_in_thread,
                args=(partial(job.function, *given), ended),
                name=f"job {job.name}",
                daemon=True,  # one that does not stop must not keep the process from ending
            )
            try:
                thread.start()
            except RuntimeError as error:  # too many threads: only this run fails
                self._loops.to_lease(partial(ended, error))
            return None
        launch = _AsyncLaunch(partial(job.function, *given), self, ended)
        self._loops.to_work(launch.begin)
        return lambda: self._loops.to_work(launch.cancel)

    def hold_task(self, task: asyncio.Task[None]) -> None:
        """Hold a reference to a task until it ends: the loop itself does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def call_on_lease_side(self, call: Callable[[], None]) -> None:
        """Call it on the lease side, from any thread."""
        self._loops.to_lease(call)

    def _run_in_thread(
        self, function: Callable[[], object], ended: Callable[[BaseException | None], None]
    ) -> None:
        error: BaseException | None = None
        try:
            function()
        except BaseException as raised:  # noqa: BLE001 - whatever ends a run is its outcome
            error = raised
        self._loops.to_lease(partial(ended, error))


class _AsyncLaunch:
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
            self._launcher.call_on_lease_side(partial(self._ended, asyncio.CancelledError()))
            return
        self._task = asyncio.get_running_loop().create_task(self._await_function())
        self._launcher.hold_task(self._task)
        self._task.add_done_callback(self._over)

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _await_function(self) -> None:
        try:
            await self._function()  # type: ignore[misc]  # an async one, as its job says
        except SystemExit as error:
            # It would end the loop, and the whole worker. A KeyboardInterrupt may do that: it
            # comes from a person, and not from the function.
            self._exit = error

    def _over(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        error = error or self._exit
        self._launcher.call_on_lease_side(partial(self._ended, error))


log = logging.getLogger("leasehold.jobs")

_MIN_STOP_S = 1.0
_PROGRESS_S = 1.0
_PAUSES = Backoff(base_s=0.2, max_s=2.0)


class RunningJobs:
    """The active jobs of this worker, by key. Used on the lease side only."""

    def __init__(
        self,
        keyring: Keyring,
        launcher: Launcher,
        *,
        clock: Clock,
        rng: random.Random,
        tasks: TaskGroup,
        stop_s: float,
        on_released: Callable[[ActiveJob, RunResult], None],
        stuck: Callable[[ActiveJob], None],
    ) -> None:
        """``on_released`` is called with each job that was released here."""
        self.active: dict[str, ActiveJob] = {}
        self._keyring, self._launcher = keyring, launcher
        self._clock, self._rng, self._tasks = clock, rng, tasks
        self._on_released, self._stuck, self._stop_s = on_released, stuck, stop_s
        self._finished: list[tuple[ActiveJob, RunResult]] = []
        self._wake = anyio.Event()
        self._empty = anyio.Event()
        self._progress_keys: set[str] = set()
        self._progress_pending = False

    # ------------------------------------------------------------ from any thread

    def why_lost(self, key: str) -> str | None:
        """Return why the work must stop; None while it may continue."""
        if self._keyring.valid(key):
            return None
        active_job = self.active.get(key)
        return (active_job and active_job.reason) or TRUST_OVER

    def remaining_s(self, key: str) -> float:
        """Return how long the work may continue if no renewal succeeds."""
        return self._keyring.remaining_s(key)

    def progress_changed(self, key: str) -> None:
        """Have the new progress of a run written."""
        self._launcher.call_on_lease_side(partial(self._progress_changed, key))

    # ------------------------------------------------------------ starting

    def begin(self, active_job: ActiveJob) -> None:
        """Run a job that is reserved here; if it was lost just now, only release it."""
        self.active[active_job.key] = active_job
        active_job.worker_job.busy = True
        if self._may_start(active_job):
            self._start(active_job)
        else:
            self._finish(active_job, self._abandoned(active_job, ""))

    def _may_start(self, active_job: ActiveJob) -> bool:
        """Return whether it may run now: after a pause the loss may not have been noticed yet."""
        if active_job.reason is None and not self._keyring.valid(active_job.key):
            active_job.request_stop(TRUST_OVER, lost=True)
        return active_job.reason is None

    def _start(self, active_job: ActiveJob) -> None:
        job = active_job.worker_job.job
        active_job.tries += 1
        active_job.running = True
        active_job.run = Run(
            self,
            name=job.name,
            key=active_job.key,
            epoch=active_job.ownership.epoch,
            occurrence=active_job.plan.occurrence,
            attempt=active_job.attempt,
        )
        log.info("job %s begins, epoch %d%s", job.name, active_job.ownership.epoch, active_job)
        ended = partial(self._ended, active_job)
        active_job.cancel = self._launcher.start(job, active_job.run, ended)
        if job.policy.timeout is not None:
            limit_s = job.policy.timeout.total_seconds()
            self._tasks.start_soon(self._enforce_timeout, active_job, active_job.run, limit_s)

    async def _enforce_timeout(self, active_job: ActiveJob, run: Run, limit_s: float) -> None:
        until_s = self._clock.boottime_s() + limit_s
        while (left_s := until_s - self._clock.boottime_s()) > 0:
            await self._clock.sleep(min(left_s, max(self._clock.slice_s, limit_s / 8)))
            if active_job.run is not run or not active_job.running:
                return
        self.stop(active_job, TIMEOUT)

    # ------------------------------------------------------------ stopping

    def stop(self, active_job: ActiveJob, reason: str) -> None:
        """Ask it to stop; if it has not ended after ``stop_s`` it is stuck."""
        if active_job.request_stop(reason) and active_job.running:
            self._tasks.start_soon(self._watch_stop, active_job, active_job.run, self._stop_s)

    def lose(self, key: str, reason: str) -> None:
        """Stop a job whose reservation is lost, before another node can have it."""
        active_job = self.active.get(key)
        if active_job is None or active_job.lost:
            return
        # Another node can have it after that time. If it can already, the stop must be quick.
        left_s = self._keyring.remaining_s(key) or _MIN_STOP_S
        active_job.request_stop(reason, lost=True)
        if active_job.running:
            self._tasks.start_soon(self._watch_stop, active_job, active_job.run, left_s)

    async def _watch_stop(self, active_job: ActiveJob, run: Run | None, within_s: float) -> None:
        until_s = self._clock.boottime_s() + within_s
        while (left_s := until_s - self._clock.boottime_s()) > 0:
            await self._clock.sleep(min(left_s, max(self._clock.slice_s, within_s / 8)))
            if active_job.run is not run or not active_job.running:
                return
        if active_job.stuck and not active_job.lost:
            return
        active_job.stuck = True
        log.critical(
            "job %s did not stop within %.3g s (%s), and nothing can stop it but the end of its "
            "process",
            active_job.worker_job.job.name,
            within_s,
            active_job.reason,
        )
        if not active_job.lost and active_job.reason != STOPPED:
            await self._record_stuck(active_job)
        self._empty.set()
        self._stuck(active_job)

    async def _record_stuck(self, active_job: ActiveJob) -> None:
        """Write the occurrence of a stuck run as done: it would be stuck on other nodes too."""
        settled = active_job.settled_until(self._ended_at(active_job))
        active_job.note = replace(
            active_job.note, outcome=Outcome.KILLED, words=f"{active_job.reason}: it did not stop"
        )
        try:
            if settled is not None:
                position = active_job.worker_job.with_schedule(run_log.done_position(settled))
                await self._keyring.mark({active_job.key: position})
            await self._keyring.annotate({active_job.key: active_job.note.to_json()})
        except StoreError as error:
            log.warning(
                "job %s: its end could not be told: %s", active_job.worker_job.job.name, error
            )

    async def wait_until_empty(self) -> None:
        """Wait until nothing runs here except stuck jobs."""
        while any(not each.stuck for each in self.active.values()):
            self._empty = anyio.Event()
            await self._empty.wait()

    # ------------------------------------------------------------ ending

    def _ended(self, active_job: ActiveJob, error: BaseException | None) -> None:
        active_job.running = False
        result = active_job.result(error, self._ended_at(active_job))
        if result.outcome is Outcome.FAILED:
            log.warning(
                "job %s failed, attempt %d: %s",
                active_job.worker_job.job.name,
                active_job.attempt,
                result.words,
                exc_info=error,
            )
        if result.retry:
            self._tasks.start_soon(self._retry, active_job, result)
        else:
            self._finish(active_job, result)

    def _ended_at(self, active_job: ActiveJob) -> datetime:
        """Return the time at which a run ends that ends now, counted from its start.

        Not by the wall clock: occurrences that it skips in a jump did not come while it ran.
        """
        lasted_s = self._clock.boottime_s() - active_job.began_s
        return active_job.began + timedelta(seconds=lasted_s)

    def _finish(self, active_job: ActiveJob, result: RunResult) -> None:
        self._finished.append((active_job, result))
        self._wake.set()

    async def _retry(self, active_job: ActiveJob, result: RunResult) -> None:
        """Try again after a pause, unless it is asked to stop in the meantime."""
        pause_s = active_job.worker_job.job.policy.pauses.pause_s(active_job.tries, self._rng)
        if active_job.reason == TIMEOUT:  # it was about the previous attempt
            active_job.reason = None
        active_job.stop_event = anyio.Event()
        if active_job.reason is None:
            with suppress(TimeoutError):
                await self._clock.bounded(active_job.stop_event.wait(), seconds=pause_s)
        if not self._may_start(active_job):
            self._finish(active_job, self._abandoned(active_job, result.words))
            return
        active_job.attempt += 1
        active_job.note = replace(active_job.note, attempt=active_job.attempt, words=result.words)
        self._progress_changed(active_job.key)
        self._start(active_job)

    def _abandoned(self, active_job: ActiveJob, words: str) -> RunResult:
        """Return the result of a run that has failed and is not tried again here."""
        if active_job.lost:
            return RunResult(outcome=Outcome.LOST, words=words)
        if active_job.reason == REPLACED:
            settled = active_job.settled_until(self._ended_at(active_job))
            return RunResult(outcome=Outcome.FAILED, words=words, settled=settled)
        return RunResult(outcome=Outcome.HANDED_OVER, words=words)

    async def write_results(self) -> None:
        """Write the results of runs that end, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            batch, self._finished = self._finished, []
            await self._write_results(batch)

    async def _write_results(self, batch: Sequence[tuple[ActiveJob, RunResult]]) -> None:
        refused = await self.write_positions(
            {
                each.key: each.worker_job.with_schedule(run_log.done_position(result.settled))
                for each, result in batch
                if result.settled is not None
            }
        )
        notes = {each.key: each.final_note(result).to_json() for each, result in batch}
        receivers = {
            each.key: each.hand_over_to for each, _ in batch if each.hand_over_to is not None
        }
        await self._keyring.release(notes, to=receivers)
        for active_job, result in batch:
            self.active.pop(active_job.key, None)
            took_s = self._clock.boottime_s() - active_job.began_s
            name, outcome = active_job.worker_job.job.name, result.outcome.value
            log.info("job %s: %s after %.2f s%s", name, outcome, took_s, active_job)
            active_job.worker_job.busy = False
            fenced = refused.get(active_job.key) is Refusal.FENCED
            self._on_released(active_job, replace(result, settled=None) if fenced else result)
        self._empty.set()

    async def write_positions(self, positions: Mapping[str, Position]) -> Mapping[str, Refusal]:
        """Write positions, retrying while the keys are held; return the refused ones.

        Those that were lost before there was an answer are among them.
        """
        failures, lost = 0, dict[str, Refusal]()
        while positions:
            try:
                return lost | dict(await self._keyring.mark(positions))
            except StoreError as error:
                failures += 1
                log.warning("marks of %d jobs: failure %d: %s", len(positions), failures, error)
                await self._clock.sleep(_PAUSES.pause_s(failures, self._rng))
                gone = {key for key in positions if not self._keyring.valid(key)}
                lost |= dict.fromkeys(gone, Refusal.FENCED)
                positions = {key: each for key, each in positions.items() if key not in gone}
        return lost

    # ------------------------------------------------------------ progress

    def _progress_changed(self, key: str) -> None:
        self._progress_keys.add(key)
        if not self._progress_pending:
            self._progress_pending = True
            self._tasks.start_soon(self._send_progress)

    async def _send_progress(self) -> None:
        """Write the progress of the last second, of all runs, in one call."""
        await self._clock.sleep(_PROGRESS_S)
        self._progress_pending, keys, self._progress_keys = False, self._progress_keys, set()
        notes = {}
        for key in keys:
            active_job = self.active.get(key)
            if active_job is None or not active_job.running or not self._keyring.valid(key):
                continue
            if active_job.run is not None and active_job.run.words:
                active_job.note = replace(active_job.note, words=active_job.run.words)
            notes[key] = active_job.note.to_json()
        try:
            if notes:
                await self._keyring.annotate(notes)
        except StoreError as error:  # the next progress or the outcome will be written
            log.info("progress of %d jobs was not told: %s", len(notes), error)
