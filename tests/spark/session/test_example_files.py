"""The example of a file of one's own takes JSON lines and Parquet too. Spark is the tests' own."""

from __future__ import annotations

import json
import runpy
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

PROGRAM = Path(__file__).parents[3] / "examples" / "spark_pipeline.py"
ROWS = [
    {"number": 1, "name": "a, b", "half": 0.5, "is_odd": True},
    {"number": 2, "name": 'a "word"\n', "half": None, "is_odd": False},
    {"number": 3, "name": "ä", "half": 1.5, "is_odd": True},
]


@pytest.mark.spec("S1", "S4")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_each_row_of_a_file_is_in_the_table_once(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"mine.{kind}"
    rows = ROWS
    if kind == "parquet":
        rows = [row | {"day": date(2026, 2, number)} for number, row in enumerate(ROWS, 1)]
        parquet.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main = runpy.run_path(str(PROGRAM))["main"]

    main(file, f"sqlite:///{tmp_path}/leases.db")

    found = DeltaTable(tmp_path / "mine-table").to_pyarrow_table()
    assert found.select([*rows[0]]).sort_by("number").to_pylist() == rows
    assert capsys.readouterr().out.startswith("3 rows by this driver, in 1 batch\n")
