"""The log as the commands open it, and words that name the partition an error is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import leasehold.log
from leasehold.cli.common import said_for_commands, store_url
from leasehold.errors import Trimmed, UsageError

if TYPE_CHECKING:
    from leasehold.log import Log

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The name of the stream.")]


@contextmanager
def opened(store: str | None, *, make: bool = False, volumes: Sequence[Path] = ()) -> Iterator[Log]:
    """The log, without a monitor: a command that looks at things recovers nothing unasked."""
    url, options = store_url(store, make=make), leasehold.log.LogOptions(run_monitor=False)
    with (
        said_for_commands(),
        leasehold.log.Log.open(url, volumes=volumes, name="cli", options=options) as log,
    ):
        yield log


@contextmanager
def about(partition: int) -> Iterator[None]:
    """Name the partition in the errors that depend on it and do not say which it was."""
    try:
        yield
    except Trimmed as error:
        words = f"partition {partition}: {error}. Add --from earliest, or a later place."
        raise Trimmed(words, earliest=error.earliest) from error
    except UsageError as error:
        if "partition" in str(error):
            raise
        raise UsageError(f"partition {partition}: {error}") from error
