"""``leasehold run``: a command that runs on one node at a time, or once for each occurrence.

Its exit codes are its own, since schedulers and supervisors act on them: ``docs/run.md``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from leasehold.cli.common import StoreUrl, duration, shared_store_url
from leasehold.clock import Clock, SystemClock, system_random
from leasehold.core.cron import Schedule, parse_schedule
from leasehold.errors import LeaseholdError, StoreError, UsageError
from leasehold.jobs.command.command_run import CommandTimeouts, LossKind, OnLoss
from leasehold.jobs.command.exit_status import (
    CommandPlan,
    ExitCode,
    ExitReason,
    ExitStatus,
    IfHeld,
    not_executable,
)
from leasehold.jobs.command.guard import fill_standard
from leasehold.jobs.command.one_shot import Wrapper
from leasehold.jobs.command.signal_queue import SignalQueue
from leasehold.jobs.policy import OnCrash, Policy
from leasehold.jobs.wish import Wish, moment_of
from leasehold.printable import printable
from leasehold.runtime.private_files import create_file
from leasehold.stores.sqlite.location import check_path, path_of

if TYPE_CHECKING:
    from leasehold.jobs.command.scheduled import ScheduledWrapper

EXAMPLE = "leasehold run --job nightly --if-held skip -- ./nightly.sh"
_COMMAND = "cmd:"
_WAIT = "wait"
_CRON, _NOW = "cron", "now"
_LARGEST_EXIT = 255
_SQLITE = "sqlite:"
_TICK = timedelta(microseconds=1)
_MISUSED = 2  # what Typer leaves with
# Not printed away from a terminal: cron would send mail for each.
_ORDINARY = (ExitReason.HELD, ExitReason.DONE)
_LIKE_A_TERMINAL = frozenset(("FORCE_COLOR", "TTY_COMPATIBLE"))

Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The program and its arguments.")
]
JobName = Annotated[str, typer.Option("--job", help="The name that is reserved.", metavar="NAME")]
LeaseTime = Annotated[
    str,
    typer.Option(
        "--lease", help="If the holder is silent for this long, others take over.", metavar="TIME"
    ),
]
IfHeldWord = Annotated[
    str,
    typer.Option(
        help="If somebody else has it: skip (exit 0), fail (exit 75), wait, or wait=5m.",
        metavar="WHAT",
    ),
]
HeldExit = Annotated[
    int | None,
    typer.Option(
        help="The exit code if it is held, or done.", min=0, max=_LARGEST_EXIT, metavar="N"
    ),
]
Cron = Annotated[
    str | None, typer.Option(help="Five fields, or six with seconds first.", metavar="LINE")
]
Zone = Annotated[
    str | None,
    typer.Option("--tz", help="The time zone of --cron. \\[default: UTC]", metavar="ZONE"),
]
Every = Annotated[str | None, typer.Option(help="Instead of --cron: 30s, 5m.", metavar="TIME")]
OccurrenceWord = Annotated[
    str | None,
    typer.Option(
        help="The run that is reserved: now (any), cron (the latest of the schedule), or a time "
        "such as 2026-01-31T02:30:00Z. \\[default: cron with a schedule, else now]",
        metavar="WHICH",
    ),
]
Crash = Annotated[
    OnCrash,
    typer.Option(help="An occurrence whose node died: rerun, or abandon.", metavar="WHAT"),
]
TimeLimit = Annotated[
    str | None, typer.Option(help="Stop the command after this time.", metavar="TIME")
]
Retry = Annotated[
    str, typer.Option(help="Try again so often after a failure: 3, or 3:2s.", metavar="N[:TIME]")
]
StopTimeout = Annotated[
    str, typer.Option(help="From SIGTERM to SIGKILL, if the lease lasts.", metavar="TIME")
]
Lost = Annotated[
    str,
    typer.Option(
        "--on-lost",
        help="When the reservation is lost: stop, kill, warn, or cmd:'a line for the shell'.",
        metavar="WHAT",
    ),
]
Standby = Annotated[
    bool,
    typer.Option(
        "--standby", help="Stay: wait for the job, and run it when it is due.", metavar=""
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No messages and no warnings on stderr.", metavar=""),
]
Json = Annotated[
    bool, typer.Option("--json", help="End with a line of JSON on stderr.", metavar="")
]


_BEHIND = "Write it behind `--`: leasehold run --job NAME -- ./script"


class RunCommand(TyperCommand):
    """A command whose misuse has the exit code of ``sysexits.h``, and whose options come first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; misuse has the exit code 64."""
        ctx.allow_interspersed_args = False
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", ExitCode.OK) == _MISUSED:
                vars(error)["exit_code"] = int(ExitCode.USAGE)
            if getattr(getattr(error, "param", None), "name", "") == "command":
                vars(error)["message"] = _BEHIND
            raise


def run(
    command: Command,
    *,
    job: JobName,
    store: StoreUrl = None,
    lease: LeaseTime = "60s",
    if_held: IfHeldWord = "skip",
    held_exit: HeldExit = None,
    cron: Cron = None,
    tz: Zone = None,
    every: Every = None,
    occurrence: OccurrenceWord = None,
    on_crash: Crash = OnCrash.RERUN,
    timeout: TimeLimit = None,
    retry: Retry = "0",
    stop_timeout: StopTimeout = "15s",
    on_lost: Lost = "stop",
    standby: Standby = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run a command while its job is reserved here, so that it runs on one node at a time.

    The exit code is that of the command; others say why it did not run: 0 skipped, 75 held, 69 no
    store, 79 lost, 80 done, 81 paused, 64 usage.
    """
    fill_standard()
    clock = SystemClock()
    say = _say_nothing if quiet else _say
    try:
        schedule = _schedule(cron, every, tz)
        held, wait = _if_held(if_held)
        length = duration(lease, option="--lease", at_least="500ms", at_most="7d")
        limit = None if timeout is None else duration(timeout, option="--timeout", at_most="366d")
        retries, pause = _retry(retry)
        plan = CommandPlan(
            job=job,
            command=command,
            store=shared_store_url(store),
            lease=length,
            timeouts=_limits(
                job, length, stop_timeout=stop_timeout, timeout=limit, on_lost=on_lost
            ),
            if_held=held,
            wait=wait,
            held_exit=held_exit,
            occurrence=_occurrence(occurrence, schedule, standby=standby, clock=clock),
            schedule="" if schedule is None else f"{schedule.text} {schedule.tz.key}",
            policy=Policy(on_crash=on_crash, timeout=limit, retries=retries, retry_pause=pause),
            standby=standby,
        )
        # The store's clock may show that another occurrence of the schedule is the latest.
        latest = schedule if occurrence in {None, _CRON} else None
        with _warnings_to(say):
            status = _execute(plan, schedule, clock, latest=latest, say=say)
    except LeaseholdError as error:
        away = isinstance(error, StoreError)
        status = ExitStatus(
            reason=ExitReason.UNREACHABLE if away else ExitReason.USAGE,
            code=ExitCode.UNREACHABLE if away else ExitCode.USAGE,
            message=str(error),
        )
    _tell(status, job, json=json, say=say)
    raise typer.Exit(status.code)


