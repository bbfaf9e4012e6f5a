"""What all tests share: their kinds and order, the async backend, the leak check, the spec report.

A test lies in ``tests/<room>/<kind>/``: the room is the part of the product that it tests, the kind
says what it needs. See ``tests/support/kinds.py``.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.kinds import ByKind, Guard, mark, rank
from tests.support.leaks import KEY, LeakCheck, LeakReport

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByKind:
    """Use ours: xdist 3.8 has groups, but pytest 9.2 hides their marks from it."""
    return ByKind(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spec-report", metavar="FILE", help="write spec id -> tests, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that runs the tests in the background has them ignore these, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    under_xdist = hasattr(config, "workerinput")
    if not under_xdist:  # with workers, the controller alone reports
        config.pluginmanager.register(LeakReport(), KEY)
        if target := config.getoption("--spec-report"):
            config.pluginmanager.register(SpecReport(Path(target)))
    if under_xdist or not config.getoption("numprocesses", None):
        config.pluginmanager.register(LeakCheck(config))
        config.pluginmanager.register(Guard())


def pytest_itemcollected(item: pytest.Item) -> None:
    mark(item)
    # User properties travel with the test's reports from xdist's workers to its controller.
    ids = {str(spec_id) for mark in item.iter_markers("spec") for spec_id in mark.args}
    item.user_properties.extend(("spec", spec_id) for spec_id in sorted(ids))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long kinds first; within a kind nothing moves."""
    items.sort(key=rank)


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
