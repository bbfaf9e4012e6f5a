"""``--run-report FILE``: how a run ended, as JSON, for the scripts in ``tools``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.support.leaks import LeakReport


class RunReport:
    """Collects the tests that failed, with what they printed, and writes them at the end."""

    def __init__(self, target: Path, leaks: LeakReport) -> None:
        self._target = target
        self._leaks = leaks
        self._failed: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._counts[report.outcome] += 1
        if report.failed:
            parts = [report.longreprtext, *(f"{name}\n{text}" for name, text in report.sections)]
            self._failed.setdefault(report.nodeid, "\n".join(parts))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken[report.nodeid] = report.longreprtext

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> object:
        result = yield
        found = {
            "exit": int(session.exitstatus),
            "passed": self._counts["passed"],
            "failed": self._failed,
            "broken": self._broken,
            "leaks": self._leaks.found,
        }
        self._target.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        return result
