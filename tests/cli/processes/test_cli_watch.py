"""``--watch`` as a process: a terminal is painted over, a pipe gets one page after the other."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support.command import COMMAND, started
from tests.support.groups import Scene

ORDERS = ("orders", "billing")
PATIENCE_S = 60


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(url=f"sqlite:///{tmp_path}/store.db")
    made.declare(range(2))
    made.join("a", 0)
    return made


def test_a_pipe_gets_one_line_of_json_for_each_look_until_ctrl_c(scene: Scene) -> None:
    with started(
        "partitions", "ls", *ORDERS, "--watch=100ms", "-ojson", store=scene.url
    ) as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        scene.join("b", 1)
        looks = [first]
        while looks[-1][1]["owner"] != "b":
            looks.append(json.loads(watching.stdout.readline()))
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate()
        assert watching.returncode == 0, err
    assert [each["owner"] for each in looks[0]] == ["a", None]
    assert err == b""


def test_a_pipe_gets_one_table_for_each_look_and_may_close(scene: Scene) -> None:
    with started("groups", "ls", "--watch=100ms", store=scene.url) as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline().decode().split() for _ in range(8)]
        watching.stdout.close()  # as `| head` does
        assert watching.wait() == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == b""
    assert lines[2] == lines[6]
    assert (lines[2][:2], lines[3], lines[7]) == (list(ORDERS), [], [])


def test_a_terminal_is_painted_over_and_ctrl_c_leaves_it_as_it_was(scene: Scene) -> None:
    mine, theirs = pty.openpty()
    environment = {**os.environ, "LEASEHOLD_STORE": scene.url, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [COMMAND, "groups", "show", *ORDERS, "--watch=100ms"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    ) as watching:
        try:
            os.close(theirs)
            seen = read_until(mine, b"Ctrl-C ends it", times=2)
            scene.join("b", 1)
            seen += read_until(mine, b"2 members", times=1)
            watching.send_signal(signal.SIGINT)
            seen += read_until(mine, b"\x1b[?25h", times=1)  # the cursor is back
            assert watching.wait() == 0
        finally:
            watching.kill()
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