# --------------------------------------------------------------------------- parts


def _execute(
    plan: CommandPlan,
    schedule: Schedule | None,
    clock: Clock,
    *,
    latest: Schedule | None,
    say: Callable[[str], None],
) -> ExitStatus:
    # Looked at first: a node without the command must not take the run from those that have it.
    if status := not_executable(plan):
        return status
    signals = SignalQueue()
    try:
        with signals.installed():
            wrapper = _wrapper(plan, schedule, signals, clock, latest=latest, say=say)
            _make_store(plan.store, say)
            return wrapper.run()
    finally:
        signals.close()


def _wrapper(
    plan: CommandPlan,
    schedule: Schedule | None,
    signals: SignalQueue,
    clock: Clock,
    *,
    latest: Schedule | None,
    say: Callable[[str], None],
) -> Wrapper | ScheduledWrapper:
    rng = system_random()
    if schedule is None or not plan.standby:
        return Wrapper(
            plan,
            signals=signals,
            clock=clock,
            rng=rng,
            echo=say,
            schedule=latest,
            no_other_children=True,
        )
    from leasehold.jobs.command.scheduled import ScheduledWrapper  # noqa: PLC0415 - for few runs

    return ScheduledWrapper(
        plan, schedule, signals=signals, clock=clock, rng=rng, echo=say, no_other_children=True
    )


def _make_store(url: str, say: Callable[[str], None]) -> None:
    """Report a new SQLite file: in a wrong directory it would be a second store."""
    if not url.lower().startswith(_SQLITE):
        return
    path = Path(path_of(url)).absolute()
    try:
        check_path(path)
        os.close(create_file(path))  # of several, one has made it
    except (OSError, StoreError):  # it is there; or it can not be, and opening it says why
        return
    say(f"made a new store, the file {path}: all that share the job must name this very file")


class _Warnings(logging.Handler):
    """Prints each warning of the library on one line, without a traceback."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {printable(record.getMessage())}")


@contextmanager
def _warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Send the warnings of the library to ``say`` alone."""
    logger = logging.getLogger("leasehold")
    handler, propagate = _Warnings(say), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _say_nothing(_message: str) -> None:
    """Print nothing: ``--quiet``."""


