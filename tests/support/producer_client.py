"""A producer in a process, as a test has it in hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
SOON_S = 120


class ProducerProcess:
    """See ``producer_process``: the body of every event is ``<name>:<number>``."""

    def __init__(self, url: str, stream: str, name: str, *, owner_timeout_s: float = 1.0) -> None:
        self.name = name
        self._popen = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.producer_process"),
                *(url, stream, name, str(owner_timeout_s)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def begin(self, count: int, *, partition: int | None = 0, batch: int = 1) -> None:
        assert self._popen.stdin is not None
        order = {"send": count, "batch": batch, "partition": partition}
        self._popen.stdin.write(json.dumps(order) + "\n")
        self._popen.stdin.flush()

    def says(self, event: str) -> dict[str, Any]:
        """Wait until it has said this."""
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event:
                return said
        raise AssertionError(f"{self.name} ended without saying {event}")

    def send(self, count: int, *, partition: int | None = 0, batch: int = 1) -> None:
        """Send, and wait until all is stored."""
        self.begin(count, partition=partition, batch=batch)
        self.says("done")

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(SOON_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._popen.communicate()
