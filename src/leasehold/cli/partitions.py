"""``leasehold partitions``: who owns a partition, who did before; move it, or end that forcibly.

``break`` names the epoch it means: an ownership that began since is never touched.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import anyio
import typer
from typer.core import TyperGroup

from leasehold.cli.common import (
    Column,
    Execute,
    Form,
    GroupName,
    Output,
    PartitionId,
    StoreUrl,
    StreamName,
    count_cell,
    duration,
    row_of,
    seconds_cell,
    shown_seconds,
    store_url,
    time_cell,
    yes_no_cell,
)
from leasehold.cli.tables import (
    err,
    fitting_table,
    record_table,
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
from leasehold.errors import LeaseholdError, LeaseLost, UsageError
from leasehold.insight import GroupView, Inspector, PartitionView, open_inspector
from leasehold.insight.groups import would_be_undone
from leasehold.model import State, Term


class _Partitions(TyperGroup):
    """Suggests ``ls`` for the words that other commands use."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in {"show", "list"}:
            ctx.fail(f"No such command {args[0]!r}. Did you mean 'ls'?")
        return super().resolve_command(ctx, args)


partitions_app = typer.Typer(
    name="partitions",
    cls=_Partitions,
    help="Who owns the partitions of a group, who did before, and moving them.",
    no_args_is_help=True,
)


