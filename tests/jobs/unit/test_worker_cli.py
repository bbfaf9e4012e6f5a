"""``leasehold worker``: which jobs it finds, and what is wrong where it finds none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.cli.worker import StopSignals, load_jobs
from leasehold.errors import LeaseholdError, UsageError
from leasehold.testing.clock import ManualClock

MODULE = """
from leasehold.jobs.worker.definition import job


@job("one", every="30s")
def one(): ...


@job("two")
async def two(run): ...


def plain(): ...


both = [one, two]
"""

BAD_LINE = """
from leasehold.jobs import job


@job("one", cron="bad")
def one(): ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "worker_module_of_a_test.py").write_text(MODULE)
    (tmp_path / "worker_module_without_jobs.py").write_text("x = 1\n")
    (tmp_path / "worker_module_that_fails.py").write_text("1 / 0\n")
    (tmp_path / "worker_module_with_a_bad_line.py").write_text(BAD_LINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "worker_module_of_a_test"
    for name in [each for each in sys.modules if each.startswith("worker_module_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "found"),
    [("", ["one", "two"]), (":one", ["one"]), (":both", ["one", "two"])],
)
def test_all_jobs_of_a_module_are_found_or_those_that_are_named(
    module: str, name: str, found: list[str]
) -> None:
    assert [each.name for each in load_jobs(module + name)] == found


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("worker_module_without_jobs", UsageError, "has no jobs"),
        ("worker_module_of_a_test:plain", UsageError, "neither a job nor a list"),
        ("worker_module_of_a_test:three", UsageError, "there is no 'three'"),
        ("worker_module_of_a_test.py", UsageError, "is a file"),
        ("", UsageError, "can not be the name of a module"),
        ("worker_module_nowhere", UsageError, "there is no module"),
        ("worker_module_nowhere", UsageError, "write MODULE, such as billing.jobs"),
        ("worker_module_that_fails", LeaseholdError, "ZeroDivisionError"),
        ("worker_module_that_fails", UsageError, "ZeroDivisionError"),
        (
            "worker_module_with_a_bad_line",
            UsageError,
            r"^/.*worker_module_with_a_bad_line.py, line 5: schedule 'bad': it has 1 field: ",
        ),
    ],
)
def test_what_is_wrong_is_said(
    module: str, text: str, error: type[LeaseholdError], words: str
) -> None:
    with pytest.raises(error, match=words):
        load_jobs(text)


@pytest.mark.parametrize(("later_s", "left"), [(0.0, []), (0.9, []), (1.0, [143]), (60.0, [143])])
def test_a_signal_that_is_heard_twice_at_once_is_one_and_a_later_one_leaves(
    later_s: float, left: list[int]
) -> None:
    clock, stopped, codes, said = ManualClock(), list[bool](), list[int](), list[str]()
    stops = StopSignals(
        lambda: stopped.append(True), leave=codes.append, say=said.append, clock=clock
    )
    stops(15)
    clock.advance(later_s)
    stops(15)
    assert (stopped, codes) == ([True], left)
    assert len(said) == 1 + len(left)
