"""``leasehold jobs next``: the coming moments of a schedule, in its own time zone and in UTC.

It says what the schedule means in words, and which of the coming moments lie behind a change of the
clocks. A schedule that is given by ``--cron`` needs no store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
)
from leasehold.cli.tables import fitting_table
from leasehold.cli.watching import Page, print_page
from leasehold.clock import SystemClock
from leasehold.core.cron import Schedule, parse_schedule
from leasehold.errors import BadSchedule, UsageError
from leasehold.insight import open_desk
from leasehold.insight.jobs import job_view, schedule_of

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
    """In words: the changes of the clocks between one of the moments and the next."""
    return [
        _change(schedule, before, after)
        for before, after in pairwise(moments)
        if _offset(schedule, before) != _offset(schedule, after)
    ]


async def _of_job(url: str, job: str, now: datetime) -> tuple[Schedule, datetime]:
    """Its schedule, and the moment after which the next one is not done."""
    async with open_desk(url) as desk:
        view = await job_view(desk.store, job, now=now)
    if not view.schedule_text:
        raise UsageError(
            f"{job!r} has no schedule in this store: it runs when somebody starts it. Give a "
            "schedule with --cron"
        )
    try:
        schedule = view.schedule or schedule_of(view.schedule_text)
    except BadSchedule as error:
        raise BadSchedule(f"the schedule of {job!r} can not be read here: {error}") from error
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
        f"careful: the clocks in {schedule.tz.key} go {way} by {by} at {at:%Y-%m-%d %H:%M} UTC. A "
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
