"""The examples run as they are printed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_share_partitions(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "share_partitions.py"), store],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("sharing 8 partitions")
        first = [process.stdout.readline() for _ in range(8)]
        assert all(line.startswith("mine      partition/orders/billing/") for line in first)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read().splitlines()
        assert process.wait() == 0
    assert sorted(line.split()[0] for line in rest) == (
        ["finishing"] * 8 + ["leaving:"] + ["not"] * 8
    )


def test_a_wrong_url_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "share_partitions.py"), "sqlit:///x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'sqlit:///x' names no store: write memory://, sqlite:///")
    assert len(done.stderr.splitlines()) == 1
