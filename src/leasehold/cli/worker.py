"""``leasehold worker``: run the jobs of a module, as one of any number of workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Annotated, Any

import typer

from leasehold.cli.common import (
    StoreUrl,
    counted,
    duration,
    shared_store_url,
)
from leasehold.cli.process_handler import imported
from leasehold.cli.tables import err, lines_of
from leasehold.clock import Clock, SystemClock
from leasehold.errors import LeaseholdError, UsageError
from leasehold.jobs.worker.definition import Job
from leasehold.jobs.worker.worker import Worker
from leasehold.runtime.stop_signals import StopAsked, StopRequests
from leasehold.runtime.tracebacks import traceback_of

EXAMPLE = "leasehold worker billing.jobs --store sqlite:///leases.db"
_HOW = "write MODULE, such as billing.jobs, or MODULE:NAME for one job or a list of them"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Module = Annotated[
    str,
    typer.Argument(
        metavar="MODULE[:NAME]", help="Where functions with @job are; all of them, or one."
    ),
]
HolderName = Annotated[str, typer.Option(help="Begins the id of this worker.", metavar="NAME")]
MaxJobs = Annotated[
    int | None, typer.Option(help="Run no more jobs than this at once.", min=1, metavar="N")
]
StopTimeout = Annotated[
    str, typer.Option(help="How long runs may take to end when it is stopped.", metavar="TIME")
]


def worker(
    module: Module,
    *,
    holder_name: HolderName = "worker",
    max_jobs: MaxJobs = None,
    stop_timeout: StopTimeout = "10s",
    store: StoreUrl = None,
) -> None:
    """Run the jobs of a module; start it on several machines, and each runs what it can reserve.

    Ctrl-C or SIGTERM ends it in good order: what runs may end, or is stopped after --stop-timeout,
    all is released at once, and the exit code is 0. A second one, a second later or more, ends it
    at once. A function that can not be stopped is ended with the process, with exit code 1.
    """
    limit = duration(stop_timeout, option="--stop-timeout", at_most="1d")
    url = shared_store_url(store)
    jobs = load_jobs(module)
    clock = SystemClock()
    with _log_to(_Lines(clock)) as lines:
        running = Worker(
            jobs,
            store=url,
            name=holder_name,
            max_concurrent=max_jobs,
            grace=limit,
            on_stuck=lines.leave,
            clock=clock,
        )
        lines.say(f"{counted(len(running.jobs), 'job')} of {module}; Ctrl-C ends it")
        asyncio.run(_run(running, lines, clock))
        lines.say("left in good order")


def load_jobs(text: str) -> list[Job]:
    """Return the jobs that ``MODULE`` or ``MODULE:NAME`` names."""
    module_name, colon, name = text.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise UsageError(f"{module_name!r} is a file, and a module is wanted: {_HOW}")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UsageError(f"{text!r} can not be the name of a module: {_HOW}")
    found: Any = _imported(module_name)
    if not colon:
        jobs = [each for each in vars(found).values() if isinstance(each, Job)]
        if not jobs:
            raise UsageError(f"module {module_name!r} has no jobs: put @job(…) above a function")
        return jobs
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{text!r}: there is no {part!r}; {_HOW}")
        found = getattr(found, part)
    jobs = [found] if isinstance(found, Job) else found
    if not isinstance(jobs, list | tuple) or not all(isinstance(each, Job) for each in jobs):
        raise UsageError(f"{text!r} is neither a job nor a list of jobs: {_HOW}")
    return list(jobs)


def _imported(name: str) -> ModuleType:
    try:
        return imported(name, how=_HOW)
    except UsageError:
        raise
    except LeaseholdError as error:  # it is what was named that is wrong, and no run of it
        raise UsageError(str(error)) from error


class StopSignals:
    """What signals do: the first one stops gracefully, a later one ends immediately.

    One that comes within a second of the first is the same request.
    """

    def __init__(
        self,
        stop: Callable[[], None],
        *,
        leave: Callable[[int], object],
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """``leave`` ends the process with the exit code that it is given."""
        self._stop, self._leave, self._say, self._clock = stop, leave, say, clock
        self._requests = StopRequests()

    def __call__(self, number: int) -> None:
        """Handle a signal."""
        asked = self._requests.heard(self._clock.boottime_s())
        if asked is StopAsked.FIRST:
            self._say("asked to stop: what runs may end, nothing new begins")
            self._stop()
        elif asked is StopAsked.AGAIN:
            self._say("asked twice to stop: leaving without order")
            self._leave(128 + number)


async def _run(running: Worker, lines: _Lines, clock: Clock) -> None:
    loop = asyncio.get_running_loop()
    stop = StopSignals(running.stop, leave=os._exit, say=lines.say, clock=clock)
    for each in _SIGNALS:
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
            loop.add_signal_handler(each, stop, each)
    await running.run()


class _Lines(logging.Handler):
    """Prints what is logged to stderr, one line each, with the time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.INFO)
        self._clock = clock

    def say(self, message: str) -> None:
        """Print one line with the time."""
        err.print(f"{self._clock.utc_now():%H:%M:%S}Z {message}")

    def emit(self, record: logging.LogRecord) -> None:
        """Print what was logged, and the traceback of an error."""
        self.say(record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, asyncio.CancelledError):
            err.print(lines_of(traceback_of(error).rstrip()))

    def leave(self, name: str) -> None:
        """End the process: a thread that does not stop must not run beside its successor."""
        self.say(f"job {name} can not be stopped: ending the process, so that it is not run twice")
        os._exit(1)


@contextmanager
def _log_to(lines: _Lines) -> Iterator[_Lines]:
    """Send all that Leasehold logs to ``lines`` alone."""
    logger, jobs = logging.getLogger("leasehold"), logging.getLogger("leasehold.jobs")
    before, logger.propagate = (logger.propagate, jobs.level), False
    jobs.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.propagate = before[0]
        jobs.setLevel(before[1])


def add_to(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(epilog=EXAMPLE)(worker)
