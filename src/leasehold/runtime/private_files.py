"""New files and directories that only their user may use, whatever the umask is.

A file has the mode 0600 and a directory 0700 from the moment it exists. In a directory that was
made for a group, new files have 0660 and new directories 02770. Such a directory has the setgid
bit, its group may write in it, and others may not (``chmod 2770``); the kernel gives what is made
there to its group. What exists keeps its mode.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_PRIVATE_FILE, _GROUP_FILE = 0o600, 0o660
_PRIVATE_DIRECTORY, _GROUP_DIRECTORY = 0o700, 0o2770
_FOR_A_GROUP = stat.S_ISGID | stat.S_IWGRP


def create_file(path: str | os.PathLike[str]) -> int:
    """Create a file that must not exist; return its descriptor, for reading and writing.

    Raises:
        OSError: it exists, or it cannot be created.
    """
    mode = _GROUP_FILE if _is_for_a_group(path) else _PRIVATE_FILE
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode)
    if mode == _GROUP_FILE:
        try:
            os.fchmod(fd, mode)  # the umask may have taken the group's rights; it is empty still
        except BaseException:
            os.close(fd)
            raise
    return fd


def open_or_create(path: str | os.PathLike[str]) -> int:
    """Open a file for reading and writing, created if there is none; return its descriptor.

    Raises:
        OSError: it cannot be opened or created.
    """
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        try:
            return create_file(path)
        except FileExistsError:  # another process was faster, unless it is a dangling link
            if Path(path).is_symlink():
                raise


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory that must not exist.

    Raises:
        OSError: it exists, or it cannot be made.
    """
    is_for_a_group = _is_for_a_group(path)
    os.mkdir(path, _PRIVATE_DIRECTORY)  # noqa: PTH102
    if is_for_a_group:
        os.chmod(path, _GROUP_DIRECTORY)  # noqa: PTH101


def make_directories(path: str | os.PathLike[str]) -> None:
    """Make a directory and those above it, unless they exist.

    Raises:
        OSError: one cannot be made, or is not a directory.
    """
    directory = Path(path)
    if directory.is_dir():
        return
    make_directories(directory.parent)
    try:
        make_directory(directory)
    except FileExistsError:
        if not directory.is_dir():
            raise


def _is_for_a_group(path: str | os.PathLike[str]) -> bool:
    """Return whether the directory that a path is in was made for a group."""
    try:
        mode = os.stat(os.path.dirname(os.fspath(path)) or ".").st_mode  # noqa: PTH116, PTH120
    except OSError:
        return False
    return mode & (_FOR_A_GROUP | stat.S_IWOTH) == _FOR_A_GROUP
