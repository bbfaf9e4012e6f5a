"""The command line: in this process, the same code without its start, and as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.cli.app import run

COMMAND = str(Path(sys.executable).with_name("leasehold"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def jsonl(self) -> list[Any]:
        return [json.loads(line) for line in self.raw.splitlines()]

    @property
    def widest(self) -> int:
        return max(len(line) for line in self.out.splitlines())


class CommandLine:
    """``leasehold(...)`` as typed; the store is that of the test unless another is named."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes], store: str
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capture = capture
        monkeypatch.setenv("LEASEHOLD_STORE", store)
        monkeypatch.setenv("COLUMNS", "80")

    def __call__(self, *words: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["leasehold", *words])
        self._capture.readouterr()
        code = 0
        try:
            run()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        out, err = self._capture.readouterr()
        return Done(code=code, raw=out, err=err.decode())


@contextmanager
def started(
    *words: str, store: str, stdin: int | None = None, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """``leasehold ...`` as a process, which is killed at the end if it has not left."""
    with subprocess.Popen(
        [COMMAND, *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "LEASEHOLD_STORE": store},
    ) as process:
        try:
            yield process
        finally:
            process.kill()
