"""``leasehold jobs``: what runs where, how it ended, what comes next, and what operators can do.

``ls``, ``show``, ``history``, ``next`` and ``check-epoch`` change nothing. ``break`` and ``move``
only print their plan, unless ``--execute`` is given.

``next`` shows the next times of a schedule in its own time zone and in UTC, explains the schedule,
and warns of changes of the clocks. A schedule that is given by ``--cron`` needs no store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated

import anyio
import typer

from leasehold.cli.common import (
    JOBS_MAKE,
    Column,
    Form,
    Output,
    StoreUrl,
    seconds_cell,
    shown_seconds,
    store_url,
    time_cell,
    yes_no_cell,
)
from leasehold.cli.jobs_operate import (
    JobName,
    break_job,
    cancel_trigger,
    describe_owner,
    move,
    pause,
    resume,
    shown_at,
    trigger,
)
from leasehold.cli.tables import (
    fitting_table,
    print_record,
    record_table,
)
from leasehold.cli.watch import Page, Watch, Watching, print_page, show
from leasehold.clock import SystemClock
from leasehold.core.cron import Schedule, parse_schedule
from leasehold.errors import InvalidSchedule, LeaseLost, UsageError
from leasehold.insight import Inspector, open_inspector
from leasehold.insight.jobs import JobState, JobView, job_log, job_view, job_views, schedule_of
from leasehold.jobs.run_log import HolderStreak, RunLogEntry, recent_holders

NEXT_EXAMPLES = 'leasehold jobs next nightly, or: leasehold jobs next --cron "30 2 * * *" --tz UTC'
_SECOND = timedelta(seconds=1)


def next_runs(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The job; or give --cron.")
    ] = None,
    *,
    count: Annotated[
        int, typer.Option("-n", help="How many moments.", min=1, max=1000, metavar="N")
    ] = 5,
    cron: Annotated[
        str | None,
        typer.Option(help='A schedule: "30 2 * * *", "0 30 2 * * *", "every 30s".', metavar="TEXT"),
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option(help="Its time zone: Europe/Berlin. \\[default: UTC]", metavar="ZONE"),
    ] = None,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Show the next moments of a schedule, and what it means in words.

    These are due times; a pause or a long run can delay the start.
    """
    if (job is None) == (cron is None):
        raise UsageError("give the name of a job, or --cron with a schedule, and not both")
    if tz is not None and cron is None:
        raise UsageError("--tz goes with --cron: a job has a time zone of its own")
    now = SystemClock().utc_now()
    if cron is not None:
        schedule, after = parse_schedule(cron, tz=tz or "UTC"), now
    else:
        schedule, after = anyio.run(_of_job, store_url(store, maker=JOBS_MAKE), job or "", now)
    moments = list(_coming(schedule, after, count))
    rows = [_row(each, schedule, now) for each in moments]
    notes = (f"{schedule.text}: {schedule.explain()}", *clock_changes(schedule, [after, *moments]))
    print_page(Page(data=rows, blocks=[fitting_table(rows, (_COLUMNS,))], notes=notes), form)


def clock_changes(schedule: Schedule, moments: Sequence[datetime]) -> list[str]:
    """Describe the changes of the clocks between consecutive moments."""
    return [
        _change(schedule, before, after)
        for before, after in pairwise(moments)
        if _offset(schedule, before) != _offset(schedule, after)
    ]


async def _of_job(url: str, job: str, now: datetime) -> tuple[Schedule, datetime]:
    """Return the schedule of a job, and the moment up to which all is done."""
    async with open_inspector(url) as inspector:
        view = await job_view(inspector.store, job, now=now)
    if not view.schedule_text:
        raise UsageError(
            f"{job!r} has no schedule in this store: it runs when somebody starts it. Give a "
            "schedule with --cron"
        )
    try:
        schedule = view.schedule or schedule_of(view.schedule_text)
    except InvalidSchedule as error:
        raise InvalidSchedule(f"the schedule of {job!r} can not be read here: {error}") from error
    return schedule, max(now, view.ran.done) if view.ran else now


def _coming(schedule: Schedule, begin: datetime, count: int) -> Iterator[datetime]:
    after: datetime | None = begin
    for _ in range(count):
        after = schedule.next(after) if after is not None else None
        if after is None:
            return
        yield after


