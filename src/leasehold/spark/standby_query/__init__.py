"""Structured Streaming queries with standby drivers, and the fences of their sinks.

``standby``: several drivers, one query, one of them runs it at a time. Guarantees:

- Name and checkpoint location are reserved together, under one lease. Two names on one location
  exclude each other, and so do two locations under one name.
- The others wait with their session up. After a graceful end one of them starts the query within a
  second; after a crash when the lease has expired.
- A driver that loses the reservation stops its query before another one is let in. If that fails
  the process is ended. If it was paused in the meantime, its sinks refuse what it writes, where
  they were fenced: see ``leasehold.spark.standby_query.fence``.
- A stop ends. If the query does not end within ``drain``, the reservation is given up, and then the
  same holds.
- The first signal stops the process gracefully, the second one immediately.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from leasehold.clock import SystemClock, system_random
from leasehold.core.backoff import Backoff
from leasehold.errors import CheckpointBehind, LeaseholdError, LeaseLost, StoreError, UsageError
from leasehold.jobs import Reservation
from leasehold.jobs.claimant import GIVEN_UP, Claimant
from leasehold.jobs.request import Request
from leasehold.jobs.reservation import outcome_of
from leasehold.jobs.wish import DEFAULT_LEASE, Wish
from leasehold.names import job_key
from leasehold.runtime.stop_signals import stop_on_signals
from leasehold.spark.reading import usage_error_in
from leasehold.spark.sessions import session
from leasehold.spark.standby_query.events import StandbyChanged, StandbyState
from leasehold.spark.standby_query.fence import Fence
from leasehold.spark.standby_query.location import canonical, default_file_system, job_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

    from leasehold.clock import Clock
    from leasehold.jobs import Held
    from leasehold.ports import Store


log = logging.getLogger("leasehold.spark")

_POLL_INTERVAL_S = 0.05


class BatchProgress(StreamingQueryListener):
    """Stores the number of each completed batch as the checkpoint of the job, for operators.

    Spark reports it after the batch, so no guarantee depends on it. Reports that arrive before the
    query is known are kept.
    """

    def __init__(self, reservation: Reservation, on_batch: Callable[[int], None]) -> None:
        """``on_batch`` is called with the number of each batch."""
        self._reservation = reservation
        self._on_batch = on_batch
        self._run: str | None = None
        self._early: dict[str, int] = {}
        self._lock = threading.Lock()
        self.last: int | None = None

    def follow(self, run: str) -> None:
        """Count this run of a query from now on."""
        self._run = run
        if run in self._early:
            self._record(self._early[run])

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Ignore the event."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Record the batch if it is one of the followed run."""
        run, batch = str(event.progress.runId), int(event.progress.batchId)
        if self._run is None:
            self._early[run] = batch
        elif run == self._run:
            self._record(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Ignore the event."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Ignore the event."""

    def catch_up(self, batch: int | None) -> None:
        """Record the last batch of a query that has ended: Spark may not have reported it."""
        if batch is not None:
            self._record(batch)

    def _record(self, batch: int) -> None:
        with self._lock:
            if self.last is not None and batch <= self.last:
                return
            self.last = batch
        self._on_batch(batch)
        try:
            self._reservation.mark(batch)
        except (LeaseLost, CheckpointBehind) as refused:
            log.debug("batch %d: %s", batch, refused)
        except StoreError as error:
            log.warning("the number of batch %d could not be stored: %s", batch, error)


class RunningQuery:
    """A query that was started, and the fence it writes under."""

    def __init__(self, query: StreamingQuery, fence: Fence) -> None:
        self._query = query
        self._fence = fence
        self._ended = threading.Event()

    def check_location(self, reserved: str, *, default: str) -> None:
        """Return if the query keeps its progress at the reserved location."""
        try:
            root = str(self._query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001
        except Exception:  # noqa: BLE001 - a query of another kind has no such method
            return
        used = canonical(root, default=default)
        if used != reserved:
            raise UsageError(
                f"the query keeps its progress at {used}, and {reserved} is reserved: set "
                ".option('checkpointLocation', fence.checkpoint_location)"
            )

    def watch(self, ended: Callable[[Exception | None], None]) -> None:
        """Call ``ended``, in a separate thread, when the query has ended."""

        def wait() -> None:
            found: Exception | None = None
            try:
                self._query.awaitTermination()
            except Exception as error:  # noqa: BLE001 - whatever ended it
                found = error
            self._ended.set()
            ended(found)

        name = f"waits for {self._fence.name}"
        threading.Thread(target=wait, name=name, daemon=True).start()

    def stop(self, *, has_time: Callable[[], bool]) -> bool:
        """Stop it; return True when nothing of it runs, False if ``has_time`` returned false."""

        def stop() -> None:
            with suppress(
                Exception
            ):  # it may have failed in the meantime, and has ended then as well
                if not self._ended.is_set():
                    self._query.stop()

        stopping = threading.Thread(target=stop, name=f"stops {self._fence.name}", daemon=True)
        stopping.start()
        while True:
            stopping.join(_POLL_INTERVAL_S)
            if not stopping.is_alive() and self._fence.idle(within_s=_POLL_INTERVAL_S):
                return True
            if not has_time():
                return False


def kill_java() -> None:
    """Kill Spark's own process, if this one has started it: it must not continue alone."""
    gateway = SparkContext._gateway  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if process is not None:
        with suppress(OSError):
            process.kill()


EXIT_STUCK = 75


def leave_immediately(number: int) -> None:
    """End this process and Spark's, with 128 and the number of the signal."""
    kill_java()
    os._exit(128 + number)


def leave_stuck(report_stuck: Callable[[], None], *, within_s: float) -> NoReturn:
    """End the process immediately, with everything: what is still running could write.

    The report is made in a separate thread: its receiver may hang as well.
    """
    kill_java()

    def report_and_flush() -> None:
        report_stuck()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()

    reporting = threading.Thread(target=report_and_flush, daemon=True)
    reporting.start()
    reporting.join(within_s)
    os._exit(EXIT_STUCK)


if TYPE_CHECKING:
    Build = Callable[[SparkSession, Fence], StreamingQuery]
    OnEvent = Callable[[StandbyChanged], None]

log = logging.getLogger("leasehold.spark")

# The fraction of the lease that the last report may take: less than its margin.
_STUCK_REPORT_FRACTION = 0.05
_MIN_SPARK_STOP_S = 2.0  # how long Spark's own stop may take, at least, though no batch runs
# The last line of a traceback of Python: Spark puts all of it, and a page of Java, into its error.
_PYTHON_ERROR = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S[^\n]*)")
_BACKOFF = Backoff(base_s=1.0, max_s=60.0)
# Errors of Spark when a driver without a reservation works on the same checkpoint.
_FOREIGN_WRITER_ERRORS = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateReport:
    """Why a query has to end: ``ended``, ``lost``, ``asked`` or ``stop``."""

    why: str
    error: Exception | None = None
    successor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TermOutcome:
    """The outcome of a term: an error that counts, whether this driver is done, any batch done."""

    error: Exception | None = None
    done: bool = False
    progressed: bool = False


class Standby:
    """One driver. ``run`` blocks in the calling thread; ``stop`` may be called from any."""

    def __init__(
        self,
        build: Build,
        *,
        name: str,
        checkpoint_location: str,
        store: str | Store,
        spark: SparkSession | Callable[[], SparkSession] | None = None,
        lease: timedelta = DEFAULT_LEASE,
        restarts: int = 3,
        drain: timedelta = timedelta(seconds=10),
        exit_when_stuck: bool = True,
        on_event: OnEvent | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._build = build
        self._location = checkpoint_location
        self._store = store
        self._given_spark = spark
        self._lease = lease
        self._restarts = restarts
        self._drain_s = drain.total_seconds()
        self._exit_when_stuck = exit_when_stuck
        self._on_event = on_event
        self._clock = clock or SystemClock()
        self._rng = system_random()
        self._reports = queue.SimpleQueue[_StateReport]()
        self._request: Request | None = None
        self._stopping = threading.Event()
        self._has_served = False
        # Both are checked before a session is started, which takes seconds.
        Wish.of((name,), lease=lease)
        canonical(checkpoint_location)

    def stop(self) -> None:
        """End gracefully: the query first, then the reservation."""
        self._stopping.set()
        self._reports.put(_StateReport(why="stop"))
        if self._request is not None:
            self._request.cancel()

    def run(self, *, ready: Callable[[], None] = lambda: None) -> None:
        """Stand by, run the query, stand by again: until ``stop``, or the query ends on its own.

        ``ready`` is called when the session is up.
        """
        spark, mine = self._spark()
        failures = 0
        try:
            ready()
            while not self._stopping.is_set():
                reservation = self._reserve(spark)
                if reservation is None:
                    continue
                outcome = self._run_term(spark, reservation)
                if outcome.done:
                    break
                failures = 0 if outcome.progressed else failures
                if outcome.error is not None:
                    failures += 1
                    self._pause_after(outcome.error, failures)
        finally:
            if mine:
                with suppress(Exception):  # a signal to all processes has ended Spark's as well
                    spark.stop()

    def _spark(self) -> tuple[SparkSession, bool]:
        if self._given_spark is None:
            return session(self.name), True
        if isinstance(self._given_spark, SparkSession):
            return self._given_spark, False
        return self._given_spark(), False

    # ------------------------------------------------------------ the reservation

    def _reserve(self, spark: SparkSession) -> Reservation | None:
        """Wait for the reservation; return None if stopped, or if the store was unavailable."""
        self._reports = reports = queue.SimpleQueue[_StateReport]()
        location = canonical(self._location, default=default_file_system(spark))
        self._request = request = Request(
            Wish.of((self.name, job_name(location)), lease=self._lease),
            store=self._store,
            clock=self._clock,
            on_waiting=self._on_waiting,
            on_lost=lambda reason: reports.put(_StateReport(why="lost", error=_lease_lost(reason))),
            on_asked=lambda by: reports.put(_StateReport(why="asked", successor=by)),
        )
        if self._stopping.is_set():
            request.cancel()
        try:
            answer = request.ask(wait=None)
        except StoreError as error:
            if not self._has_served:
                raise
            self._emit(StandbyState.FAILED, text=f"the store can not be asked: {error}")
            self._stopping.wait(_BACKOFF.pause_s(1, self._rng))
            return None
        if not isinstance(answer, Claimant):
            return None
        reservation = Reservation(request, answer)
        if self._stopping.is_set():
            reservation.release()
            return None
        return reservation

    def _on_waiting(self, held: Held) -> None:
        other = held.key != job_key(self.name)
        known = " (a query of another name works on this location)" if other else ""
        self._emit(StandbyState.WAITING, text=f"{held}{known}")

    # ------------------------------------------------------------ a term

    def _run_term(self, spark: SparkSession, reservation: Reservation) -> _TermOutcome:
        """Run the query until something ends it, and release the reservation."""
        self._has_served = True
        self._emit(StandbyState.ACTIVE, epoch=reservation.epoch, text=f"as {reservation.holder}")
        fence = Fence(
            reservation, spark=spark, checkpoint_location=self._location, clock=self._clock
        )
        progress = BatchProgress(reservation, lambda batch: self._on_batch_done(fence, batch))
        successor: str | None = None
        failure: BaseException | None = None
        try:
            spark.streams.addListener(progress)
            running = self._start_query(spark, fence, progress)
            report = self._reports.get()
            successor = report.successor
            if not self._end_query(running, fence, report):
                return _TermOutcome(done=True)
            progress.catch_up(fence.last_batch)
            outcome = self._outcome(report, fence, reservation, progress)
            failure = outcome.error
            return outcome  # noqa: TRY300 - the end of the try, and not of every way out of it
        except (StoreError, LeaseLost) as error:
            # Building the query failed: a sink could not be opened.
            failure = error
            self._emit(StandbyState.FAILED, epoch=fence.epoch, text=str(error))
            return _TermOutcome(error=error)
        except BaseException as error:
            failure = error
            raise
        finally:
            with suppress(Exception):
                spark.streams.removeListener(progress)
            if failure is None:
                reservation.release(to=successor)
            else:
                ended_as, _ = outcome_of(failure)
                reservation.release(to=successor, outcome=ended_as, words=_cause(failure))
            with suppress(LeaseholdError):  # what a sink could not give back ends with it
                fence.close()

    def _start_query(
        self, spark: SparkSession, fence: Fence, progress: BatchProgress
    ) -> RunningQuery:
        """Build and start the query, and have its end reported."""
        before = {each.runId for each in spark.streams.active}
        try:
            query = _check_query(self._build(spark, fence))
            running, default = RunningQuery(query, fence), default_file_system(spark)
            running.check_location(canonical(self._location, default=default), default=default)
        except BaseException:
            for started in spark.streams.active:
                if started.runId not in before:
                    started.stop()
            raise
        reports = self._reports
        progress.follow(str(query.runId))
        running.watch(lambda error: reports.put(_StateReport(why="ended", error=error)))
        return running

    def _end_query(self, running: RunningQuery, fence: Fence, report: _StateReport) -> bool:
        """Make sure that nothing of the query is running, in time.

        Return False if it hangs, this driver is to leave, and the process may not be ended for it.
        """
        leaves = report.why == "stop" or (report.why == "asked" and report.successor is None)
        until_s = self._clock.boottime_s() + self._drain_s
        if report.why == "lost":
            self._emit(StandbyState.LOST, epoch=fence.epoch, text=str(report.error))
        elif report.why in {"stop", "asked"}:
            if report.why == "asked":
                to = f"go to {report.successor}" if report.successor else "leave"
                self._emit(
                    StandbyState.ASKED, epoch=fence.epoch, text=f"an operator wants it to {to}"
                )
            # A batch that is nearly done is not wasted.
            if not fence.idle(within_s=self._drain_s):
                fence.give_up()
        until_s = max(until_s, self._clock.boottime_s() + _MIN_SPARK_STOP_S)

        def has_time() -> bool:
            if self._clock.boottime_s() >= until_s:
                fence.give_up()  # else it would be renewed for as long as the query hangs
            return fence.remaining() > timedelta(0)

        if running.stop(has_time=has_time):
            return True
        text = "the query has not stopped, and the lease is over"

        def report_stuck() -> None:
            self._emit(StandbyState.STUCK, epoch=fence.epoch, text=text)
            log.critical("%s: %s", self.name, text)

        if self._exit_when_stuck:
            leave_stuck(report_stuck, within_s=_STUCK_REPORT_FRACTION * self._lease.total_seconds())
        report_stuck()
        return running.stop(has_time=lambda: not (leaves or self._stopping.is_set()))

    def _outcome(
        self, report: _StateReport, fence: Fence, reservation: Reservation, progress: BatchProgress
    ) -> _TermOutcome:
        epoch, batch, lost = fence.epoch, progress.last, reservation.why_lost
        if lost == GIVEN_UP:  # by this driver itself, after the report
            lost = None
        progressed = batch is not None
        if report.why == "stop" or (report.why == "asked" and report.successor is None):
            self._emit(StandbyState.STOPPED, epoch=epoch, batch=batch)
            return _TermOutcome(done=True)
        if report.why == "asked":
            self._emit(
                StandbyState.STOPPED, epoch=epoch, batch=batch, text=f"for {report.successor}"
            )
            return _TermOutcome(progressed=progressed)
        if report.why == "lost" or lost is not None:
            if report.why != "lost":
                self._emit(StandbyState.LOST, epoch=epoch, batch=batch, text=str(lost))
            return _TermOutcome(progressed=progressed)
        if report.error is None:
            self._emit(StandbyState.ENDED, epoch=epoch, batch=batch)
            return _TermOutcome(done=True)
        self._emit(StandbyState.FAILED, epoch=epoch, batch=batch, text=_first_line(report.error))
        return _TermOutcome(error=report.error, progressed=progressed)

    def _pause_after(self, error: Exception, failures: int) -> None:
        """Wait before the next attempt, or give up."""
        wrong = usage_error_in(error)
        if wrong is not None:
            raise wrong from None  # Spark's long error text adds nothing
        foreign = any(each in str(error) for each in _FOREIGN_WRITER_ERRORS)
        if foreign:
            log.error(
                "%s: a driver that has not reserved it works on %s: end that one, or give it "
                "standby() as well",
                self.name,
                self._location,
            )
        if foreign or failures > self._restarts:
            raise error
        self._stopping.wait(_BACKOFF.pause_s(failures, self._rng))

    # ------------------------------------------------------------ events

    def _on_batch_done(self, fence: Fence, batch: int) -> None:
        self._emit(StandbyState.BATCH, epoch=fence.epoch, batch=batch)

    def _emit(
        self, what: StandbyState, *, epoch: int = 0, batch: int | None = None, text: str = ""
    ) -> None:
        event = StandbyChanged(what=what, name=self.name, epoch=epoch, batch=batch, text=text)
        log.log(logging.DEBUG if what is StandbyState.BATCH else logging.INFO, "%s", event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("on_event failed")


def standby(
    build: Build,
    *,
    name: str,
    checkpoint_location: str,
    store: str | Store,
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    lease: timedelta = DEFAULT_LEASE,
    restarts: int = 3,
    drain: timedelta = timedelta(seconds=10),
    exit_when_stuck: bool = True,
    on_event: OnEvent | None = None,
) -> None:
    """Run a query on one of several drivers; call this on each. Blocks until SIGTERM or Ctrl-C.

    The second of these ends the process immediately, with 128 and the number of the signal.

    ``build(spark, fence)`` builds the query, starts it and returns it; it is called each time this
    driver becomes active. ``spark``: a session, or a function that makes one; by default
    ``session(name)``. ``restarts``: how often in a row a failing query is started again, after
    growing pauses; another driver may take it over in between. ``drain``: how long a stop waits for
    the batch in progress; after that the lease is no longer renewed. ``exit_when_stuck``: end the
    process with code 75 if the query does not stop before the lease ends; otherwise that is only
    reported.

    Raises:
        UsageError: the arguments cannot work.
        StoreUnavailable, StoreUnusable: the store cannot be asked, at the first attempt.
        StreamingQueryException: the query failed, and failed again after all restarts.
    """
    driver = Standby(
        build,
        name=name,
        checkpoint_location=checkpoint_location,
        store=store,
        spark=spark,
        lease=lease,
        restarts=restarts,
        drain=drain,
        exit_when_stuck=exit_when_stuck,
        on_event=on_event,
    )
    with stop_on_signals(
        first=driver.stop, again=leave_immediately, clock=SystemClock()
    ) as install:
        driver.run(ready=install)  # Spark's own start takes Ctrl-C for itself


def _check_query(built: StreamingQuery) -> StreamingQuery:
    if not hasattr(built, "runId"):
        raise UsageError(
            f"build returned {built!r}: it must return the started query, the result of "
            "writeStream…start()"
        )
    return built


def _lease_lost(reason: str) -> LeaseLost:
    return LeaseLost(f"the reservation is lost ({reason})", reason=reason)


def _cause(error: BaseException) -> str:
    """Return the Python error in the text of a Spark error; otherwise its first line."""
    found = _PYTHON_ERROR.findall(str(error))
    return str(found[-1]) if found else f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
