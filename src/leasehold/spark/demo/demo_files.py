"""The files of a demo: its store, log, table and driver output.

A demo never deletes what is not one: a directory is emptied only if it bears the marker of a demo,
is the default directory, and no other demo is running in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = ".leasehold-demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFiles:
    """The files of one demo."""

    root: Path

    @property
    def url(self) -> str:
        """The store: leases, checkpoints, and the log's list of files."""
        return f"sqlite:///{self.root / 'leases.db'}"

    @property
    def volume(self) -> Path:
        """The events."""
        return self.root / "events"

    @property
    def table(self) -> Path:
        """What the drivers write, a Delta table."""
        return self.root / "delays"

    @property
    def logs(self) -> Path:
        """The output of the drivers."""
        return self.root / "logs"

    @property
    def report(self) -> Path:
        """The report of the audit."""
        return self.root / "report.html"


def default_root() -> Path:
    """Return the directory of the last demo if none is named."""
    return Path(tempfile.gettempdir()) / f"leasehold-demo-{os.getuid()}"


@contextmanager
def prepared(keep: Path | None) -> Iterator[DemoFiles]:
    """Prepare an empty directory: ``keep``, or the default one, whose last demo is deleted."""
    root = (keep or default_root()).absolute()
    if keep is not None and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f"--keep {keep} is there and not empty: name a new directory")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the directory {root} can not be made ({error.strerror}): name another one with --keep"
        ) from error
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise UsageError(f"{root} belongs to somebody else: name a directory with --keep")
    with _alone(root):
        if keep is None:
            _empty(root)
        place = DemoFiles(root=root)
        place.logs.mkdir()
        yield place


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the mark for as long as the demo lasts."""
    if not (root / _MARK).exists() and any(root.iterdir()):
        raise UsageError(
            f"{root} has something in it that is no demo: name another directory with --keep"
        )
    with (root / _MARK).open("w", encoding="utf-8") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another demo runs in {root}: wait for its end, or name another directory with "
                "--keep"
            ) from None
        yield


def _empty(root: Path) -> None:
    for each in root.iterdir():
        if each.name == _MARK:
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