def _row(moment: datetime, schedule: Schedule, now: datetime) -> dict[str, object]:
    local = moment.astimezone(schedule.tz)
    return {
        "local": local.isoformat(),
        "utc": moment.astimezone(UTC).isoformat(),
        "day": f"{local:%a}",
        "zone": local.tzname(),
        "in_s": (moment - now).total_seconds(),
    }


def _offset(schedule: Schedule, moment: datetime) -> timedelta:
    return moment.astimezone(schedule.tz).utcoffset() or timedelta(0)


def _change(schedule: Schedule, before: datetime, after: datetime) -> str:
    old, new = _offset(schedule, before), _offset(schedule, after)
    while after - before > _SECOND:
        middle = before + (after - before) / 2
        if _offset(schedule, middle) == old:
            before = middle
        else:
            after = middle
    by = shown_seconds(abs((new - old).total_seconds()))
    way = "forward" if new > old else "back"
    at = after.replace(microsecond=0)
    return (
        f"warning: the clocks in {schedule.tz.key} go {way} by {by} at {at:%Y-%m-%d %H:%M} UTC. A "
        "fixed time that they leave out runs right after, one that comes twice runs once"
    )


def _local_cell(value: object) -> str:
    return str(value)[:19].replace("T", " ")


_COLUMNS = (
    Column(name="day", title=""),
    Column(name="local", shown=_local_cell),
    Column(name="zone"),
    Column(name="utc", title="UTC", shown=_local_cell),
    Column(name="in_s", title="in", justify="right", shown=seconds_cell),
)


jobs_app = typer.Typer(
    name="jobs", help="Jobs that run one at a time, and their schedules.", no_args_is_help=True
)


@jobs_app.command("ls", cls=Watching, epilog="leasehold jobs ls --watch")
def ls(*, watch: Watch = None, store: StoreUrl = None, form: Form = Output.TABLE) -> None:
    """List all jobs: their state, who has them, how the last run ended, what is next or late."""

    async def read_page(inspector: Inspector) -> Page:
        rows = [
            job_row(each)
            for each in await job_views(inspector.store, now=inspector.clock.utc_now())
        ]
        return Page(data=rows, blocks=[fitting_table(rows, job_layouts(rows))])

    show(read_page, store=store, form=form, watch=watch, maker=JOBS_MAKE)


@jobs_app.command("show", cls=Watching, epilog="leasehold jobs show nightly")
def show_job(
    job: JobName, *, watch: Watch = None, store: StoreUrl = None, form: Form = Output.TABLE
) -> None:
    """Show all that is known of one job; what is not known is left out, but not in JSON."""

    async def read_page(inspector: Inspector) -> Page:
        view = await job_view(inspector.store, job, now=inspector.clock.utc_now())
        record = job_row(view) | _details(view)
        known = {name: value for name, value in record.items() if value not in (None, "")}
        return Page(data=record, blocks=[record_table(known, _RECORD)])

    show(read_page, store=store, form=form, watch=watch, maker=JOBS_MAKE)


@jobs_app.command("history", cls=Watching, epilog="leasehold jobs history nightly --runs")
def history(
    job: JobName,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="The last N.", min=1, max=100, metavar="N")
    ] = 10,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="All that the store still knows, also what ran nothing.", metavar=""
        ),
    ] = False,
    runs: Annotated[
        bool, typer.Option("--runs", help="One line for each run, with its result.", metavar="")
    ] = False,
    watch: Watch = None,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """List who reserved a job, newest first; the same one several times in a row is one line.

    Who found nothing to run, because another one was faster or the schedule only begins, is left
    out without --all.
    """

    async def read_page(inspector: Inspector) -> Page:
        log = [each for each in await job_log(inspector.store, job) if everything or each.ran]
        max_lines = len(log) if everything else limit
        if runs:
            rows = [run_row(each) for each in log[:max_lines]]
            return Page(data=rows, blocks=[fitting_table(rows, _RUN_LAYOUTS)])
        rows = [_reserver_row(each) for each in recent_holders(log, max_holders=max_lines)]
        return Page(data=rows, blocks=[fitting_table(rows, _RESERVER_LAYOUTS)])

    show(read_page, store=store, form=form, watch=watch, maker=JOBS_MAKE)


