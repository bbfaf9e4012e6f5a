"""What the examples say to a file that they cannot use, and where they put theirs. No Spark."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def refusal(monkeypatch: pytest.MonkeyPatch, file: str) -> str:
    """Run the example as a program; what it says on stderr, with exit code 1."""
    program = str(EXAMPLES / "spark_pipeline.py")
    monkeypatch.setattr(sys, "argv", [program, file])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(program, run_name="__main__")
    assert isinstance(left.value.code, str)
    return left.value.code


def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(monkeypatch, "mine.csv") == "error: there is no file mine.csv"
    assert refusal(monkeypatch, "mine.txt").startswith("usage: ")
    for file in (tmp_path / "mine.parquet", tmp_path / "mine.jsonl"):
        file.write_text("{this is neither\n" * 3, encoding="utf-8")
        output = refusal(monkeypatch, file.name)
        assert output.startswith(f"error: {file.name} can not be read: ")
        assert len(output.splitlines()) == 1


@pytest.mark.parametrize("name", ["spark_pipeline", "standby_query", "service", "process_events"])
def test_files_go_beside_a_sqlite_store_and_else_where_the_program_runs(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place_of = runpy.run_path(str(EXAMPLES / f"{name}.py"))["place_of"]
    assert place_of("sqlite:///leases.db") == Path()
    assert place_of("sqlite:////data/leases.db") == Path("/data")
    assert place_of("postgresql://ann@db/leases") == tmp_path
