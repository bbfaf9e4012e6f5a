"""``leasehold partitions``: have a partition moved to another member, in good order."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from leasehold.cli.common import (
    Column,
    Execute,
    Form,
    GroupName,
    Output,
    PartitionId,
    StoreUrl,
    StreamName,
    duration,
    shown_seconds,
    store_url,
)
from leasehold.cli.leases import now_there
from leasehold.cli.tables import (
    err,
    fitting_table,
)
from leasehold.cli.watch import NoWait, Page, Timeout, print_page, wait_until_done
from leasehold.errors import LeaseholdError, LeaseLost
from leasehold.insight import Desk, GroupView, PartitionView, open_desk
from leasehold.insight.groups import would_be_undone

partitions_app = typer.Typer(
    name="partitions", help="Where the partitions of a group are worked on.", no_args_is_help=True
)


@partitions_app.callback()
def _partitions() -> None:
    """Where the partitions of a group are worked on."""


@partitions_app.command(
    "move", epilog="leasehold partitions move orders billing 3 --to host-web2-5a6b7c8d --execute"
)
def move(
    stream: StreamName,
    group: GroupName,
    partition: PartitionId,
    *,
    to: Annotated[str, typer.Option(help="The member that is to have it.", metavar="HOLDER")],
    execute: Execute = False,
    no_wait: NoWait = False,
    timeout: Timeout = "1m",
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Ask the owner of a partition to hand it over to another member; wait until it has it.

    The owner finishes what it has begun, notes its position and passes the partition on. It stays there only if the balance allows it: the plan says so where it does not.
    """  # noqa: E501
    limit_s = duration(timeout, option="--timeout").total_seconds()

    async def run() -> None:
        async with open_desk(store_url(store)) as desk:
            view = await desk.group(stream, group)
            part = view.partition(partition)
            if not _worth_it(view, part, to):
                return
            row = _row(view, part, to)
            print_page(Page(data=row, blocks=[fitting_table([row], _LAYOUTS)]), form)
            if would_be_undone(view, owner=part.owner, to=to):
                err.print(f"careful: {to} would have more than its even share: {_UNDONE}")
            if not execute:
                err.print("nothing was done; with --execute the owner is asked to hand it over")
                return
            if not await desk.store.suggest(part.key, epoch=part.epoch, to=to):
                now = await desk.group(stream, group, lags=False)
                raise _refused(now.partition(partition), to)
            err.print(f"asked: {part.owner} hears of it with its next renewal")
            if not no_wait:
                await _moved(desk, view, part, to, limit_s)

    anyio.run(run)


# --------------------------------------------------------------------------- parts

_UNDONE = (
    "members that share evenly give it away again at once. Give it a greater weight, drain a "
    "member, or have the strategy by_load"
)
_LAYOUTS = (
    (
        Column(name="partition", title="part", justify="right"),
        Column(name="epoch", justify="right"),
        Column(name="owner", title="from", fold=True),
        Column(name="to", fold=True),
        Column(name="lag_events", title="lag", justify="right"),
    ),
)


def _row(view: GroupView, part: PartitionView, to: str) -> dict[str, object]:
    return {
        "stream": view.stream,
        "group": view.group,
        "partition": part.partition,
        "epoch": part.epoch,
        "owner": part.owner,
        "to": to,
        "lag_events": part.lag_events,
    }


def _worth_it(view: GroupView, part: PartitionView, to: str) -> bool:
    """Whether there is something to move.

    Raises:
        UnknownResource: the receiver is no member.
        LeaseLost: it is leaving, or nobody owns the partition.
    """
    if part.keeper == to:
        err.print(f"{to} has partition {part.partition} already")
        return False
    if view.member(to).leaving:
        raise LeaseLost(f"{to} is leaving and takes nothing more: choose another member")
    if part.keeper is None:
        raise LeaseLost(
            f"nobody owns partition {part.partition} now, so nobody can hand it over: the members "
            "take it by themselves within a cycle"
        )
    return True


def _refused(part: PartitionView, to: str) -> LeaseLost:
    return LeaseLost(
        f"partition {part.partition} can not be moved to {to}: {now_there(part)}; look with "
        "`leasehold groups describe` and ask again"
    )


async def _moved(desk: Desk, view: GroupView, part: PartitionView, to: str, limit_s: float) -> None:
    """Wait until a partition has moved.

    Raises:
        LeaseLost: somebody else has it.
        LeaseholdError: it has not moved within this time.
    """

    async def step() -> str | None:
        view_now = await desk.group(view.stream, view.group, lags=False)
        now = view_now.partition(part.partition)
        if now.keeper == to and now.handed_to is None:
            return None
        if now.handed_to == to:
            return f"handed over; {to} has yet to take it"
        if now.epoch != part.epoch or now.keeper is None or now.handed_to is not None:
            why = f": {_UNDONE}" if would_be_undone(view, owner=part.owner, to=to) else ""
            raise LeaseLost(
                f"partition {part.partition} went another way: {now_there(now)}{why}",
                now_held_by=now.owner,
            )
        asked = "has yet to hand it over" if now.asked_by == to else "is asked no more"
        return f"{part.owner} {asked}"

    if not await wait_until_done(desk, step, limit_s=limit_s):
        raise LeaseholdError(
            f"partition {part.partition} has not moved within {shown_seconds(limit_s)}; the "
            "question stands, see `leasehold leases show`"
        )
    err.print(f"{to} has partition {part.partition}")


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(partitions_app)
