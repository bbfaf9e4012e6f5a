"""The way from reports with spec ids to the table of `make spec`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.support.spec_report import SpecReport

from spec_table import WIDTH, judge, main, read_spec, table

Outcome = Literal["passed", "failed", "skipped"]
When = Literal["setup", "call", "teardown"]
PARTS: tuple[When, ...] = ("setup", "call", "teardown")


def reported(when: When, outcome: Outcome) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="tests/a.py::test_b",
        location=("tests/a.py", 1, "test_b"),
        keywords={},
        outcome=outcome,
        longrepr=None,
        when=when,
        user_properties=[("spec", "L1"), ("other", "L2")],
    )


def sent(report: pytest.TestReport, config: pytest.Config) -> pytest.TestReport:
    """As xdist's workers send it to the controller."""
    data: Any = config.hook.pytest_report_to_serializable(config=config, report=report)
    received = config.hook.pytest_report_from_serializable(
        config=config, data=json.loads(json.dumps(data))
    )
    assert isinstance(received, pytest.TestReport)
    return received


@pytest.mark.parametrize("by_a_worker", [False, True])
@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (("passed", "passed", "passed"), "passed"),
        (("passed", "failed", "passed"), "failed"),
        (("passed", "passed", "failed"), "failed"),
        (("passed", "failed", "failed"), "failed"),
        (("failed", None, "passed"), "failed"),
        (("skipped", None, "passed"), "skipped"),
    ],
)
def test_a_test_is_told_by_its_worst_part(
    tmp_path: Path,
    pytestconfig: pytest.Config,
    outcomes: tuple[Outcome | None, ...],
    told: str,
    by_a_worker: bool,
) -> None:
    report = SpecReport(tmp_path / "out.json")
    for when, outcome in zip(PARTS, outcomes, strict=True):
        if outcome is not None:
            part = reported(when, outcome)
            report.pytest_runtest_logreport(sent(part, pytestconfig) if by_a_worker else part)
    report.pytest_sessionfinish()
    written = json.loads((tmp_path / "out.json").read_text())
    assert written == {"L1": [{"test": "tests/a.py::test_b", "outcome": told}]}


def test_spec_is_read_from_its_tables() -> None:
    text = "| id | behaviour | built |\n|---|---|---|\n| L1 | a, b | yes |\n| B10 | c | later |\n"
    assert read_spec(text) == {"L1": True, "B10": False}


@pytest.mark.parametrize(
    ("outcomes", "built", "result"),
    [
        (["passed", "skipped"], True, "passed"),
        (["passed", "failed"], True, "FAILED"),
        (["failed"], False, "FAILED"),
        (["skipped"], True, "missing"),
        ([], True, "missing"),
        ([], False, "later"),
        (["passed"], False, "passed"),
    ],
)
def test_result_of_a_behaviour(outcomes: list[str], built: bool, result: str) -> None:
    assert judge(outcomes, built=built) == result


def test_table_is_narrow_and_counts_what_is_wrong() -> None:
    spec = {"L1": True, "L2": True, "L3": True, "J1": False}
    long_name = "tests/unit/test_x.py::test_" + "y" * 100
    report = {
        "L1": [{"test": long_name, "outcome": "passed"}],
        "L2": [{"test": "tests/a.py::test_b", "outcome": "failed"}],
    }
    lines, bad = table(spec, report)
    assert bad == 2
    assert max(map(len, lines)) <= WIDTH
    assert "L2       1  FAILED   a.py::test_b" in lines
    assert "J1       -  later" in lines
    assert lines[-1] == "4 behaviours: 1 passed, 1 later, 1 FAILED, 1 missing"


def test_built_and_unproved_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text("{}")
    assert main([str(tmp_path / "report.json")]) == 1
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out
