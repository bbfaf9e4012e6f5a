"""What an operator can do about a job: pause, resume, trigger, break, move.

Requests are kept in the store, with their author, time and reason. They hold for all nodes.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import anyio
import typer

from leasehold.cli.common import (
    JOBS_MAKE,
    Column,
    Execute,
    Form,
    Output,
    StoreUrl,
    duration,
    seconds_cell,
    shown_seconds,
    shown_time,
    store_url,
    time_cell,
)
from leasehold.cli.tables import (
    err,
    fitting_table,
)
from leasehold.cli.watch import NoWait, Page, Timeout, print_page, wait_until_done
from leasehold.clock import host_name
from leasehold.errors import LeaseholdError, LeaseLost, UnknownResource, UsageError
from leasehold.insight import Inspector, open_inspector
from leasehold.insight.groups import sample_of
from leasehold.insight.jobs import JobView, job_log, job_view
from leasehold.jobs import operator_requests
from leasehold.jobs.wish import GROUP
from leasehold.model import MemberRecord
from leasehold.names import holder_id

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name of the job.")]
Reason = Annotated[str, typer.Option(help="The reason, for those who look later.", metavar="TEXT")]
_ROUNDING_S = 0.01  # two numbers of the store were added up


def pause(
    job: JobName,
    *,
    reason: Reason = "",
    until: Annotated[
        str | None,
        typer.Option(help="End it by itself: 2026-03-01T06:00+01:00.", metavar="ISO-TIME"),
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", help="End it after a time: 2h.", metavar="TIME")
    ] = None,
    store: StoreUrl = None,
) -> None:
    """Let no run of a job begin until it is resumed. A run that is under way goes on."""
    if until is not None and for_ is not None:
        raise UsageError("give --until or --for, and not both")

    async def run() -> None:
        async with open_inspector(store_url(store, maker=JOBS_MAKE)) as inspector:
            end = None if until is None else _parse_time(until)
            if for_ is not None:
                end = inspector.clock.utc_now() + duration(for_, option="--for", at_least="1s")
            if end is not None and end <= inspector.clock.utc_now():
                raise UsageError(f"--until {until} has passed: give a time that is still to come")
            await _known(inspector, job)
            await operator_requests.pause(
                inspector.store, job, by=_me(), why=reason, until=end, clock=inspector.clock
            )
            now = await _known(inspector, job)
            lasts = (
                "until `leasehold jobs resume`"
                if end is None
                else f"until {shown_time(str(shown_at(end)))}"
            )
            err.print(f"paused {job!r} {lasts}")
            if now.held:
                err.print(f"it runs at this moment, and goes on: {describe_owner(now)}")

    anyio.run(run)


def resume(job: JobName, *, store: StoreUrl = None) -> None:
    """End the pause of a job."""

    async def run() -> None:
        async with open_inspector(store_url(store, maker=JOBS_MAKE)) as inspector:
            await _known(inspector, job)
            ended = await operator_requests.resume(inspector.store, job, clock=inspector.clock)
            err.print(f"resumed {job!r}" if ended else f"{job!r} was not paused")

    anyio.run(run)


def trigger(job: JobName, *, reason: Reason = "", store: StoreUrl = None) -> None:
    """Have a job run once as soon as one of its nodes can, schedule or pause or not.

    It runs under the same reservation as always: never beside another run.
    """

    async def run() -> None:
        async with open_inspector(store_url(store, maker=JOBS_MAKE)) as inspector:
            view = await _known(inspector, job)
            if view.run_requested is not None:
                by = view.run_requested.by or "somebody"
                err.print(f"{by} wants it already, and nobody has begun")
                return
            await operator_requests.request_run(
                inspector.store, job, by=_me(), why=reason, clock=inspector.clock
            )
            err.print(
                "asked: the next worker, or `leasehold run --standby` with a schedule, that has "
                f"{job!r} and is free runs it once; nobody else hears it"
            )
            if view.held:
                err.print(f"it runs at this moment: {describe_owner(view)}; then once more")

    anyio.run(run)


def cancel_trigger(job: JobName, *, store: StoreUrl = None) -> None:
    """Withdraw a trigger that no node has taken. A run that has begun continues."""

    async def run() -> None:
        async with open_inspector(store_url(store, maker=JOBS_MAKE)) as inspector:
            view = await _known(inspector, job)
            cancelled = await operator_requests.cancel_run_request(
                inspector.store, job, clock=inspector.clock
            )
            if cancelled:
                err.print(f"cancelled: {job!r} is not run for it")
            else:
                err.print(f"nothing to cancel: no trigger of {job!r} is waiting")
            if view.held:
                err.print(f"a run has begun and continues: {describe_owner(view)}")

    anyio.run(run)


def break_job(
    job: JobName,
    *,
    epoch: Annotated[
        int, typer.Option(help="The epoch you mean, as `jobs show` shows it.", min=1, metavar="N")
    ],
    after: Annotated[
        str | None,
        typer.Option(
            help="Leave the holder so much time to stop: 10s. \\[default: the length of its lease, "
            "which is safe]",
            metavar="TIME",
        ),
    ] = None,
    execute: Execute = False,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Take a job away from its holder by force, at once or after a while.

    Exit code 4 if that epoch is over; then nothing is changed.
    """
    given = duration(after, option="--after") if after is not None else None
    url = store_url(store, maker=JOBS_MAKE)
    anyio.run(partial(_break, url, job, epoch, given, execute=execute, form=form))


