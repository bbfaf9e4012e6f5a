"""Whether the program of a command is here to be executed, and what to say if it is not.

Guarantees: looked for as the guard will do it, and without running anything. What passes may still
fail to start: its interpreter may be missing.
"""

from __future__ import annotations

import os
from pathlib import Path

from leasehold.jobs.command.child import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND


def code_of(program: str) -> int:
    """0 if it can be executed, else the exit code that a shell would have for it."""
    there = [path for path in _paths(program) if os.access(path, os.F_OK)]
    if any(os.access(path, os.X_OK) and not Path(path).is_dir() for path in there):
        return 0
    return EXIT_NOT_EXECUTABLE if there else EXIT_NOT_FOUND


def why_not(program: str, code: int) -> str:
    """What to say of one that could not be executed, with the exit code ``code``."""
    name = f"{program!r} (looked for from {Path.cwd()})"
    if code != EXIT_NOT_FOUND:
        return f"{name} can not be executed: see its permissions and its first line"
    if any(os.access(path, os.F_OK) for path in _paths(program)):
        return f"the interpreter of {name} is not there: see its first line"
    return f"there is no command {name}: give its full path"


def _paths(program: str) -> list[str]:
    if os.sep in program:
        return [program]
    return [str(Path(folder) / program) for folder in os.get_exec_path()]
