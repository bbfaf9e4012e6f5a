"""``leasehold audit``: prove or refute on Spark that a group kept its guarantees.

Exit code 0 only if everything is proved. What could not be checked is not proved: the exit code is
1, unless ``--allow-unknown`` is given.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from leasehold.cli.app import exit_code
from leasehold.cli.common import (
    Column,
    Form,
    GroupName,
    Output,
    StoreUrl,
    StreamName,
    count_cell,
    counted,
    echo,
    store_url,
)
from leasehold.cli.tables import (
    err,
    fitting_table,
    print_record,
    print_table,
)
from leasehold.errors import LeaseholdError, UsageError
from leasehold.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.spark.audit import Audit

EXAMPLE = "leasehold audit orders billing --sink delta:delays --html audit.html"

_CHECKS = (
    (
        Column(name="verdict"),
        Column(name="claim", fold=True),
        Column(name="tested", title="tested on", justify="right"),
        Column(name="faults", title="against", justify="right", shown=count_cell),
    ),
)
_FINDINGS = (
    (
        Column(name="check", min_width=12, fold=True),
        Column(name="partition", title="part", justify="right"),
        Column(name="what", fold=True),
        Column(name="evidence", fold=True),
    ),
)


def audit(
    stream: StreamName,
    group: GroupName,
    *,
    sink: Annotated[
        str | None,
        typer.Option(
            help="Where the group writes: delta:PATH, parquet:PATH, log:STREAM or "
            "postgresql://host/database#TABLE.",
            metavar="SINK",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a report with pictures here.", metavar="FILE")
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[*].", metavar="URL")
    ] = None,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown", help="Exit with 0 though not all could be looked at.", metavar=""
        ),
    ] = False,
    store: StoreUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Prove or refute that a group had one owner at a time and did every event once.

    Looks at the history of owners, the checkpoints, the log, and with --sink at what was written.
    Changes nothing. Exit code 1 unless all is proved.
    """
    with _wrapped():
        url = store_url(store)
        _check_html(html)
        done = _run(stream, group, sink=sink, master=master, store=url)
        if html is not None:
            html.write_text(done.html(), encoding="utf-8")
            err.print(f"report: {html}")
    _print(done, form)
    if done.verdict.value != "PROVED" and not (allow_unknown and done.verdict.value == "UNKNOWN"):
        raise typer.Exit(1)


def _run(stream: str, group: str, *, sink: str | None, master: str | None, store: str) -> Audit:
    try:
        from leasehold.spark.audit import audit as run  # noqa: PLC0415 - Spark may be missing
        from leasehold.spark.audit.gather import refuse_unknown  # noqa: PLC0415
        from leasehold.spark.audit.rows import sink_of  # noqa: PLC0415
        from leasehold.spark.sessions import session  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"an audit runs on Spark, and the package {error.name!r} is missing: "
            "pip install 'leasehold[spark]'"
        ) from error
    rows_in = sink_of(sink, store=store) if sink is not None else None
    refuse_unknown(store=store, stream=stream, group=group, sink=rows_in)
    _print_progress("starting Spark")
    spark = session("leasehold audit", master=master)
    return run(spark, store=store, stream=stream, group=group, sink=rows_in, say=_print_progress)


@contextmanager
def _wrapped() -> Iterator[None]:
    """Break a long error between words on a terminal; elsewhere it stays one line."""
    try:
        yield
    except LeaseholdError as error:
        if not err.is_terminal:
            raise
        err.print(Text.assemble(("error:", "red"), f" {printable(str(error))}"), soft_wrap=False)
        raise typer.Exit(exit_code(error)) from error


def _check_html(html: Path | None) -> None:
    """Refuse a wrong path before the audit, which takes minutes."""
    if html is None:
        return
    if html.is_dir():
        raise UsageError(f"--html {html} is a folder: name a file in it, such as {html}/audit.html")
    if not html.absolute().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}: make it first")


def _print_progress(message: str) -> None:
    if err.is_terminal:
        err.print(f"{message} …")


def _print(done: Audit, form: Output) -> None:
    row = done.row()
    if form is not Output.TABLE:
        print_record(row, form)
        return
    echo(f"{done.verdict.value}  {done.headline}")
    echo("")
    checks = [{"tested": _tested(each), **each} for each in _rows(row["checks"])]
    print_table(fitting_table(checks, _CHECKS))
    found = _rows(row["findings"])
    if found:
        echo("")
        print_table(fitting_table(found, _FINDINGS))
    more = sum(each.faults + each.unknown for each in done.checks) - len(found)
    if more > 0:
        _print_note(f"and {counted(more, 'more finding')}: the first of each kind are shown")
    for note in done.notes:
        _print_note(f"note: {note}")


def _print_note(message: str) -> None:
    err.print(message, soft_wrap=not err.is_terminal)


def _rows(rows: object) -> list[dict[str, object]]:
    return [dict(each) for each in rows] if isinstance(rows, list) else []


def _tested(row: dict[str, object]) -> str:
    return counted(int(str(row["looked_at"])), str(row["unit"]))


def add_to(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(epilog=EXAMPLE)(audit)