def move(
    job: JobName,
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="HOLDER", help="Who is to have it. \\[default: one that stands by]"),
    ] = None,
    execute: Execute = False,
    no_wait: NoWait = False,
    timeout: Timeout = "1m",
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Ask the holder of a job to stop in good order and hand it over; wait until it has.

    Without --to it goes to one that has had it before, that bears its name, or that bears the
    same name as its holder, as workers do.
    """
    limit_s = None if no_wait else duration(timeout, option="--timeout").total_seconds()
    url = store_url(store, maker=JOBS_MAKE)
    anyio.run(partial(_hand_over, url, job, to, limit_s=limit_s, execute=execute, form=form))


# ------------------------------------------------------------------------ messages


def describe_owner(view: JobView) -> str:
    """Describe who has a job now."""
    resource = view.resource
    if view.held:
        left = "" if view.member is None else f", {shown_seconds(view.member.remaining_s)} left"
        return f"{resource.holder} has it in epoch {resource.epoch}{left}"
    if resource.handed_to is not None:
        return f"it is kept for {resource.handed_to} (epoch {resource.epoch} was handed over)"
    return f"nobody has it, and its last epoch is {resource.epoch}"


def shown_at(moment: datetime | None) -> str | None:
    """Return a time as ISO 8601 text in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat()


# --------------------------------------------------------------------------- steps


async def _break(
    url: str, job: str, epoch: int, given: timedelta | None, *, execute: bool, form: Output
) -> None:
    async with open_inspector(url) as inspector:
        view = await _known(inspector, job)
        _check_epoch(view, epoch)
        wait_s = view.lease_s if given is None else given.total_seconds()
        if wait_s is None:
            raise UsageError(
                f"how long the lease of {view.resource.holder} is can not be told: say --after TIME"
            )
        _print(view, form)
        if view.lease_s is None or wait_s < view.lease_s - _ROUNDING_S:
            long = "" if view.lease_s is None else f" of {shown_seconds(view.lease_s)}"
            err.print(
                f"warning: {shown_seconds(wait_s)} is less than its lease{long}: "
                f"{view.resource.holder} may still be at work when the next run begins. What it "
                f"writes with epoch {epoch} is refused only where epochs are compared"
            )
        if not execute:
            max_s = min(wait_s, view.member.remaining_s) if view.member else wait_s
            when = f"within {shown_seconds(max_s)}" if wait_s else "at once"
            err.print(f"nothing was done; with --execute: epoch {epoch} ends {when}")
            return
        done = await inspector.store.break_(
            view.resource.key, epoch=epoch, after=timedelta(seconds=wait_s)
        )
        if done is None:
            now = await _known(inspector, job)
            raise LeaseLost(f"epoch {epoch} of {job!r} is not held any more: {describe_owner(now)}")
        ends = f"ends within {shown_seconds(done.breaking_s)}" if done.breaking_s else "has ended"
        err.print(f"done: epoch {epoch} {ends}")


def _check_epoch(view: JobView, epoch: int) -> None:
    """Refuse to break another reservation than the one that is meant."""
    if not view.held or view.resource.epoch != epoch:
        raise LeaseLost(
            f"epoch {epoch} of {view.name!r} is not held: {describe_owner(view)}",
            key=view.resource.key,
            epoch=epoch,
            reason="not_held",
            now_held_by=view.resource.holder,
        )


