"""All that runs in one worker, from the reservation to the release.

Guarantees:

- A function runs only while its job is reserved here, or is told to stop while there is still time.
  Each attempt is begun only after a look at the reservation, in the same moment.
- A job is released only when its function has ended. One that does not end is *stuck*: it keeps
  its reservation, and the process has to end, since nothing else can stop a thread.
- Runs that end together are told to the store together: one call for what is done, one for the
  releases.

Starting functions, and hearing how they end.

A plain function gets a thread of its own, an async one is a task on the work side: neither can keep
the lease side from renewing. A task can be cancelled; a thread can only be told.
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
from leasehold.jobs import run_log as marks_
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
    """Starts runs; ``bridge`` says where async functions live."""

    def __init__(self, bridge: LoopLink) -> None:
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
        launch = _AsyncLaunch(partial(job.function, *given), self, ended)
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


log = logging.getLogger("leasehold.jobs")

_MIN_STOP_S = 1.0
_PROGRESS_S = 1.0
_PAUSES = Backoff(base_s=0.2, max_s=2.0)


class RunningJobs:
    """What runs here, by key. All of it belongs to the lease side."""

    def __init__(
        self,
        keyring: Keyring,
        launcher: Launcher,
        *,
        clock: Clock,
        rng: random.Random,
        tasks: TaskGroup,
        stop_s: float,
        freed: Callable[[ActiveJob, RunResult], None],
        stuck: Callable[[ActiveJob], None],
    ) -> None:
        """Nothing runs yet. ``freed`` hears of each job that has been released here."""
        self.active: dict[str, ActiveJob] = {}
        self._keyring, self._launcher = keyring, launcher
        self._clock, self._rng, self._tasks = clock, rng, tasks
        self._freed, self._stuck, self._stop_s = freed, stuck, stop_s
        self._finished: list[tuple[ActiveJob, RunResult]] = []
        self._bell = anyio.Event()
        self._empty = anyio.Event()
        self._news: set[str] = set()
        self._saying = False

    # ------------------------------------------------------------ from any thread

    def why_lost(self, key: str) -> str | None:
        """See ``Ground``."""
        if self._keyring.valid(key):
            return None
        activity = self.active.get(key)
        return (activity and activity.reason) or TRUST_OVER

    def remaining_s(self, key: str) -> float:
        """See ``Ground``."""
        return self._keyring.remaining_s(key)

    def say(self, key: str) -> None:
        """See ``Ground``."""
        self._launcher.tell(partial(self._heard, key))

    # ------------------------------------------------------------ beginning

    def begin(self, activity: ActiveJob) -> None:
        """Run a job that is reserved here; if it is lost at this very moment, only release it."""
        self.active[activity.key] = activity
        activity.seat.busy = True
        if self._may_start(activity):
            self._start(activity)
        else:
            self._finish(activity, self._given_up(activity, ""))

    def _may_start(self, activity: ActiveJob) -> bool:
        """Whether it may be run at this moment. After a sleep the watch may not have looked yet."""
        if activity.reason is None and not self._keyring.valid(activity.key):
            activity.tell(TRUST_OVER, lost=True)
        return activity.reason is None

    def _start(self, activity: ActiveJob) -> None:
        job = activity.seat.job
        activity.tries += 1
        activity.running = True
        activity.run = Run(
            self,
            name=job.name,
            key=activity.key,
            epoch=activity.ownership.epoch,
            occurrence=activity.plan.occurrence,
            attempt=activity.attempt,
        )
        log.info("job %s begins, epoch %d%s", job.name, activity.ownership.epoch, activity)
        ended = partial(self._ended, activity)
        activity.cancel = self._launcher.start(job, activity.run, ended)
        if job.policy.timeout is not None:
            limit_s = job.policy.timeout.total_seconds()
            self._tasks.start_soon(self._limit, activity, activity.run, limit_s)

    async def _limit(self, activity: ActiveJob, run: Run, limit_s: float) -> None:
        until_s = self._clock.boottime_s() + limit_s
        while (left_s := until_s - self._clock.boottime_s()) > 0:
            await self._clock.sleep(min(left_s, max(self._clock.slice_s, limit_s / 8)))
            if activity.run is not run or not activity.running:
                return
        self.stop(activity, TIMEOUT)

    # ------------------------------------------------------------ stopping

    def stop(self, activity: ActiveJob, reason: str) -> None:
        """Tell it to stop; what has not ended after ``stop_s`` is stuck."""
        if activity.tell(reason) and activity.running:
            self._tasks.start_soon(self._watch, activity, activity.run, self._stop_s)

    def lose(self, key: str, reason: str) -> None:
        """The reservation is lost: stop before anybody else is let in."""
        activity = self.active.get(key)
        if activity is None or activity.lost:
            return
        # Others may be let in when that is over. If they may be already, it only has to be quick.
        left_s = self._keyring.remaining_s(key) or _MIN_STOP_S
        activity.tell(reason, lost=True)
        if activity.running:
            self._tasks.start_soon(self._watch, activity, activity.run, left_s)

    async def _watch(self, activity: ActiveJob, run: Run | None, within_s: float) -> None:
        until_s = self._clock.boottime_s() + within_s
        while (left_s := until_s - self._clock.boottime_s()) > 0:
            await self._clock.sleep(min(left_s, max(self._clock.slice_s, within_s / 8)))
            if activity.run is not run or not activity.running:
                return
        if activity.stuck and not activity.lost:
            return
        activity.stuck = True
        log.critical(
            "job %s did not stop within %.3g s (%s), and nothing can stop it but the end of its "
            "process",
            activity.seat.job.name,
            within_s,
            activity.reason,
        )
        if not activity.lost and activity.reason != STOPPED:
            await self._bury(activity)
        self._empty.set()
        self._stuck(activity)

    async def _bury(self, activity: ActiveJob) -> None:
        """What hangs here would hang everywhere: its occurrence is done, though it failed."""
        settled = activity.done(self._ended_at(activity))
        activity.said = replace(
            activity.said, outcome=Outcome.KILLED, words=f"{activity.reason}: it did not stop"
        )
        try:
            if settled is not None:
                mark = activity.seat.signed(marks_.done_position(settled))
                await self._keyring.mark({activity.key: mark})
            await self._keyring.annotate({activity.key: activity.said.note()})
        except StoreError as error:
            log.warning("job %s: its end could not be told: %s", activity.seat.job.name, error)

    async def emptied(self) -> None:
        """Wait until nothing runs here any more but what is stuck."""
        while any(not each.stuck for each in self.active.values()):
            self._empty = anyio.Event()
            await self._empty.wait()

    # ------------------------------------------------------------ ending

    def _ended(self, activity: ActiveJob, error: BaseException | None) -> None:
        activity.running = False
        verdict = activity.verdict(error, self._ended_at(activity))
        if verdict.outcome is Outcome.FAILED:
            log.warning(
                "job %s failed, attempt %d: %s",
                activity.seat.job.name,
                activity.attempt,
                verdict.words,
                exc_info=error,
            )
        if verdict.retry:
            self._tasks.start_soon(self._again, activity, verdict)
        else:
            self._finish(activity, verdict)

    def _ended_at(self, activity: ActiveJob) -> datetime:
        """When a run that ends now has ended, by the clock that its beginning was read from.

        Not by the wall clock: what that passes over in a jump did not come while it ran.
        """
        lasted_s = self._clock.boottime_s() - activity.began_s
        return activity.began + timedelta(seconds=lasted_s)

    def _finish(self, activity: ActiveJob, verdict: RunResult) -> None:
        self._finished.append((activity, verdict))
        self._bell.set()

    async def _again(self, activity: ActiveJob, verdict: RunResult) -> None:
        """Try once more after a pause; or not, if it is told to stop meanwhile."""
        pause_s = activity.seat.job.policy.pauses.pause_s(activity.tries, self._rng)
        if activity.reason == TIMEOUT:  # that was about the try before
            activity.reason = None
        activity.bell = anyio.Event()
        if activity.reason is None:
            with suppress(TimeoutError):
                await self._clock.bounded(activity.bell.wait(), seconds=pause_s)
        if not self._may_start(activity):
            self._finish(activity, self._given_up(activity, verdict.words))
            return
        activity.attempt += 1
        activity.said = replace(activity.said, attempt=activity.attempt, words=verdict.words)
        self._heard(activity.key)
        self._start(activity)

    def _given_up(self, activity: ActiveJob, words: str) -> RunResult:
        """What comes of a run that has failed, and is not to be tried again here."""
        if activity.lost:
            return RunResult(outcome=Outcome.LOST, words=words)
        if activity.reason == REPLACED:
            settled = activity.done(self._ended_at(activity))
            return RunResult(outcome=Outcome.FAILED, words=words, settled=settled)
        return RunResult(outcome=Outcome.HANDED_OVER, words=words)

    async def settle(self) -> None:
        """Tell the store of all that ends, for as long as this is run."""
        while True:
            await self._bell.wait()
            self._bell = anyio.Event()
            batch, self._finished = self._finished, []
            await self._settle(batch)

    async def _settle(self, batch: Sequence[tuple[ActiveJob, RunResult]]) -> None:
        refused = await self.mark(
            {
                each.key: each.seat.signed(marks_.done_position(verdict.settled))
                for each, verdict in batch
                if verdict.settled is not None
            }
        )
        notes = {each.key: each.last_words(verdict).note() for each, verdict in batch}
        heirs = {each.key: each.heir for each, _ in batch if each.heir is not None}
        await self._keyring.release(notes, to=heirs)
        for activity, verdict in batch:
            self.active.pop(activity.key, None)
            took_s = self._clock.boottime_s() - activity.began_s
            name, outcome = activity.seat.job.name, verdict.outcome.value
            log.info("job %s: %s after %.2f s%s", name, outcome, took_s, activity)
            activity.seat.busy = False
            unheard = refused.get(activity.key) is Refusal.FENCED
            self._freed(activity, replace(verdict, settled=None) if unheard else verdict)
        self._empty.set()

    async def mark(self, marks: Mapping[str, Position]) -> Mapping[str, Refusal]:
        """Write marks, again and again while the keys are held; return the refused ones.

        Those that were lost before there was an answer are among them.
        """
        failures, lost = 0, dict[str, Refusal]()
        while marks:
            try:
                return lost | dict(await self._keyring.mark(marks))
            except StoreError as error:
                failures += 1
                log.warning("marks of %d jobs: failure %d: %s", len(marks), failures, error)
                await self._clock.sleep(_PAUSES.pause_s(failures, self._rng))
                gone = {key for key in marks if not self._keyring.valid(key)}
                lost |= dict.fromkeys(gone, Refusal.FENCED)
                marks = {key: each for key, each in marks.items() if key not in gone}
        return lost

    # ------------------------------------------------------------ progress

    def _heard(self, key: str) -> None:
        self._news.add(key)
        if not self._saying:
            self._saying = True
            self._tasks.start_soon(self._pass_on)

    async def _pass_on(self) -> None:
        """All that was said within a second, in one call."""
        await self._clock.sleep(_PROGRESS_S)
        self._saying, keys, self._news = False, self._news, set()
        notes = {}
        for key in keys:
            activity = self.active.get(key)
            if activity is None or not activity.running or not self._keyring.valid(key):
                continue
            if activity.run is not None and activity.run.words:
                activity.said = replace(activity.said, words=activity.run.words)
            notes[key] = activity.said.note()
        try:
            if notes:
                await self._keyring.annotate(notes)
        except StoreError as error:  # the next words come, or the outcome does
            log.info("progress of %d jobs was not told: %s", len(notes), error)
