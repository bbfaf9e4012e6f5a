"""One run of the tests in a process of its own, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
PYTEST = str(ROOT / ".venv" / "bin" / "pytest")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """How a run ended. ``failed`` maps each failed test to what it printed."""

    __test__ = False  # not a test, whatever its name begins with

    code: int
    passed: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    leaks: Sequence[str] = ()

    @property
    def green(self) -> bool:
        """Whether everything passed and nothing leaked."""
        return self.code == 0

    def words(self) -> str:
        """Return the counts, in a few words."""
        said = [f"{self.passed:,} passed", f"{len(self.failed):,} failed"]
        if self.broken:
            said.append(f"{len(self.broken)} files not collected")
        if self.leaks:
            said.append(f"{len(self.leaks)} leaks")
        if self.code and not (self.failed or self.broken or self.leaks):
            said.append(f"exit code {self.code}")
        return ", ".join(said)


def run_tests(
    command: Sequence[str], *, args: str, log: Path | None = None, env: Mapping[str, str] = {}
) -> TestRun:
    """Run ``command`` with the report option in ``args`` (``{report}`` stands for the option).

    What it prints goes to ``log``, or to this process's own output.
    """
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        words = [*command, args.format(report=f"--run-report={report}")]
        output = None if log is None else log.open("wb")
        try:
            code = subprocess.run(
                words,
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                check=False,
            ).returncode
        finally:
            if output is not None:
                output.close()
        if not report.exists():
            return TestRun(code=code or 1)
        found = json.loads(report.read_text(encoding="utf-8"))
    return TestRun(
        code=code,
        passed=found["passed"],
        failed=found["failed"],
        broken=found["broken"],
        leaks=found["leaks"],
    )
