"""The command as it is installed: a process of its own, on a terminal, and with processes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import termios
from contextlib import suppress

from tests.support.command import COMMAND

COLUMNS = 40


def leasehold(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)


def test_data_goes_to_stdout_words_to_stderr_and_errors_to_the_exit_code() -> None:
    done = leasehold("simulate", "--seeds", "3", "-o", "json")  # on several processes
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["violations"] == []
    wrong = leasehold("simulate", "--hosts", "0")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--hosts" in wrong.stderr


def test_an_error_on_a_terminal_is_broken_between_words() -> None:
    words = ("groups", "ls", "--store", "nothing://at-all")
    (line,) = leasehold(*words).stderr.splitlines()
    assert len(line) > 80
    mine, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, COLUMNS))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    with subprocess.Popen([COMMAND, *words], stderr=theirs, stdin=theirs, env=environment) as typed:
        try:
            os.close(theirs)
            seen = b""
            with suppress(OSError):  # nobody has the terminal any more
                while more := os.read(mine, 4096):
                    seen += more
            assert typed.wait() == 2
        finally:
            typed.kill()
            os.close(mine)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).splitlines()
    assert max(map(len, shown)) <= COLUMNS
    assert " ".join(each.strip() for each in shown) == line
