"""``leasehold checkpoints``: list and reset the positions of a group.

A reset first shows how many events repeat and how many are skipped. It is refused as a whole while
one of the partitions is owned: its owner would continue from its own position.
"""

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
    StoreUrl,
    StreamName,
    count_cell,
    counted,
    row_of,
    seconds_cell,
    store_url,
    time_cell,
    unknown_heads,
)
from leasehold.cli.tables import (
    err,
    fitting_table,
)
from leasehold.cli.watch import Page, Watch, Watching, print_page, show
from leasehold.errors import LeaseLost, UsageError
from leasehold.events.start import Start
from leasehold.insight import Inspector, PartitionView, ResetPlan, open_inspector, plan_reset
from leasehold.names import last_part

checkpoints_app = typer.Typer(
    name="checkpoints", help="How far a group is in its stream.", no_args_is_help=True
)


@checkpoints_app.command("ls", cls=Watching, epilog="leasehold checkpoints ls orders billing")
def ls(
    stream: StreamName,
    group: GroupName,
    *,
    watch: Watch = None,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """List the checkpoints of a group: the last event that is done, and how many wait."""

    async def read_page(inspector: Inspector) -> Page:
        view = await inspector.group(stream, group)
        rows = [_row(each) for each in view.partitions]
        return Page(
            data=rows, blocks=[fitting_table(rows, _LAYOUTS)], notes=unknown_heads(inspector)
        )

    show(read_page, store=store, form=form, watch=watch)


@checkpoints_app.command(
    "reset", epilog="leasehold checkpoints reset orders billing --to 2026-01-31T12:00:00Z --execute"
)
def reset(
    stream: StreamName,
    group: GroupName,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            help="The next event: earliest, latest, seq:N, offset:N, or a time: "
            "2026-01-31T12:00:00Z.",
            metavar="PLACE",
        ),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Have none: a processor begins at its own --start.", metavar=""
        ),
    ] = False,
    partition: Annotated[
        list[str] | None,
        typer.Option(help="Only this one; give it once for each.", metavar="PARTITION"),
    ] = None,
    execute: Execute = False,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Put the checkpoints of a group to another place, also back, or remove them.

    Says for each partition which event is next now and then, and how many come again or are
    skipped. Nobody may own the partitions meanwhile: drain the members first.
    """
    if (to is None) == (not remove):
        raise UsageError("where to? Give either --to PLACE or --remove")
    start = Start.parse(to) if to is not None else None

    async def run() -> None:
        async with open_inspector(store_url(store)) as inspector:
            view = await inspector.group(stream, group)
            positions = await inspector.positions(stream)
            plan = await plan_reset(view, to=start, positions=positions, partitions=partition or ())
            rows = [row_of(each) for each in plan.partitions]
            print_page(
                Page(
                    data=rows,
                    blocks=[fitting_table(rows, _RESET_LAYOUTS)],
                    notes=unknown_heads(inspector),
                ),
                form,
            )
            await _reset(inspector, plan, "removed" if remove else "changed", execute=execute)

    anyio.run(run)


# --------------------------------------------------------------------------- parts

_PART = Column(name="partition", title="part", justify="right")
_DONE = (
    Column(name="checkpoint", justify="right"),
    Column(name="head", justify="right"),
    Column(name="lag_events", title="lag", justify="right", shown=count_cell),
    Column(name="lag_s", title="waits", justify="right", shown=seconds_cell),
    Column(name="checkpoint_epoch", title="epoch", justify="right"),
    Column(name="checkpointed_at", title="written", shown=time_cell),
)
_LAYOUTS = ((_PART, *_DONE),)
_RESET_LAYOUTS = (
    (
        _PART,
        Column(name="now", title="next now", justify="right"),
        Column(name="then", title="next then", justify="right"),
        Column(name="again", justify="right", shown=count_cell),
        Column(name="skipped", justify="right", shown=count_cell),
        Column(name="held_by", title="owned by", fold=True),
    ),
)


def _row(part: PartitionView) -> dict[str, object]:
    row = row_of(part)
    names = [column.name for column in (_PART, *_DONE)]
    return {name: row[name] for name in ("key", "first", "missed_events", *names)}


async def _reset(inspector: Inspector, plan: ResetPlan, done: str, *, execute: bool) -> None:
    what = f"{counted(len(plan.partitions), 'checkpoint')} {done}"
    if not execute:
        if plan.held:
            err.print(f"it would be refused now: {_held({e.key: e.held_by for e in plan.held})}")
        err.print(f"nothing was done; with --execute: {what}")
        return
    refused = await inspector.store.reset(plan.positions)
    if refused:
        raise LeaseLost(f"nothing was changed: {_held(dict(refused))}")
    err.print(f"done: {what}")


def _held(holders: dict[str, str | None]) -> str:
    """Return who owns which partitions, and what to do about it."""
    key, holder = next(iter(holders.items()))
    more = len(holders) - 1
    others = f" (and {counted(more, 'other partition')} owned)" if more else ""
    drains = "; ".join(
        f"`leasehold members drain {each} --execute`"
        for each in sorted(filter(None, set(holders.values())))
    )
    whose = f"partition {last_part(key)} is owned by {holder}{others}"
    return f"{whose}. Have the owners leave first: {drains}"


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(checkpoints_app)
