"""The commands, and how errors become words and exit codes.

====  =====================================================
code  meaning
====  =====================================================
0     done
1     it was tried and failed
2     the command was written wrongly
3     there is no such thing
4     somebody else has it, or it has moved on
5     the store or a volume can not be reached or can not serve
====  =====================================================
"""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from leasehold.cli.audit import EXAMPLE as AUDIT_EXAMPLE
from leasehold.cli.audit import audit
from leasehold.cli.checkpoints import checkpoints_app
from leasehold.cli.demo import EXAMPLES as DEMO_EXAMPLES
from leasehold.cli.demo import demo
from leasehold.cli.files import files_app
from leasehold.cli.groups import groups_app
from leasehold.cli.leases import leases_app
from leasehold.cli.log import log_app
from leasehold.cli.members import members_app
from leasehold.cli.partitions import partitions_app
from leasehold.cli.process import EXAMPLE, process
from leasehold.cli.quick import leave_pandas_out
from leasehold.cli.simulate import EXAMPLES, simulate
from leasehold.errors import (
    FileExists,
    FileHeld,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    StoreError,
    UnknownResource,
    UsageError,
    VolumeUnusable,
)

_EXIT_CODES: list[tuple[type[LeaseholdError], int]] = [
    (UsageError, 2),
    (UnknownResource, 3),
    (FileExists, 4),
    (FileHeld, 4),
    (RecoveryInProgress, 4),
    (LeaseLost, 4),
    (StoreError, 5),
    (VolumeUnusable, 5),
]

# Those that run neither Spark nor handlers of the user's.
_ARROW_ALONE = frozenset(
    ("checkpoints", "files", "groups", "leases", "log", "members", "partitions")
)

app = typer.Typer(
    name="leasehold",
    help="One owner at a time for partitions, files and event logs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog=EXAMPLE)(process)
app.command(epilog=EXAMPLES)(simulate)
app.command(epilog=AUDIT_EXAMPLE)(audit)
app.command(epilog=DEMO_EXAMPLES)(demo)
for each in (
    groups_app,
    members_app,
    leases_app,
    partitions_app,
    checkpoints_app,
    files_app,
    log_app,
):
    app.add_typer(each)


def _show_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        typer.echo(installed_version("leasehold"))
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print the version.",
            metavar="",
        ),
    ] = False,
) -> None:
    """One owner at a time for partitions, files and event logs."""


def exit_code(error: LeaseholdError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def run() -> None:
    """Run, and turn every error of ours into one line on stderr."""
    if _ARROW_ALONE.intersection(sys.argv[1:2]):
        leave_pandas_out()
    try:
        app()
    except LeaseholdError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/] {escape(str(error))}")
        sys.exit(exit_code(error))
    except OSError as error:  # such as a full disk below our output
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/] {escape(str(error))}")
        sys.exit(1)
