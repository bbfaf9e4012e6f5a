"""The way from a spec mark to the table of `make spec`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from spec_table import WIDTH, judge, main, read_spec, table

CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"
MARKED = """
import pytest

@pytest.mark.spec("L1", "L2")
def test_good(): pass

@pytest.mark.spec("L2")
def test_bad(): assert False

@pytest.mark.spec("L3")
@pytest.mark.skip
def test_not_run(): pass

@pytest.fixture
def broken():
    yield
    raise OSError

@pytest.mark.spec("L4")
def test_bad_at_the_end(broken): pass

def test_unmarked(): pass
"""


def run_pytest(folder: Path, *options: str) -> None:
    """Run pytest in a session of its own, once more if it hangs.

    xdist's workers were seen, once in some hundred runs, to wait for each other for ever when
    they are started inside a worker. What is tested here is the report, not that.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    for last in (False, True):
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(timeout=50)
        except subprocess.TimeoutExpired:
            if last:
                raise
        else:
            return
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_marks_are_reported_with_and_without_xdist(tmp_path: Path, workers: str) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = spec\n")
    (tmp_path / "test_sample.py").write_text(MARKED)
    run_pytest(tmp_path, "-n", workers, "--spec-report", "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    assert {spec_id: [t["outcome"] for t in tests] for spec_id, tests in report.items()} == {
        "L1": ["passed"],
        "L2": ["failed", "passed"],
        "L3": ["skipped"],
        "L4": ["failed"],
    }


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
