"""The directory of a sink on this machine: what lies there, and that it can be made.

``refuse_taken`` only looks, so that a sink is refused before anything is written. Errors of the
disk become words of the sink.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.errors import SinkUnfit, VolumeUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What a sink of each kind has in its directory, from its first step on.
POINTER = "_leasehold.json"
FENCES = "_leasehold/fences"
DELTA = ("_delta_log", FENCES)
PARQUET = (POINTER,)
_NAMES = {DELTA: "a Delta table", PARQUET: "a Parquet sink"}


def contains_sink(directory: Path, kind: tuple[str, ...]) -> bool:
    """Whether there is a sink of this kind, ``DELTA`` or ``PARQUET``.

    Raises:
        OSError: nobody can tell.
    """
    return any((directory / each).exists() for each in kind)


def refuse_taken(directory: Path, *, sink: str, other: tuple[str, ...]) -> None:
    """Let pass only a directory, or a place for one, without a sink of the ``other`` kind.

    Raises:
        SinkUnfit: it is taken, or a file; ``sink`` is the name that the message has.
    """
    with sink_errors(sink, "read"):
        if directory.exists() and not directory.is_dir():
            raise SinkUnfit(f"{sink} is a file, not a directory: give a directory, or a new path")
        if contains_sink(directory, other):
            raise SinkUnfit(
                f"{sink} can not be used: {_NAMES[other]} is in this directory, and both would "
                "write their files into it. Nothing was written. Give another directory"
            )


def make_directory(directory: Path, *, sink: str) -> None:
    """Make it, with those above it; one that is there is left as it is.

    Raises:
        SinkUnfit: it can not be made.
    """
    with sink_errors(sink, "made"):
        directory.mkdir(parents=True, exist_ok=True)


@contextmanager
def sink_errors(sink: str, what: str) -> Iterator[None]:
    """Say what can not be done with the directory, and why.

    Raises:
        SinkUnfit: in place of an ``OSError``.
    """
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
    """Say that a disk, and no row, keeps rows from being written. For tasks.

    A value of a row that is too long for the name of a directory is the row's own fault.

    Raises:
        VolumeUnusable: in place of an ``OSError``.
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
