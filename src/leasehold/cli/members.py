"""``leasehold members``: list the members of a group, and ask one to leave gracefully."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import anyio
import typer

from leasehold.cli.common import (
    Column,
    Execute,
    Form,
    GroupName,
    Output,
    StoreUrl,
    StreamName,
    counted,
    duration,
    row_of,
    seconds_cell,
    shown_seconds,
    store_url,
)
from leasehold.cli.tables import (
    err,
    fitting_table,
)
from leasehold.cli.watch import (
    NoWait,
    Page,
    Timeout,
    Watch,
    Watching,
    print_page,
    show,
    wait_until_done,
)
from leasehold.errors import LeaseholdError, UnknownResource
from leasehold.insight import GroupView, Inspector, MemberView, open_inspector
from leasehold.insight.groups import sample_of

members_app = typer.Typer(
    name="members", help="The processes that are in a group.", no_args_is_help=True
)

Holder = Annotated[
    str, typer.Argument(metavar="HOLDER", help="The id of the member, as `members ls` shows it.")
]


@members_app.command("ls", cls=Watching, epilog="leasehold members ls orders billing")
def ls(
    stream: StreamName,
    group: GroupName,
    *,
    watch: Watch = None,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """List the members of a group: where they run, what they own, when they were last heard of."""

    async def read_page(inspector: Inspector) -> Page:
        rows = [
            member_row(each) for each in (await inspector.group(stream, group, lags=False)).members
        ]
        return Page(data=rows, blocks=[fitting_table(rows, MEMBER_LAYOUTS)])

    show(read_page, store=store, form=form, watch=watch)


@members_app.command("drain", epilog="leasehold members drain host-web1-1f2e3d4c --execute")
def drain(
    holder: Holder,
    *,
    execute: Execute = False,
    no_wait: NoWait = False,
    timeout: Timeout = "2m",
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Ask a member to hand over all it owns and leave; wait until it has left.

    Without --execute it only shows what the member owns.
    """
    limit_s = duration(timeout, option="--timeout").total_seconds()
    url, wait_s = store_url(store), None if no_wait else limit_s
    anyio.run(partial(_drain, url, holder, execute=execute, limit_s=wait_s, form=form))


# --------------------------------------------------------------------------- parts


def member_row(member: MemberView) -> dict[str, object]:
    """Return a member as one row, with its state."""
    state = "draining" if member.draining else "active"
    if member.leave_requested and not member.draining:
        state = "leave_requested"
    return {**row_of(member), "state": state}


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_HOLDER = Column(name="holder", fold=True)
_PROCESS = (
    Column(name="host", fold=True, min_width=8),
    Column(name="pid", justify="right"),
    Column(name="keys", title="parts", justify="right"),
)
_LEASE = (
    Column(name="renewed_ago_s", title="renewed", justify="right", shown=seconds_cell),
    Column(name="time_left_s", title="left", justify="right", shown=seconds_cell),
)
_LOAD = Column(name="load", justify="right", shown=_number)
_STATE = Column(name="state")
MEMBER_LAYOUTS = (
    (
        _HOLDER,
        *_PROCESS,
        Column(name="weight", justify="right", shown=_number),
        Column(name="max_partitions", title="max", justify="right"),
        _LOAD,
        *_LEASE,
        _STATE,
    ),
    (_HOLDER, *_PROCESS, _LOAD, *_LEASE, _STATE),
)
_OWNED_COLUMNS = (
    Column(name="stream", fold=True),
    Column(name="group", fold=True),
    Column(name="partition", title="part", justify="right"),
    Column(name="epoch", justify="right"),
    Column(name="lag_events", title="lag", justify="right"),
)


async def _drain(
    url: str,
    holder: str,
    *,
    execute: bool,
    limit_s: float | None,
    form: Output,
) -> None:
    async with open_inspector(url) as inspector:
        view = await _group_of(inspector, holder)
        rows = _owned_rows(view, holder)
        print_page(Page(data=rows, blocks=[fitting_table(rows, [_OWNED_COLUMNS])]), form)
        parts = counted(len(rows), "partition")
        others = [each for each in view.members if each.holder != holder and not each.leaving]
        if others:
            goes = "goes" if len(rows) == 1 else "go"
            then = f"{parts} {goes} to {counted(len(others), 'other member')}"
        else:
            err.print("nobody else is there: what it has will be free until somebody joins")
            then = f"{parts} {'becomes' if len(rows) == 1 else 'become'} free"
        if not execute:
            err.print(f"nothing was done; with --execute: {then}, and it leaves")
            return
        if not await inspector.store.request_leave(holder):
            raise _gone(holder, [view])
        err.print(f"asked: {holder} hears of it with its next renewal")
        if limit_s is not None:
            await _left(inspector, view, holder, limit_s)


async def _left(inspector: Inspector, view: GroupView, holder: str, limit_s: float) -> None:
    """Wait until a member has left."""

    async def step() -> str | None:
        now = await inspector.group(view.stream, view.group, lags=False)
        if all(each.holder != holder for each in now.members):
            return None
        owned = counted(now.member(holder).keys, "partition")
        return f"{holder} still owns {owned}"

    if not await wait_until_done(inspector, step, limit_s=limit_s):
        raise LeaseholdError(
            f"{holder} has not left within {shown_seconds(limit_s)}: it stays asked. If it does "
            "not answer any more, end its process: its partitions are free when its lease ends"
        )
    err.print(f"{holder} has left")


async def _group_of(inspector: Inspector, holder: str) -> GroupView:
    groups = await inspector.groups()
    for view in groups:
        if any(each.holder == holder for each in view.members):
            return view
    raise _gone(holder, groups)


def _gone(holder: str, groups: Sequence[GroupView]) -> UnknownResource:
    known = [each.holder for view in groups for each in view.members if each.holder != holder]
    there = f"those there are: {sample_of(known)}" if known else "there are no members"
    return UnknownResource(f"there is no living member {holder!r}: {there}")


def _owned_rows(view: GroupView, holder: str) -> list[dict[str, object]]:
    return [
        {
            "stream": view.stream,
            "group": view.group,
            "partition": each.partition,
            "epoch": each.epoch,
            "lag_events": each.lag_events,
        }
        for each in view.partitions
        if each.held_by == holder
    ]


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(members_app)
