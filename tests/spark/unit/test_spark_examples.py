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


def test_columns_of_ordinary_files_become_columns_that_delta_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(EXAMPLES / "spark_pipeline.py"))
    file = tmp_path / "My Orders.CSV"
    file.write_text("Order ID,order id,Partition,a;b=(c),empty,\n1,2,3,4,,5\n", encoding="utf-8")
    table = example["table_in"](file)
    assert table.schema.names == [
        "Order_ID", "order_id_2", "Partition_2", "a_b_c_", "empty", "column",
    ]  # fmt: skip
    assert str(table.schema.field("empty").type) == "string"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["spark_pipeline.py", "only_names.csv"])
    (tmp_path / "only_names.csv").write_text("a,b\n", encoding="utf-8")
    runpy.run_path(str(EXAMPLES / "spark_pipeline.py"), run_name="__main__")
    assert capsys.readouterr().out == "only_names.csv has no rows: nothing was sent\n"
    assert not (tmp_path / "leases.db").exists()
