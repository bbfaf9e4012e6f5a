"""Paths of files: what may be in them, and what lies above and below them.

Directories are implicit: one is there while a file lies below it. All paths below a directory form
one range in the order of their code points, because ``0`` is the character after ``/``.
"""

from __future__ import annotations

from leasehold.errors import InvalidName

LONGEST_PATH = 1024
# An index entry of PostgreSQL has room for a third of a page.
_LONGEST_PATH_BYTES = 2048
_LONGEST_SHOWN = 80


def check_path(path: object) -> str:
    """Return ``path`` as it is.

    Raises:
        InvalidName: it is no path of a file; the message says how to write it.
    """
    why = _fault(path)
    if why is not None or not isinstance(path, str):
        raise InvalidName(
            f"{_short(path)} is no path of a file: {why}; write it from the root and without a "
            f"slash at its end, such as /logs/today, in {LONGEST_PATH} printable characters at most"
        )
    return path


def check_directory(path: object) -> str:
    """Return the path of a directory, without the slash that may stand at its end.

    Raises:
        InvalidName: it is no path of a directory; the message says how to write it.
    """
    if path == "/":
        return "/"
    bare = path.removesuffix("/") if isinstance(path, str) else path
    why = _fault(bare)
    if why is not None or not isinstance(bare, str):
        raise InvalidName(
            f"{_short(path)} is no directory: {why}; write it from the root, such as / or /logs, "
            f"in {LONGEST_PATH} printable characters at most"
        )
    return bare


def ancestors(path: str) -> list[str]:
    """The directories that ``path`` lies in, the root left out, the nearest first."""
    found = []
    parent = path.rpartition("/")[0]
    while parent:
        found.append(parent)
        parent = parent.rpartition("/")[0]
    return found


def below(directory: str) -> tuple[str, str]:
    """The range of all paths below a directory: the first value belongs to it, the second not."""
    bare = directory.removesuffix("/")
    return f"{bare}/", f"{bare}0"


def only(path: str) -> tuple[str, str]:
    """The range that holds this one path: what would lie between has an unprintable character."""
    return path, f"{path}\x01"


def _fault(path: object) -> str | None:
    if not isinstance(path, str):
        return "it must be text"
    parts = path[1:].split("/")
    faults = {
        "it does not begin with a slash": not path.startswith("/"),
        "it has characters that can not be shown": not path.isprintable(),
        f"it has {len(path)} characters": len(path) > LONGEST_PATH,
        # A text that can not be encoded is not printable either: said above, and not asked here.
        f"it takes more than {_LONGEST_PATH_BYTES} bytes in UTF-8": (
            len(path.encode(errors="replace")) > _LONGEST_PATH_BYTES
        ),
        "it has an empty part, or a slash at its end": "" in parts,
        "a part of it is . or ..": "." in parts or ".." in parts,
    }
    return next((words for words, found in faults.items() if found), None)


def _short(path: object) -> str:
    shown = repr(path)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
