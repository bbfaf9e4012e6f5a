"""What all tests share: the async backend, and the report of spec marks (`--spec-report FILE`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spec-report", metavar="FILE", help="write spec id -> tests, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--spec-report")
    if target and not hasattr(config, "workerinput"):  # under xdist the controller alone writes
        config.pluginmanager.register(SpecReport(Path(target)))


def pytest_itemcollected(item: pytest.Item) -> None:
    # User properties travel with the test's reports from xdist's workers to its controller.
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
