"""A child process that is told what to do, and tells what it sees, by lines of JSON.

``told`` grows in a thread of its own, so that a test can wait for anything in it. The child ends
with its block, at the latest: killed, if it is still there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.support.azurite import installed, node
from tests.support.hub import until

HERE = Path(__file__).parent
TIMEOUT_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Child:
    """A running child."""

    process: subprocess.Popen[str]
    told: list[dict[str, Any]] = field(default_factory=list)

    def do(self, work: str, **how: object) -> None:
        """Tell it to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"work": work, **how}) + "\n")
        self.process.stdin.flush()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds. Fail, with what the child has told, if it ends before."""

        def over() -> bool:
            return bool(condition()) or self.process.poll() is not None

        try:
            until(over, timeout_s=TIMEOUT_S)
            assert condition(), f"the child has ended with {self.process.returncode}"
        except AssertionError as error:
            error.add_note(f"it has told: {self.told[-20:]}")
            raise

    def wait(self, **wanted: object) -> dict[str, Any]:
        """Wait for a line with these values; return the first one."""
        self.until(lambda: self.lines(**wanted))
        return self.lines(**wanted)[0]

    def lines(self, **wanted: object) -> list[dict[str, Any]]:
        """All lines with these values."""
        return [
            line
            for line in list(self.told)
            if all(key in line and line[key] == value for key, value in wanted.items())
        ]

    def values(self, key: str, **wanted: object) -> list[Any]:
        """What all lines that have it say under a key."""
        return [line[key] for line in self.lines(**wanted) if key in line]

    def hear(self, said: IO[str]) -> None:
        """Write down all it says."""
        for line in said:
            self.told.append(json.loads(line))


@contextmanager
def child(command: Sequence[str | Path], **variables: str) -> Iterator[Child]:
    """A process that has told that it is ready."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    ) as process:
        assert process.stdout is not None
        made = Child(process=process)
        hearing = threading.Thread(target=made.hear, args=(process.stdout,))
        hearing.start()
        try:
            made.wait(ready=True)
            yield made
        finally:
            process.kill()
            hearing.join()


@contextmanager
def node_child(script: str, **variables: str) -> Iterator[Child]:
    """A script of this directory, in Node."""
    modules = str(installed() / "node_modules")
    with child([node()[0], HERE / script], NODE_PATH=modules, **variables) as made:
        yield made


@contextmanager
def python_child(script: str) -> Iterator[Child]:
    """A script of this directory, in Python."""
    with child([sys.executable, HERE / script]) as made:
        yield made
