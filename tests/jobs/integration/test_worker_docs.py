"""The Python of the pages on workers and reservations works as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from leasehold.cli.worker import load_jobs

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_examples_of_reservations_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("reservations.md"):
        exec(compile(block, "reservations.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "part 0, written with epoch 1"
    assert said[-2:] == [
        "the run of 2026-03-01 02:00:00+00:00, epoch 2",
        "at work with epoch 3",
    ]


def test_the_module_of_the_page_on_workers_is_found_where_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "billing").mkdir()
    (tmp_path / "billing" / "jobs.py").write_text(blocks("workers.md")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the directory
    try:
        assert [each.name for each in load_jobs("billing.jobs")] == ["nightly", "poll", "mailer"]
    finally:
        for name in ("billing", "billing.jobs"):
            sys.modules.pop(name, None)
