"""The example with a standby runs as it is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.jvm import quick_jvm

EXAMPLE = Path(__file__).parents[3] / "examples" / "standby_query.py"
PATIENCE_S = 200


@pytest.mark.spec("S5")
@pytest.mark.timeout(PATIENCE_S + 60)
def test_standby_query(tmp_path: Path) -> None:
    tool = str(Path(sys.executable).parent / "leasehold")
    append = [tool, "log", "append", "orders", "--store", "sqlite:///leases.db"]
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "JDK_JAVA_OPTIONS": quick_jvm()},
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline().startswith("orders: active, epoch 1: as orders-")
            subprocess.run(
                append, cwd=tmp_path, input="a\nb\nc\n", text=True, check=True, capture_output=True
            )
            table = tmp_path / "orders-table"
            rows: list[str] = []
            while len(rows) < 3:
                line = driver.stdout.readline()  # on a machine that is busy Spark may fail once
                assert line.startswith(("orders: batch", "orders: failed", "orders: active")), line
                if (table / "_delta_log").exists():
                    rows = DeltaTable(table).to_pyarrow_table().column("body").to_pylist()
            assert sorted(rows) == ["a", "b", "c"]
            driver.send_signal(signal.SIGINT)
            assert driver.stdout.read().splitlines()[-1].startswith("orders: stopped, epoch")
            assert driver.wait(PATIENCE_S) == 0
        finally:
            driver.kill()
