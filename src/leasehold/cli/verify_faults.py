"""The faults that ``verify`` finds: printed as lines or JSON, with a summary.

The summary says that nothing is lost only if every block has a replica without any fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.cli.common import (
    Output,
    counted,
    echo,
)
from leasehold.cli.tables import print_rows
from leasehold.errors import LeaseholdError
from leasehold.files.model import BlockState
from leasehold.log.streams import partition_directory

if TYPE_CHECKING:
    from leasehold.files import Fault, Namespace

_BLOCK = re.compile(r"\bblock (0x[0-9a-f]+)")
_LOG_FAULT = re.compile(r", partition (\d+), (\d+\.seg): (?:volume (\S+): )?(.*)", re.DOTALL)
_NO_VOLUME = {"", "-", None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFault:
    """One fault; what is not known is None."""

    what: str
    path: str | None = None
    volume: str | None = None
    partition: int | None = None

    @property
    def line(self) -> str:
        """The fault as one line."""
        volume = f"volume {self.volume}" if self.volume else ""
        return ": ".join(part for part in (self.path, volume, self.what) if part)


def file_fault(fault: Fault) -> ShownFault:
    """Return a fault of a file."""
    volume = None if fault.volume in _NO_VOLUME else fault.volume
    return ShownFault(path=fault.path, volume=volume, what=fault.what)


def stream_fault(stream: str, message: str) -> ShownFault:
    """Return a fault of a stream, parsed from the message of the log."""
    match = _LOG_FAULT.fullmatch(message.removeprefix(stream))
    if match is None:
        return ShownFault(what=message)
    number, name, volume, what = match.groups()
    return ShownFault(
        partition=int(number),
        path=f"{partition_directory(stream, int(number))}/{name}",
        volume=None if volume in _NO_VOLUME else volume,
        what=what,
    )


def print_faults(faults: Sequence[ShownFault], form: Output, *, partitions: bool = False) -> None:
    """Print all faults on stdout."""
    if form is Output.TABLE:
        for fault in faults:
            echo(fault.line)
        return
    rows: list[dict[str, object]] = [
        {"path": each.path, "volume": each.volume, "what": each.what} for each in faults
    ]
    if partitions:
        rows = [
            {"partition": each.partition, **row} for each, row in zip(faults, rows, strict=True)
        ]
    print_rows(rows, form, ())


def summary(faults: Sequence[ShownFault], files: Namespace) -> str:
    """Summarise: ``2 faults in 1 file``, and whether every block has a good replica."""
    if not faults:
        return "no faults"
    paths = {fault.path for fault in faults}
    message = f"{counted(len(faults), 'fault')} in {counted(len(paths), 'file')}"
    if all(path and _has_good_copies(files, path, faults) for path in paths):
        message += (
            "; every block still has a replica without fault: "
            "`leasehold files repair` makes the others again"
        )
    return message


def _has_good_copies(files: Namespace, path: str, faults: Iterable[ShownFault]) -> bool:
    """Return whether every block certainly has a replica without fault."""
    bad: set[tuple[int, str]] = set()
    for fault in faults:
        if fault.path == path:
            match = _BLOCK.search(fault.what)
            if match is None:
                return False
            # Without a volume: the block lies on too few of them, which is no damage.
            if fault.volume:
                bad.add((int(match[1], 16), fault.volume))
    try:
        blocks = files.read(path).blocks
    except (LeaseholdError, OSError):
        return False
    return all(
        any((block.id, volume) not in bad for volume in block.volumes)
        for block in blocks
        if block.state is BlockState.COMPLETE
    )
