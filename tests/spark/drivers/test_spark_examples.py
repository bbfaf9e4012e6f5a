"""The examples that need Spark run as they are printed."""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import csv
from tests.support.jvm import quick_jvm

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE_S = 280


def started(*words: str, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", *words],
        cwd=place,
        env={**os.environ, "JDK_JAVA_OPTIONS": quick_jvm()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_service_handles_batches(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "leasehold"), "log", "append", "orders"]
    with started(str(EXAMPLES / "service.py"), place=tmp_path) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == "ready\n"
            lines = '{"customer": "ann", "total": 7}\n{"customer": "ann", "total": 5}\n'
            subprocess.run(
                [*command, "--store", "sqlite:///leases.db"],
                cwd=tmp_path,
                input=lines,
                text=True,
                check=True,
                capture_output=True,
            )
            seen = 0
            while seen < 12:
                words = service.stdout.readline().split()
                assert words[2:5] == ["ann", "bought", "for"]
                seen += int(words[5])
            assert seen == 12
            service.send_signal(signal.SIGINT)
            assert service.wait(PATIENCE_S) == 0
        finally:
            service.kill()


@pytest.mark.spec("S3", "S4")
@pytest.mark.timeout(PATIENCE_S + 10)
def test_two_pipelines_on_ones_own_file_share_it_and_put_each_row_in_once(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "number": list(range(5_000)),
            "name": [f"row {number}" for number in range(5_000)],
            "half": [number / 2 if number % 3 else None for number in range(5_000)],
        }
    )
    csv.write_csv(rows, tmp_path / "mine.csv")
    program = str(EXAMPLES / "spark_pipeline.py")
    drivers = [started(program, "mine.csv", place=tmp_path) for _ in range(2)]
    try:
        said = [each.communicate(timeout=PATIENCE_S) for each in drivers]
    finally:
        for each in drivers:
            each.kill()
    assert [each.returncode for each in drivers] == [0, 0], said
    assert sum(int(out.split()[0].replace(",", "")) for out, _ in said) == 5_000
    for out, _ in said:
        assert "1 batches" not in out
        *_, read = out.splitlines()
        words = shlex.split(read)
        subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True, capture_output=True)
    found = DeltaTable(tmp_path / "mine-table").to_pyarrow_table()
    assert found.select(rows.column_names).sort_by("number").equals(rows)
    places = found.group_by(["partition", "sequence_number"]).aggregate([])
    assert places.num_rows == 5_000


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with started(str(EXAMPLES / "spark_pipeline.py"), "mine.csv", place=tmp_path) as program:
        _, said = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 1
    assert said == "error: there is no file mine.csv\n"


@pytest.mark.parametrize("name", ["spark_pipeline", "standby_query", "service", "process_events"])
def test_files_go_beside_a_sqlite_store_and_else_where_the_program_runs(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place_of = runpy.run_path(str(EXAMPLES / f"{name}.py"))["place_of"]
    assert place_of("sqlite:///leases.db") == Path()
    assert place_of("sqlite:////data/leases.db") == Path("/data")
    assert place_of("postgresql://ann@db/leases") == tmp_path


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_file_that_can_not_be_read_is_said_in_one_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"mine.{kind}").write_text("{this is neither\n" * 3, encoding="utf-8")
    with started(str(EXAMPLES / "spark_pipeline.py"), f"mine.{kind}", place=tmp_path) as program:
        _, said = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 1
    assert said.startswith(f"error: mine.{kind} can not be read: ")
    assert len(said.splitlines()) == 1


def test_a_file_that_is_none_of_these_is_refused_in_one_line(tmp_path: Path) -> None:
    with started(str(EXAMPLES / "spark_pipeline.py"), "mine.txt", place=tmp_path) as program:
        _, said = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 1
    assert said.startswith("usage: ")