def _say(message: str) -> None:
    from leasehold.cli.tables import err  # noqa: PLC0415 - rich takes its time

    _write(lambda: err.print(f"leasehold run: {message}"))


def _is_terminal() -> bool:
    """Return whether stderr is a terminal; rich is loaded only where it could be one."""
    try:
        terminal = sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        terminal = False
    if not terminal and not _LIKE_A_TERMINAL & os.environ.keys():
        return False
    from leasehold.cli.tables import err  # noqa: PLC0415 - rich takes its time

    return err.is_terminal


def _write(write: Callable[[], object]) -> None:
    """Write to stderr; a failure there does not change the exit code."""
    try:
        if sys.stderr is not None:
            write()
    except (OSError, ValueError):
        sys.stderr = None  # it would be tried again at the end, and be an exit code then


def _tell(status: ExitStatus, job: str, *, json: bool, say: Callable[[str], None]) -> None:
    quiet = status.reason in _ORDINARY and status.code == ExitCode.OK and not _is_terminal()
    if status.message and not quiet:
        say(status.message)
    if json:
        _write(lambda: sys.stderr.write(f"{printable(status.line(job))}\n"))


def _schedule(cron: str | None, every: str | None, tz: str | None) -> Schedule | None:
    if cron is not None and every is not None:
        raise UsageError("--cron and --every are two schedules: give one of them")
    if tz is not None and cron is None:
        raise UsageError("--tz is the time zone of --cron, and there is none: give --cron as well")
    if every is not None:
        return parse_schedule(f"every {every}")
    return None if cron is None else parse_schedule(cron, tz=tz or "UTC")


def _occurrence(
    word: str | None, schedule: Schedule | None, *, standby: bool, clock: Clock
) -> datetime | None:
    """Return the moment whose run is reserved; None: any."""
    if standby and word not in {None, _NOW}:
        raise UsageError("--occurrence is for one run, --standby for many: leave one of them out")
    if standby or word == _NOW or (word is None and schedule is None):
        return None
    if word in {None, _CRON}:
        if schedule is None:
            raise UsageError("--occurrence cron needs a schedule: give --cron or --every")
        found = schedule.previous(clock.utc_now() + _TICK)  # it may be due at this very moment
        if found is None:
            raise UsageError(f"{schedule.text!r} has no occurrence before now: nothing is due")
        return found
    try:
        moment = datetime.fromisoformat(word or "")
    except ValueError:
        raise UsageError(
            f"--occurrence {word!r} is no time: write now, cron, or 2026-01-31T02:30:00Z"
        ) from None
    return moment_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _if_held(text: str) -> tuple[IfHeld, timedelta | None]:
    word, has_time, time = text.partition("=")
    if word == _WAIT:
        return IfHeld.WAIT, duration(time, option="--if-held wait=") if has_time else None
    if has_time or word not in {each.value for each in IfHeld}:
        raise UsageError(f"--if-held {text!r} is not known: write skip, fail, wait or wait=5m")
    return IfHeld(word), None


def _retry(text: str) -> tuple[int, timedelta]:
    number, has_pause, pause = text.partition(":")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"--retry {text!r} is no number: write 3, or 3:2s with the first pause")
    if not has_pause:
        return int(number), Policy().retry_pause
    return int(number), duration(pause, option="--retry", at_most="1d")


def _limits(
    job: str, lease: timedelta, *, stop_timeout: str, timeout: timedelta | None, on_lost: str
) -> CommandTimeouts:
    wish = Wish.of((job,), lease=lease)
    timeouts = CommandTimeouts(
        lease_s=wish.timing.lease_s,
        stop_margin_s=wish.grace_s,
        stop_timeout_s=duration(
            stop_timeout, option="--stop-timeout", at_most="1d"
        ).total_seconds(),
        on_loss=_on_loss(on_lost),
    )
    return timeouts if timeout is None else timeouts.with_timeout(timeout.total_seconds())


def _on_loss(text: str) -> OnLoss:
    if text.startswith(_COMMAND) and text != _COMMAND:
        return OnLoss(kind=LossKind.COMMAND, command=text.removeprefix(_COMMAND))
    if text == _COMMAND or text not in {each.value for each in LossKind}:
        raise UsageError(f"--on-lost {text!r} is not known: write stop, kill, warn or cmd:'…'")
    if text == LossKind.COMMAND.value:
        raise UsageError("--on-lost cmd needs a line for the shell: write cmd:'…'")
    return OnLoss(kind=LossKind(text))


def add_to(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(cls=RunCommand, epilog=EXAMPLE)(run)