async def _hand_over(
    url: str, job: str, to: str | None, *, limit_s: float | None, execute: bool, form: Output
) -> None:
    async with open_inspector(url) as inspector:
        view = await _known(inspector, job)
        if not view.held:
            raise LeaseLost(
                f"nobody can hand {job!r} over: {describe_owner(view)}; whoever stands by takes it"
            )
        receiver = await _receiver(inspector, view, to)
        if receiver == view.resource.holder:
            err.print(f"{receiver} has {job!r} already")
            return
        _print(view, form)
        if not execute:
            err.print(f"nothing was done; with --execute it is handed over to {receiver}")
            return
        epoch = view.resource.epoch
        if not await inspector.store.request_hand_over(view.resource.key, epoch=epoch, to=receiver):
            now = await _known(inspector, job)
            raise LeaseLost(f"{job!r} can not be handed over to {receiver}: {describe_owner(now)}")
        err.print(f"asked: {view.resource.holder} hears of it with its next renewal")
        if limit_s is not None:
            await _moved(inspector, view, receiver, limit_s)


async def _receiver(inspector: Inspector, view: JobView, to: str | None) -> str:
    """Return the holder that is to have the job."""
    members = await inspector.store.members(GROUP)
    holder = view.resource.holder
    standing_by = [
        each
        for each in members.values()
        if each.alive and each.holder != holder and not (each.leave_requested or each.info.draining)
    ]
    there = [each.holder for each in standing_by]
    others = f"those there are: {sample_of(there)}" if there else "no other worker is running"
    if to is not None:
        if to != holder and to not in there:
            raise UnknownResource(f"{to!r} does not stand by: {others}")
        return to
    before = [each.holder for each in await job_log(inspector.store, view.name)]
    chosen = _likely(standing_by, before, view)
    if chosen is None:
        name_it = "; name the one that is to have it with --to" if there else ""
        raise UnknownResource(f"nobody is known to stand by for {view.name!r}: {others}{name_it}")
    return chosen


def _likely(members: Sequence[MemberRecord], before: Sequence[str], view: JobView) -> str | None:
    """Choose a former holder, one whose id has the job's name, or a worker of the same name."""
    name = holder_id(view.name, host="x", suffix="").removesuffix("-x-")
    there = [each.holder for each in members]
    waiting = [each for each in there if each.startswith(f"{name}-")]
    program = _program(view.member) if view.member else ""
    fellows = [each.holder for each in members if program and _program(each) == program]
    return next((each for each in (*before, *waiting, *fellows) if each in there), None)


def _program(member: MemberRecord) -> str:
    """Return the name that a holder's id begins with; empty if the id has another form."""
    host = holder_id("x", host=member.info.host, suffix="").removeprefix("x")
    return member.holder.rpartition(host)[0]


async def _moved(inspector: Inspector, view: JobView, to: str, limit_s: float) -> None:
    """Wait until a job has moved."""

    async def step() -> str | None:
        now = await _known(inspector, view.name)
        if now.held and now.resource.holder == to:
            return None
        if now.resource.handed_to == to:
            return f"handed over; {to} has yet to take it"
        if now.resource.handed_to is not None or now.resource.epoch != view.resource.epoch:
            raise LeaseLost(f"{view.name!r} went another way: {describe_owner(now)}")
        if not now.held:
            return f"{view.resource.holder} has let go; {to} has yet to take it"
        return f"{view.resource.holder} has yet to hand it over"

    if not await wait_until_done(inspector, step, limit_s=limit_s):
        raise LeaseholdError(
            f"{view.name!r} has not moved within {shown_seconds(limit_s)}; the question stands, "
            "see `leasehold jobs show`"
        )
    err.print(f"{to} has {view.name!r}")


async def _known(inspector: Inspector, job: str) -> JobView:
    return await job_view(inspector.store, job, now=inspector.clock.utc_now())


def _print(view: JobView, form: Output) -> None:
    row = {
        "job": view.name,
        "holder": view.resource.holder,
        "epoch": view.resource.epoch,
        "since": shown_at(view.current.started_at) if view.current else None,
        "time_left_s": view.member.remaining_s if view.member else None,
    }
    print_page(Page(data=row, blocks=[fitting_table([row], (_COLUMNS,))]), form)


_COLUMNS = (
    Column(name="job", fold=True, min_width=10),
    Column(name="holder", fold=True),
    Column(name="epoch", justify="right"),
    Column(name="since", shown=time_cell),
    Column(name="time_left_s", title="left", justify="right", shown=seconds_cell),
)


def _parse_time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError(
            f"--until {text!r} is no time with a zone: write 2026-03-01T06:00Z or "
            "2026-03-01T06:00+01:00"
        )
    return found


def _me() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        name = "somebody"
    return f"{name}@{host_name()}"