@partitions_app.command("ls", cls=Watching, epilog="leasehold partitions ls orders billing 3")
def list_partitions(
    stream: StreamName,
    group: GroupName,
    partition: Annotated[
        str | None, typer.Argument(metavar="[PARTITION]", help="Only this one, with all details.")
    ] = None,
    *,
    watch: Watch = None,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Show who holds each partition, in which epoch, for how long, and what is under way."""

    async def read_page(inspector: Inspector) -> Page:
        view = await inspector.group(stream, group, lags=partition is not None)
        if partition is not None:
            row = row_of(view.partition(partition))
            return Page(data=row, blocks=[record_table(row, _RECORD)])
        rows = [lease_row(each) for each in view.partitions]
        return Page(data=rows, blocks=[fitting_table(rows, _LEASE_LAYOUTS)])

    show(read_page, store=store, form=form, watch=watch)


@partitions_app.command(
    "history", cls=Watching, epilog="leasehold partitions history orders billing 3"
)
def history(
    stream: StreamName,
    group: GroupName,
    partition: PartitionId,
    *,
    limit: Annotated[
        int, typer.Option("-n", help="The last N terms.", min=1, max=100, metavar="N")
    ] = 10,
    watch: Watch = None,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """List who held a partition, newest first, and why each term ended."""

    async def read_page(inspector: Inspector) -> Page:
        key = (await inspector.group(stream, group, lags=False)).partition(partition).key
        rows = [_term_row(each) for each in await inspector.store.history(key, limit=limit)]
        return Page(data=rows, blocks=[fitting_table(rows, _TERM_LAYOUTS)])

    show(read_page, store=store, form=form, watch=watch)


@partitions_app.command(
    "break", epilog="leasehold partitions break orders billing 3 --epoch 7 --execute"
)
def break_lease(
    stream: StreamName,
    group: GroupName,
    partition: PartitionId,
    *,
    epoch: Annotated[
        int,
        typer.Option(help="The epoch you mean, as `partitions ls` shows it.", min=1, metavar="N"),
    ],
    after: Annotated[
        str | None,
        typer.Option(
            help="Leave the owner so much time to stop: 10s. \\[default: the length of its lease, "
            "which is safe]",
            metavar="TIME",
        ),
    ] = None,
    execute: Execute = False,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """End one ownership of a partition by force, at once or after a while.

    Exit code 4 if that epoch is over; then nothing is changed.
    """
    given = duration(after, option="--after") if after is not None else None

    async def run() -> None:
        async with open_inspector(store_url(store)) as inspector:
            part = (await inspector.group(stream, group, lags=False)).partition(partition)
            _check_epoch(part, epoch)
            lease_s = _lease_s(part)
            wait_s = lease_s if given is None else given.total_seconds()
            if wait_s is None:
                raise UsageError(
                    f"how long the lease of {part.owner} is can not be told: say --after TIME"
                )
            _print(part, form)
            _say_risk(part, wait_s, lease_s)
            if not execute:
                # The store never waits longer than the lease lasts.
                max_s = wait_s if part.time_left_s is None else min(wait_s, part.time_left_s)
                when = f"within {shown_seconds(max_s)}" if wait_s else "at once"
                err.print(f"nothing was done; with --execute: epoch {epoch} ends {when}")
                return
            done = await inspector.store.break_(
                part.key, epoch=epoch, after=timedelta(seconds=wait_s)
            )
            now = (await inspector.group(stream, group, lags=False)).partition(partition)
            if done is None:
                _check_epoch(now, epoch)
                raise LeaseLost(f"epoch {epoch} is not held any more: {describe_owner(now)}")
            left_s = done.breaking_s
            ends = f"ends within {shown_seconds(left_s)}" if left_s else "has ended"
            err.print(f"done: epoch {epoch} {ends}")

    anyio.run(run)


# --------------------------------------------------------------------------- parts


def describe_owner(part: PartitionView) -> str:
    """Describe who has a partition now."""
    if part.held_by is None:
        return f"now nobody has it, and its last epoch is {part.epoch} ({part.state.value})"
    if part.handed_to is not None:
        return f"now it is kept for {part.handed_to} (epoch {part.epoch} was handed over)"
    left = "" if part.time_left_s is None else f", {shown_seconds(part.time_left_s)} left"
    return f"now {part.owner} has it in epoch {part.epoch} ({part.state.value}{left})"


def lease_row(part: PartitionView) -> dict[str, object]:
    """Return the row of a partition: its lease, and what is in progress."""
    names = (
        "partition",
        "key",
        "state",
        "owner",
        "host",
        "pid",
        "epoch",
        "renewed_ago_s",
        "time_left_s",
        "breaking_s",
        "handed_to",
        "asked_by",
    )
    row = row_of(part)
    return {**{name: row[name] for name in names}, "under_way": _under_way(part)}


def _under_way(part: PartitionView) -> str | None:
    if part.state is State.BREAKING and part.breaking_s is not None:
        return f"ends within {shown_seconds(part.breaking_s)}"
    if part.handed_to is not None:
        return f"kept for {part.handed_to}"
    return None if part.asked_by is None else f"asked by {part.asked_by}"


_ROUNDING_S = 0.01  # two numbers of the store were added up
_PART = Column(name="partition", title="part", justify="right")
_STATE = Column(name="state")
_OWNER = Column(name="owner", fold=True)
_EPOCH = Column(name="epoch", justify="right")
_TIMES = (
    Column(name="renewed_ago_s", title="renewed", justify="right", shown=seconds_cell),
    Column(name="time_left_s", title="left", justify="right", shown=seconds_cell),
)
# The same titles as in the tables of this and the other commands.
_RECORD = (
    *_TIMES,
    Column(name="breaking_s", title="ends within", shown=seconds_cell),
    Column(name="checkpointed_at", title="written", shown=time_cell),
    Column(name="lag_events", title="lag", shown=count_cell),
    Column(name="lag_s", title="waits", shown=seconds_cell),
    Column(name="missed_events", title="missed", shown=count_cell),
    Column(name="beyond_end", shown=yes_no_cell),
)
_UNDER_WAY = Column(name="under_way", title="under way", fold=True)
_LEASE_LAYOUTS = (
    (_PART, _STATE, _OWNER, Column(name="host", fold=True), _EPOCH, *_TIMES, _UNDER_WAY),
    (_PART, _STATE, _OWNER, _EPOCH, *_TIMES, _UNDER_WAY),
)
_HELD = (_EPOCH, Column(name="holder", fold=True))
_BEGAN = Column(name="started_at", title="started", shown=time_cell)
_ENDED = (
    Column(name="lasted_s", title="lasted", justify="right", shown=seconds_cell),
    Column(name="reason"),
)
_TERM_LAYOUTS = (
    (*_HELD, _BEGAN, Column(name="ended_at", title="ended", shown=time_cell), *_ENDED),
    (*_HELD, _BEGAN, *_ENDED),
)


def _term_row(term: Term) -> dict[str, object]:
    lasted = None if term.ended_at is None else (term.ended_at - term.started_at).total_seconds()
    row = row_of(term)
    return {
        "epoch": row["epoch"],
        "holder": row["holder"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "lasted_s": lasted,
        "reason": row["reason"],
    }


def _check_epoch(part: PartitionView, epoch: int) -> None:
    """Refuse to break another ownership than the one that is meant."""
    if part.epoch != epoch or part.held_by is None or part.handed_to is not None:
        raise LeaseLost(
            f"epoch {epoch} of partition {part.partition} is not held: {describe_owner(part)}",
            key=part.key,
            epoch=epoch,
            reason="not_held",
            now_held_by=part.owner,
        )


def _lease_s(part: PartitionView) -> float | None:
    """Return the length of the owner's lease; ``None`` if it is not known."""
    if part.time_left_s is None or part.renewed_ago_s is None:
        return None
    return part.time_left_s + part.renewed_ago_s


def _print(part: PartitionView, form: Output) -> None:
    row = lease_row(part)
    print_page(Page(data=row, blocks=[fitting_table([row], _LEASE_LAYOUTS)]), form)


def _say_risk(part: PartitionView, wait_s: float, lease_s: float | None) -> None:
    if lease_s is None or wait_s < lease_s - _ROUNDING_S:
        long = "" if lease_s is None else f" of {shown_seconds(lease_s)}"
        err.print(
            f"warning: {shown_seconds(wait_s)} is less than its lease{long}: {part.owner} may "
            "still be at work when the next owner begins. Its checkpoints would be refused, its "
            "other effects not"
        )


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

    The owner finishes what it has begun, notes its position and passes the partition on. It stays
    there only if the balance allows it: the plan says so where it does not.
    """
    limit_s = duration(timeout, option="--timeout").total_seconds()

    async def run() -> None:
        async with open_inspector(store_url(store)) as inspector:
            view = await inspector.group(stream, group)
            part = view.partition(partition)
            if not _can_move(view, part, to):
                return
            row = _row(view, part, to)
            print_page(Page(data=row, blocks=[fitting_table([row], _LAYOUTS)]), form)
            if would_be_undone(view, owner=part.owner, to=to):
                err.print(f"warning: {to} would have more than its even share: {_UNDONE}")
            if not execute:
                err.print("nothing was done; with --execute the owner is asked to hand it over")
                return
            if not await inspector.store.request_hand_over(part.key, epoch=part.epoch, to=to):
                now = await inspector.group(stream, group, lags=False)
                raise _refused(now.partition(partition), to)
            err.print(f"asked: {part.owner} hears of it with its next renewal")
            if not no_wait:
                await _moved(inspector, view, part, to, limit_s)

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


def _can_move(view: GroupView, part: PartitionView, to: str) -> bool:
    """Return whether there is something to move; raise if it cannot be moved."""
    if part.held_by == to:
        err.print(f"{to} has partition {part.partition} already")
        return False
    if view.member(to).leaving:
        raise LeaseLost(f"{to} is leaving and takes nothing more: choose another member")
    if part.held_by is None:
        raise LeaseLost(
            f"nobody owns partition {part.partition} now, so nobody can hand it over: the members "
            "take it by themselves within a cycle"
        )
    return True


def _refused(part: PartitionView, to: str) -> LeaseLost:
    return LeaseLost(
        f"partition {part.partition} can not be moved to {to}: {describe_owner(part)}; look with "
        "`leasehold groups show` and ask again"
    )


async def _moved(
    inspector: Inspector, view: GroupView, part: PartitionView, to: str, limit_s: float
) -> None:
    """Wait until a partition has moved."""

    async def step() -> str | None:
        view_now = await inspector.group(view.stream, view.group, lags=False)
        now = view_now.partition(part.partition)
        if now.held_by == to and now.handed_to is None:
            return None
        if now.handed_to == to:
            return f"handed over; {to} has yet to take it"
        if now.epoch != part.epoch or now.held_by is None or now.handed_to is not None:
            why = f": {_UNDONE}" if would_be_undone(view, owner=part.owner, to=to) else ""
            raise LeaseLost(
                f"partition {part.partition} went another way: {describe_owner(now)}{why}",
                now_held_by=now.owner,
            )
        asked = "has yet to hand it over" if now.asked_by == to else "is asked no more"
        return f"{part.owner} {asked}"

    if not await wait_until_done(inspector, step, limit_s=limit_s):
        raise LeaseholdError(
            f"partition {part.partition} has not moved within {shown_seconds(limit_s)}; the "
            "question stands, see `leasehold partitions ls`"
        )
    err.print(f"{to} has partition {part.partition}")


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(partitions_app)
