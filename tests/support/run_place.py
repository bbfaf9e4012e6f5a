"""The directory of a test run: what all its workers share lies in it, and goes with it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_VARIABLE = "LEASEHOLD_TEST_RUN"
_MEMORY = Path("/dev/shm")
_PLENTY = 4 << 30


def begin() -> Path:
    """Make the directory. The process that reports calls it, before it starts workers."""
    root = _root()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", root)  # so tmp_path is not in ours
    made = Path(tempfile.mkdtemp(prefix="lh-", dir=root))
    os.environ[_VARIABLE] = str(made)
    return made


def _root() -> str:
    """Return memory where there is plenty, else the disk: tests sync some ten thousand times."""
    if "TMPDIR" not in os.environ and _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
        free = os.statvfs(_MEMORY)
        if free.f_bavail * free.f_frsize > _PLENTY:
            return str(_MEMORY)
    return tempfile.gettempdir()


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
