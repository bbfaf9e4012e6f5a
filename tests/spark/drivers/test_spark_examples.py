"""The examples that need Spark run as they are printed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import csv
from tests.support.command import CommandLine
from tests.support.jvm import quick_jvm

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE_S = 500
ROWS = 5_000


@contextmanager
def started(*arguments: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-u", *arguments],
        cwd=path,
        env={**os.environ, "JDK_JAVA_OPTIONS": quick_jvm()},
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        try:
            yield popen
        finally:
            popen.kill()


@pytest.mark.spec("S3", "S4")
def test_two_pipelines_on_ones_own_file_share_it_and_put_each_row_in_once(tmp_path: Path) -> None:
    numbers = range(ROWS)
    rows = pa.table(
        {
            "number": list(numbers),
            "name": [f"row {number}" for number in numbers],
            "half": [number / 2 if number % 3 else None for number in numbers],
        }
    )
    csv.write_csv(rows, tmp_path / "mine.csv")
    arguments = (str(EXAMPLES / "spark_pipeline.py"), "mine.csv")
    with started(*arguments, path=tmp_path) as one, started(*arguments, path=tmp_path) as other:
        output = [each.communicate(timeout=PATIENCE_S)[0] for each in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], output
    assert sum(int(out.split()[0].replace(",", "")) for out in output) == ROWS
    assert all("1 batches" not in out for out in output)
    (read,) = {out.splitlines()[-1] for out in output}
    command = [sys.executable, *shlex.split(read)[1:]]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    found = DeltaTable(tmp_path / "mine-table").to_pyarrow_table()
    assert found.select(rows.column_names).sort_by("number").equals(rows)
    places = found.group_by(["partition", "sequence_number"]).aggregate([])
    assert places.num_rows == ROWS


@pytest.mark.spec("S5")
def test_standby_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    leasehold = CommandLine(monkeypatch, capfdbinary, f"sqlite:///{tmp_path}/leases.db")
    events = tmp_path / "events.txt"
    events.write_text("a\nb\nc\n", encoding="utf-8")
    with started(str(EXAMPLES / "standby_query.py"), path=tmp_path) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline().startswith("orders: active, epoch 1: as orders-")
        assert leasehold("log", "append", "orders", str(events)).code == 0
        table = str(tmp_path / "orders-table")
        found: list[str] = []
        while len(found) < 3:
            line = driver.stdout.readline()  # on a machine that is busy Spark may fail once
            assert line.startswith(("orders: batch", "orders: failed", "orders: active")), line
            if line.startswith("orders: batch") and DeltaTable.is_deltatable(table):
                found = DeltaTable(table).to_pyarrow_table().column("body").to_pylist()
        assert sorted(found) == ["a", "b", "c"]
        driver.send_signal(signal.SIGINT)
        assert driver.stdout.read().splitlines()[-1].startswith("orders: stopped, epoch")
        assert driver.wait(PATIENCE_S) == 0
