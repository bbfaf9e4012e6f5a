"""``leasehold groups``: the groups of each stream, their members, partitions and lag."""

from __future__ import annotations

from textwrap import wrap

import typer
from rich.table import Table

from leasehold.cli.common import (
    Column,
    Form,
    GroupName,
    Output,
    StoreUrl,
    StreamName,
    count_cell,
    counted,
    row_of,
    seconds_cell,
    shown_seconds,
    unknown_heads,
)
from leasehold.cli.members import MEMBER_LAYOUTS, member_row
from leasehold.cli.tables import (
    fitting_table,
    line_width,
)
from leasehold.cli.watch import Page, Watch, Watching, show
from leasehold.insight import GroupView, Inspector, PartitionView
from leasehold.printable import printable

groups_app = typer.Typer(
    name="groups", help="Groups that share the partitions of a stream.", no_args_is_help=True
)


@groups_app.command("ls", cls=Watching, epilog="leasehold groups ls --watch")
def ls(*, watch: Watch = None, store: StoreUrl = None, form: Form = Output.TABLE) -> None:
    """List all groups: partitions, how many are owned, members, and how many events wait."""

    async def read_page(inspector: Inspector) -> Page:
        rows = [group_row(each) for each in await inspector.groups()]
        return Page(
            data=rows, blocks=[fitting_table(rows, _GROUP_LAYOUTS)], notes=unknown_heads(inspector)
        )

    show(read_page, store=store, form=form, watch=watch)


@groups_app.command("show", cls=Watching, epilog="leasehold groups show orders billing")
def show_group(
    stream: StreamName,
    group: GroupName,
    *,
    watch: Watch = None,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Show a group: its members, and for each partition its owner, checkpoint, head and lag."""

    async def read_page(inspector: Inspector) -> Page:
        view = await inspector.group(stream, group)
        members = [member_row(each) for each in view.members]
        partitions = [row_of(each) for each in view.partitions]
        tables = [fitting_table(partitions, PARTITION_LAYOUTS)]
        if members:
            tables.insert(0, fitting_table(members, MEMBER_LAYOUTS))
        return Page(
            data={
                **group_row(view),
                "lag_s": _rounded(view.lag_s),
                "members": members,
                "partitions": partitions,
            },
            blocks=[*_summary(view), "", *_spaced(tables)],
            notes=[*unknown_heads(inspector), *_problem_notes(view)],
        )

    show(read_page, store=store, form=form, watch=watch)


# --------------------------------------------------------------------------- parts


def group_row(view: GroupView) -> dict[str, object]:
    """Return a group as one row."""
    return {
        "stream": view.stream,
        "group": view.group,
        "partition_count": len(view.partitions),
        "owned": view.owned,
        "member_count": len(view.members),
        "spread": view.spread,
        "lag_events": view.lag_events,
        "fenced_writes": view.fenced_writes,
    }


_GROUP_LAYOUTS = (
    (
        Column(name="stream", fold=True),
        Column(name="group", fold=True),
        Column(name="partition_count", title="parts", justify="right"),
        Column(name="owned", justify="right"),
        Column(name="member_count", title="members", justify="right"),
        Column(name="spread", justify="right"),
        Column(name="lag_events", title="lag", justify="right", shown=count_cell),
        Column(name="fenced_writes", title="fenced", justify="right", shown=count_cell),
    ),
)
_PART = Column(name="partition", title="part", justify="right")
_STATE = Column(name="state")
_OWNER = Column(name="owner", fold=True, min_width=8)
_HOST = Column(name="host", fold=True)
_EPOCH = Column(name="epoch", justify="right")
_RENEWED = Column(name="renewed_ago_s", title="renewed", justify="right", shown=seconds_cell)
_LEFT = Column(name="time_left_s", title="left", justify="right", shown=seconds_cell)
_POSITIONS = (
    Column(name="checkpoint", justify="right"),
    Column(name="head", justify="right"),
    Column(name="lag_events", title="lag", justify="right", shown=count_cell),
    Column(name="lag_s", title="waits", justify="right", shown=seconds_cell),
)
# In a narrow terminal the host and its lease are in the table of the members, above.
PARTITION_LAYOUTS = (
    (_PART, _STATE, _OWNER, _HOST, _EPOCH, _RENEWED, _LEFT, *_POSITIONS),
    (_PART, _STATE, _OWNER, _EPOCH, *_POSITIONS),
)


def _summary(view: GroupView) -> list[str]:
    parts = counted(len(view.partitions), "partition")
    members = counted(len(view.members), "member")
    waits = ""
    if view.lag_events is not None:
        waits = f"; {counted(view.lag_events, 'event')} waiting"
        if view.lag_events and view.lag_s is not None:
            waits += f" for {shown_seconds(view.lag_s)}"
    fenced = counted(view.fenced_writes, "fenced write")
    spread = "" if view.spread is None else f", spread {view.spread}"
    owned = f"{view.stream} {view.group}: {parts}, {view.owned} owned"
    return wrap(printable(f"{owned}; {members}{spread}{waits}; {fenced}"), width=line_width())


def _spaced(tables: list[Table]) -> list[Table | str]:
    return [each for table in tables for each in (table, "")][:-1]


def _problem_notes(view: GroupView) -> list[str]:
    """Return notes on what the table of numbers does not show."""
    return [note for each in view.partitions for note in _problem_note(each)]


def _problem_note(part: PartitionView) -> list[str]:
    if part.failing:
        return [f"partition {part.partition}: the handler is failing {part.failing}"]
    if part.missed_events:
        events = counted(part.missed_events, "event")
        return [
            f"partition {part.partition}: retention has removed {events} that nobody had worked on"
        ]
    if part.beyond_end:
        problem = f"its checkpoint {part.checkpoint} lies beyond the newest event"
        advice = "was the stream made anew? `leasehold checkpoints reset` puts it right"
        return [f"partition {part.partition}: {problem}; {advice}"]
    return []


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(groups_app)
