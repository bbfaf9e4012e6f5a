"""The commands of the command line, and the exit codes of errors.

====  =====================================================
code  meaning
====  =====================================================
0     done
1     failed, or not done in time
2     usage error
3     not found
4     held by another process, or moved on
5     store or volume unavailable or unusable
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
from leasehold.printable import printable

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

# In the order of the help. Each is imported when it is asked for: a command that cron starts each
# minute does not need Arrow.
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


def build_app(names: Sequence[str]) -> typer.Typer:
    """Build the command line with these commands."""
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
    """Return the exit code for an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def _needed(arguments: Sequence[str]) -> Sequence[str]:
    """Return the commands to import: all of them for the help and for an unknown name."""
    if list(arguments) == ["--version"]:
        return ()
    return arguments if set(arguments) & set(_COMMANDS) else _COMMANDS


def run() -> None:
    """Run the command; print an expected error as one line on stderr."""
    arguments = sys.argv[1:2]
    if _ARROW_ALONE.intersection(arguments):
        quick = import_module("leasehold.cli.fast_start")
        quick.leave_pandas_out()
        quick.keep_numpy_small()
    try:
        build_app(_needed(arguments))()
    except LeaseholdError as error:
        _print_error(error)
        sys.exit(exit_code(error))
    except OSError as error:  # such as a full disk below our output
        _print_error(error)
        sys.exit(1)


def _print_error(error: Exception) -> None:
    """Print an error on one line; on a terminal, break it between words."""
    from rich.text import Text  # noqa: PLC0415 - rich takes its time

    from leasehold.cli.tables import err  # noqa: PLC0415

    text = Text.assemble(("error:", "red"), f" {printable(str(error))}")
    err.print(text, soft_wrap=not sys.stderr.isatty())
