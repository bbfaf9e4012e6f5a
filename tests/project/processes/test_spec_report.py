"""From a spec mark to the report, in a run of pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
from pathlib import Path

from tests.support.spec_report import SpecReport, note_spec as pytest_itemcollected


def pytest_configure(config):
    config.pluginmanager.register(SpecReport(Path("out.json")))
"""
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


def test_marks_are_reported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = spec\n")
    (tmp_path / "test_sample.py").write_text(MARKED)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr  # some of its tests fail
    report = json.loads((tmp_path / "out.json").read_text())
    assert {spec_id: [t["outcome"] for t in tests] for spec_id, tests in report.items()} == {
        "L1": ["passed"],
        "L2": ["failed", "passed"],
        "L3": ["skipped"],
        "L4": ["failed"],
    }
