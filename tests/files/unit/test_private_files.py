"""Private files and directories, and which directory was made for a group."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.runtime import private_files


@contextmanager
def with_umask(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize(
    ("parent", "file", "directory"),
    [
        (0o700, 0o600, 0o700),
        (0o777, 0o600, 0o700),
        (0o1777, 0o600, 0o700),
        (0o2777, 0o600, 0o2700),
        (0o775, 0o600, 0o700),
        (0o770, 0o600, 0o700),
        (0o2755, 0o600, 0o2700),
        (0o2770, 0o660, 0o2770),
        (0o2775, 0o660, 0o2770),
    ],
)
def test_modes(tmp_path: Path, umask: int, parent: int, file: int, directory: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(parent)
    with with_umask(umask):
        os.close(private_files.create_file(place / "a"))
        os.close(private_files.open_or_create(place / "b"))
        private_files.make_directory(place / "c")
        private_files.make_directories(place / "d" / "e")
    assert {mode(place / name) for name in "ab"} == {file}
    assert {mode(place / name) for name in ("c", "d", "d/e")} == {directory}


def test_what_exists_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    path.chmod(0o644)
    with pytest.raises(FileExistsError):
        private_files.create_file(path)
    handle = private_files.open_or_create(path)
    assert os.read(handle, 9) == b"x"
    os.close(handle)
    with pytest.raises(FileExistsError):
        private_files.make_directory(tmp_path)
    with pytest.raises(FileExistsError):
        private_files.make_directories(path)
    assert mode(path) == 0o644


def test_a_link_to_nothing_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileExistsError):
        private_files.open_or_create(tmp_path / "link")
    assert not (tmp_path / "nothing").exists()
