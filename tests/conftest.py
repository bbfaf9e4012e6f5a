"""What all tests share: their kinds and order, the async backend, the leak check, the spec report.

A test lies in ``tests/<room>/<kind>/``: the room is the part of the product that it tests, the kind
says what it needs. See ``tests/support/kinds.py``.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.kinds import ByKind, Guard, mark, rank
from tests.support.leaks import KEY, LeakCheck, LeakReport
from tests.support.run_report import RunReport
from tests.support.spec_report import SpecReport, note_spec

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
    parser.addoption("--soak", action="store_true", help="only the tests that `make soak` runs")
    parser.addoption("--run-report", metavar="FILE", help="write how the run ended, as JSON")
    parser.addoption("--spec-report", metavar="FILE", help="write spec id -> tests, as JSON")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # What a shell or nohup lets us ignore, our children would ignore too. They get the default
    # instead of a handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    # NumPy starts a thread for each core where it is imported, which is in most child processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    plugins = config.pluginmanager
    worker = hasattr(config, "workerinput")
    if not worker:  # the controller alone reports
        plugins.register(leaks := LeakReport(), KEY)  # before the check: so it ends after it
        if config.option.basetemp is None:
            config.option.basetemp = str(leaks.place / "t")
        if target := config.getoption("--run-report"):
            plugins.register(RunReport(Path(target), leaks))
        if target := config.getoption("--spec-report"):
            plugins.register(SpecReport(Path(target)))
    if worker or not config.getoption("numprocesses", None):
        plugins.register(LeakCheck(config))
        plugins.register(Guard())


def pytest_itemcollected(item: pytest.Item) -> None:
    mark(item)
    note_spec(item)


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone all that was imported: it costs a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long kinds first, within a kind nothing moves; tests of the soak only if asked for."""
    items.sort(key=rank)
    soak = bool(config.getoption("--soak"))
    left_out = [each for each in items if bool(each.get_closest_marker("soak")) != soak]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if bool(each.get_closest_marker("soak")) == soak]
