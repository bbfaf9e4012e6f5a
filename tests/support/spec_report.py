"""Which tests prove which behaviour of docs/spec.md, and how they ended: for `make spec`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def note_spec(item: pytest.Item) -> None:
    """Put the ids of its marks where the test's reports take them along.

    User properties travel with the reports from xdist's workers to its controller.
    """
    ids = {str(spec_id) for mark in item.iter_markers("spec") for spec_id in mark.args}
    item.user_properties.extend(("spec", spec_id) for spec_id in sorted(ids))


class SpecReport:
    """Collects the outcome of every marked test and writes it at the end."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.outcomes: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Set-up and tear-down count when they did not pass, the call itself always.
        if report.when != "call" and report.outcome == "passed":
            return
        for name, value in report.user_properties:
            if name == "spec":
                tests = self.outcomes.setdefault(str(value), {})
                if tests.get(report.nodeid) != "failed":
                    tests[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        found = {
            spec_id: [{"test": test, "outcome": outcome} for test, outcome in sorted(tests.items())]
            for spec_id, tests in sorted(self.outcomes.items())
        }
        self.target.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
