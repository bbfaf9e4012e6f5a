"""What all tests share: the async backend, their order, and `--spec-report FILE` for spec marks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

HERE = Path(__file__).parent
# What takes long begins first, so that the end is made of short tests and all workers end together.
# Simulations, which no load disturbs, run beside the JVMs; what waits for leases comes after them.
FIRST = ("cluster", "spark", "sim", "e2e", "contract", "integration")
# In tests/spark: these start drivers of their own instead of sharing the one session.
DRIVERS = (
    "test_demo",
    "test_run_pyspark",
    "test_spark_examples",
    "test_standby_example",
    "test_standby_processes",
)


class ByRoom(LoadScopeScheduling):  # type: ignore[misc]
    """One worker has all that shares the Spark session, another one all that starts drivers."""

    def _split_scope(self, nodeid: str) -> str:
        _, room, module, *_ = [*nodeid.partition("::")[0].split("/"), "", ""]
        if room == "cluster" or (room == "spark" and module.removesuffix(".py") in DRIVERS):
            return "drivers"
        return "spark" if room == "spark" else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByRoom:
    """Instead of the groups of xdist 3.8, which pytest 9.2 does not let it see."""
    return ByRoom(config, log)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order of ``FIRST``, then all others; within a directory nothing moves."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    directory = item.path.relative_to(HERE).parts[0] if HERE in item.path.parents else ""
    return FIRST.index(directory) if directory in FIRST else len(FIRST)


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
