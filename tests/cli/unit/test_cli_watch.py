"""``--watch``: a terminal is painted over, a pipe gets one page after the other; Ctrl-C ends it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.groups import Scene

COMMAND = str(Path(sys.executable).with_name("leasehold"))
ORDERS = ("orders", "billing")
PATIENCE_S = 60
LISTS = [
    ("groups", "ls"),
    ("groups", "describe", *ORDERS),
    ("members", "ls", *ORDERS),
    ("leases", "show", *ORDERS),
    ("leases", "show", *ORDERS, "0"),
    ("leases", "history", *ORDERS, "0"),
    ("checkpoints", "ls", *ORDERS),
]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(url=f"sqlite:///{tmp_path}/store.db")
    made.declare(range(2))
    made.join("a", 0)
    return made


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], scene: Scene
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, scene.url)


def started(scene: Scene, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LEASEHOLD_STORE": scene.url},
    )


def test_a_pipe_gets_one_line_of_json_for_each_look_until_ctrl_c(scene: Scene) -> None:
    with started(scene, "leases", "show", *ORDERS, "--watch=100ms", "-ojson") as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        scene.join("b", 1)
        looks = [first]
        while looks[-1][1]["owner"] != "b":
            looks.append(json.loads(watching.stdout.readline()))
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=PATIENCE_S)
        assert watching.returncode == 0, err
    assert [each["owner"] for each in looks[0]] == ["a", None]
    assert err == b""


def test_a_pipe_gets_one_table_for_each_look_and_may_close(scene: Scene) -> None:
    with started(scene, "groups", "ls", "--watch=100ms") as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline().decode().split() for _ in range(8)]
        watching.stdout.close()  # as `| head` does
        assert watching.wait(timeout=PATIENCE_S) == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == b""
    assert lines[2] == lines[6]
    assert (lines[2][:2], lines[3], lines[7]) == (list(ORDERS), [], [])


def test_a_terminal_is_painted_over_and_ctrl_c_leaves_it_as_it_was(scene: Scene) -> None:
    mine, theirs = pty.openpty()
    environment = {**os.environ, "LEASEHOLD_STORE": scene.url, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [COMMAND, "groups", "describe", *ORDERS, "--watch=100ms"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    ) as watching:
        os.close(theirs)
        seen = read_until(mine, b"Ctrl-C ends it", times=2)
        scene.join("b", 1)
        seen += read_until(mine, b"2 members", times=1)
        watching.send_signal(signal.SIGINT)
        seen += read_until(mine, b"\x1b[?25h", times=1)  # the cursor is back
        assert watching.wait(timeout=PATIENCE_S) == 0
    os.close(mine)
    words = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).decode()
    assert "again every 0.1s" in words
    assert b"\x1b[1A" in seen  # up, over what was painted before
    assert "Traceback" not in words


def read_until(terminal: int, words: bytes, *, times: int) -> bytes:
    seen = b""
    while seen.count(words) < times:
        ready, _, _ = select.select([terminal], [], [], PATIENCE_S)
        assert ready, f"{words!r} did not come: {seen!r}"
        seen += os.read(terminal, 65536)
    return seen


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_every_list_can_be_watched(
    leasehold: CommandLine, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasehold.clock import SystemClock

    looks = 0

    async def interrupted(self: SystemClock, seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert seconds == 2.0  # as often as --watch alone says
        if looks == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", interrupted)
    noun, verb, *rest = words
    done = leasehold(noun, verb, "--watch", *rest, "-ojson")  # it does not swallow the next word
    assert done.code == 0, done.err
    assert len(done.jsonl) == looks == 2


@pytest.mark.parametrize("every", ["1x", "0s", "2d", ""])
def test_a_wrong_time_is_refused(leasehold: CommandLine, every: str) -> None:
    done = leasehold("groups", "ls", f"--watch={every}")
    assert (done.code, done.out) == (2, "")
    assert "--watch" in done.err


def test_after_two_dashes_it_is_a_name(leasehold: CommandLine) -> None:
    done = leasehold("groups", "describe", "--", "--watch", "billing")
    assert (done.code, "'--watch'" in done.err) == (3, True)


def test_a_store_that_goes_away_is_said_and_looked_at_again(
    leasehold: CommandLine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasehold.clock import SystemClock
    from leasehold.errors import StoreUnavailable
    from leasehold.stores.sqlite.store import SqliteStore

    groups, looks = SqliteStore.groups, 0

    async def away(self: SqliteStore) -> object:
        if looks == 1:
            raise StoreUnavailable("no answer within 3 s")
        return await groups(self)

    async def interrupted(self: SystemClock, seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SqliteStore, "groups", away)
    monkeypatch.setattr(SystemClock, "sleep", interrupted)
    done = leasehold("groups", "ls", "--watch", "-ojson")
    assert (done.code, len(done.jsonl)) == (0, 3)
    assert done.err.count("not as it is now: no answer within 3 s") == 1
