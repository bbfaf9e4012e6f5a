"""An older database under newer volumes, as after a restored backup: nothing is destroyed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.namespaces import AT_ONCE, HARD_S, World, content

from leasehold.errors import LeaseholdError, VolumeNewer


def _copy(one: World, to: Path) -> None:
    """Back the database up, as its own tool does it."""
    with (
        closing(sqlite3.connect(one.url.removeprefix("sqlite:///"))) as source,
        closing(sqlite3.connect(to)) as target,
    ):
        source.backup(target)


def _restore(one: World, backup: Path) -> None:
    path = one.url.removeprefix("sqlite:///")
    for suffix in ("-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)
    shutil.copy(backup, path)


def _write(one: World, paths: list[str]) -> None:
    files = one.open()
    for path in paths:
        with files.create(path) as writer:
            writer.write(path.encode())
    files.close()


def _data(one: World) -> dict[Path, bytes]:
    found = [each for root in one.roots for each in (root / "blocks").rglob("*") if each.is_file()]
    return {path: path.read_bytes() for path in found}


def test_an_older_database_removes_and_overwrites_nothing_on_newer_volumes(
    one: World, tmp_path: Path
) -> None:
    _write(one, ["/a", "/b"])
    _copy(one, tmp_path / "backup.db")
    _write(one, [f"/new/{number}" for number in range(20)])
    _restore(one, tmp_path / "backup.db")
    newer = _data(one)

    files = one.open()
    for number in range(4):
        with pytest.raises(VolumeNewer, match="files adopt"):
            files.create(f"/again/{number}")
    with pytest.raises(VolumeNewer):
        files.append("/a")
    files.delete("/b")
    files.monitor.run_once()
    assert content(files, "/a") == b"/a"
    assert _data(one) == newer


def test_an_adopted_older_database_continues_above_all_numbers_ever_used(
    one: World, tmp_path: Path
) -> None:
    _write(one, ["/a", "/b"])
    _copy(one, tmp_path / "backup.db")
    _write(one, [f"/new/{number}" for number in range(20)])
    _restore(one, tmp_path / "backup.db")
    newer = _data(one)

    files = one.open()
    assert len(files.newer_volumes()) == len(one.roots)
    mark = files.adopt_volumes()
    assert not files.newer_volumes()
    with files.create("/again") as writer:
        writer.write(b"again")
        assert writer.epoch > mark.epoch
    files.delete("/b")
    files.monitor.run_once()
    assert content(files, "/again") == b"again"
    gone = {path for path in newer if not path.exists()}
    assert len(gone) == 2 * len(one.roots)  # data and meta of /b: a file that it knows


def test_a_block_that_the_newer_database_recovered_is_left_as_it_is(
    one: World, tmp_path: Path
) -> None:
    first = one.open()
    writer = first.create("/open")
    writer.write(b"kept")
    writer.sync()
    _copy(one, tmp_path / "backup.db")
    second = one.open()
    second.recover("/open", timeout=AT_ONCE)
    for each in (first, second):
        each.close()
    _restore(one, tmp_path / "backup.db")
    newer = _data(one)

    files = one.open()
    one.pass_s(HARD_S + 1)
    for adopted in (False, True):
        if adopted:
            files.adopt_volumes()
        with pytest.raises(LeaseholdError):
            files.recover("/open", timeout=AT_ONCE)
        files.monitor.run_once()
        assert _data(one) == newer