@jobs_app.command("check-epoch", epilog="leasehold jobs check-epoch nightly 7 && rsync …")
def check_epoch(
    job: JobName,
    epoch: Annotated[
        int, typer.Argument(metavar="EPOCH", help="LEASEHOLD_EPOCH of a command.", min=1)
    ],
    *,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Exit with 0 if an epoch is that of the current holder, else with 4.

    It may be over a moment later: what you write to should compare epochs by itself.
    """

    async def run() -> None:
        async with open_inspector(store_url(store, maker=JOBS_MAKE)) as inspector:
            view = await job_view(inspector.store, job, now=inspector.clock.utc_now())
        current = view.held and view.resource.epoch == epoch
        row = {
            "job": view.name,
            "epoch": epoch,
            "current": current,
            "current_epoch": view.resource.epoch,
            "holder": view.resource.holder if view.held else None,
            "time_left_s": view.member.remaining_s if view.held and view.member else None,
        }
        if current or form is not Output.TABLE:
            print_record(row, form)
        if not current:
            raise LeaseLost(
                f"epoch {epoch} of {job!r} is not current: {describe_owner(view)}; stop what was "
                "started with it",
                key=view.resource.key,
                epoch=epoch,
                reason="not_held",
                now_held_by=view.resource.holder,
            )

    anyio.run(run)


jobs_app.command("next", epilog=NEXT_EXAMPLES)(next_runs)
jobs_app.command("pause", epilog='leasehold jobs pause nightly --for 2h --reason "disk full"')(
    pause
)
jobs_app.command("resume", epilog="leasehold jobs resume nightly")(resume)
jobs_app.command("trigger", epilog='leasehold jobs trigger nightly --reason "after the repair"')(
    trigger
)
jobs_app.command("cancel-trigger", epilog="leasehold jobs cancel-trigger nightly")(cancel_trigger)
jobs_app.command("break", epilog="leasehold jobs break nightly --epoch 7 --execute")(break_job)
jobs_app.command("move", epilog="leasehold jobs move nightly --execute")(move)


# --------------------------------------------------------------------------- rows


def job_row(view: JobView) -> dict[str, object]:
    """Return a job as one row."""
    current, last, member = view.current, view.last, view.member if view.held else None
    note = current.note if current else None
    owned = view.held or view.state is JobState.LOST
    return {
        "job": view.name,
        "state": view.state.value,
        "holder": view.resource.holder if owned else view.resource.handed_to,
        "host": (member.info.host if member else note.host if note else "") or None,
        "pid": (member.info.pid if member else note.pid if note else 0) or None,
        "epoch": view.resource.epoch,
        "since": shown_at(current.started_at) if current else None,
        "occurrence": shown_at(note.occurrence) if note else None,
        "attempt": note.attempt if note else None,
        "message": (note.words if note else "") or None,
        "last_outcome": last.outcome.value if last and last.outcome else None,
        "last_ended_at": shown_at(last.ended_at) if last else None,
        "next_at": shown_at(view.next_at),
        "late_s": view.late_s,
        "paused": view.paused is not None,
        "run_requested": view.run_requested is not None,
    }


def _details(view: JobView) -> dict[str, object]:
    last, resource, member = view.last, view.resource, view.member if view.held else None
    paused, requested, ran = view.paused, view.run_requested, view.ran
    return {
        "time_left_s": member.remaining_s if member else None,
        "lease_s": view.lease_s if member else None,
        "breaking_s": resource.breaking_s,
        "asked_by": resource.asked_by,
        "schedule": view.schedule_text or None,
        "explained": view.schedule.explain() if view.schedule else None,
        "done_until": shown_at(ran.done) if ran else None,
        "started_not_done": shown_at(ran.started) if ran else None,
        "last_epoch": last.epoch if last else None,
        "last_holder": last.holder if last else None,
        "last_occurrence": shown_at(last.note.occurrence) if last else None,
        "last_lasted_s": _lasted_s(last) if last else None,
        "last_exit_code": last.note.exit_code if last else None,
        "last_message": (last.note.words or None) if last else None,
        "paused_by": paused.by if paused else None,
        "paused_reason": paused.why if paused else None,
        "paused_until": shown_at(paused.until) if paused else None,
        "run_requested_by": requested.by if requested else None,
        "run_requested_reason": requested.why if requested else None,
    }


def run_row(entry: RunLogEntry) -> dict[str, object]:
    """Return a run as one row."""
    note = entry.note
    return {
        "epoch": entry.epoch,
        "holder": entry.holder,
        "host": note.host or None,
        "pid": note.pid or None,
        "occurrence": shown_at(note.occurrence),
        "attempt": note.attempt,
        "started_at": shown_at(entry.started_at),
        "ended_at": shown_at(entry.ended_at),
        "lasted_s": _lasted_s(entry),
        "outcome": entry.outcome.value if entry.outcome else None,
        "exit_code": note.exit_code,
        "message": note.words or None,
        "when": shown_at(note.occurrence or entry.started_at),
    }


def _lasted_s(entry: RunLogEntry) -> float | None:
    return None if entry.duration is None else entry.duration.total_seconds()


def _reserver_row(reserver: HolderStreak) -> dict[str, object]:
    newest, oldest = reserver.entries[0], reserver.entries[-1]
    epochs = str(newest.epoch)
    if newest is not oldest:
        epochs = f"{oldest.epoch}-{newest.epoch}"
    return {
        "holder": reserver.holder,
        "host": newest.note.host or None,
        "pid": newest.note.pid or None,
        "runs": sum(each.ran for each in reserver.entries),
        "epochs": epochs,
        "started_at": shown_at(oldest.started_at),
        "ended_at": shown_at(newest.ended_at),
        "outcome": newest.outcome.value if newest.outcome else None,
        "outcomes": _counts(reserver.entries),
    }


def _counts(entries: Sequence[RunLogEntry]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in entries:
        word = each.outcome.value if each.outcome else "running"
        found[word] = found.get(word, 0) + 1
    return found


# ------------------------------------------------------------------------ columns

_NAME = Column(name="job", fold=True, min_width=10)
_STATE = Column(name="state")
_HOLDER = Column(name="holder", fold=True, min_width=12)
_HOST = Column(name="host", fold=True, min_width=8)
_SINCE = Column(name="since", shown=time_cell)
_LAST = Column(name="last_outcome", title="last")
_LATE = Column(name="late_s", title="late", justify="right", shown=seconds_cell)
_NEXT = Column(name="next_at", title="next", shown=time_cell)
_OCCURRENCE = Column(name="occurrence", shown=time_cell)
_JOB_COLUMNS = (_NAME, _STATE, _HOLDER, _HOST, _SINCE, _OCCURRENCE, _LAST, _NEXT, _LATE)
_SPARED_LAST = (_NAME, _STATE, _LAST)  # "never ran" is worth a column of its own
_SPARED_FIRST = (_HOST, _OCCURRENCE, _SINCE)


def job_layouts(rows: Sequence[Mapping[str, object]]) -> list[list[Column]]:
    """Return the layouts for jobs, the widest first; empty columns are dropped first."""
    filled = [
        each
        for each in _JOB_COLUMNS
        if each in _SPARED_LAST or any(row[each.name] is not None for row in rows)
    ]
    fewer = [
        [each for each in filled if each not in _SPARED_FIRST[:count]]
        for count in range(len(_SPARED_FIRST) + 1)
    ]
    return [list(_JOB_COLUMNS), *fewer]


_RECORD = (
    *(
        Column(name=name, title=name.replace("_", " ").removesuffix(" at"), shown=time_cell)
        for name in (
            "since",
            "occurrence",
            "last_ended_at",
            "next_at",
            "done_until",
            "started_not_done",
            "last_occurrence",
            "paused_until",
        )
    ),
    Column(name="time_left_s", title="left", shown=seconds_cell),
    Column(name="breaking_s", title="ends within", shown=seconds_cell),
    Column(name="paused", shown=yes_no_cell),
    Column(name="run_requested", title="run requested", shown=yes_no_cell),
)
_EPOCH = Column(name="epoch", justify="right")
_LASTED = Column(name="lasted_s", title="lasted", justify="right", shown=seconds_cell)
_OUTCOME = Column(name="outcome", none="running")
_EXIT = Column(name="exit_code", title="exit", justify="right")
_MESSAGE = Column(name="message", fold=True, min_width=12)
_BEGAN = Column(name="started_at", title="started", shown=time_cell)
_ENDED = Column(name="ended_at", title="ended", shown=time_cell)
_WHEN = Column(name="when", title="run of", shown=time_cell)
_RUN_LAYOUTS = (
    (_EPOCH, _HOLDER, _OCCURRENCE, _BEGAN, _LASTED, _OUTCOME, _EXIT, _MESSAGE),
    (_EPOCH, _WHEN, _LASTED, _OUTCOME, _EXIT, _MESSAGE),
)
_RUNS = (Column(name="runs", justify="right"), Column(name="epochs", justify="right"))
_RESERVER_LAYOUTS = (
    (_HOLDER, _HOST, *_RUNS, _BEGAN, _ENDED, _OUTCOME),
    (_HOLDER, *_RUNS, _BEGAN, _OUTCOME),
)


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(jobs_app)
