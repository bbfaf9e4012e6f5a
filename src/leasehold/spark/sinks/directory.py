"""The directory of a sink on this machine: what it contains, and how it is made.

``refuse_taken`` only reads, so that a sink is refused before anything is written. Disk errors
become errors of the sink.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.errors import BatchFailed, SinkUnfit, VolumeUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from leasehold.spark.sinks.port import Batch

# What a sink of each kind has in its directory, from its first step on.
POINTER = "_leasehold.json"
FENCES = "_leasehold/fences"
DELTA = ("_delta_log", FENCES)
PARQUET = (POINTER,)
_NAMES = {DELTA: "a Delta table", PARQUET: "a Parquet sink"}


def contains_sink(directory: Path, kind: tuple[str, ...]) -> bool:
    """Return whether there is a sink of this kind, ``DELTA`` or ``PARQUET``."""
    return any((directory / each).exists() for each in kind)


def refuse_taken(directory: Path, *, sink: str, other: tuple[str, ...]) -> None:
    """Refuse a file, or a directory with a sink of the ``other`` kind."""
    with sink_errors(sink, "read"):
        if directory.exists() and not directory.is_dir():
            raise SinkUnfit(f"{sink} is a file, not a directory: give a directory, or a new path")
        if contains_sink(directory, other):
            raise SinkUnfit(
                f"{sink} can not be used: {_NAMES[other]} is in this directory, and both would "
                "write their files into it. Nothing was written. Give another directory"
            )


def make_directory(directory: Path, *, sink: str) -> None:
    """Make it and its parents; an existing one is left as it is."""
    with sink_errors(sink, "made"):
        directory.mkdir(parents=True, exist_ok=True)


def refuse_incomplete(
    sink: str,
    batch: Batch,
    files: Iterable[tuple[str, int]],
    size_of: Callable[[str], int | None],
) -> None:
    """Check that each staged file exists and has its size, just before the commit that names it.

    A cleaner may have deleted a file since it was staged, and a disk may have lost its end.

    Raises:
        BatchFailed: a file is missing or has another size; the batch must be staged again.
    """
    for path, size_bytes in files:
        found = size_of(path)
        if found != size_bytes:
            state = "is missing" if found is None else f"has {found:,} bytes"
            raise BatchFailed(
                f"the staged file {path} of {sink} {state}, and {size_bytes:,} bytes were written "
                f"for {batch.label}. Nothing was committed. The batch is staged again; if this "
                "repeats, look for a program that deletes files there, and at the disk",
                ranges=tuple(str(each.range) for each in batch.shares),
            )


@contextmanager
def sink_errors(sink: str, what: str) -> Iterator[None]:
    """Raise ``SinkUnfit`` in place of ``OSError``."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise SinkUnfit(
            f"{sink} can not be {what}: {error.strerror or error}{where}, give a directory that "
            "this user can write to"
        ) from error


@contextmanager
def volume_errors(path: str) -> Iterator[None]:
    """Raise ``VolumeUnusable`` in place of ``OSError``: a disk failed, not a row. For tasks.

    A value of a row that is too long for the name of a directory is the row's own fault.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        raise VolumeUnusable(
            f"rows can not be written to {path} on this machine ({error}): look at its room, its "
            "rights and the disk"
        ) from error
