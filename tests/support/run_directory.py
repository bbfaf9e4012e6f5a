"""The directory of a test run: all that tests write, and the servers that its workers share.

It is in memory where there is plenty, since tests sync some ten thousand times. It is removed at
the end of a green run; that of a failed run stays until the next run begins.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "LEASEHOLD_TEST_RUN"
_MEMORY = Path("/dev/shm")
_PLENTY = 4 << 30


def begin() -> Path:
    """Make the directory. The process that reports calls it, before it starts workers."""
    root = _root()
    for each in root.glob("lh-*-*"):
        if not Path(f"/proc/{each.name.split('-')[1]}").exists():
            shutil.rmtree(each, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f"lh-{os.getpid()}-", dir=root))
    os.environ[_VARIABLE] = str(made)
    return made


def begun() -> Path:
    """Return the directory of the run that this process, or the one that started it, belongs to."""
    return Path(os.environ[_VARIABLE]) if _VARIABLE in os.environ else begin()


def shared() -> Path:
    """Return the directory for servers that all workers use."""
    place = begun() / "shared"
    place.mkdir(exist_ok=True)
    return place


def belongs(environ: list[str]) -> bool:
    """Whether a process with these variables was started by this run."""
    return f"{_VARIABLE}={os.environ.get(_VARIABLE)}" in environ


def _root() -> Path:
    if "TMPDIR" not in os.environ and _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
        free = os.statvfs(_MEMORY)
        if free.f_bavail * free.f_frsize > _PLENTY:
            return _MEMORY
    return Path(tempfile.gettempdir())
