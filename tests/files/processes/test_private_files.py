"""What is made is for its user alone, whatever the umask is, or for a group if that is meant."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

UMASKS = [0o000, 0o022]
# The output of a user: it has the mode that the umask leaves, for those who are to read it.
OUTPUT = {"report", ".report.fence"}


def made(place: Path, umask: int) -> tuple[dict[str, int], dict[str, Any]]:
    """Have a process make all it can; return the modes of files, and of directories."""
    command = [sys.executable, "-m", "tests.support.private_files_process", str(place)]
    done = subprocess.run(command, umask=umask, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    modes = {name: mode for name, mode in found["modes"].items() if name not in OUTPUT}
    return modes, found


def of_kind(modes: dict[str, int], kind: str) -> set[int]:
    """The modes of the directories ("/"), the sockets ("=") or the files ("")."""
    found = {name for name in modes if (name[-1] if name[-1] in "/=" else "") == kind}
    assert found
    return {modes[name] for name in found if not name.startswith("s/s/")}


@pytest.mark.parametrize("umask", UMASKS)
def test_what_is_made_is_private(tmp_path: Path, umask: int) -> None:
    modes, found = made(tmp_path, umask)
    assert of_kind(modes, "/") == {0o700}
    assert of_kind(modes, "") == {0o600}
    assert {"log.db", "log.db-wal", "log.db-shm", "leases.db-wal", ".report.lock"} <= modes.keys()
    assert any(name.endswith(".data") for name in modes)
    assert any(name.endswith("=") for name in modes)
    assert {mode for name, mode in modes.items() if name[-1] == "/"} == {0o700}
    assert found["changed"] == 0, "each was made with its mode"


@pytest.mark.parametrize("umask", UMASKS)
def test_a_directory_of_a_group(tmp_path: Path, umask: int) -> None:
    place = tmp_path / "p"
    place.mkdir()
    place.chmod(0o2770)
    modes, _ = made(place, umask)
    assert of_kind(modes, "/") == {0o2770}
    assert of_kind(modes, "") == {0o660}
    (sockets,) = [
        mode
        for name, mode in modes.items()
        if name.startswith("s/s/leasehold-") and name[-1] == "/"
    ]
    assert sockets & 0o777 == 0o700


def test_what_exists_keeps_its_mode(tmp_path: Path) -> None:
    made(tmp_path, 0)
    shutil.rmtree(tmp_path / "s")
    existing = list(tmp_path.rglob("*"))
    for path in existing:
        path.chmod(0o755 if path.is_dir() else 0o644)
    modes, _ = made(tmp_path, 0)
    kept = {f"{path.relative_to(tmp_path)}{'/' if path.is_dir() else ''}" for path in existing}
    assert {"log.db", "leases.db", "v0/", "v1/"} <= kept
    assert {modes[name] for name in kept & modes.keys()} == {0o755, 0o644}
    assert {modes[name] for name in modes.keys() - kept if name.endswith(".data")} == {0o600}
    # SQLite gives the files beside a database the mode of the database.
    assert modes["log.db-wal"] == modes["log.db"] == 0o644


def test_a_new_database_is_never_open_to_others(tmp_path: Path) -> None:
    """Also before anything is in it: who has opened it by then could read what comes later."""
    path = tmp_path / "new.db"
    program = (
        "import os, stat, sys\n"
        "from leasehold.stores.blocking import open_blocking\n"
        "def seen(event, args):\n"
        "    if event == 'sqlite3.connect':\n"
        f"        print(oct(stat.S_IMODE(os.stat({str(path)!r}).st_mode)))\n"
        "sys.addaudithook(seen)\n"
        "import asyncio\n"
        "from leasehold.stores import open_store\n"
        "async def main():\n"
        f"    async with open_store('sqlite:///{path}'):\n"
        "        pass\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], umask=0, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0o600"]
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]
