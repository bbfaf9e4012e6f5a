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
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.errors import (
    FileExists,
    FileHeld,
    JobHeld,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    StoreError,
    UnknownResource,
    UsageError,
    VolumeUnusable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXIT_CODES: list[tuple[type[LeaseholdError], int]] = [
    (UsageError, 2),
    (UnknownResource, 3),
    (FileExists, 4),
    (FileHeld, 4),
    (JobHeld, 4),
    (RecoveryInProgress, 4),
    (LeaseLost, 4),
    (StoreError, 5),
    (VolumeUnusable, 5),
]

# In the order of the help. Each is imported when it is asked for: a wrapper of a command that cron
# starts each minute has no use for Arrow.
_COMMANDS = (
    *("process", "worker", "run", "simulate", "audit", "demo"),
    *("groups", "members", "partitions", "checkpoints", "files", "jobs", "log", "hub"),
)
# Those that need Arrow, and neither run Spark nor handlers of the user's.
_ARROW_ALONE = frozenset(
    ("checkpoints", "files", "groups", "hub", "jobs", "log", "members", "partitions")
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - it takes its time

        typer.echo(version("leasehold"))
        raise typer.Exit


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
    """One owner at a time for partitions, jobs, files and event logs."""


def made(names: Sequence[str]) -> typer.Typer:
    """The command line with these commands."""
    app = typer.Typer(
        name="leasehold",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name in names:
        import_module(f"leasehold.cli.{name}").add_to(app)
    return app


def exit_code(error: LeaseholdError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def _needed(arguments: Sequence[str]) -> Sequence[str]:
    """The commands to be imported: all of them for the help, and to say what was meant."""
    if list(arguments) == ["--version"]:
        return ()
    return arguments if set(arguments) & set(_COMMANDS) else _COMMANDS


def run() -> None:
    """Run, and turn every error of ours into one line on stderr."""
    arguments = sys.argv[1:2]
    if _ARROW_ALONE.intersection(arguments):
        quick = import_module("leasehold.cli.fast_start")
        quick.leave_pandas_out()
        quick.keep_numpy_small()
    try:
        made(_needed(arguments))()
    except LeaseholdError as error:
        _print_error(error)
        sys.exit(exit_code(error))
    except OSError as error:  # such as a full disk below our output
        _print_error(error)
        sys.exit(1)


def _print_error(error: Exception) -> None:
    """One line; a terminal gets it in lines of its width, broken between words."""
    from rich.console import Console  # noqa: PLC0415 - rich takes its time
    from rich.markup import escape  # noqa: PLC0415

    console = Console(stderr=True, soft_wrap=not sys.stderr.isatty())
    console.print(f"[red]error:[/] {escape(str(error))}")
